"""The SAM encoder."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.architectures.ocr_family import vision
from dsocr_analyze.architectures.ocr_family.dimensions import SamDimensions
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.position_table import resize_formula
from dsocr_analyze.knowledge.families.sam import GROUP, SYMBOLS, attention_formulas, view_cases
from dsocr_analyze.knowledge.machinery.facts import Facts, kernels_of, tensor
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, Parameter, Symbol, pick

__all__ = ["page"]

_FORMULAS: Final = Formulas(
    macs="N * g ** 2 * d * C * p ** 2 + Lw * Wm + Lg * Gm + (Lw + Lg) * 2 * N * g ** 2 * d * m"
    " + N * g ** 2 * n * (d + 9 * n) + 9 * N * q ** 2 * n * u + 9 * N * r ** 2 * u * v",
    vector_flops="2 * N * g ** 2 * d + I + Lw * Wv + Lg * Gv"
    " + (Lw + Lg) * N * g ** 2 * (6 * m + 13 * d) + 2 * N * g ** 2 * (8 * n + 2)",
    params="C * p ** 2 * d + d + l ** 2 * d"
    " + (Lw + Lg) * (4 * d ** 2 + 2 * d * m + 9 * d + m) + 2 * D * (Lw * tw + Lg * tg)"
    " + d * n + 9 * n ** 2 + 4 * n + 9 * n * u + 9 * u * v",
    activations="N * g ** 2 * d + Lw * (5 * N * c ** 2 * w ** 2 * d + 2 * N * c ** 2 * H * w ** 3)"
    " + Lg * (5 * N * g ** 2 * d + 2 * N * H * g ** 3) + (Lw + Lg) * N * g ** 2 * (m + d)"
    " + 2 * N * g ** 2 * n + N * q ** 2 * u + N * r ** 2 * v",
)


def page(facts: Facts) -> Page:
    """The page."""
    sam = facts.sam
    middle, out = sam.downsample_channels
    _, N, R = facts.views[0]
    return Page(
        group=GROUP,
        subject=facts.get("ImageEncoderViT"),
        what=f"The SAM encoder: patches, a learned position table resized to the view, {sam.layers}"
        " transformer blocks (most with attention within windows), a convolutional neck, and two"
        " stride-2 convolutions that leave one token for each square of four by four patches. It is"
        f" the first to process every view; its features go to `{facts.second_encoder}`.",
        blocks=(("sam", "SAM encoder"), ("sam", "neck and downsampling convolutions")),
        layer="architectures.ocr_family.vision.sam_sections",
        inputs={"x": "N, C, R, R"},
        output="N, v, r, r",
        parameters=_parameters(facts, sam),
        diagram=_diagram(facts, middle, out, sam),
        pseudo_code="""x = patch_embed(x) + get_abs_pos_sam(pos_embed, g)
for block in blocks:
    x = block(x)
x = neck(x.permute(0, 3, 1, 2))
return net_3(net_2(x).clone())""",
        mathematics=r"x^{(0)} = \mathrm{patch}(v) + P, \quad x^{(l)} = \mathrm{block}_l(x^{(l-1)}),"
        r" \quad y = W_3 * (W_2 * \mathrm{neck}(x^{(L)}))",
        symbols=_symbols(facts),
        formulas=_FORMULAS,
        cases=view_cases(
            facts,
            build=lambda: facts.at("model.sam_model"),
            arguments=lambda N, R: [tensor(N, facts.channels, R, R)],
            closed_form=lambda N, R: kernels_of(vision.sam_sections(N, R, sam, BFLOAT16)),
            more_values={
                "l": sam.position_grid,
                "w": sam.window,
                "n": sam.neck,
                "u": middle,
                "v": out,
            },
        ),
        flops_notes=(
            "The convolutions of the neck have no bias. The vendor's code copies the tensor between"
            " the stride-2 convolutions, which moves bytes but computes nothing.",
        ),
        memory_notes=("It has no cache, and nothing is kept after the prefill pass.",),
        related=(
            "PatchEmbed",
            "Block",
            "Attention",
            "LayerNorm2d",
            "get_abs_pos_sam",
            facts.second_encoder,
            facts.model_class,
        ),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

sam = DeepSeekOCRSession.from_local().model.model.sam_model
view = torch.empty({N}, {facts.channels}, {R}, {R}, dtype=torch.bfloat16, device="meta")
assert sam(view).shape == ({N}, {out}, {facts.token_side(R)}, {facts.token_side(R)})""",
        notes="the largest share of a page's work",
        references=("sam", "vitdet", "deepseekocr"),
    )


