"""The decoder's forward on a tape, in the order and with the names of `modeling_deepseekv2.py`.

Plain attention is transformers' `LlamaAttention`; with `use_mla` it is DeepSeek-V2's latent
attention. B is the batch, T the new tokens per sequence, `past` the tokens in the cache before the
pass (0 in a prefill pass), K all of them, d the width.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from dsocr_analyze.architectures.architecture import NotModelled
from dsocr_analyze.architectures.ocr_family.attention import Pass, attention
from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
from dsocr_analyze.architectures.ocr_family.latent_attention import latent_attention
from dsocr_analyze.architectures.ocr_family.llama import swiglu
from dsocr_analyze.architectures.ocr_family.mixture import mixture
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64
from dsocr_analyze.kernels import Gemm
from dsocr_analyze.tape import Operand, Size, Tape, View, rms_norm

__all__ = ["NOT_MODELLED", "decoder", "lm_head"]

NOT_MODELLED: Final = (
    NotModelled(
        r"model\.layers\.\d+\.self_attn\.rotary_emb",
        frozenset({"max", "add", "gt", "lt"}),
        "plain attention with 'dynamic' positions asks each layer for the longest position",
    ),
)
"""The model's only operators that no forward here has."""


Kept: TypeAlias = list[Operand]
"""What a layer keeps for later steps: keys and values, and tables computed anew."""


def decoder(t: Tape, embeds: Operand, p: Pass, c: DecoderDimensions) -> tuple[Operand, list[Kept]]:
    """`DeepseekV2Model`: embeddings `[B, T, d]` to normed features, and the cache by layer."""
    mask = None
    is_masked = c.masks_steps or not p.past
    if is_masked and p.flash:
        _flash_mask(t, p)
    elif is_masked:
        mask = _causal_mask(t, p)
    hidden: Operand = embeds
    cache: list[Kept] = []
    for index in range(c.layers):
        hidden, *kept = t.again(
            f"layers.{index}", _layer, hidden, mask, p, c, is_moe=c.is_moe(index)
        )
        cache.append(kept)
    hidden = t.call("norm", rms_norm, hidden, p.tokens, c.hidden_size)
    t.hold(mask)
    return hidden, cache


def lm_head(t: Tape, hidden: Operand, p: Pass, c: DecoderDimensions) -> Operand:
    """The head: logits `[B, T, V]` of every position."""
    n, d, V = p.tokens, c.hidden_size, c.vocab_size
    weight = View(V * d, t.dtype) if c.tie_word_embeddings else t.weight(V * d)
    return t.product("linear", Gemm(1, n, V, d), hidden, weight)


# --- masks


def _flash_mask(t: Tape, p: Pass) -> None:
    """Whether the mask `[B, K]` hides anything, which it does not."""
    n = p.B * p.keys
    t.reduce("any", t.map("eq", t.input(n, INT64), output=BOOL), 1, n)


def _causal_mask(t: Tape, p: Pass) -> Operand:
    """The additive mask `[B, 1, T, K]`; a decode step's hides padding alone."""
    n = p.tokens * p.keys
    if p.past:
        return _padding(t, p, n)
    causal = _triangle(t, p.T)
    padding = _padding(t, p, n)
    mask = t.move("masked_fill", causal, t.cast(padding, BOOL), n=n)
    t.hold(causal, padding)
    return mask


def _triangle(t: Tape, T: Size) -> Operand:
    """`[T, T]`: the lowest number above the diagonal, zero elsewhere."""
    mask = t.fill("full", T * T, FLOAT32)
    index = t.fill("arange", T, INT64)
    t.move(
        "masked_fill",
        mask,
        t.map("lt", index, t.map("add", index), n=T * T, output=BOOL),
        into=mask,
    )
    mask = t.cast(mask, t.dtype)
    t.hold(index)
    return mask


def _padding(t: Tape, p: Pass, n: Size) -> Operand:
    """The mask of ones and zeros `[B, K]` as n zeros and lowest numbers."""
    visible = t.move("_to_copy", t.input(p.B * p.keys, INT64), n=n, dtype=t.dtype)
    hidden = t.map("rsub", visible)
    mask = t.move("masked_fill", hidden, t.cast(hidden, BOOL))
    t.hold(visible)
    return mask


# --- a layer


def _layer(
    t: Tape, x: Operand, mask: Operand | None, p: Pass, c: DecoderDimensions, *, is_moe: bool
) -> tuple[Operand, ...]:
    """`DeepseekV2DecoderLayer`: features `[B, T, d]`, and what the layer keeps."""
    n, d = p.tokens, c.hidden_size
    attend = latent_attention if c.use_mla else attention
    attended, *kept = t.call(
        "self_attn", attend, t.call("input_layernorm", rms_norm, x, n, d), mask, p, c
    )
    x = t.map("add", x, attended)
    del attended
    normed = t.call("post_attention_layernorm", rms_norm, x, n, d)
    if is_moe:
        y = t.call("mlp", mixture, normed, p, c)
    else:
        y = t.call("mlp", swiglu, normed, n, d, c.intermediate_size, c.hidden_act)
    del normed
    return t.map("add", x, y), *kept
