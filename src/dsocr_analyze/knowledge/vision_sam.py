"""Pages of the SAM encoder: patches, attention in windows and globally, blocks, neck."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.architectures.ocr_family import vision
from dsocr_analyze.costs import sam_attention
from dsocr_analyze.costs.activations import gelu
from dsocr_analyze.costs.conv2d import conv2d
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.normalization import layer_norm_2d
from dsocr_analyze.costs.operators import Kernels, copy, product
from dsocr_analyze.costs.position_table import bicubic_resize
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.machinery.facts import Facts, kernels_of, tensor
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Parameter, Symbol

__all__ = ["resize_formula", "sam_pages"]

_GROUP: Final = "Vision: SAM encoder"
_FILE: Final = "dsocr_analyze.architectures.deepseek_ocr.reference.deepencoder"

SYMBOLS: Final = {
    "N": Symbol("N", "views"),
    "R": Symbol("R", "pixels a side of a view"),
    "p": Symbol("p", "pixels a side of a patch"),
    "g": Symbol("g", "patches a side of the grid"),
    "d": Symbol("d", "width"),
    "H": Symbol("H", "heads"),
    "D": Symbol("D", "features of a head"),
    "m": Symbol("m", "hidden width of the MLP"),
    "t": Symbol("t", "rows of each relative-position table"),
    "C": Symbol("C", "channels"),
}


def _pick(names: str) -> dict[str, Symbol]:
    return {name: SYMBOLS[name] for name in names.split()}


def sam_pages(facts: Facts) -> list[Page]:
    """The pages of this file, in reading order."""
    return [
        _encoder(facts),
        _block(facts),
        _attention(facts),
        _rel_pos(facts),
        _mlp_block(facts),
        _layer_norm_2d(facts),
        _patch_embed(facts),
        _abs_pos(facts),
    ]


def resize_formula(source: str, target: str, channels: str) -> str:
    """FLOPs of resizing a square table bicubically, antialiased; 0 where nothing changes."""
    taps = f"2 * max(2, ceil(2 * {source} / {target})) + 1"
    return f"({source} != {target}) * 2 * ({taps}) * {channels} * {target} * ({source} + {target})"


def _relative(g: str, t: str = "t") -> str:
    return f"4 * {g} + 4 * {g} ** 2 + ({t} != 2 * {g} - 1) * 8 * (2 * {g} - 1) * D"


def _attention_formulas(N: str, g: str, t: str = "t") -> Formulas:
    return Formulas(
        macs=f"4 * {N} * {g} ** 2 * d ** 2 + 2 * {N} * H * {g} ** 3 * D"
        f" + 2 * {N} * H * {g} ** 4 * D",
        vector_flops=f"4 * {N} * {g} ** 2 * d + 8 * {N} * H * {g} ** 4 + {_relative(g, t)}",
        params=f"4 * d ** 2 + 4 * d + 2 * {t} * D",
        activations=f"5 * {N} * {g} ** 2 * d + 2 * {N} * H * {g} ** 3",
    )


def _sides(facts: Facts, g: int) -> list[tuple[str, int, int, int]]:
    """Windows and the whole grid: label, grids a view, side attended, rows of the tables."""
    sam = facts.sam
    windows = sam_attention.window_count(g, sam.window)
    return [
        ("windows", windows * windows, sam.window, 2 * sam.window - 1),
        ("whole grid", 1, g, 2 * sam.position_grid - 1),
    ]


def _values(facts: Facts) -> dict[str, int]:
    sam = facts.sam
    return {"d": sam.width, "H": sam.heads, "D": sam.head_dim, "m": sam.mlp}


def _patch_embed(facts: Facts) -> Page:
    sam = facts.sam

    def case(label: str, N: int, R: int) -> Case:
        return Case(
            label,
            {
                "N": N,
                "R": R,
                "p": sam.patch,
                "d": sam.width,
                "C": facts.channels,
                "g": R // sam.patch,
            },
            lambda: facts.make(
                "PatchEmbed",
                (sam.patch, sam.patch),
                (sam.patch, sam.patch),
                in_chans=facts.channels,
                embed_dim=sam.width,
            ),
            lambda: [tensor(N, facts.channels, R, R)],
            closed_form=lambda: conv2d(
                N,
                R,
                facts.channels,
                sam.width,
                sam.patch,
                BFLOAT16,
                stride=sam.patch,
                bias=True,
            ),
        )

    return Page(
        name="PatchEmbed",
        group=_GROUP,
        subject=facts.get("PatchEmbed"),
        what="Cuts a view into patches: one convolution whose kernel is as large as its stride, so"
        " that each patch becomes one vector; channels come last afterwards.",
        blocks=(("sam", "patch embedding"),),
        layer="costs.conv2d.conv2d",
        inputs={"x": "N, C, R, R"},
        output="N, g, g, d",
        parameters={
            "kernel_size": Parameter("Pixels of a patch.", (sam.patch, sam.patch)),
            "stride": Parameter("Pixels from one patch to the next.", (sam.patch, sam.patch)),
            "padding": Parameter("Pixels of zeros at each edge.", (0, 0)),
            "in_chans": Parameter("Channels of the image.", facts.channels),
            "embed_dim": Parameter("Width of a patch's vector.", sam.width),
        },
        diagram=f"""flowchart LR
  x["x [N, {facts.channels}, R, R]"] --> conv["proj: Conv2d<br/>kernel {sam.patch}, stride {sam.patch}"]
  conv --> permute["channels last, a view"]
  permute --> y["y [N, g, g, {sam.width}]"]""",
        pseudo_code="return proj(x).permute(0, 2, 3, 1)",
        mathematics=r"y_{ij} = W\, \mathrm{patch}_{ij}(x) + b",
        symbols=_pick("N R p C d") | {"g": Symbol("g", "patches a side, R / p")},
        formulas=Formulas(
            macs="N * g ** 2 * d * C * p ** 2",
            vector_flops="N * g ** 2 * d",
            params="C * p ** 2 * d + d",
            activations="N * g ** 2 * d",
        ),
        cases=tuple(case(*view) for view in facts.views),
        flops_notes=("The bias is one addition an output.",),
        related=("ImageEncoderViT", "Block", "CLIPVisionEmbeddings"),
        usage=f"""import torch
