"""The interface of image transforms."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.reference_files import OCR
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.machinery.signature import import_line

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    return Page(
        group="Preprocessing and streaming",
        subject=facts.get("BaseTransform"),
        what="The interface of an image transform: called with an image, it returns the tensor that"
        " the model takes. It may have a random state and a fixed output shape. It is an abstract"
        " class, not a module.",
        blocks=(),
        layer="none: an interface",
        parameters={},
        diagram="""classDiagram
  class BaseTransform {
    <<abstract>>
    +set_rng()
    +__call__(x) Tensor
    +default_shape
  }
  BaseTransform <|-- BasicImageTransform""",
        pseudo_code="""class BaseTransform(ABC):
    def set_rng(*args): pass
    @abstractmethod
    def __call__(x): ...
    @property
    def default_shape(): raise NotImplementedError""",
        mathematics=r"\text{(no computation)}",
        flops_notes=("No computation of its own.",),
        memory_notes=("No parameters.",),
        related=("BasicImageTransform",),
        usage=f"""{import_line(OCR, "BaseTransform", "BasicImageTransform")}

assert issubclass(BasicImageTransform, BaseTransform)
try:
    BaseTransform()
except TypeError:
    pass  # abstract
else:
    raise AssertionError""",
        notes="interface of the image transforms",
    )
