"""Kernels of serving engines for a decoder, on a tape: one function per fusion, named like it.

A fusion does the same matrix work as what it replaces, except for logits that nobody reads and the
small products behind tables of angles; it saves bytes and launches. n is the tokens, d the width;
sizes of a workload may be symbols.

Source: vLLM (`model_executor/layers`), whose classes are named below, and SGLang's layers of the
same names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from dsocr_analyze.architectures.ocr_family.attention import Pass, scores_of_later_tokens
from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
from dsocr_analyze.dtypes import FLOAT32, INT64, Dtype
from dsocr_analyze.kernels import Attention, Experts, Gemm, Rows, Work
from dsocr_analyze.tape import Operand, Size, Tape, View, fused_attention

__all__ = [
    "FUSIONS",
    "cache_write",
    "combined_experts",
    "fused_add_rms_norm",
    "grouped_experts",
    "last_logits",
    "merged_linear",
    "paged_attention",
    "placed_features",
    "rotary_embedding",
    "router",
    "sampled",
    "silu_and_mul",
]

_BYTE: Final = Dtype("uint8", 1)


FUSIONS: Final[dict[str, str]] = {}
"""What the model's own code runs instead, by operator, in the order in which a prompt meets it."""

_Function = TypeVar("_Function", bound="Callable[..., Operand]")


def _replaces(what: str) -> Callable[[_Function], _Function]:
    """Lists a fusion under the name of its function, which is its operator."""

    def listed(function: _Function) -> _Function:
        FUSIONS[function.__name__] = what
        return function

    return listed


@_replaces("joining the views' features, and the masked scatter")
def placed_features(t: Tape, features: Operand) -> Operand:
    """Joins the features of all views, and writes them to their positions in the prompt.

    Source: `embed_multimodal` and `_merge_multimodal_embeddings`.
    """
    return t.move("placed_features", t.move("placed_features", features))


@_replaces("the residual addition and the casts, squares and products of a norm")
def fused_add_rms_norm(t: Tape, x: Operand, n: Size, d: int) -> Operand:
    """Adds the residual and normalises the sum: reads both and writes both, `[n, d]`.

    Source: `RMSNorm`.
    """
    both = 2 * x.nbytes
    work = Work(0, 5 * x.n, 0, both + t.weight(d).nbytes, both)
    t.record("normalization", "fused_add_rms_norm", Rows(n, d), x.dtype, x.dtype, work)
    return x


@_replaces("the products of q, k and v, or of gate and up, with weights joined")
def merged_linear(
    t: Tape, x: Operand, n: Size, d_in: int, d_out: int, *, bias: bool = False
) -> Operand:
    """`[n, d_in] -> [n, d_out]`, with the outputs of all parts side by side.

    Source: `QKVParallelLinear`, `MergedColumnParallelLinear`.
    """
    weight, biases = t.weight(d_in * d_out), t.weight(d_out, "bias") if bias else None
    return t.product("merged_linear", Gemm(1, n, d_out, d_in), x, weight, biases)


@_replaces("tables of cosines and sines, halves, negations and products")
def rotary_embedding(t: Tape, qk: Operand, n: Size, D: int) -> Operand:
    """Rotates queries and keys of D features per head in place, with one table row per token.

    Source: `RotaryEmbedding`.
    """
    table, positions = t.input(n * D, qk.dtype), t.input(n, INT64)
    return t.map("rotary_embedding", qk, table, positions, flops=3, into=qk)


@_replaces("the concatenation of cache and new keys and values")
def cache_write(t: Tape, kv: Operand, n: Size, cache_bits: int) -> Operand:
    """Writes keys and values of n tokens to their places in cache pages.

    Source: `reshape_and_cache_flash`.
    """
    pages = _cached(t, kv.n, cache_bits)
    return t.move("cache_write", kv, t.input(n, INT64), written=pages.nbytes, into=pages)