from {_FILE} import PatchEmbed

embed = PatchEmbed(({sam.patch}, {sam.patch}), ({sam.patch}, {sam.patch}), embed_dim={sam.width})
y = embed(torch.zeros(1, {facts.channels}, {4 * sam.patch}, {4 * sam.patch}))
assert y.shape == (1, 4, 4, {sam.width})""",
        notes="one convolution, kernel equal to stride",
        references=("vit", "sam"),
    )


def _attention(facts: Facts) -> Page:
    sam = facts.sam

    def case(label: str, grids: int, side: int, rows: int) -> Case:
        source = (rows + 1) // 2
        return Case(
            label,
            {"N": grids, "g": side, "t": rows, **_values(facts)},
            lambda: facts.make(
                "Attention", sam.width, sam.heads, True, True, True, (source, source)
            ),
            lambda: [tensor(grids, side, side, sam.width)],
            closed_form=lambda: sam_attention.grid_attention(
                grids, side, sam.width, sam.heads, rows, BFLOAT16
            ),
        )

    cases = [
        case(f"{view}, {kind}", N * grids, side, rows)
        for view, N, R in facts.views
        for kind, grids, side, rows in _sides(facts, R // sam.patch)
    ]
    return Page(
        name="Attention",
        group=_GROUP,
        subject=facts.get("Attention"),
        what="Multi-head self-attention over a grid of tokens. To every score it adds a bias that"
        " depends on the rows and on the columns between query and key, made from the queries and"
        " two learned tables (decomposed relative positions). Windows come in as a larger batch of"
        " small grids.",
        blocks=(("sam", "window attention"), ("sam", "global attention")),
        layer="costs.sam_attention.grid_attention",
        inputs={"x": "N, g, g, d"},
        output="N, g, g, d",
        parameters={
            "dim": Parameter("Width d.", sam.width),
            "num_heads": Parameter("Heads H.", sam.heads),
            "qkv_bias": Parameter("Whether the fused q, k, v projection has a bias.", True),
            "use_rel_pos": Parameter("Whether the bias of relative positions is added.", True),
            "rel_pos_zero_init": Parameter("Unused, as published.", True),
            "input_size": Parameter(
                "Grid the two tables are sized for.",
                f"({sam.window}, {sam.window}) in windows, "
                f"({sam.position_grid}, {sam.position_grid}) globally",
            ),
        },
        diagram=f"""flowchart TB
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
  proj --> y["y [N, g, g, {sam.width}]"]""",
        pseudo_code="""q, k, v = split(qkv(x))                      # [N, H, g g, D]
