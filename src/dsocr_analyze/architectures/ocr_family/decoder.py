"""The decoder's forward on a tape, in the order and with the names of `modeling_deepseekv2.py`.

B is the batch, T the new tokens per sequence, `past` those in the cache before, K all of them, d
the width. The heads of latent attention share one latent of rank r for keys and values, and one
rotary key of P features.

Source: DeepSeek-V2 (2405.04434), eq. 9 to 19 and section 2.1.2 (latent attention), eq. 20 to 29
(experts); DeepSeek-V3 (2412.19437), eq. 12 to 16; transformers' `LlamaAttention`.
"""

from collections.abc import Callable, Sequence
from operator import floordiv
from typing import Any, Final

from dsocr_analyze.architectures.ocr_family.attention import (
    LayerCache,
    Pass,
    attention,
    cached,
    flash_attention,
    product,
    scores_of_later_tokens,
)
from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
from dsocr_analyze.figures import IncidentalOperators, RoutedExperts, expected_experts
from dsocr_analyze.kernels import BOOL, FLOAT32, INT64, Dtype, Gemm, Rows
from dsocr_analyze.tape import Operand, Size, Tape, ceil_log2, minimum
from dsocr_analyze.tape.modules import joint_swiglu, linear, rms_norm, rotated, swiglu

NOT_MODELLED: Final = (
    IncidentalOperators(
        r"model\.layers\.\d+\.self_attn\.rotary_emb",
        frozenset({"max", "add", "gt", "lt"}),
        "plain attention with 'dynamic' positions asks each layer for the longest position",
    ),
)
"""Operators that no forward here has."""


def decoder(
    t: Tape, embeds: Operand, p: Pass, c: DecoderDimensions
) -> tuple[Operand, list[LayerCache]]:
    """`DeepseekV2Model`: embeddings `[B, T, d]` to normed features, and the cache by layer."""
    mask = None
    is_masked = c.masks_steps or not p.past
    if is_masked and p.flash:
        n = p.B * p.keys  # whether the mask `[B, K]` hides anything, which it does not
        t.reduce("any", t.map("eq", t.input(n, INT64), output=BOOL), 1, n)
    elif is_masked:
        mask = _additive_mask(t, p)
    return t.hold(decoder_layers(t, embeds, p, c, mask), mask)


def decoder_layers(
    t: Tape,
    embeds: Operand,
    p: Pass,
    c: DecoderDimensions,
    mask: Operand | None,
    tables: Sequence[Operand] = (),
    deepstack: Sequence[Operand] = (),
) -> tuple[Operand, list[LayerCache]]:
    """All layers and the last norm: embeddings `[B, T, d]` to features, and the cache by layer.

    Args:
        t: The tape.
        embeds: `[B, T, d]`.
        p: The pass.
        c: The decoder's dimensions.
        mask: Added to scores, if any.
        tables: Cosines and sines of positions, unless each layer makes its own.
        deepstack: Features of visual tokens, each of which is added to them after a layer.
    """
    hidden = layer_outputs = embeds
    cache: list[LayerCache] = []
    for index in range(c.layers):
        layer_outputs, kept = t.again(
            f"layers.{index}", _layer, hidden, mask, p, c, *tables, is_moe=c.is_moe(index)
        )
        cache.append(kept)
        hidden = layer_outputs
        if index < len(deepstack):
            hidden = _with_added(t, hidden, deepstack[index], p)
    hidden = t.call("norm", rms_norm, hidden, p.tokens, c.hidden_size)
    return t.hold((hidden, cache), layer_outputs)


def _layer(
    t: Tape,
    x: Operand,
    mask: Operand | None,
    p: Pass,
    c: DecoderDimensions,
    *tables: Operand,
    is_moe: bool,
) -> tuple[Operand, LayerCache]:
    """`y = x + attention(norm(x))`, `y + mlp(norm(y))`: features, and what the layer keeps.

    Source: `DeepseekV2DecoderLayer`; `Qwen2DecoderLayer`; `GlmOcrTextDecoderLayer`, which also
    norms the outputs of attention and MLP.
    """
    n, d = p.tokens, c.hidden_size
    attend: Callable[..., tuple[Any, ...]] = latent_attention if c.use_mla else attention
    residual = x
    x = t.call("input_layernorm", rms_norm, x, n, d)
    x, kept, *held = t.call("self_attn", attend, x, mask, p, c, *tables)
    if c.output_norms:
        x = t.call("post_self_attn_layernorm", rms_norm, x, n, d)
    residual = x = t.map("add", residual, x)
    x = t.call("post_attention_layernorm", rms_norm, x, n, d)
    if is_moe:
        x = t.call("mlp", mixture, x, p, c)
    else:
        dense = joint_swiglu if c.output_norms else swiglu
        x = t.call("mlp", dense, x, n, d, c.intermediate_size, c.hidden_act)
    if c.output_norms:
        x = t.call("post_mlp_layernorm", rms_norm, x, n, d)
    return t.hold((t.map("add", residual, x), kept), *held)


