"""The CLIP encoder's position table, resized to a view."""

from __future__ import annotations

from dsocr_analyze.costs.operators import Kernels, copy
from dsocr_analyze.costs.position_table import bicubic_resize
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.clip import GROUP, tokens, view_cases
from dsocr_analyze.knowledge.families.position_table import resize_formula, resize_symbols
from dsocr_analyze.knowledge.families.reference_files import VISION
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, Parameter

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    clip = facts.clip
    d, side = clip.width, clip.image_size // clip.patch_size
    return Page(
        group=GROUP,
        subject=facts.get("get_abs_pos"),
        what="Resizes CLIP's learned position table to the number of patches of a view: bicubic,"
        " antialiased, in fp32. The class token's row is unchanged.",
        blocks=(("clip", "absolute positions"),),
        layer="costs.position_table.bicubic_resize",
        inputs={"abs_pos": "1, l ** 2 + 1, d"},
        output="1, q ** 2 + 1, d",
        parameters={
            "abs_pos": Parameter("The learned table, the class token's row first.", "a parameter"),
            "tgt_size": Parameter("Target number of tokens.", "q q + 1"),
        },
        diagram="""flowchart LR
  table["table [1, 1 + l l, d]"] --> same{"l = q?"}
  same -->|"yes"| itself["the table itself"]
  same -->|"no"| first["class row"]
  same -->|"no"| grid["grid, channels first, fp32"]
  grid --> resize["bicubic, antialiased"]
  first --> cat["concatenate [1, 1 + q q, d]"]
  resize --> cat""",
        pseudo_code="""first, grid = table[:1], table[1:].view(l, l, d)
if l == floor(sqrt(tgt_size)):
    return table
return cat([first, interpolate(grid.float(), q, mode="bicubic", antialias=True)])""",
        mathematics=r"P'_0 = P_0, \quad P'_{ij} = \sum_{a} \sum_{b} k(i, a)\, k(j, b)\, P_{ab}",
        symbols=resize_symbols("q"),
        formulas=Formulas(vector_flops=resize_formula("l", "q", "d")),
        cases=view_cases(
            facts,
            build=lambda: facts.get("get_abs_pos"),
            arguments=lambda _, R: [tensor(1, side * side + 1, d), tokens(facts, R)],
            closed_form=lambda _, R: _kernels(side, facts.token_side(R), d),
        ),
        flops_notes=(
            "Two FLOPs per tap of the window applied to the table, one dimension at a time: five taps"
            " if the table grows, one more than the width of the bicubic filter.",
        ),
        related=("CLIPVisionEmbeddings", "get_abs_pos_sam"),
        usage=f"""import torch
from {VISION} import get_abs_pos

table = torch.zeros(1, {side * side + 1}, 8)
assert get_abs_pos(table, {side * side + 1}) is table
assert get_abs_pos(table, {4 * side * side + 1}).shape == (1, {4 * side * side + 1}, 8)""",
        notes="nothing to do at the learned size",
        references=("keys", "clip"),
    )


def _kernels(side: int, q: int, d: int) -> Kernels:
    if q == side:
        return ()
    return (
        *copy("clone", side * side * d, BFLOAT16),
        *bicubic_resize(side, q, d, BFLOAT16),
        *copy("cat", (q * q + 1) * d, BFLOAT16),
    )