rows, columns = add_decomposed_rel_pos(q, rel_pos_h, rel_pos_w, (g, g), (g, g))
out = scaled_dot_product_attention(q, k, v, attn_mask=rows + columns)
return proj(join_heads(out))""",
        mathematics=r"a = \mathrm{softmax}\left(\frac{q k^T}{\sqrt{D}} + q \cdot R^h_{y, y'}"
        r" + q \cdot R^w_{x, x'}\right), \quad y = W_o\, a\, v",
        symbols=_pick("N g d H D t m")
        | {"N": Symbol("N", "grids: views, or all of their windows")},
        formulas=_attention_formulas("N", "g"),
        cases=tuple(cases),
        flops_notes=(
            "Projections, both products of attention, and the two einsums of the bias are matrix"
            " work; a score costs a sum of the two bias terms, a scale, the bias and a softmax of"
            " five.",
            "The coordinates' distances are worked out at each call; the last term is the linear"
            " resizing of the tables where they do not fit the grid.",
        ),
        memory_notes=(
            "The bias is kept for every head and every pair of tokens: it is the largest tensor of"
            " the encoder where attention is global.",
        ),
        related=("Block", "add_decomposed_rel_pos", "ImageEncoderViT", "NoTPAttention"),
        usage=f"""import torch
from {_FILE} import Attention

with torch.device("meta"):
    attention = Attention({sam.width}, {sam.heads}, use_rel_pos=True, input_size=({sam.window}, {sam.window}))
    y = attention(torch.empty(2, {sam.window}, {sam.window}, {sam.width}))