def _with_added(t: Tape, hidden: Operand, features: Operand, p: Pass) -> Operand:
    """A copy of `[B, T, d]` with features added to the visual tokens (`Qwen3VLTextModel`)."""
    copy, seen = t.move("clone", hidden), t.input(p.tokens, BOOL)
    chosen = t.gather("index", seen, features.n, t.dtype)
    chosen = t.map("add", chosen, features)
    return t.move("index_put", chosen, seen, written=copy.nbytes, n=copy.n, into=copy)


# --- masks


def _additive_mask(t: Tape, p: Pass) -> Operand:
    """Lowest numbers where nothing is seen, `[B, 1, T, K]`; a step's hides padding alone."""
    n, causal = p.tokens * p.keys, None
    if not p.past:  # first `[T, T]`: the lowest number above the diagonal
        causal = t.move("full", n=p.T * p.T, dtype=FLOAT32)
        index = t.move("arange", n=p.T, dtype=INT64)
        later = t.map("lt", index, t.map("add", index), n=p.T * p.T, output=BOOL)
        t.move("masked_fill", causal, later, into=causal)
        del later
        causal = t.cast(causal, t.dtype)
        del index
    visible = t.move("_to_copy", t.input(p.B * p.keys, INT64), n=n, dtype=t.dtype)
    hidden = t.map("rsub", visible)
    padding = t.move("masked_fill", hidden, t.cast(hidden, BOOL))
    del visible, hidden
    if causal is None:
        return padding
    return t.hold(t.move("masked_fill", causal, t.cast(padding, BOOL), n=n), causal, padding)


# --- latent attention: eager with absorbed up-projection, and its flash form


def latent_attention(
    t: Tape, x: Operand, mask: Operand | None, p: Pass, c: DecoderDimensions
) -> tuple[Operand, LayerCache]:
    """`DeepseekV2Attention`: `[B, T, d]`, and what the layer keeps.

    The up-projection `[W_k; W_v]` multiplies queries and results; its module is never called.
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
    k_pe, latent = cached(t, k_pe, latent, p, c, P, r)
    t.idle("kv_b_proj", linear, latent, n, r, H * (nope + value))
    up_key, up_value = Operand(H * nope * r, t.dtype), Operand(H * r * value, t.dtype)

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
        heads = t.move("clone", heads)
    out = t.call("o_proj", linear, heads, n, H * value, d, bias=c.attention_bias)
    return t.hold((out, (k_pe, latent, *tables)), query, q_pe, q_latent, weights)


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

    Several pairs of features are copied into halves first.
    """
    n, H, P = p.tokens, c.heads, c.qk_rope_head_dim
    tables, frequencies = t.call("rotary_emb", rotary_embedding, p.keys, c)
    cos, sin = (t.gather("index", t.input(n, INT64), n * P, t.dtype) for _ in tables)
    q_pe: Operand = t.view(query, n * (H * P))
    k_pe: Operand = t.view(joint, n * P)
    if P > 2:
        q_pe, k_pe = t.move("clone", q_pe), t.move("clone", k_pe)
    pairs = rotated(t, q_pe, cos, sin), rotated(t, k_pe, cos, sin)
    return t.hold((*pairs, *tables, *frequencies), q_pe)


def _flash_form(t: Tape, x: Operand, p: Pass, c: DecoderDimensions) -> tuple[Operand, LayerCache]:
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
    k, v = cached(t, k, v, p, c, H * D, H * D)
    heads, *_ = flash_attention(t, q, k, v, None, p, c)
    if value != D:
        heads = t.view(heads, n * (H * value))
        if H > 1 or p.B > 1 or p.T > 1:  # a single row without its padding is contiguous
            heads = t.move("clone", heads)
    out = t.call("o_proj", linear, heads, n, H * value, d, bias=c.attention_bias)
    return t.hold((out, (k, v, *tables)), query, joint, up, q_pe, k_pe, q)


