"""Kernels that a serving engine launches for a decoder: one function and one rule per fusion.

A rule names the operators of the model's own code that it replaces (`FUSIONS`). Its kernels do the
same matrix work, except for logits that nobody reads and the small products behind tables of
angles; a fusion saves bytes and launches. Counts may be arrays.

Source: vLLM (`model_executor/layers`: `QKVParallelLinear`, `RMSNorm`, `SiluAndMul`,
`RotaryEmbedding`, `FusedMoE`; `LogitsProcessor`), and SGLang's layers of the same names.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import Kernels, moved
from dsocr_analyze.dtypes import FLOAT32, INT64, Dtype
from dsocr_analyze.kernels import Attention, Elements, Experts, Gemm, Kernel, Rows, Work

__all__ = [
    "FUSIONS",
    "UNQUANTIZED",
    "Fusion",
    "cache_write",
    "combined_experts",
    "fused_add_rms_norm",
    "grouped_experts",
    "last_logits",
    "looked_up_tokens",
    "merged_linear",
    "paged_attention",
    "placed_features",
    "rotary_embedding",
    "router",
    "sampled",
    "silu_and_mul",
]


class Fusion(NamedTuple):
    """One kernel that replaces several operators.

    Attributes:
        operator: Name of the kernel.
        replaces: What the model's own code runs instead.
    """

    operator: str
    replaces: str


FUSIONS: Final = (
    Fusion("merged_linear", "the products of q, k and v, or of gate and up, with weights joined"),
    Fusion("fused_add_rms_norm", "the residual addition and the casts, squares and products of a"
           " norm"),
    Fusion("rotary_embedding", "tables of cosines and sines, halves, negations and products"),
    Fusion("cache_write", "the concatenation of cache and new keys and values"),
    Fusion("paged_attention", "products, scale, mask and softmax of attention"),
    Fusion("silu_and_mul", "the activation and the product with the other half"),
    Fusion("router", "the casts of tokens and weights to fp32, and the product in it"),
    Fusion("grouped_experts", "top-k, sorting, three products and an activation for every expert,"
           " weights and sum"),
    Fusion("combined_experts", "the addition of shared and routed experts"),
    Fusion("last_logits", "the head over all positions: the last of each sequence is enough"),
    Fusion("sampled", "the choice of the next token"),
    Fusion("placed_features", "joining the views' features, and the masked scatter"),
)  # fmt: skip
"""Every rule."""

UNQUANTIZED: Final = frozenset({"router", "last_logits"})
"""Decoder products that keep 16-bit weights when others are quantized."""


def merged_linear(
    n: Count, d_in: int, d_out: int, dtype: Dtype, *, parts: int, bias: bool = False
) -> Kernels:
    """`[n, d_in] -> [n, d_out]`; `parts` projections joined, one for a plain linear layer.

    Args:
        n: Tokens.
        d_in: Features in.
        d_out: Features out, over all parts.
        dtype: Type of features and weights.
        parts: Projections whose weights are joined.
        bias: Whether there is a bias.
    """
    return _product("merged_linear" if parts > 1 else "linear", n, d_in, d_out, dtype, bias=bias)


def router(n: Count, d: int, experts: int, dtype: Dtype) -> Kernels:
    """Scores of all experts for n tokens of width d."""
    return _product("router", n, d, experts, dtype)


def last_logits(B: Count, d: int, vocabulary: int, dtype: Dtype) -> Kernels:
    """The head at the last position of B sequences."""
    return _product("last_logits", B, d, vocabulary, dtype)


def _product(
    operator: str, n: Count, d_in: int, d_out: int, dtype: Dtype, *, bias: bool = False
) -> Kernels:
    read = n * d_in + d_in * d_out + (d_out if bias else 0)
    work = Work(
        macs=n * d_in * d_out,
        vector_flops=n * d_out if bias else 0,
        activations=n * d_out,
        bytes_read=dtype.nbytes * read,
        bytes_written=dtype.nbytes * n * d_out,
    )
    return (Kernel("gemm", operator, Gemm(1, n, d_out, d_in), dtype.name, dtype.name, work),)


def fused_add_rms_norm(n: Count, d: int, dtype: Dtype) -> Kernels:
    """Adds the residual and normalises the sum: reads both and writes both, `[n, d]`."""
    size = dtype.nbytes * n * d
    work = Work(vector_flops=5 * n * d, bytes_read=2 * size + dtype.nbytes * d,
                bytes_written=2 * size)  # fmt: skip
    name = "fused_add_rms_norm"
    return (Kernel("normalization", name, Rows(n, d), dtype.name, dtype.name, work),)


def rotary_embedding(n: Count, heads: int, D: int, dtype: Dtype) -> Kernels:
    """Rotates queries and keys of `heads` heads in place, with one table row per token."""
    elements = n * heads * D
    work = Work(
        vector_flops=3 * elements,
        bytes_read=dtype.nbytes * (elements + n * D) + INT64.nbytes * n,
        bytes_written=dtype.nbytes * elements,
    )
    dimensions = Elements(elements)
    return (Kernel("elementwise", "rotary_embedding", dimensions, dtype.name, dtype.name, work),)


def cache_write(n: Count, width: int, dtype: Dtype, cache_bits: int) -> Kernels:
    """Writes keys and values of n tokens, `width` elements per token, to cache pages."""
    read = dtype.nbytes * n * width + INT64.nbytes * n
    return moved("cache_write", n * width, read, n * width * cache_bits // 8, dtype)


def paged_attention(
    B: Count,
    T: Count,
    K: Count,
    heads: int,
    kv_heads: int,
    D: int,
    dtype: Dtype,
    cache_bits: int,
) -> Kernels:
    """Causal attention of T new tokens over a cache of K that includes them, for B sequences.

    Args:
        B: Sequences.
        T: New tokens per sequence.
        K: Keys per sequence, including those of the new tokens.
        heads: Query heads.
        kv_heads: Key and value heads.
        D: Features per head.
        dtype: Type of queries and outputs.
        cache_bits: Bits per cached element.
    """
    queries = B * heads * T
    scores = queries * K
    work = Work(
        macs=2 * scores * D,
        vector_flops=6 * scores,
        activations=queries * D,
        bytes_read=dtype.nbytes * queries * D + 2 * B * kv_heads * K * D * cache_bits // 8,
        bytes_written=dtype.nbytes * queries * D,
    )
    skipped = B * heads * (T * (T - 1) // 2)
    shape = Attention(B, heads, kv_heads, T, K, D, D, False, skipped)
    return (Kernel("attention", "paged_attention", shape, dtype.name, dtype.name, work),)


def silu_and_mul(n: Count, inter: int, dtype: Dtype) -> Kernels:
    """`[n, 2 inter] -> [n, inter]`: the activated half times the other half."""
    work = Work(
        vector_flops=5 * n * inter,
        bytes_read=2 * dtype.nbytes * n * inter,
        bytes_written=dtype.nbytes * n * inter,
    )
    dimensions = Elements(n * inter)
    return (Kernel("activation", "silu_and_mul", dimensions, dtype.name, dtype.name, work),)


def grouped_experts(
    n: Count, d: int, inter: int, experts: int, top_k: int, dtype: Dtype
) -> Kernels:
    """Routed experts of a layer, from scores to the weighted sum.

    Bytes exclude the experts' weights; the time prediction estimates how many experts are touched.
    """
    rows = n * top_k
    work = Work(
        macs=rows * 3 * d * inter,
        vector_flops=rows * (5 * inter + 2 * d),
        activations=rows * (2 * inter + d),
        bytes_read=dtype.nbytes * (n * d + rows * inter) + FLOAT32.nbytes * n * experts,
        bytes_written=dtype.nbytes * (rows * inter + n * d),
    )
    dimensions = Experts(n, d, inter, experts, top_k)
    return (Kernel("gemm", "grouped_experts", dimensions, dtype.name, dtype.name, work),)


def combined_experts(n: Count, d: int, dtype: Dtype) -> Kernels:
    """Adds the outputs of shared and routed experts, `[n, d]`."""
    size = dtype.nbytes * n * d
    work = Work(vector_flops=n * d, bytes_read=2 * size, bytes_written=size)
    dimensions = Elements(n * d)
    return (Kernel("elementwise", "combined_experts", dimensions, dtype.name, dtype.name, work),)


def looked_up_tokens(n: Count, d: int, dtype: Dtype) -> Kernels:
    """Embeddings of n token ids."""
    size = dtype.nbytes * n * d
    return moved("embedding", n * d, size + INT64.nbytes * n, size, dtype)


def placed_features(visual: Count, d: int, dtype: Dtype) -> Kernels:
    """Joins the features of all views and writes them to their positions in the prompt."""
    size = dtype.nbytes * visual * d
    return 2 * moved("placed_features", visual * d, size, size, dtype)


def sampled(B: Count, vocabulary: int, dtype: Dtype) -> Kernels:
    """Casts logits to fp32 and takes the largest of each row: two kernels."""
    logits = B * vocabulary
    cast = Work(bytes_read=dtype.nbytes * logits, bytes_written=FLOAT32.nbytes * logits)
    chosen = Work(
        vector_flops=logits, bytes_read=FLOAT32.nbytes * logits, bytes_written=INT64.nbytes * B
    )
    rows = Rows(B, vocabulary)
    return (
        Kernel("movement", "sampled", Elements(logits), dtype.name, FLOAT32.name, cast),
        Kernel("reduction", "sampled", rows, FLOAT32.name, INT64.name, chosen),
    )
