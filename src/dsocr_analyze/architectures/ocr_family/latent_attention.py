"""Multi-head latent attention on a tape: eager with absorbed up-projection, and its flash form.

All heads share one latent of rank r for keys and values, and one rotary key of P features.

Source: DeepSeek-V2 (2405.04434), eq. 9 to 19 and section 2.1.2.
"""

from __future__ import annotations

from dsocr_analyze.architectures.ocr_family.attention import (
    Pass,
    cached,
    flash_attention,
    product,
    rotated,
    scores_of_later_tokens,
)
from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
from dsocr_analyze.dtypes import FLOAT32, INT64
from dsocr_analyze.kernels import Gemm
from dsocr_analyze.tape import Operand, Size, Tape, View, linear, rms_norm

__all__ = ["latent_attention", "rotary_embedding"]


def latent_attention(
    t: Tape, x: Operand, mask: Operand | None, p: Pass, c: DecoderDimensions
) -> tuple[Operand, ...]:
    """`DeepseekV2Attention`: `[B, T, d]`, and what the layer keeps: latents, keys, tables.

    The up-projection `[W_k; W_v]` multiplies queries and results, so that its module is never
    called.
    """
    if p.flash:
        return _flash_form(t, x, p, c)
    B, T, K, n, d = p.B, p.T, p.keys, p.tokens, c.hidden_size
    H, r, P = c.heads, c.kv_lora_rank, c.qk_rope_head_dim
    nope, value = c.qk_nope_head_dim, c.v_head_dim
    is_prompt, is_apart = not p.past, H > 1 and B > 1
    query = _queries(t, x, n, c)
    joint = t.call("kv_a_proj_with_mqa", linear, x, n, d, r + P, bias=c.attention_bias)
    latent = t.call("kv_a_layernorm", rms_norm, t.view(joint, n * r), n, r)
    q_pe, k_pe, *tables = _rotated_pairs(t, query, joint, p, c)
    del joint
    if p.past:
        k_pe, latent = cached(t, k_pe, latent, p, P, r)
    t.idle("kv_b_proj", linear, latent, n, r, H * (nope + value))
    up_key, up_value = View(H * nope * r, t.dtype), View(H * r * value, t.dtype)

    def copy_of(size: Size, *, unless: bool = False) -> Size | None:
        """The size of a factor's copy, which only heads of several sequences need."""
        return size if is_apart and not unless else None

    q_latent = product(
        t, Gemm(B * H, T, r, nope), t.view(query, n * (H * nope)), up_key,
        copy_of(n * (H * nope), unless=not is_prompt), copy_of(B * (H * nope * r)),
    )  # fmt: skip
    # Rotating more than a single pair has laid the queries out anew.
    weights = t.map(
        "add",
        product(
            t, Gemm(B * H, T, K, P), q_pe, k_pe,
            copy_of(n * (H * P), unless=P > 2 or not is_prompt), copy_of(B * K * (H * P)),
        ),
        product(t, Gemm(B * H, T, K, r), q_latent, latent, None, copy_of(B * K * (H * r))),
    )  # fmt: skip
    if is_prompt:
        t.skippable(scores_of_later_tokens(t, p, H) * (P + 2 * r))
    weights = t.map("mul", weights)
    if mask is not None:
        weights = t.map("add", weights, mask)
    weights = t.cast(t.softmax(weights, p.tokens * H, K), t.dtype)
    heads = t.product("einsum", Gemm(B, T * H, r, K), weights, latent)
    heads = product(
        t, Gemm(B * H, T, value, r), heads, up_value, None, copy_of(B * (H * r * value))
    )
    if H > 1 and is_prompt:
        heads = t.clone(heads)
    out = t.call("o_proj", linear, heads, n, H * value, d, bias=c.attention_bias)
    t.hold(query, q_pe, q_latent, weights)
    return out, k_pe, latent, *tables


def _queries(t: Tape, x: Operand, n: Size, c: DecoderDimensions) -> Operand:
    """One projection, or two with a latent and its norm in between."""
    d, rank, width = c.hidden_size, c.q_lora_rank, c.heads * c.head_dim
    if rank is None:
        return t.call("q_proj", linear, x, n, d, width)
    x = t.call("q_a_proj", linear, x, n, d, rank, bias=c.attention_bias)
    x = t.call("q_a_layernorm", rms_norm, x, n, rank)
    return t.call("q_b_proj", linear, x, n, rank, width)


def _rotated_pairs(
    t: Tape, query: Operand, joint: Operand, p: Pass, c: DecoderDimensions
) -> tuple[Operand, ...]:
    """Rotates the queries' rotary part and the shared key; also returns the kept tables.

    Features are stored in pairs and copied into halves first, unless there is a single pair.
    """
    n, H, P = p.tokens, c.heads, c.qk_rope_head_dim
    tables, frequencies = t.call("rotary_emb", rotary_embedding, p.keys, c)
    positions = t.input(n, INT64)
    cos, sin = (t.gather("index", positions, n * P, t.dtype) for _ in tables)
    q_pe: Operand = t.view(query, n * (H * P))
    k_pe: Operand = t.view(joint, n * P)
    if P > 2:
        q_pe, k_pe = t.clone(q_pe), t.clone(k_pe)
    pairs = rotated(t, q_pe, cos, sin), rotated(t, k_pe, cos, sin)
    t.hold(q_pe)
    return *pairs, *tables, *frequencies