def _cached(t: Tape, elements: Size, bits: int) -> View:
    """Elements in cache pages, `bits` each."""
    return t.input(elements * bits // 8, _BYTE)


@_replaces("products, scale, mask and softmax of attention")
def paged_attention(
    t: Tape, q: Operand, B: Size, T: Size, K: Size, c: DecoderDimensions, cache_bits: int
) -> Operand:
    """Causal attention of T new tokens over a cache of K that includes them, for B sequences.

    Source: PagedAttention (Kwon et al. 2023); `Attention`.
    """
    H, kv, D = c.heads, c.kv_heads, c.head_dim
    pages = _cached(t, B * K * (2 * kv * D), cache_bits)
    skipped = scores_of_later_tokens(t, Pass(B, T), H)
    shape = Attention(B, H, kv, T, K, D, D, skippable_scores=skipped)
    return fused_attention(t, "paged_attention", shape, q, pages)


@_replaces("the activation and the product with the other half")
def silu_and_mul(t: Tape, gate_up: Operand, n: Size) -> Operand:
    """`silu(gate) * up`, n elements of `2 n`.

    Source: `SiluAndMul`.
    """
    return t.map("silu_and_mul", gate_up, n=n, flops=5, kind="activation")


@_replaces("the casts of tokens and weights to fp32, and the product in it")
def router(t: Tape, x: Operand, n: Size, c: DecoderDimensions) -> Operand:
    """Scores of all experts `[n, E]`.

    Source: `ReplicatedLinear`, which engines never quantize here.
    """
    d, E = c.hidden_size, c.n_routed_experts or 0
    return t.product("router", Gemm(1, n, E, d), x, t.weight(d * E))


@_replaces("top-k, sorting, three products and an activation for every expert, weights and sum")
def grouped_experts(t: Tape, x: Operand, scores: Operand, n: Size, c: DecoderDimensions) -> Operand:
    """Routed experts of a layer, from scores, as fp32, to the weighted sum `[n, d]`.

    Bytes exclude the experts' weights; the time prediction estimates how many experts are touched.
    Source: `FusedMoE`.
    """
    d, f, rows = c.hidden_size, c.moe_intermediate_size, n * c.num_experts_per_tok
    inner = t.empty(rows * f, x.dtype)
    work = Work(
        macs=inner.n * (3 * d),
        vector_flops=rows * (5 * f + 2 * d),
        activations=rows * (2 * f + d),
        bytes_read=x.nbytes + inner.nbytes + FLOAT32.nbytes * scores.n,
        bytes_written=inner.nbytes + x.nbytes,
    )
    shape = Experts(n, d, f, c.n_routed_experts or 0, c.num_experts_per_tok)
    t.record("gemm", "grouped_experts", shape, x.dtype, x.dtype, work)
    return t.empty(x.n, x.dtype)


@_replaces("the addition of shared and routed experts")
def combined_experts(t: Tape, routed: Operand, shared: Operand) -> Operand:
    """Adds the outputs of shared and routed experts, `[n, d]`.

    Source: `DeepseekV2MoE`.
    """
    return t.map("combined_experts", routed, shared)


@_replaces("the head over all positions: the last of each sequence is enough")
def last_logits(t: Tape, x: Operand, B: Size, d: int, V: int) -> Operand:
    """Logits `[B, V]` of the last position of each sequence.

    Source: `LogitsProcessor`.
    """
    return t.product("last_logits", Gemm(1, B, V, d), x, t.weight(V * d))


@_replaces("the choice of the next token")
def sampled(t: Tape, logits: Operand, B: Size, V: int) -> Operand:
    """Casts logits to fp32 and takes the largest of each row: two kernels.

    Source: `Sampler`.
    """
    wide = t.move("sampled", logits, dtype=FLOAT32)
    return t.rows("reduction", "sampled", wide, Rows(B, V), (B, INT64), flops=wide.n)[0]
