"""A transformer block of the SAM encoder."""

from __future__ import annotations

from typing import Any, Final

from dsocr_analyze.architectures.ocr_family import vision
from dsocr_analyze.architectures.ocr_family.dimensions import SamDimensions
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.pre_norm import PRE_NORM, pre_norm_diagram
from dsocr_analyze.knowledge.families.sam import GROUP, SYMBOLS, attention_formulas, values
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Parameter, Symbol, pick

__all__ = ["page"]

_FORMULAS: Final = Formulas(
    macs="Am + 2 * N * g ** 2 * d * m",
    vector_flops="Av + N * g ** 2 * (6 * m + 13 * d)",
    params="4 * d ** 2 + 4 * d + 2 * t * D + 2 * d * m + m + d + 4 * d",
    activations="Aa + N * g ** 2 * (m + d)",
)


def page(facts: Facts) -> Page:
    """The page."""
    sam = facts.sam
    global_blocks = ", ".join(map(str, sam.global_attn_indexes)) or "none"
    return Page(
        group=GROUP,
        subject=facts.get("Block"),
        what="A transformer block of the SAM encoder: normalise, attend, add; normalise, MLP, add."
        " Most blocks attend within windows, after padding the grid to whole windows; some attend"
        f" over the whole grid (in {facts.model_name} blocks {global_blocks}).",
        blocks=(("sam", "window-attention block"), ("sam", "global-attention block")),
        layer="architectures.ocr_family.vision (one block of it)",
        inputs={"x": "N, g, g, d"},
        output="N, g, g, d",
        parameters=_parameters(sam, global_blocks),
        diagram=pre_norm_diagram(
            f"[N, g, g, {sam.width}]",
            norms=("norm1: LayerNorm", "norm2: LayerNorm"),
            attention=f"""  n1 --> part["window_partition<br/>pad to windows of {sam.window}"]
  part --> attn["attn: Attention"]
  attn --> unpart["window_unpartition<br/>drop the padding"]""",
            attended="unpart",
            mlp="mlp: MLPBlock",
        ),
        pseudo_code="""h = norm1(x)
if window_size:
    windows, padded = window_partition(h, window_size)
    h = window_unpartition(attn(windows), window_size, padded, (g, g))
else:
    h = attn(h)
x = x + h
return x + mlp(norm2(x))""",
        mathematics=PRE_NORM.replace(r"\mathrm{attn}", r"\mathrm{attn}_w"),
        symbols=_symbols(),
        formulas=_FORMULAS,
        cases=_cases(facts),
        flops_notes=(
            "Work on the padding of the windows is counted; norms and MLP run on the unpadded grid.",
        ),
        related=("Attention", "MLPBlock", "ImageEncoderViT"),
        usage=_usage(facts, sam),
        notes="pre-norm; windows padded to whole ones",
        references=("sam", "vitdet"),
    )


def _parameters(sam: SamDimensions, global_blocks: str) -> dict[str, Parameter]:
    return {
        "dim": Parameter("Width d.", sam.width),
        "num_heads": Parameter("Heads.", sam.heads),
        "mlp_ratio": Parameter("Hidden width of the MLP, divided by d.", sam.mlp_ratio),
        "qkv_bias": Parameter("Whether the fused q, k, v projection has a bias.", True),
        "norm_layer": Parameter("Constructor of the norms.", "LayerNorm"),
        "act_layer": Parameter("Constructor of the activation.", "GELU"),
        "use_rel_pos": Parameter("Whether attention has relative positions.", True),
        "rel_pos_zero_init": Parameter("Unused, as published.", True),
        "window_size": Parameter(
            "Side of a window; 0 attends globally.", f"{sam.window}, or 0 for {global_blocks}"
        ),
        "input_size": Parameter(
            "Grid that the tables of a global block are sized for.",
            (sam.position_grid, sam.position_grid),
        ),
    }


def _usage(facts: Facts, sam: SamDimensions) -> str:
    return f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

block = DeepSeekOCRSession.from_local().model.model.sam_model.blocks[0]
x = torch.empty(1, {facts.views[0][2] // sam.patch}, {facts.views[0][2] // sam.patch}, {sam.width}, dtype=torch.bfloat16, device="meta")
assert block(x).shape == x.shape"""


def _symbols() -> dict[str, Symbol]:
    attention = attention_formulas("Nw", "w")
    return pick("N g d H D m t", SYMBOLS) | {
        "w": Symbol("w", "side of the grid attended over: a window's, or g"),
        "c": Symbol("c", "windows per side, the last one padded", "ceil(g / w)"),
        "Nw": Symbol("N_w", "grids attended over", "N * c ** 2"),
        "Am": Symbol("M_{attn}", "MACs of attention", attention.macs),
        "Av": Symbol("V_{attn}", "vector FLOPs of attention", attention.vector_flops),
        "Aa": Symbol("A_{attn}", "matrix outputs of attention", attention.activations),
    }


def _cases(facts: Facts) -> tuple[Case, ...]:
    """For each view, the first block with windows and the first over the whole grid."""
    sam = facts.sam
    firsts = []
    for kind, wanted in (("windows", False), ("whole grid", True)):
        index = next((i for i in range(sam.layers) if sam.is_global(i) == wanted), None)
        if index is not None:
            firsts.append((kind, index))

    def of_call(N: int, R: int, index: int) -> dict[str, int]:
        g, is_global = facts.sam_grid(R), sam.is_global(index)
        tabled = sam.position_grid if is_global else sam.window
        window = g if is_global else sam.window
        return {**values(facts), "N": N, "g": g, "w": window, "t": 2 * tabled - 1}

    def arguments(N: int, R: int, index: int) -> list[Any]:
        g = facts.sam_grid(R)
        # The layout that the patch convolution writes: channels first.
        return [tensor(N, sam.width, g, g).permute(0, 2, 3, 1)]

    return cases_of(
        [(f"{view}, {kind}", N, R, index) for view, N, R in facts.views for kind, index in firsts],
        of_call,
        build=lambda N, R, index: facts.at(f"model.sam_model.blocks.{index}"),
        arguments=arguments,
        closed_form=lambda N, R, index: _kernels(facts, N, R, index),
    )


def _kernels(facts: Facts, N: int, R: int, index: int) -> ModuleKernels:
    sections = vision.sam_sections(N, R, facts.sam, BFLOAT16)
    path = f"model.sam_model.blocks.{index}"
    return next(section for section in sections if path in section.paths).modules