def _joined(t: Tape, nope: Operand, pe: Operand, rows: Size, c: DecoderDimensions) -> Operand:
    """Queries or keys from their parts; the shared rotary key is read once."""
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
    positions = t.move("arange", n=K, dtype=FLOAT32)
    if scaling == "linear":
        positions = t.map("div", positions)
    inv_freq = frequencies[0] if frequencies else t.input(half, FLOAT32)
    outer = t.map("mul", positions, inv_freq, n=K * half)
    angles = t.cat(outer, outer)
    cos, sin = (_table(t, angles, name, is_scaled=scaling == "yarn") for name in ("cos", "sin"))
    return t.hold(((cos, sin), frequencies), positions, outer, *blended)


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
    return t.hold(t.map("mul", t.map("reciprocal", x)), x)


def _yarn_frequencies(t: Tape, half: int) -> tuple[Operand, ...]:
    """YaRN's blend (Peng et al. 2023, eq. 17 to 23), then what is held until its tables exist."""
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
    return t.map("pow", t.map("div", t.move("arange", n=half, dtype=FLOAT32)))


def _yarn_ramp(t: Tape, half: int) -> Operand:
    """0 to 1, clamped, on the host."""
    host = t.host(half, FLOAT32)
    t.move("arange", n=half, dtype=FLOAT32, into=host)
    for operator in ("sub", "div", "clamp"):
        t.map(operator, host, into=host)
    return host


# --- a mixture of experts


def mixture(t: Tape, x: Operand, p: Pass, c: DecoderDimensions) -> Operand:
    """`DeepseekV2MoE`: `y = sum_i g_i E_i(x) + E_shared(x)` (2405.04434, eq. 20)."""
    n, d = p.tokens, c.hidden_size
    chosen, weights = t.call("gate", _gate, x, n, c)
    y = _routed(t, chosen, weights, p, c)
    if shared := c.shared_intermediate_size:
        y = t.map("add", y, t.call("shared_experts", swiglu, x, n, d, shared, c.hidden_act))
    return t.hold(y, chosen, weights)


def _gate(t: Tape, x: Operand, n: Size, c: DecoderDimensions) -> tuple[Operand, Operand]:
    """`MoEGate`: k of E experts for each of n tokens, by fp32 scores, and their weights."""
    E, k = c.n_routed_experts or 0, c.num_experts_per_tok
    weight = t.weight(E * c.hidden_size)
    logits = t.product(
        "linear", Gemm(1, n, E, c.hidden_size), t.cast(x, FLOAT32), t.cast(weight, FLOAT32)
    )
    if c.scoring_func == "softmax":
        scores = t.softmax(logits, n, E)
    else:
        scores = t.map("sigmoid", logits, flops=4, kind="activation")
    chosen, weights, *ranking = _selected(t, scores, n, c)
    if k > 1 and c.norm_topk_prob:
        denominator = t.map("add", t.reduce("sum", weights, n, k))
        weights = t.map("mul", t.map("div", weights, denominator))
        t.hold(denominator)
    else:
        weights = t.map("mul", weights)
    return t.hold((chosen, weights), logits, scores, *ranking)


def _selected(t: Tape, scores: Operand, n: Size, c: DecoderDimensions) -> tuple[Operand, ...]:
    """Indices and scores of the top k, and what else the router holds to its end.

    Groups rank by their best score ("group_limited_greedy") or two, biased unlike the final ones
    ("noaux_tc").
    """
    E, k, groups = c.n_routed_experts or 0, c.num_experts_per_tok, c.n_group
    if c.topk_method == "greedy":
        weights, chosen = _top(t, scores, n, E, k)
        return chosen, weights
    size = E // groups
    if c.topk_method == "group_limited_greedy":
        best = (n * groups, FLOAT32), (n * groups, INT64)
        shape = Rows(n * groups, size)
        ranks = t.rows("reduction", "max", scores, shape, *best, flops=scores.n)[0]
        kept = _within_best_groups(t, scores, ranks, n, c)
        weights, chosen = _top(t, kept[0], n, E, k)
        return chosen, weights, ranks, *kept
    corrected = t.map("add", scores, t.weight(E, "e_score_correction_bias"))
    best_two = _top(t, corrected, n * groups, size, 2)[0]
    ranks = t.reduce("sum", best_two, n * groups, 2)
    del best_two
    kept = _within_best_groups(t, corrected, ranks, n, c)
    corrected_weights, chosen = _top(t, kept[0], n, E, k)
    weights = t.move("gather", scores, n=n * k, read=(INT64.nbytes + FLOAT32.nbytes) * n * k)
    return chosen, weights, corrected, ranks, *kept, corrected_weights