assert y.shape == (2, {sam.window}, {sam.window}, {sam.width})""",
        notes="bias of decomposed relative positions, fused attention",
        references=("sam", "vitdet", "mvit"),
    )


def _block_symbols() -> dict[str, Symbol]:
    attention = _attention_formulas("Nw", "w")
    return _pick("N g d H D m t") | {
        "w": Symbol("w", "side that is attended: a window's, or g"),
        "c": Symbol("c", "windows a side, the last ones padded", "ceil(g / w)"),
        "Nw": Symbol("N_w", "grids that are attended", "N * c ** 2"),
        "Am": Symbol("M_{attn}", "MACs of attention", attention.macs),
        "Av": Symbol("V_{attn}", "vector FLOPs of attention", attention.vector_flops),
        "Aa": Symbol("A_{attn}", "matrix outputs of attention", attention.activations),
    }


_BLOCK: Final = Formulas(
    macs="Am + 2 * N * g ** 2 * d * m",
    vector_flops="Av + N * g ** 2 * (6 * m + 13 * d)",
    params="4 * d ** 2 + 4 * d + 2 * t * D + 2 * d * m + m + d + 4 * d",
    activations="Aa + N * g ** 2 * (m + d)",
)


def _block_kernels(facts: Facts, N: int, R: int, index: int) -> ModuleKernels:
    sections = vision.sam_sections(N, R, facts.sam, BFLOAT16)
    path = f"model.sam_model.blocks.{index}"
    return next(section for section in sections if path in section.paths).modules


def _block(facts: Facts) -> Page:
    sam = facts.sam

    def case(label: str, N: int, R: int, index: int) -> Case:
        g = R // sam.patch
        is_global = sam.is_global(index)
        return Case(
            label,
            {
                "N": N,
                "g": g,
                "w": g if is_global else sam.window,
                "t": 2 * (sam.position_grid if is_global else sam.window) - 1,
                **_values(facts),
            },
            lambda: facts.at(f"model.sam_model.blocks.{index}"),
            # As the patch convolution wrote it: channel by channel.
            lambda: [tensor(N, sam.width, g, g).permute(0, 2, 3, 1)],
            closed_form=lambda: _block_kernels(facts, N, R, index),
        )

    kinds = []
    for kind, wanted in (("windows", False), ("whole grid", True)):
        index = next((i for i in range(sam.layers) if sam.is_global(i) == wanted), None)
        if index is not None:
            kinds.append((kind, index))
    cases = [
        case(f"{view}, {kind}", N, R, index) for view, N, R in facts.views for kind, index in kinds
    ]
    global_blocks = ", ".join(map(str, sam.global_attn_indexes)) or "none"
    return Page(
        name="Block",
        group=_GROUP,
        subject=facts.get("Block"),
        what="A transformer block of the SAM encoder: normalise, attend, add; normalise, MLP, add."
        " Most blocks attend within windows, for which the grid is padded to whole windows first;"
        f" some attend over the whole grid (in {facts.model_name} blocks {global_blocks}).",
        blocks=(("sam", "window-attention block"), ("sam", "global-attention block")),
        layer="architectures.ocr_family.vision (one block of it)",
        inputs={"x": "N, g, g, d"},
        output="N, g, g, d",
        parameters={
            "dim": Parameter("Width d.", sam.width),
            "num_heads": Parameter("Heads.", sam.heads),
            "mlp_ratio": Parameter("Hidden width of the MLP over d.", sam.mlp_ratio),
            "qkv_bias": Parameter("Whether the fused q, k, v projection has a bias.", True),
            "norm_layer": Parameter("Constructor of the norms.", "LayerNorm"),
            "act_layer": Parameter("Constructor of the activation.", "GELU"),
            "use_rel_pos": Parameter("Whether attention has relative positions.", True),
            "rel_pos_zero_init": Parameter("Unused, as published.", True),
            "window_size": Parameter(
                "Side of a window; 0 attends globally.", f"{sam.window}, or 0 for {global_blocks}"
            ),
            "input_size": Parameter(
                "Grid the tables of a global block are sized for.",
                (sam.position_grid, sam.position_grid),
            ),
        },
        diagram=f"""flowchart TB
  x["x [N, g, g, {sam.width}]"] --> n1["norm1: LayerNorm"]
  n1 --> part["window_partition<br/>pad to windows of {sam.window}"]
  part --> attn["attn: Attention"]
  attn --> unpart["window_unpartition<br/>drop the padding"]
  unpart --> add1["sum"]
  x --> add1
  add1 --> n2["norm2: LayerNorm"]
  n2 --> mlp["mlp: MLPBlock"]
  mlp --> add2["sum"]
  add1 --> add2
  add2 --> y["y [N, g, g, {sam.width}]"]""",
        pseudo_code="""h = norm1(x)
if window_size:
    windows, padded = window_partition(h, window_size)
    h = window_unpartition(attn(windows), window_size, padded, (g, g))
else:
    h = attn(h)
x = x + h
return x + mlp(norm2(x))""",
        mathematics=r"h = x + \mathrm{attn}_w(\mathrm{norm}_1(x)), \quad"
        r" y = h + \mathrm{mlp}(\mathrm{norm}_2(h))",
        symbols=_block_symbols(),
        formulas=_BLOCK,
        cases=tuple(cases),
        flops_notes=(
            "The padding of the windows is computed and counted; norms and MLP run on the grid"
            " itself.",
        ),
        related=("Attention", "MLPBlock", "ImageEncoderViT"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

block = DeepSeekOCRSession.from_local().model.model.sam_model.blocks[0]
x = torch.empty(1, {facts.views[0][2] // sam.patch}, {facts.views[0][2] // sam.patch}, {sam.width}, dtype=torch.bfloat16, device="meta")
assert block(x).shape == x.shape""",
        notes="pre-norm; windows padded to whole ones",
        references=("sam", "vitdet"),
    )


