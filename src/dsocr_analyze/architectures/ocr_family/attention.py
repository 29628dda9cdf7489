"""Parts of Llama's layers on a tape, some of which the Qwen2 encoder shares.

Source: `LlamaAttention`, `LlamaRotaryEmbedding`, `apply_rotary_pos_emb` and `LlamaMLP` of
transformers 4.46, which `DeepseekV2MLP` (`modeling_deepseekv2.py`) and `Qwen2MLP` equal; Vaswani et
al. 2017, eq. 1; Ainslie et al. 2023 (grouped queries); Dao 2023.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
from dsocr_analyze.kernels import BOOL, FLOAT32, INT64, Attention, Gemm
from dsocr_analyze.tape import Operand, Size, Tape
from dsocr_analyze.tape.modules import ACTIVATIONS, fused_attention, linear, rms_norm

LayerCache: TypeAlias = list[Operand]
"""What a layer keeps for later steps: keys, values, and tables computed anew."""


@dataclass(frozen=True, slots=True)
class Pass:
    """How a pass runs: T new tokens in each of B sequences, beside `past` in the cache.

    Attributes:
        flash: FlashAttention instead of the eager product.
        overwrites: Whether the new token replaces one of a full window.
        touched: Routed experts that run in each layer; None for those of an even split.
    """

    B: Size
    T: Size
    past: Size = 0
    flash: bool = False
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
    t: Tape, x: Operand, mask: Operand | None, p: Pass, c: DecoderDimensions
) -> tuple[Operand, Operand, Operand]:
    """`LlamaAttention`: `[B, T, d]`, and all keys and values."""
    n, d, H, kv, D = p.tokens, c.hidden_size, c.heads, c.kv_heads, c.head_dim
    q = t.call("q_proj", linear, x, n, d, H * D, bias=c.attention_bias)
    k = t.call("k_proj", linear, x, n, d, kv * D, bias=c.attention_bias)
    v = t.call("v_proj", linear, x, n, d, kv * D, bias=c.attention_bias)
    cos, sin = t.call("rotary_emb", rotary_tables, p.B, p.T, D)
    q, k = rotated(t, q, cos, sin), rotated(t, k, cos, sin)
    written = (k, v) if p.overwrites else ()  # the cache's own memory has other names
    if p.past:
        k, v = cached(t, k, v, p, kv * D, kv * D)
    if p.flash:
        heads, weights = flash_attention(t, q, k, v, p, c), None
    else:
        keys, values = repeat_kv(t, k, v, p, c)
        heads, weights = eager_attention(t, q, keys, values, mask, p, c, keys_are_apart=not p.past)
        t.hold(keys, values)  # in the class until it returns
    out = t.call("o_proj", linear, heads, n, H * D, d, bias=c.attention_bias)
    return t.hold((out, k, v), cos, sin, q, weights, *written)


def cached(
    t: Tape, k: Operand, v: Operand, p: Pass, key_width: int, value_width: int
) -> tuple[Operand, Operand]:
    """Keys and values of all K tokens, appended to the cache or written over the oldest."""
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


def eager_attention(
    t: Tape,
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None,
    p: Pass,
    c: DecoderDimensions,
    *,
    keys_are_apart: bool,
    queries_are_apart: bool = True,
    scaled: str = "div",
) -> tuple[Operand, Operand]:
    """`softmax(q k^T / sqrt(D) + mask) v`, `[B, T, H, D]`, and its weights, after `repeat_kv`.

    With several sequences and heads, a product first copies factors that are no batches of matrices
    in memory: a prompt's queries, keys if these `are_apart`, too, and a key shared by all heads.
    """
    B, T, K, H, kv, D = p.B, p.T, p.keys, c.heads, c.kv_heads, c.head_dim
    is_prompt, is_apart = not p.past, H > 1 and B > 1
    queries = B * T * (H * D) if is_apart and is_prompt and queries_are_apart else None
    shared = None
    if is_apart and not H > kv > 1 and (keys_are_apart or kv != H):
        shared = B * K * (H * D)
    if is_prompt:
        t.skippable(scores_of_later_tokens(t, p, H) * (2 * D))
    weights = t.map(scaled, product(t, Gemm(B * H, T, K, D), q, k, queries, shared))
    if mask is not None:
        weights = t.map("add", weights, mask)
    weights = t.cast(t.softmax(weights, p.tokens * H, K), t.dtype)
    heads = product(t, Gemm(B * H, T, D, K), weights, v, None, shared)
    return (t.move("clone", heads) if H > 1 and is_prompt else heads), weights


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
    t: Tape, q: Operand, k: Operand, v: Operand, p: Pass, c: DecoderDimensions
) -> Operand:
    """FlashAttention, causal (Dao 2023, alg. 1); a prompt's positions are checked first."""
    if not p.past and not c.use_mla:
        _check_positions(t, p.B * (p.T - 1))
    D = c.head_dim
    skippable = 0 if p.past else scores_of_later_tokens(t, p, c.heads)
    t.skippable(skippable * (2 * D))
    shape = Attention(p.B, c.heads, c.kv_heads, p.T, p.keys, D, D, skippable_scores=skippable)
    return fused_attention(t, "flash_attention", shape, q, k, v)


