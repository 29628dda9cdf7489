"""Converts an image to the tensor of a view."""

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
        group="Preprocessing and streaming",
        subject=facts.get("BasicImageTransform"),
        what="Converts an image to the tensor of a view: bytes become numbers from zero to one, then"
        " each channel is centred and scaled. It runs on the CPU before the model, once per view, and"
        " is not part of a pass, so the main command does not count it.",
        blocks=(),
        layer="none: preprocessing on the CPU, before any stage",
        output="C, R, R",
        parameters={
            "mean": Parameter(
                "Value subtracted from each channel; None for no subtraction.", made.mean
            ),
            "std": Parameter("Divisor for each channel; None for no division.", made.std),
            "normalize": Parameter("If False, values stay between zero and one.", True),
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
            "R": Symbol("R", "pixels per side of a view"),
            "C": Symbol("C", "channels"),
        },
        formulas=Formulas(vector_flops="3 * C * R ** 2"),
        cases=tuple(case(f"one {label.removesuffix('s')}", R) for label, _, R in facts.views),
        flops_notes=("A division, a subtraction and a division per value; traced on the CPU.",),
        memory_notes=("No parameters; a view in fp32 takes four bytes per value.",),
        related=("BaseTransform", facts.whole_class, "ImageEncoderViT"),
        usage=f"""import numpy as np
{import_line(OCR, "BasicImageTransform")}

view = BasicImageTransform()(np.full((8, 8, 3), 255, dtype=np.uint8))
assert view.shape == (3, 8, 8) and bool((view == 1).all())""",
        notes="on the CPU, before any stage",
    )