def _parameters(facts: Facts, sam: SamDimensions) -> dict[str, Parameter]:
    return {
        "img_size": Parameter(
            "Pixels per side that the position tables are sized for.", sam.image_size
        ),
        "patch_size": Parameter("Pixels per side of a patch.", sam.patch),
        "in_chans": Parameter("Channels of a view.", facts.channels),
        "embed_dim": Parameter("Width d of the blocks.", sam.width),
        "depth": Parameter("Number of blocks.", sam.layers),
        "num_heads": Parameter("Heads of a block.", sam.heads),
        "mlp_ratio": Parameter("Hidden width of a block's MLP, divided by d.", sam.mlp_ratio),
        "out_chans": Parameter("Channels of the neck.", sam.neck),
        "qkv_bias": Parameter("Whether the fused q, k, v projection has a bias.", True),
        "norm_layer": Parameter("Constructor of the blocks' norms.", "LayerNorm"),
        "act_layer": Parameter("Constructor of the MLPs' activation.", "GELU"),
        "use_abs_pos": Parameter("Whether the absolute position table is added.", True),
        "use_rel_pos": Parameter("Whether attention has relative positions.", True),
        "rel_pos_zero_init": Parameter("Unused, as published.", True),
        "window_size": Parameter("Side of the windows.", sam.window),
        "global_attn_indexes": Parameter(
            "Blocks that attend globally.", list(sam.global_attn_indexes)
        ),
    }


def _diagram(facts: Facts, middle: int, out: int, sam: SamDimensions) -> str:
    return f"""flowchart TB
  x["view [N, {facts.channels}, R, R]"] --> patch["patch_embed: PatchEmbed<br/>grid g = R / {sam.patch}"]
  pos["pos_embed, resized to g"] --> add["sum"]
  patch --> add
  add --> blocks["blocks: {sam.layers} x Block, width {sam.width}<br/>windows of {sam.window}; global: {", ".join(map(str, sam.global_attn_indexes))}"]
  blocks --> neck["neck: Conv2d 1x1, LayerNorm2d,<br/>Conv2d 3x3, LayerNorm2d; {sam.neck} channels"]
  neck --> net2["net_2: Conv2d 3x3, stride 2, {middle} channels"]
  net2 --> net3["net_3: Conv2d 3x3, stride 2, {out} channels"]
  net3 --> y["features [N, {out}, g / 4, g / 4]"]"""


def _symbols(facts: Facts) -> dict[str, Symbol]:
    sam = facts.sam
    window = attention_formulas("N * c ** 2", "w", "tw")
    whole = attention_formulas("N", "g", "tg")
    return {
        **pick("N R p d H D m", SYMBOLS),
        "C": Symbol("C", "channels of a view"),
        "g": Symbol("g", "patches per side, R / p"),
        "l": Symbol("l", "entries per side of the learned position table"),
        "w": Symbol("w", "side of a window"),
        "c": Symbol("c", "windows per side, the last one padded", "ceil(g / w)"),
        "n": Symbol("n", "channels of the neck"),
        "u": Symbol("c_1", "channels after the first stride-2 convolution"),
        "v": Symbol("c_2", "channels after the second"),
        "q": Symbol("q_1", "side after the first", "ceil(g / 2)"),
        "r": Symbol("q_2", "side after the second", "ceil(q / 2)"),
        "Lw": Symbol("L_w", "blocks with windows", str(sam.layers - len(sam.global_attn_indexes))),
        "Lg": Symbol("L_g", "blocks over the whole grid", str(len(sam.global_attn_indexes))),
        "tw": Symbol("t_w", "rows of a window's tables", "2 * w - 1"),
        "tg": Symbol("t_g", "rows of the whole grid's tables", "2 * l - 1"),
        "Wm": Symbol("M_w", "MACs of attention in windows", window.macs),
        "Wv": Symbol("V_w", "vector FLOPs of attention in windows", window.vector_flops),
        "Gm": Symbol("M_g", "MACs of attention over the grid", whole.macs),
        "Gv": Symbol("V_g", "vector FLOPs of attention over the grid", whole.vector_flops),
        "I": Symbol("I", "FLOPs of resizing the position table", resize_formula("l", "g", "d")),
    }