def _check_positions(t: Tape, steps: Size) -> None:
    """Whether positions increase: one difference per pair of neighbours."""
    before, after = t.input(steps, INT64), t.input(steps, INT64)
    t.reduce("all", t.map("ge", t.map("sub", before, after), output=BOOL), 1, steps)


def scores_of_later_tokens(t: Tape, p: Pass, H: int) -> Size:
    """Scores of all heads above the diagonal."""
    return p.B * t.derived("{0} ({0} - 1) / 2", lambda T: T * (T - 1) // 2, p.T) * H


# --- rotary positions and the MLP ------------------------------------------------------------


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


def rotated(t: Tape, x: Operand, cos: Operand, sin: Operand, operator: str = "cat") -> Operand:
    """`x cos + rotate_half(x) sin` (RoFormer, eq. 34); elements in, as many out.

    The `operator` joins halves of each head, or pairs of neighbours.
    """
    half = t.view(x, x.n // 2)  # `rotate_half`: the second half of each head, negated, comes first
    return t.map(
        "add",
        t.map("mul", x, cos),
        t.map("mul", t.move(operator, t.map("neg", half), half, n=x.n), sin),
    )


def swiglu(
    t: Tape, x: Operand, n: Size, d: Size, f: Size, act: str = "silu", *, bias: bool = False
) -> Operand:
    """`W_down (act(W_gate x) * W_up x)`, `[n, d] -> [n, f] -> [n, d]` (Shazeer 2020, eq. 6)."""
    if t.is_served:
        return fused_swiglu(t, x, n, d, f, bias=bias)
    hidden = t.map(
        "mul",
        t.call("act_fn", ACTIVATIONS[act], t.call("gate_proj", linear, x, n, d, f, bias=bias)),
        t.call("up_proj", linear, x, n, d, f, bias=bias),
    )
    return t.call("down_proj", linear, hidden, n, f, d, bias=bias)


def fused_swiglu(t: Tape, x: Operand, n: Size, d: Size, f: Size, *, bias: bool = False) -> Operand:
    """`MergedColumnParallelLinear`, `SiluAndMul` and another product of serving engines."""
    gate_up = linear(t, x, n, d, 2 * f, bias=bias, operator="merged_linear")
    gated = t.map("silu_and_mul", gate_up, n=n * f, flops=5, kind="activation")
    return linear(t, gated, n, f, d, bias=bias)


def _joint_swiglu(t: Tape, x: Operand, n: Size, d: Size, f: Size, act: str) -> Operand:
    """`swiglu` whose first product yields gate and up (`GlmOcrTextMLP`)."""
    both = t.call("gate_up_proj", linear, x, n, d, 2 * f)
    half = t.view(both, n * f)
    hidden = t.map("mul", half, t.call("activation_fn", ACTIVATIONS[act], half))
    return t.hold(t.call("down_proj", linear, hidden, n, f, d), both)


def qwen2_layer(
    t: Tape,
    x: Operand,
    n: Size,
    d: Size,
    f: Size,
    act: str,
    attend: Callable[..., tuple[Any, ...]],
    *inputs: Any,
    output_norms: bool = False,
) -> tuple[Operand, Operand, Operand]:
    """`y = x + attention(norm(x))`, `y + mlp(norm(y))`: features, keys and values.

    Source: `Qwen2DecoderLayer`; `GlmOcrTextDecoderLayer`.

    Args:
        t: The tape.
        x: `[n, d]`.
        n: Tokens.
        d: Width.
        f: Width of the MLP.
        act: Its activation.
        attend: Attention: features, keys, values, and what stays until the layer returns.
        inputs: Of attention, after features.
        output_norms: Whether the outputs of attention and MLP are normed, whose products are joint.
    """
    residual = x
    x = t.call("input_layernorm", rms_norm, x, n, d)
    x, k, v, *held = t.call("self_attn", attend, x, *inputs)
    if output_norms:
        x = t.call("post_self_attn_layernorm", rms_norm, x, n, d)
    residual = x = t.map("add", residual, x)
    x = t.call("post_attention_layernorm", rms_norm, x, n, d)
    x = t.call("mlp", _joint_swiglu if output_norms else swiglu, x, n, d, f, act)
    if output_norms:
        x = t.call("post_mlp_layernorm", rms_norm, x, n, d)
    return t.hold((t.map("add", residual, x), k, v), *held)


def lm_head(t: Tape, hidden: Operand, rows: Size, c: DecoderDimensions) -> Operand:
    """The head: logits `[rows, V]` of as many positions of `[B, T, d]`."""
    d, V = c.hidden_size, c.vocab_size
    weight = t.input(V * d, t.dtype) if c.tie_word_embeddings else t.weight(V * d)
    return t.product("linear", Gemm(1, rows, V, d), t.view(hidden, rows * d), weight)
