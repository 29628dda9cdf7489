"""The SAM encoder's attention, in windows and over the whole grid."""

from __future__ import annotations

from typing import Any

from dsocr_analyze.architectures.ocr_family.dimensions import SamDimensions
from dsocr_analyze.costs import sam_attention
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.reference_files import VISION
from dsocr_analyze.knowledge.families.sam import (
    GRIDS,
    GROUP,
    SYMBOLS,
    attention_formulas,
    calls_by_grid,
    values,
)
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Page, Parameter, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    sam = facts.sam
    return Page(
        group=GROUP,
        subject=facts.get("Attention"),
        what="Multi-head self-attention over a grid of tokens. It adds a bias to every score that"
        " depends on the distance in rows and in columns between query and key, computed from the"
        " queries and two learned tables (decomposed relative positions). Windows are passed in as a"
        " larger batch of small grids.",
        blocks=(("sam", "window attention"), ("sam", "global attention")),
        layer="costs.sam_attention.grid_attention",
        inputs={"x": "N, g, g, d"},
        output="N, g, g, d",
        parameters=_parameters(sam),
        diagram=_diagram(sam),
        pseudo_code="""q, k, v = split(qkv(x))                      # [N, H, g g, D]
rows, columns = add_decomposed_rel_pos(q, rel_pos_h, rel_pos_w, (g, g), (g, g))
out = scaled_dot_product_attention(q, k, v, attn_mask=rows + columns)
return proj(join_heads(out))""",
        mathematics=r"a = \mathrm{softmax}\left(\frac{q k^T}{\sqrt{D}} + q \cdot R^h_{y, y'}"
        r" + q \cdot R^w_{x, x'}\right), \quad y = W_o\, a\, v",
        symbols=pick("N g d H D t m", SYMBOLS) | GRIDS,
        formulas=attention_formulas("N", "g"),
        cases=cases_of(
            calls_by_grid(facts),
            lambda N, g, rows: {**values(facts), "N": N, "g": g, "t": rows},
            build=lambda N, g, rows: _build(facts, rows),
            arguments=lambda N, g, rows: [tensor(N, g, g, sam.width)],
            closed_form=lambda N, g, rows: sam_attention.grid_attention(
                N, g, sam.width, sam.heads, rows, BFLOAT16
            ),
        ),
        flops_notes=(
            "Projections, both products of attention, and the two einsums of the bias are matrix"
            " work; a score costs a sum of the two bias terms, a scale, the bias and a softmax (five"
            " FLOPs).",
            "The distances between coordinates are computed at each call. The last term is the"
            " linear resizing of the tables if they do not match the grid.",
        ),
        memory_notes=(
            "The bias is stored for every head and every pair of tokens: in global attention it is"
            " the largest tensor of the encoder.",
        ),
        related=("Block", "add_decomposed_rel_pos", "ImageEncoderViT", "NoTPAttention"),
        usage=f"""import torch
from {VISION} import Attention

with torch.device("meta"):
    attention = Attention({sam.width}, {sam.heads}, use_rel_pos=True, input_size=({sam.window}, {sam.window}))
    y = attention(torch.empty(2, {sam.window}, {sam.window}, {sam.width}))
assert y.shape == (2, {sam.window}, {sam.window}, {sam.width})""",
        notes="bias of decomposed relative positions, fused attention",
        references=("sam", "vitdet", "mvit"),
    )


def _parameters(sam: SamDimensions) -> dict[str, Parameter]:
    return {
        "dim": Parameter("Width d.", sam.width),
        "num_heads": Parameter("Heads H.", sam.heads),
        "qkv_bias": Parameter("Whether the fused q, k, v projection has a bias.", True),
        "use_rel_pos": Parameter("Whether the bias of relative positions is added.", True),
        "rel_pos_zero_init": Parameter("Unused, as published.", True),
        "input_size": Parameter(
            "Grid that the two tables are sized for.",
            f"({sam.window}, {sam.window}) in windows, "
            f"({sam.position_grid}, {sam.position_grid}) globally",
        ),
    }


def _diagram(sam: SamDimensions) -> str:
    return f"""flowchart TB
  x["x [N, g, g, {sam.width}]"] --> qkv["qkv: Linear<br/>{sam.width} to {3 * sam.width}"]
  qkv --> q["q"]
  qkv --> k["k"]
  qkv --> v["v"]
  q --> rel["add_decomposed_rel_pos<br/>two einsums"]
  rel --> bias["bias [N, H, g g, g g]"]
  q --> sdpa["scaled dot-product attention"]
  k --> sdpa
  v --> sdpa
  bias --> sdpa
  sdpa --> proj["proj: Linear"]
  proj --> y["y [N, g, g, {sam.width}]"]"""


def _build(facts: Facts, rows: int) -> Any:
    sam, source = facts.sam, (rows + 1) // 2
    return facts.make("Attention", sam.width, sam.heads, True, True, True, (source, source))
