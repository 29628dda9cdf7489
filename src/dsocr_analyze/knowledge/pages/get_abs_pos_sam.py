"""The SAM encoder's position table, resized to a view."""

from __future__ import annotations

from dsocr_analyze.costs.position_table import bicubic_resize
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.position_table import resize_formula, resize_symbols
from dsocr_analyze.knowledge.families.reference_files import VISION
from dsocr_analyze.knowledge.families.sam import GROUP, view_cases
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, Parameter

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    d, source = facts.sam.width, facts.sam.position_grid
    return Page(
        group=GROUP,
        subject=facts.get("get_abs_pos_sam"),
        what="Resizes SAM's learned position table to the grid of a view: bicubic, antialiased, in"
        " fp32. A view at the table's own resolution uses it unchanged.",
        blocks=(("sam", "absolute positions"),),
        layer="costs.position_table.bicubic_resize",
        inputs={"abs_pos": "1, l, l, d"},
        output="1, g, g, d",
        parameters={
            "abs_pos": Parameter("The learned table.", "a parameter"),
            "tgt_size": Parameter("Target side.", "g"),
        },
        diagram="""flowchart LR
  table["table [1, l, l, d]"] --> same{"l = g?"}
  same -->|"yes"| itself["the table itself"]
  same -->|"no"| wide["channels first, fp32"]
  wide --> resize["bicubic, antialiased"]
  resize --> back["cast back, channels last"]""",
        pseudo_code="""if side == tgt_size:
    return abs_pos
return interpolate(abs_pos.float(), tgt_size, mode="bicubic", antialias=True).to(dtype)""",
        mathematics=r"P'_{ij} = \sum_{a} \sum_{b} k(i, a)\, k(j, b)\, P_{ab}",
        symbols=resize_symbols("g"),
        formulas=Formulas(vector_flops=resize_formula("l", "g", "d")),
        cases=view_cases(
            facts,
            build=lambda: facts.get("get_abs_pos_sam"),
            arguments=lambda _, R: [tensor(1, source, source, d), facts.sam_grid(R)],
            closed_form=lambda _, R: bicubic_resize(source, facts.sam_grid(R), d, BFLOAT16),
            more_values={"l": source},
        ),
        flops_notes=(
            "Two FLOPs per tap of the window applied to the table, one dimension at a time; shrinking"
            " by s widens it to 2 ceil(2 s) + 1 taps. This is an upper bound: the bicubic filter is"
            " 4 s wide, and taps outside it have zero weight.",
        ),
        related=("ImageEncoderViT", "get_abs_pos"),
        usage=f"""import torch
from {VISION} import get_abs_pos_sam

table = torch.zeros(1, {source}, {source}, 8)
assert get_abs_pos_sam(table, {source}) is table
assert get_abs_pos_sam(table, {source // 2}).shape == (1, {source // 2}, {source // 2}, 8)""",
        notes="nothing to do at the learned resolution",
        references=("keys", "sam"),
    )
