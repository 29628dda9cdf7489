"""Relative positions in the SAM encoder's attention."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.costs import sam_attention
from dsocr_analyze.costs.operators import Kernels, copy, product
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.reference_files import VISION
from dsocr_analyze.knowledge.families.sam import (
    GRIDS,
    GROUP,
    SYMBOLS,
    calls_by_grid,
    relative_positions,
    values,
)
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, Parameter, pick

__all__ = ["page"]

_PARAMETERS: Final = {
    "q": Parameter("Queries of all heads.", "a tensor"),
    "rel_pos_h": Parameter("Table for the distance in rows.", "a parameter"),
    "rel_pos_w": Parameter("Table for the distance in columns.", "a parameter"),
    "q_size": Parameter("Rows and columns of the queries.", "(g, g)"),
    "k_size": Parameter("Rows and columns of the keys.", "(g, g)"),
}


def page(facts: Facts) -> Page:
    """The page."""
    sam = facts.sam
    D, H = sam.head_dim, sam.heads
    return Page(
        group=GROUP,
        subject=facts.get("add_decomposed_rel_pos"),
        also=(facts.get("get_rel_pos"),),
        what="The two terms of the decomposed relative-position bias: each query times the table"
        " row for its distance in rows from the key, and the same for columns. Tables that do not"
        " match the grid are first resized linearly in fp32.",
        blocks=(("sam", "relative positions"),),
        layer="costs.sam_attention.relative_positions",
        inputs={"q": "N * H, g ** 2, D", "rel_pos_h": "t, D", "rel_pos_w": "t, D"},
        output="N * H, g ** 2, g, 1",
        parameters=_PARAMETERS,
        diagram="""flowchart LR
  th["rel_pos_h [t, D]"] --> rh["get_rel_pos<br/>[g, g, D]"]
  tw["rel_pos_w [t, D]"] --> rw["get_rel_pos<br/>[g, g, D]"]
  q["q [N H, g g, D]"] --> eh["einsum over rows"]
  q --> ew["einsum over columns"]
  rh --> eh
  rw --> ew
  eh --> row["row term [N H, g g, g, 1]"]
  ew --> column["column term [N H, g g, 1, g]"]""",
        pseudo_code="""R_h = rel_pos_h[distance(rows)]               # [g, g, D]
R_w = rel_pos_w[distance(columns)]
row    = einsum("bhwc,hkc->bhwk", q, R_h)
column = einsum("bhwc,wkc->bhwk", q, R_w)""",
        mathematics=r"\mathrm{row}_{(y, x), y'} = q_{(y, x)} \cdot R^h_{y - y'}, \quad"
        r" \mathrm{column}_{(y, x), x'} = q_{(y, x)} \cdot R^w_{x - x'}",
        symbols=pick("N H g D t", SYMBOLS) | GRIDS,
        formulas=Formulas(
            macs="2 * N * H * g ** 3 * D",
            vector_flops=relative_positions("g"),
            activations="2 * N * H * g ** 3",
        ),
        cases=cases_of(
            calls_by_grid(facts),
            lambda N, g, rows: {**values(facts), "N": N, "g": g, "t": rows},
            build=lambda *_: facts.get("add_decomposed_rel_pos"),
            arguments=lambda N, g, rows: [
                tensor(N * H, g * g, D),
                tensor(rows, D),
                tensor(rows, D),
                (g, g),
                (g, g),
            ],
            closed_form=lambda N, g, rows: _kernels(N * H, g, rows, D),
        ),
        flops_notes=("The broadcast sum of the two terms belongs to `Attention`.",),
        related=("Attention", "Block"),
        usage=f"""import torch
from {VISION} import add_decomposed_rel_pos

g = {sam.window}
table = torch.zeros(2 * g - 1, {D})
row, column = add_decomposed_rel_pos(torch.zeros({H}, g * g, {D}), table, table, (g, g), (g, g))
assert row.shape == ({H}, g * g, g, 1) and column.shape == ({H}, g * g, 1, g)""",
        notes="two einsums; tables resized if the grid differs",
        references=("mvit",),
    )


def _kernels(n: int, g: int, rows: int, D: int) -> Kernels:
    """Formulas for n grids with g tokens per side, one per head."""
    term = (
        *product("einsum", g, n * g, g, D, BFLOAT16),
        *copy("clone", n * g**3, BFLOAT16),
    )
    terms = 2 * (*sam_attention.relative_positions(rows, g, D, BFLOAT16), *term)
    # The product over rows needs the rows of its queries first.
    return (*copy("clone", n * g * g * D, BFLOAT16), *terms)
