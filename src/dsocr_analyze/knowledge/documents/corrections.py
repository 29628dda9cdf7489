"""docs/corrections.md: earlier figures that were wrong, with the right ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dsocr_analyze.dtypes import FLOAT32
from dsocr_analyze.knowledge.families.rotary import YARN_OPERATORS
from dsocr_analyze.knowledge.machinery.evidence import CheckedCase
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.machinery.render import table
from dsocr_analyze.report.quantities import bytes_text, flops_text, scaled

__all__ = ["corrections_page"]

SOURCES: Final = ("DeepSeek-OCR Module Documentation Progress", "DeepseekOCRConfig")
"""Titles of the quoted documents."""

QUOTED: Final = {"tokens": 8192, "vocabulary": 102400, "d": 1280, "d_ff": 3584}
"""Sizes in the quoted statements; the right figures at these sizes are computed from them."""

Checked = Mapping[str, Sequence[CheckedCase]]


class _Correction(NamedTuple):
    """An earlier statement and its correction."""

    module: str
    """Name of the page concerned."""
    earlier: str
    """The earlier statement, quoted."""
    now: str
    """The right statement, with numbers computed by the program."""
    why: str


def corrections_page(pages: Sequence[Page], checked: Checked, facts: Facts) -> str:
    """The Markdown of all corrections, in the order of the pages."""
    found = _corrections(checked, facts)
    rows = [
        (f"[{page.name}](modules/{page.file_name})", f'"{item.earlier}"', item.now, item.why)
        for page in pages
        for item in found
        if item.module == page.name
    ]
    parts = [
        "# Corrections",
        f"Earlier figures that were wrong. They come from two documents that this project is based"
        f' on and that are not in its repository, "{SOURCES[0]}" and "{SOURCES[1]}", and are quoted'
        " as they were written.",
        f"The stated page is {facts.workload_text}.",
        table(("module", "earlier statement", "what holds", "why"), rows),
    ]
    return "\n\n".join(parts) + "\n"


def _corrections(checked: Checked, facts: Facts) -> list[_Correction]:
    """Every correction of a figure of the published model."""
    return [
        *_of_the_model(checked, facts),
        *_of_vision(checked, facts),
        *_of_decoder(checked, facts),
    ]


def _of_the_model(checked: Checked, facts: Facts) -> list[_Correction]:
    decoder, tokens = facts.decoder, facts.tokens
    stack, whole = checked["DeepseekV2Model"], checked["DeepseekV2ForCausalLM"]
    head = whole[0].work.matrix_flops - stack[0].work.matrix_flops
    token_bytes = stack[0].cache_bytes // tokens
    logits_bytes = decoder.vocab_size * FLOAT32.nbytes
    quoted = QUOTED["tokens"]
    return [
        _Correction(
            "DeepseekOCRConfig",
            "Example large config (40 layers, h=1280, MLA + MoE)",
            f"{decoder.layers} layers of plain attention with {decoder.heads} heads of"
            f" {decoder.head_dim}; {decoder.n_routed_experts} routed experts in"
            f" {decoder.moe_layers} of the layers",
            "the published `config.json` has other values",
        ),
        _Correction(
            "DeepseekOCRConfig",
            f"Example MLA config (40 layers, seq_len={quoted}, batch=1, bf16): several GB",
            f"{bytes_text(token_bytes * quoted)} for the same number of tokens",
            f"keys and values of {decoder.layers} layers take {count(token_bytes)} bytes per token",
        ),
        _Correction(
            "DeepseekV2ForCausalLM",
            f"LM Head Projection: ~2.15 TFLOPs (1280 → {QUOTED['vocabulary']} vocab)",
            f"{flops_text(head)} for the {tokens} tokens of the stated page,"
            f" {flops_text(head // tokens)} per token",
            f"the vocabulary has {count(decoder.vocab_size)} entries; the earlier figure is for"
            f" {count(quoted)} tokens",
        ),
        _Correction(
            "DeepseekV2ForCausalLM",
            f"Logits Tensor: 3.3 GB (B=1, S={quoted}, vocab={QUOTED['vocabulary']} in fp32)",
            f"{bytes_text(quoted * logits_bytes)} for the same number of tokens,"
            f" {bytes_text(tokens * logits_bytes)} for the stated page",
            f"the vocabulary has {count(decoder.vocab_size)} entries",
        ),
    ]


def _of_vision(checked: Checked, facts: Facts) -> list[_Correction]:
    sam, clip, projector = (
        [item.work.matrix_flops for item in checked[name]]
        for name in ("ImageEncoderViT", "VitModel", "MlpProjector")
    )
    tokens = facts.token_side(facts.views[0][2]) ** 2 + 1
    views = " and ".join(f"{n} of {count(side)} pixels per side" for _, n, side in facts.views)
    twice = "the earlier formula counts multiply-accumulates, which are two FLOPs each"
    return [
        _Correction(
            "DeepseekOCRModel",
            "Vision Encoding: ~2.5 TFLOPs (SAM + CLIP for 6-patch document)",
            f"{flops_text(sum(sam) + sum(clip) + sum(projector))} of matrix work: SAM"
            f" {flops_text(sum(sam))}, CLIP {flops_text(sum(clip))}, projector"
            f" {flops_text(sum(projector))}",
            f"the stated page has as many local views, and the global view: {views}",
        ),
        _Correction(
            "ImageEncoderViT",
            "FLOPs: ~290 GFLOPs per 1024×1024 image",
            f"{flops_text(sam[0])} of matrix work ({scaled(sam[0] // 2)}MACs)",
            f"includes all {facts.sam.layers} blocks, with both attention products over padded windows,"
            " patch embedding and neck",
        ),
        _Correction(
            "Attention",
            "FLOPs: 4×N×d² + 2×N²×d + rel-pos computation",
            "$8\\,N d^2 + 4\\,N^2 d$ plus the relative positions",
            twice,
        ),
        _Correction(
            "PatchEmbed",
            "FLOPs: 2 × C_in × embed_dim × H × W / (kernel_size²)",
            "$2\\,C d\\,H W$, without a division",
            "every pixel meets every output channel once, whatever the kernel size",
        ),
        _Correction(
            "LayerNorm2d",
            "FLOPs: Similar to standard LayerNorm",
            "eight FLOPs per element; five in the fused kernel of LayerNorm",
            "it is not fused but written out operator by operator",
        ),
        _Correction(
            "VitModel",
            "FLOPs: ~64.5 GFLOPs per image",
            f"{flops_text(clip[0])} of matrix work for the global view",
            f"{facts.clip.layers} blocks over {tokens} tokens, two FLOPs per multiply-accumulate",
        ),
        _Correction(
            "NoTPAttention",
            "FLOPs: 4 × N × d² + 2 × N² × d (QKV proj + attention)",
            "$8\\,N d^2 + 4\\,N^2 d$",
            twice,
        ),
        _Correction(
            "NoTPFeedForward",
            "FLOPs: 2 × N × d × d_ff",
            "$4\\,N d\\,d_{ff}$",
            "there are two linear maps",
        ),
        _Correction(
            "CLIPVisionEmbeddings",
            "FLOPs: Conv2d (2×C_in×C_out×H×W/patch_size²)",
            "none in the model; $2\\,C_{in} C_{out} H W$ if the convolution runs",
            "the model passes SAM's features instead of patches; in a convolution every pixel meets"
            " every output channel once",
        ),
    ]


def _of_decoder(checked: Checked, facts: Facts) -> list[_Correction]:
    d, tokens = facts.decoder.hidden_size, facts.tokens
    dense = facts.decoder.intermediate_size
    pairs = checked["DeepseekV2YarnRotaryEmbedding"][0].values["D"] // 2
    S, quoted_d, quoted_ff = QUOTED["tokens"], QUOTED["d"], QUOTED["d_ff"]
    return [
        _Correction(
            "DeepseekV2DecoderLayer",
            "Attention: ~2×B×S²×d per layer (prefill)",
            f"$4\\,B S^2 d$: {flops_text(4 * tokens**2 * d)} for the stated page, before the"
            " projections",
            "attention has two products: with the keys, and with the values",
        ),
        _Correction(
            "DeepseekV2FlashAttention2",
            "Same FLOP count but 3-4x faster wall-clock time",
            "the same count for plain attention only",
            "with latent attention the eager class absorbs the up-projection, while this one applies"
            " it and pads the values; time depends on the device, not just on the module",
        ),
        _Correction(
            "DeepseekV2MLP",
            f"≈16 TFLOPs for B=1, S={S}, d={quoted_d}, d_ff={quoted_ff}",
            f"{flops_text(6 * S * quoted_d * quoted_ff)} at those sizes;"
            f" {flops_text(6 * tokens * d * dense)} for the dense layer and the stated page",
            f"three linear maps take $6\\,B S d\\,d_{{ff}}$; the dense layer is {count(dense)} wide",
        ),
        _Correction(
            "DeepseekV2MoE",
            "FLOPs: MoEGate + num_experts_per_tok × MLP_FLOPs (sparse activation)",
            "plus the shared experts, sorting, weighting and summing",
            "every token goes through the shared experts, whatever the router chooses",
        ),
        _Correction(
            "DeepseekV2YarnRotaryEmbedding",
            "FLOP overhead: ~50 extra FLOPs for frequency ramp computation",
            f"{count(YARN_OPERATORS * pairs)} FLOPs each time the tables are filled, plus one for"
            " every entry of each table",
            f"{YARN_OPERATORS} operations for each of {pairs} pairs of features; the tables are scaled"
            " by the magnitude",
        ),
    ]
