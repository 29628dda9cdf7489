"""From an image to the tensor of a view."""

from __future__ import annotations

import numpy as np

from dsocr_analyze.knowledge.families.reference_files import OCR
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Parameter, Symbol
from dsocr_analyze.knowledge.machinery.signature import import_line

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    made = facts.get("BasicImageTransform")()

    def case(label: str, R: int) -> Case:
        return Case(
            label,
            {"R": R, "C": facts.channels},
            lambda: facts.get("BasicImageTransform")().__call__,
            lambda: [np.zeros((R, R, facts.channels), dtype=np.uint8)],
            device="cpu",
        )

    return Page(
        name="BasicImageTransform",
        group="Preprocessing and streaming",
        subject=facts.get("BasicImageTransform"),
        what="From an image to the tensor of a view: bytes become numbers from zero to one, then"
        " each channel is centred and scaled. It runs on the CPU before the model, once a view, and"
        " is no part of a pass: the main job does not count it.",
        blocks=(),
        layer="none: preprocessing on the CPU, before any stage",
        output="C, R, R",
        parameters={
            "mean": Parameter(
                "What is subtracted, a value a channel; None for nothing.", made.mean
            ),
            "std": Parameter("What is divided by, a value a channel; None for nothing.", made.std),
            "normalize": Parameter("False leaves the values from zero to one.", True),
        },
        diagram="""flowchart LR
  image["image [R, R, C], bytes"] --> tensor["channels first, divided by the largest byte"]
  tensor --> mean["minus mean"]
  mean --> std["divided by std"]
  std --> y["view [C, R, R], fp32"]""",
        pseudo_code="""x = tensor(image).permute(2, 0, 1) / largest_byte
return (x - mean) / std""",
        mathematics=r"y_{c} = \frac{x_c / x_{max} - \mu_c}{\sigma_c}",
        symbols={
            "R": Symbol("R", "pixels a side of a view"),
            "C": Symbol("C", "channels"),
        },
        formulas=Formulas(vector_flops="3 * C * R ** 2"),
        cases=tuple(case(f"one {label.removesuffix('s')}", R) for label, _, R in facts.views),
        flops_notes=("A division, a subtraction, a division for each value; traced on the CPU.",),
        memory_notes=("No parameters; a view in fp32 takes four bytes a value.",),
        related=("BaseTransform", facts.whole_class, "ImageEncoderViT"),
        usage=f"""import numpy as np
{import_line(OCR, "BasicImageTransform")}

view = BasicImageTransform()(np.full((8, 8, 3), 255, dtype=np.uint8))
assert view.shape == (3, 8, 8) and bool((view == 1).all())""",
        notes="on the CPU, before any stage",
    )