def _encoder_symbols(facts: Facts) -> dict[str, Symbol]:
    sam = facts.sam
    window = _attention_formulas("N * c ** 2", "w", "tw")
    whole = _attention_formulas("N", "g", "tg")
    return {
        **_pick("N R p d H D m"),
        "C": Symbol("C", "channels of a view"),
        "g": Symbol("g", "patches a side, R / p"),
        "l": Symbol("l", "entries a side of the learned position table"),
        "w": Symbol("w", "side of a window"),
        "c": Symbol("c", "windows a side, the last ones padded", "ceil(g / w)"),
        "n": Symbol("n", "channels of the neck"),
        "u": Symbol("c_1", "channels behind the first stride-2 convolution"),
        "v": Symbol("c_2", "channels behind the second"),
        "q": Symbol("q_1", "side behind the first", "ceil(g / 2)"),
        "r": Symbol("q_2", "side behind the second", "ceil(q / 2)"),
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


_ENCODER: Final = Formulas(
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


def _encoder(facts: Facts) -> Page:
    sam = facts.sam
    middle, out = sam.downsample_channels

    def case(label: str, N: int, R: int) -> Case:
        return Case(
            label,
            {
                "N": N,
                "R": R,
                "p": sam.patch,
                "C": facts.channels,
                "g": R // sam.patch,
                "l": sam.position_grid,
                "w": sam.window,
                "n": sam.neck,
                "u": middle,
                "v": out,
                **_values(facts),
            },
            lambda: facts.at("model.sam_model"),
            lambda: [tensor(N, facts.channels, R, R)],
            closed_form=lambda: kernels_of(vision.sam_sections(N, R, sam, BFLOAT16)),
        )

    _, N, R = facts.views[0]
    return Page(
        name="ImageEncoderViT",
        group=_GROUP,
        subject=facts.get("ImageEncoderViT"),
        what=f"The SAM encoder: patches, a learned position table resized to the view, {sam.layers}"
        " transformer blocks of which most attend within windows, a convolutional neck, and two"
        " stride-2 convolutions that leave one token for each square of four by four patches. It"
        f" sees every view first, and `{facts.second_encoder}` takes its features.",
        blocks=(("sam", "SAM encoder"), ("sam", "neck and downsampling convolutions")),
        layer="architectures.ocr_family.vision.sam_sections",
        inputs={"x": "N, C, R, R"},
        output="N, v, r, r",
        parameters={
            "img_size": Parameter(
                "Pixels a side the position tables are sized for.", sam.image_size
            ),
            "patch_size": Parameter("Pixels a side of a patch.", sam.patch),
            "in_chans": Parameter("Channels of a view.", facts.channels),
            "embed_dim": Parameter("Width d of the blocks.", sam.width),
            "depth": Parameter("Blocks.", sam.layers),
            "num_heads": Parameter("Heads of a block.", sam.heads),
            "mlp_ratio": Parameter("Hidden width of a block's MLP over d.", sam.mlp_ratio),
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
        },
        diagram=f"""flowchart TB
  x["view [N, {facts.channels}, R, R]"] --> patch["patch_embed: PatchEmbed<br/>grid g = R / {sam.patch}"]
  pos["pos_embed, resized to g"] --> add["sum"]
  patch --> add
  add --> blocks["blocks: {sam.layers} x Block, width {sam.width}<br/>windows of {sam.window}; global: {", ".join(map(str, sam.global_attn_indexes))}"]
  blocks --> neck["neck: Conv2d 1x1, LayerNorm2d,<br/>Conv2d 3x3, LayerNorm2d; {sam.neck} channels"]
  neck --> net2["net_2: Conv2d 3x3, stride 2, {middle} channels"]
  net2 --> net3["net_3: Conv2d 3x3, stride 2, {out} channels"]
  net3 --> y["features [N, {out}, g / 4, g / 4]"]""",
        pseudo_code="""x = patch_embed(x) + get_abs_pos_sam(pos_embed, g)
for block in blocks:
    x = block(x)
x = neck(x.permute(0, 3, 1, 2))
return net_3(net_2(x).clone())""",
        mathematics=r"x^{(0)} = \mathrm{patch}(v) + P, \quad x^{(l)} = \mathrm{block}_l(x^{(l-1)}),"
        r" \quad y = W_3 * (W_2 * \mathrm{neck}(x^{(L)}))",
        symbols=_encoder_symbols(facts),
        formulas=_ENCODER,
        cases=tuple(case(*view) for view in facts.views),
        flops_notes=(
            "The convolutions of the neck have no bias; the vendor's copy between the stride-2"
            " convolutions moves bytes and computes nothing.",
        ),
        memory_notes=("Nothing of it is needed after the prefill pass; no cache.",),
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


def _mlp_block(facts: Facts) -> Page:
    sam = facts.sam
    d, m = sam.width, sam.mlp

    def case(label: str, N: int, R: int) -> Case:
        g = R // sam.patch
        n = N * g * g
        return Case(
            label,
            {"N": N, "g": g, "d": d, "m": m},
            lambda: facts.make("MLPBlock", d, m),
            lambda: [tensor(N, g, g, d)],
            closed_form=lambda: (
                *linear(n, d, m, BFLOAT16, bias=True),
                *gelu(n * m, BFLOAT16),
                *linear(n, m, d, BFLOAT16, bias=True),
            ),
        )

    return Page(
        name="MLPBlock",
        group=_GROUP,
        subject=facts.get("MLPBlock"),
        what="The MLP of a SAM block: one linear map up, GELU, one down; both with bias.",
        blocks=(("sam", "MLP"),),
        layer="costs.linear.linear, costs.activations.gelu",
        inputs={"x": "N, g, g, d"},
        output="N, g, g, d",
        parameters={
            "embedding_dim": Parameter("Width d.", d),
            "mlp_dim": Parameter("Hidden width m.", m),
            "act": Parameter("Constructor of the activation.", "GELU"),
        },
        diagram=f"""flowchart LR
  x["x [..., {d}]"] --> lin1["lin1<br/>{d} to {m}"]
  lin1 --> act["GELU"]
  act --> lin2["lin2<br/>{m} to {d}"]
  lin2 --> y["y [..., {d}]"]""",
        pseudo_code="return lin2(gelu(lin1(x)))",
        mathematics=r"y = W_2\,\mathrm{gelu}(W_1 x + b_1) + b_2, \quad"
        r" \mathrm{gelu}(z) = \frac{z}{2}\left(1 + \mathrm{erf}\frac{z}{\sqrt{2}}\right)",
        symbols=_pick("N g d m"),
        formulas=Formulas(
            macs="2 * N * g ** 2 * d * m",
            vector_flops="N * g ** 2 * (6 * m + d)",
            params="2 * d * m + m + d",
            activations="N * g ** 2 * (m + d)",
        ),
        cases=tuple(case(*view) for view in facts.views),
        flops_notes=("GELU counts five operations an element, a bias one.",),
        related=("Block", "NoTPFeedForward", "DeepseekV2MLP"),
        usage=f"""import torch
from {_FILE} import MLPBlock

mlp = MLPBlock({d}, {m})
assert mlp(torch.zeros(1, 2, 2, {d})).shape == (1, 2, 2, {d})""",
        notes="linear, GELU, linear",
        references=("gelu", "sam"),
    )


def _layer_norm_2d(facts: Facts) -> Page:
    sam = facts.sam
    C = sam.neck

    def case(label: str, N: int, R: int) -> Case:
        g = R // sam.patch
        return Case(
            label,
            {"N": N, "C": C, "g": g},
            lambda: facts.make("LayerNorm2d", C),
            lambda: [tensor(N, C, g, g)],
            closed_form=lambda: layer_norm_2d(N, C, g * g, BFLOAT16),
        )

    return Page(
        name="LayerNorm2d",
        group=_GROUP,
        subject=facts.get("LayerNorm2d"),
        what="Layer normalisation over the channels of a feature map in channels-first layout,"
        " written out operator by operator; the neck of the SAM encoder has two.",
        blocks=(("sam", "LayerNorm2d"),),
        layer="costs.normalization.layer_norm_2d",
        inputs={"x": "N, C, g, g"},
        output="N, C, g, g",
        parameters={
            "num_channels": Parameter("Channels C.", C),
            "eps": Parameter(
                "Added to the variance before the root.", facts.default("LayerNorm2d", "eps")
            ),
        },
        diagram=f"""flowchart TB
  x["x [N, {C}, g, g]"] --> mean["mean over channels"]
  mean --> centre["centre"]
  x --> centre
  centre --> variance["square, mean"]
  variance --> quotient["divide by the root"]
  centre --> quotient
  quotient --> affine["weight, bias"]
  affine --> y["y [N, {C}, g, g]"]""",
        pseudo_code="""mean = x.mean(1, keepdim=True)
variance = ((x - mean) ** 2).mean(1, keepdim=True)
return weight * (x - mean) / sqrt(variance + eps) + bias""",
        mathematics=r"y_{c} = w_c \frac{x_c - \mu}{\sqrt{\sigma^2 + \varepsilon}} + b_c, \quad"
        r" \mu = \frac{1}{C} \sum_c x_c, \quad \sigma^2 = \frac{1}{C} \sum_c (x_c - \mu)^2",
        symbols=_pick("N C g"),
        formulas=Formulas(vector_flops="N * g ** 2 * (8 * C + 2)", params="2 * C"),
        cases=tuple(case(*view) for view in facts.views),
        flops_notes=(
            "Operator by operator it costs more than a fused layer norm: the input is centred"
            " twice.",
        ),
        related=("ImageEncoderViT", "LayerNormfp32", "DeepseekV2RMSNorm"),
        usage=f"""import torch
from {_FILE} import LayerNorm2d

norm = LayerNorm2d({C})
y = norm(torch.randn(1, {C}, 2, 2))
assert torch.allclose(y.mean(1), torch.zeros(1, 2, 2), atol=1e-5)""",
        notes="two in the neck, not fused",
        references=("layernorm", "sam"),
    )


def _rel_pos(facts: Facts) -> Page:
    sam = facts.sam
    D, H = sam.head_dim, sam.heads

    def closed(N: int, g: int, rows: int) -> Kernels:
        term = (
            *product("einsum", g, N * H * g, g, D, BFLOAT16),
            *copy("clone", N * H * g**3, BFLOAT16),
        )
        terms = 2 * (*sam_attention.relative_positions(rows, g, D, BFLOAT16), *term)
        # The product by rows wants the rows of its queries first.
        return (*copy("clone", N * H * g * g * D, BFLOAT16), *terms)

    def case(label: str, N: int, g: int, rows: int) -> Case:
        return Case(
            label,
            {"N": N, "H": H, "g": g, "D": D, "t": rows},
            lambda: facts.get("add_decomposed_rel_pos"),
            lambda: [
                tensor(N * H, g * g, D),
                tensor(rows, D),
                tensor(rows, D),
                (g, g),
                (g, g),
            ],
            closed_form=lambda: closed(N, g, rows),
        )

    cases = [
        case(f"{view}, {kind}", N * grids, side, rows)
        for view, N, R in facts.views
        for kind, grids, side, rows in _sides(facts, R // sam.patch)
    ]
    return Page(
        name="add_decomposed_rel_pos",
        group=_GROUP,
        subject=facts.get("add_decomposed_rel_pos"),
        also=(facts.get("get_rel_pos"),),
        what="The two terms of the decomposed relative-position bias: each query times the table"
        " row that stands for its distance in rows from the key, and the same for columns. Tables"
        " that do not fit the grid are resized linearly in fp32 first.",
        blocks=(("sam", "relative positions"),),
        layer="costs.sam_attention.relative_positions",
        inputs={"q": "N * H, g ** 2, D", "rel_pos_h": "t, D", "rel_pos_w": "t, D"},
        output="N * H, g ** 2, g, 1",
        parameters={
            "q": Parameter("Queries of all heads.", "a tensor"),
            "rel_pos_h": Parameter("Table for the distance in rows.", "a parameter"),
            "rel_pos_w": Parameter("Table for the distance in columns.", "a parameter"),
            "q_size": Parameter("Rows and columns of the queries.", "(g, g)"),
            "k_size": Parameter("Rows and columns of the keys.", "(g, g)"),
        },
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
        symbols=_pick("N H g D t") | {"N": Symbol("N", "grids: views, or all of their windows")},
        formulas=Formulas(
            macs="2 * N * H * g ** 3 * D",
            vector_flops=_relative("g"),
            activations="2 * N * H * g ** 3",
        ),
        cases=tuple(cases),
        flops_notes=("The broadcast sum of the two terms belongs to `Attention`.",),
        related=("Attention", "Block"),
        usage=f"""import torch
from {_FILE} import add_decomposed_rel_pos

g = {sam.window}
table = torch.zeros(2 * g - 1, {D})
row, column = add_decomposed_rel_pos(torch.zeros({H}, g * g, {D}), table, table, (g, g), (g, g))
assert row.shape == ({H}, g * g, g, 1) and column.shape == ({H}, g * g, 1, g)""",
        notes="two einsums; tables resized where the grid is another",
        references=("mvit",),
    )


def _abs_pos(facts: Facts) -> Page:
    sam = facts.sam
    d, source = sam.width, sam.position_grid

    def case(label: str, R: int) -> Case:
        g = R // sam.patch
        return Case(
            label,
            {"l": source, "g": g, "d": d},
            lambda: facts.get("get_abs_pos_sam"),
            lambda: [tensor(1, source, source, d), g],
            closed_form=lambda: bicubic_resize(source, g, d, BFLOAT16),
        )

    return Page(
        name="get_abs_pos_sam",
        group=_GROUP,
        subject=facts.get("get_abs_pos_sam"),
        what="Resizes SAM's learned position table to the grid of a view: bicubic, antialiased, in"
        " fp32. A view of the resolution the table was learned at takes the table as it is.",
        blocks=(("sam", "absolute positions"),),
        layer="costs.position_table.bicubic_resize",
        inputs={"abs_pos": "1, l, l, d"},
        output="1, g, g, d",
        parameters={
            "abs_pos": Parameter("The learned table.", "a parameter"),
            "tgt_size": Parameter("Side wanted.", "g"),
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
        symbols=_resize_symbols("l", "g"),
        formulas=Formulas(vector_flops=resize_formula("l", "g", "d")),
        cases=tuple(case(label, R) for label, _, R in facts.views),
        flops_notes=(
            "Two FLOPs a tap of the window that is laid over the table, one dimension after the"
            " other; shrinking by s widens it to 2 ceil(2 s) + 1 taps. That bounds the work from"
            " above: the bicubic filter is 4 s wide, and the taps outside it weigh nothing.",
        ),
        related=("ImageEncoderViT", "get_abs_pos"),
        usage=f"""import torch
from {_FILE} import get_abs_pos_sam

table = torch.zeros(1, {source}, {source}, 8)
assert get_abs_pos_sam(table, {source}) is table
assert get_abs_pos_sam(table, {source // 2}).shape == (1, {source // 2}, {source // 2}, 8)""",
        notes="nothing to do at the learned resolution",
        references=("keys", "sam"),
    )


def _resize_symbols(source: str, target: str) -> dict[str, Symbol]:
    return {
        source: Symbol(source, "entries a side of the learned table"),
        target: Symbol(target, "entries a side wanted"),
        "d": Symbol("d", "width"),
    }
