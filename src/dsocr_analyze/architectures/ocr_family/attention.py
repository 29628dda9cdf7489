"""Parts of Llama's layers on a tape, some of which the Qwen2 encoder shares.

Source: `LlamaAttention` and `LlamaRotaryEmbedding` of transformers 4.46; Vaswani et al. 2017, eq.
1; Ainslie et al. 2023 (grouped queries); Dao 2023.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
from dsocr_analyze.kernels import BOOL, FLOAT32, INT64, Attention, Gemm
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.tape.modules import fused_attention, linear, rms_norm, rotated

LayerCache: TypeAlias = tuple[Operand, ...]
"""What a layer keeps for later steps: keys, values, and tables computed anew."""


@dataclass(frozen=True, slots=True)
class Pass:
    """How a pass runs: T new tokens in each of B sequences, beside `past` in the cache.

    Attributes:
        flash: FlashAttention instead of the eager product.
        sdpa: PyTorch's fused attention instead of it.
        overwrites: Whether the new token replaces one of a full window.
        touched: Routed experts that run in each layer; None for those of an even split.
    """

    B: Size
    T: Size
    past: Size = 0
    flash: bool = False
    sdpa: bool = False
    overwrites: bool = False
    touched: int | None = None

    @property
    def keys(self) -> Size:
        """Keys that the last query sees."""
        return self.past + self.T

    @property
    def tokens(self) -> Size:
        """New tokens of all sequences."""
        return self.B * self.T


def attention(
    t: Tape, x: Operand, mask: Operand | None, p: Pass, c: DecoderDimensions, *tables: Operand
) -> tuple[Any, ...]:
    """`[B, T, d]`, keys and values; in transformers 5 weights, too, which the layer keeps.

    Source: `LlamaAttention`, which makes `tables` of its own, and `Qwen2SdpaAttention`;
    `Qwen2Attention` of transformers 5 and its likes.
    """
    H, kv, D = c.heads, c.kv_heads, c.head_dim
    q, k, v = (_projected(t, *each, x, p, c) for each in (("q", H), ("k", kv), ("v", kv)))
    cos, sin = tables or t.call("rotary_emb", rotary_tables, p.B, p.T, D)
    q, k = _turned(t, q, k, cos, sin, c)
    written = (k, v) if p.overwrites else ()  # the cache's own memory has other names
    k, v = cached(t, k, v, p, c, kv * D, kv * D)
    attend = flash_attention if p.flash else _sdpa if p.sdpa else _eager
    heads, *held = attend(t, q, k, v, mask, p, c)
    bias = c.attention_bias and not tables  # Llama's alone, which makes its own
    out = t.call("o_proj", linear, heads, p.tokens, H * D, c.hidden_size, bias=bias)
    kept = held if c.is_of_transformers else []
    return t.hold((out, (k, v), *kept), cos, sin, q, *held, *written)


def _projected(
    t: Tape, name: str, heads: int, x: Operand, p: Pass, c: DecoderDimensions
) -> Operand:
    """Queries, keys or values before rotation."""
    n, D = p.tokens, c.head_dim
    x = t.call(f"{name}_proj", linear, x, n, c.hidden_size, heads * D, bias=c.attention_bias)
    is_normed = c.head_norms and name != "v"
    return t.call(f"{name}_norm", rms_norm, x, n * heads, D) if is_normed else x


def _turned(
    t: Tape, q: Operand, k: Operand, cos: Operand, sin: Operand, c: DecoderDimensions
) -> tuple[Operand, Operand]:
    """Queries and keys after rotation; pairs of neighbours are stacked, then joined.

    Source: `apply_rotary_pos_emb`; of GLM-OCR, all of whose features turn.
    """
    if c.rotary != "neighbours":
        return rotated(t, q, cos, sin), rotated(t, k, cos, sin)
    q_embed, k_embed = rotated(t, q, cos, sin, "stack"), rotated(t, k, cos, sin, "stack")
    q_embed = t.move("cat", q_embed)
    k_embed = t.move("cat", k_embed)
    return q_embed, k_embed


def cached(
    t: Tape,
    k: Operand,
    v: Operand,
    p: Pass,
    c: DecoderDimensions,
    key_width: int,
    value_width: int,
) -> tuple[Operand, Operand]:
    """Keys and values of all K tokens, appended to the cache or written over the oldest.

    A prompt's own become the cache, but in transformers 5 a copy of them.
    """
    if not (p.past or c.is_of_transformers):
        return k, v
    if p.overwrites:
        keys = t.input(p.B * p.keys * key_width, t.dtype)
        values = t.input(p.B * p.keys * value_width, t.dtype)
        t.move("copy", k, into=keys)
        t.move("copy", v, into=values)
        return keys, values
    return (
        t.cat(t.input(p.B * p.past * key_width, t.dtype), k),
        t.cat(t.input(p.B * p.past * value_width, t.dtype), v),
    )


def repeat_kv(
    t: Tape, k: Operand, v: Operand, p: Pass, c: DecoderDimensions
) -> tuple[Operand, Operand]:
    """Keys and values for each head; one for all heads is expanded in place."""
    if not c.heads > c.kv_heads > 1:
        return k, v
    n = p.B * p.keys * (c.heads * c.head_dim)
    return t.move("clone", k, n=n), t.move("clone", v, n=n)


def _eager(
    t: Tape,
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None,
    p: Pass,
    c: DecoderDimensions,
) -> tuple[Operand, ...]:
    """`softmax(q k^T / sqrt(D) + mask) v`, `[B, T, H, D]`, and what else is held: its weights.

    In transformers 4.46 also keys and values for each head. With several sequences and heads, a
    product first copies factors that are no batches of matrices in memory: a prompt's queries
    unless rotation has laid them out anew, keys that were not copied to a cache, and a key shared
    by all heads.
    """
    keys, values = repeat_kv(t, k, v, p, c)
    B, T, K, H, kv, D = p.B, p.T, p.keys, c.heads, c.kv_heads, c.head_dim
    is_prompt, is_apart, is_recent = not p.past, H > 1 and B > 1, c.is_of_transformers
    is_strided = is_apart and is_prompt and c.rotary != "neighbours"
    queries = B * T * (H * D) if is_strided else None
    is_shared = is_apart and not H > kv > 1 and (kv != H or (is_prompt and not is_recent))
    shared = B * K * (H * D) if is_shared else None
    if is_prompt:
        t.skippable(scores_of_later_tokens(t, p, H) * (2 * D))
    operator = "mul" if is_recent else "div"
    weights = t.map(operator, product(t, Gemm(B * H, T, K, D), q, keys, queries, shared))
    if mask is not None:
        weights = t.map("add", weights, mask)
    weights = t.cast(t.softmax(weights, p.tokens * H, K), t.dtype)
    heads = product(t, Gemm(B * H, T, D, K), weights, values, None, shared)
    if H > 1 and is_prompt:
        heads = t.move("clone", heads)
    return (heads, weights) if is_recent else (heads, weights, keys, values)


def _sdpa(
    t: Tape,
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None,
    p: Pass,
    c: DecoderDimensions,
) -> tuple[Operand, ...]:
    """The same as one kernel, and keys and values for each head."""
    B, T, H, D = p.B, p.T, c.heads, c.head_dim
    keys, values = repeat_kv(t, k, v, p, c)
    inputs = q, keys, values, *filter(None, [mask])
    shape = Attention(B, H, H, T, p.keys, D, D, masked=mask is not None)
    heads = fused_attention(t, "scaled_dot_product_attention", shape, *inputs)
    return heads, keys, values


def product(
    t: Tape,
    gemm: Gemm,
    a: Operand,
    b: Operand,
    copied_a: Size | None = None,
    copied_b: Size | None = None,
) -> Operand:
    """`torch.matmul`, after copies of factors where their sizes are given."""
    copy_of_a = None if copied_a is None else t.move("clone", a, n=copied_a)
    copy_of_b = None if copied_b is None else t.move("clone", b, n=copied_b)
    return t.hold(t.product("matmul", gemm, a, b), copy_of_a, copy_of_b)


def flash_attention(
    t: Tape,
    q: Operand,
    k: Operand,
    v: Operand,
    _: Operand | None,
    p: Pass,
    c: DecoderDimensions,
) -> tuple[Operand, ...]:
    """FlashAttention, causal (Dao 2023, alg. 1); a prompt's positions are checked first."""
    if not p.past and not c.use_mla:
        _check_positions(t, p.B * (p.T - 1))
    D = c.head_dim
    skippable = 0 if p.past else scores_of_later_tokens(t, p, c.heads)
    t.skippable(skippable * (2 * D))
    shape = Attention(p.B, c.heads, c.kv_heads, p.T, p.keys, D, D, skippable_scores=skippable)
    return (fused_attention(t, "flash_attention", shape, q, k, v),)