def _flash_form(t: Tape, x: Operand, p: Pass, c: DecoderDimensions) -> tuple[Operand, ...]:
    """`DeepseekV2FlashAttention2`: keys and values are up-projected, and kept whole."""
    n, d, H, D = p.tokens, c.hidden_size, c.heads, c.head_dim
    r, P, nope, value = c.kv_lora_rank, c.qk_rope_head_dim, c.qk_nope_head_dim, c.v_head_dim
    query = _queries(t, x, n, c)
    joint = t.call("kv_a_proj_with_mqa", linear, x, n, d, r + P, bias=c.attention_bias)
    latent = t.call("kv_a_layernorm", rms_norm, t.view(joint, n * r), n, r)
    up = t.call("kv_b_proj", linear, latent, n, r, H * (nope + value))
    del latent
    q_pe, k_pe, *tables = _rotated_pairs(t, query, joint, p, c)
    q = _joined(t, t.view(query, n * (H * nope)), q_pe, n * H, c)
    k = _joined(t, t.view(up, n * (H * nope)), k_pe, n * H, c)
    v: Operand = t.view(up, n * (H * value))
    if value != D:
        v = t.move("constant_pad_nd", v, n=n * (H * D))
    if p.past:
        k, v = cached(t, k, v, p, H * D)
    heads = flash_attention(t, q, k, v, p, c)
    if value != D:
        heads = t.view(heads, n * (H * value))
        if H > 1 or p.B > 1 or p.T > 1:  # a single row without its padding is contiguous
            heads = t.clone(heads)
    out = t.call("o_proj", linear, heads, n, H * value, d, bias=c.attention_bias)
    t.hold(query, joint, up, q_pe, k_pe, q)
    return out, k, v, *tables


def _joined(t: Tape, nope: Operand, pe: Operand, rows: Size, c: DecoderDimensions) -> Operand:
    """Queries or keys of n H rows from their parts; the shared rotary key is read once."""
    joined = t.empty(rows * c.head_dim, t.dtype)
    t.move("copy", nope, into=joined)
    t.move("copy", pe, n=rows * c.qk_rope_head_dim, into=joined)
    return joined


def rotary_embedding(
    t: Tape, K: Size, c: DecoderDimensions
) -> tuple[tuple[Operand, Operand], tuple[Operand, ...]]:
    """`DeepseekV2*RotaryEmbedding`: cosines and sines of positions 0 to K - 1.

    Also returns the frequencies, if they are computed anew for this length.

    Source: RoFormer (Su et al. 2021), eq. 34; Chen et al. 2023, eq. 4 ("linear").
    """
    P, scaling = c.qk_rope_head_dim, c.rope_scaling
    half = P // 2
    frequencies: tuple[Operand, ...] = ()
    blended: list[Operand] = []
    if scaling == "yarn":
        blend, *blended = _yarn_frequencies(t, half)
        frequencies = (blend,)
    elif scaling == "dynamic" and c.max_position_embeddings < K:
        frequencies = (_dynamic_frequencies(t, half),)
    positions = t.fill("arange", K, FLOAT32)
    if scaling == "linear":
        positions = t.map("div", positions)
    inv_freq = frequencies[0] if frequencies else t.input(half, FLOAT32)
    outer = t.map("mul", positions, inv_freq, n=K * half)
    angles = t.cat(outer, outer)
    cos = _table(t, angles, "cos", is_scaled=scaling == "yarn")
    sin = _table(t, angles, "sin", is_scaled=scaling == "yarn")
    t.hold(positions, outer, *blended)
    return (cos, sin), frequencies


def _table(t: Tape, angles: Operand, operator: str, *, is_scaled: bool) -> Operand:
    table = t.map(operator, angles)
    if is_scaled:
        table = t.map("mul", table)
    return t.cast(table, t.dtype)


def _dynamic_frequencies(t: Tape, half: int) -> Operand:
    """`1 / base^(2 i / P)` with a larger base; a range and a cast on the host, moved here."""
    steps = t.move("arange", n=half, dtype=INT64, into=t.host(half, INT64))
    steps = t.move("_to_copy", steps, dtype=FLOAT32, into=t.host(half, FLOAT32))
    return _inverse(t, t.map("pow", t.map("div", t.move("transfer", steps))))


def _inverse(t: Tape, x: Operand) -> Operand:
    """`1.0 / x`: a reciprocal and a product, through which Python holds `x`."""
    inverse = t.map("mul", t.map("reciprocal", x))
    t.hold(x)
    return inverse


def _yarn_frequencies(t: Tape, half: int) -> tuple[Operand, ...]:
    """YaRN's blend of kept and interpolated frequencies (Peng et al. 2023, eq. 17 to 23).

    Returns:
        The blend; then what the published code holds until its tables exist.
    """
    kept = _inverse(t, _yarn_periods(t, half))
    interpolated = _inverse(t, t.map("mul", _yarn_periods(t, half)))
    kept_share = t.map("rsub", t.move("transfer", _yarn_ramp(t, half)))
    blend = t.map(
        "add",
        t.map("mul", interpolated, t.map("rsub", kept_share)),
        t.map("mul", kept, kept_share),
    )
    return blend, kept, interpolated, kept_share


def _yarn_periods(t: Tape, half: int) -> Operand:
    """`base^(2 i / P)`."""
    return t.map("pow", t.map("div", t.fill("arange", half, FLOAT32)))


def _yarn_ramp(t: Tape, half: int) -> View:
    """0 to 1, clamped, on the host."""
    host = t.host(half, FLOAT32)
    t.move("arange", n=half, dtype=FLOAT32, into=host)
    for operator in ("sub", "div", "clamp"):
        t.map(operator, host, into=host)
    return host