def _top(t: Tape, scores: Operand, rows: Size, width: int, k: int) -> list[Operand]:
    """The k largest of each row and their indices: one comparison per candidate."""
    outputs = (rows * k, FLOAT32), (rows * k, INT64)
    return t.rows("routing", "topk", scores, Rows(rows, width), *outputs, flops=scores.n)


def _within_best_groups(
    t: Tape, scores: Operand, ranks: Operand, n: Size, c: DecoderDimensions
) -> tuple[Operand, ...]:
    """Scores with zero outside the best groups; then the groups and both masks."""
    E, groups = c.n_routed_experts or 0, c.n_group
    best = _top(t, ranks, n, groups, c.topk_group)[1]
    chosen = t.move("zeros_like", n=n * groups, dtype=FLOAT32)
    written = FLOAT32.nbytes * best.n
    t.move("scatter", chosen, read=best.nbytes, written=written, into=chosen)
    mask: Operand = chosen
    if 1 < groups < E:
        mask = t.move("clone", chosen, n=n * E)
    flags = t.map("bitwise_not", t.move("_to_copy", mask, n=n * E, dtype=BOOL))
    masked = t.move("masked_fill", scores, flags)
    return masked, best, chosen, mask


def _routed(t: Tape, chosen: Operand, weights: Operand, p: Pass, c: DecoderDimensions) -> Operand:
    """`moe_infer`: tokens sorted by expert, each expert on its share, sorted back and summed."""
    n, d = p.tokens, c.hidden_size
    E, k = c.n_routed_experts or 0, c.num_experts_per_tok
    choices = n * k
    table = t.move("new_zeros", n=n * E, dtype=INT64)
    t.move("scatter", chosen, n=n * E, written=chosen.nbytes, into=table)
    tokens_per_expert = t.reduce("sum", table, E, n)
    compared = choices * t.derived("ceil(log2({}))", ceil_log2, choices)
    sorted_, shape = (choices, INT64), Rows(1, choices)
    order = t.rows("routing", "sort", chosen, shape, sorted_, sorted_, flops=compared)[1]
    tokens = t.gather("index", t.map("floor_divide", order), choices * d, t.dtype)
    t.move("transfer", tokens_per_expert, into=t.host(E, INT64))
    del tokens_per_expert
    # Under uniform routing, choices are dealt to the experts in turn, which touches as many as
    # possible; the first ones may get one more.
    touched, sizes = p.touched, (d, c.moe_intermediate_size, c.hidden_act)
    if touched is None:
        touched = t.derived("min({}, {})", minimum, choices, E, least=1, most=E)
    # No token chooses an expert twice.
    share = t.derived("floor({} / {})", floordiv, choices, touched, least=1, most=p.tokens)
    longer, n_longer = choices - touched * share, share + 1  # experts, and their tokens
    x = t.view(tokens, share * d)
    t.idle("experts", swiglu, x, share, *sizes, indices=(touched, E))
    x = t.view(tokens, n_longer * d)
    outputs = t.each("experts", 0, longer, swiglu, x, n_longer, *sizes, most=E)
    x = t.view(tokens, share * d)
    outputs += t.each("experts", longer, touched, swiglu, x, share, *sizes, least=1)
    del x
    by_expert = t.cat(*outputs)
    by_token = t.empty(by_expert.n, t.dtype)
    t.move("index_put", by_expert, order, into=by_token)
    wide = t.cast(by_token, FLOAT32)
    t.map("mul", wide, weights, into=wide)
    y = t.reduce("sum", wide, n * d, k)
    del wide
    return t.hold(t.cast(y, t.dtype), table, order, tokens, *outputs, by_expert, by_token)


def experts_touched(tokens: Size, c: DecoderDimensions, dtype: Dtype) -> RoutedExperts | None:
    """Routed experts that tokens, a number or an array, touch; None without experts."""
    layers, E, k = c.moe_layers, c.n_routed_experts, c.num_experts_per_tok
    if not layers or E is None:
        return None
    even = minimum(tokens * k, E)
    return RoutedExperts(
        layers=layers,
        weights_bytes=c.expert_params * dtype.nbytes,
        even=even,
        expected=expected_experts(tokens, E, k),
        counted=layers * even,
    )