def _check_positions(t: Tape, steps: Size) -> None:
    """Whether positions increase: one difference per pair of neighbours."""
    before, after = t.input(steps, INT64), t.input(steps, INT64)
    t.reduce("all", t.map("ge", t.map("sub", before, after), output=BOOL), 1, steps)


def scores_of_later_tokens(t: Tape, p: Pass, H: int) -> Size:
    """Scores of all heads above the diagonal."""
    return p.B * t.derived("{0} ({0} - 1) / 2", lambda T: T * (T - 1) // 2, p.T) * H


# --- rotary positions and the head -----------------------------------------------------------


def rotary_tables(t: Tape, sequences: Size, T: Size, D: int) -> tuple[Operand, Operand]:
    """Cosines and sines `[sequences, T, D]` of positions times frequencies, computed in fp32.

    Source: RoFormer (Su et al. 2021), eq. 34.
    """
    frequencies = t.input(D // 2, FLOAT32)
    positions = t.cast(t.input(sequences * T, INT64), FLOAT32)
    half = t.product("matmul", Gemm(sequences, D // 2, T, 1), frequencies, positions)
    angles = t.cat(half, half)
    cos, sin = t.map("cos", angles), t.map("sin", angles)
    cos = t.map("mul", cos)
    sin = t.map("mul", sin)
    return t.hold((t.cast(cos, t.dtype), t.cast(sin, t.dtype)), positions, half, angles, cos, sin)


def lm_head(t: Tape, hidden: Operand, rows: Size, c: DecoderDimensions) -> Operand:
    """The head: logits `[rows, V]` of as many positions of `[B, T, d]`."""
    d, V = c.hidden_size, c.vocab_size
    weight = t.input(V * d, t.dtype) if c.tie_word_embeddings else t.weight(V * d)
    return t.product("linear", Gemm(1, rows, V, d), t.view(hidden, rows * d), weight)
