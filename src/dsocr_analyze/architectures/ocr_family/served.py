"""A relative as a serving engine runs it, on a tape.

The encoders run as in the model's own code: engines neither compile them nor capture them in graphs
(`vllm/model_executor/models/deepseek_ocr.py`). Each prompt runs alone, and each step runs all
sequences together, as fused kernels: one function each, named like its operator. A fusion does the
same matrix work as what it replaces, except for logits that nobody reads and the small products
behind tables of angles; it saves bytes and launches.

B is the sequences, T the new tokens of each, K the keys that they see: integers, or arrays of them,
for which a forward runs once on symbols. n is the tokens, d the width.

Source: vLLM (`model_executor/layers`), whose classes are named below, and SGLang's layers of the
same names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Final, TypeVar

from dsocr_analyze.architectures.ocr_family import symbolic_passes
from dsocr_analyze.architectures.ocr_family.attention import Pass, scores_of_later_tokens
from dsocr_analyze.architectures.ocr_family.decoder import decoder
from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions, ModelDimensions
from dsocr_analyze.architectures.ocr_family.passes import (
    DECODE,
    PREFILL,
    OcrModel,
    ViewFeatures,
    inputs_bytes,
    pixels_of,
)
from dsocr_analyze.dtypes import BFLOAT16, FLOAT32, INT64, Dtype
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.kernels import Attention, Experts, Gemm, Kernel, Rows, Work, merged
from dsocr_analyze.tape import Operand, Size, Tape, View, embedding, fused_attention, linear
from dsocr_analyze.tape.polynomial import Values, highest
from dsocr_analyze.tape.symbolic import RecordTape, for_arrays
from dsocr_analyze.workload import ViewBatch, Workload

__all__ = ["FUSIONS", "Served"]


class Served:
    """The kernels that a serving engine launches for a relative.

    Args:
        model: The relative.
    """

    def __init__(self, model: OcrModel) -> None:
        self.model = model

    def check(self, c: ModelDimensions) -> None:
        """Raises ConfigError for anything that no fusion covers."""
        if c.decoder.use_mla:
            raise ConfigError(
                "config.json: 'use_mla' is true, and serving engines are modelled for plain"
                " attention only; use runtime eager, or a model with 'use_mla' false"
            )
        if c.decoder.hidden_act != "silu":
            raise ConfigError(
                f"config.json: 'hidden_act' is {c.decoder.hidden_act!r}, and serving engines fuse"
                " 'silu' only; use runtime eager"
            )
        if c.decoder.rope_scaling == "dynamic":
            raise ConfigError(
                "config.json: 'rope_scaling' of type 'dynamic' is not modelled for serving engines;"
                " use runtime eager"
            )

    # --- kernels

    @lru_cache(maxsize=128)  # noqa: B019  # pages of a mode share a few grids, whatever the GPU
    def views(
        self, N: int, R: int, c: ModelDimensions, dtype: Dtype
    ) -> dict[str, tuple[Kernel, ...]]:
        """Kernels of one vision call on N views of R pixels per side, by stage, without paths."""
        t, view, features = Tape(dtype, self.model.begins), ViewBatch(N, R), ViewFeatures()
        t.call("model", self.model.encode, features, pixels_of(t, view), view, c, is_served=True)
        return {
            stage.name: merged(each.at("") for each in t.kernels if each.stage == stage.name)
            for stage in self.model.stages
            if stage.role == "vision"
        }

    @staticmethod
    @for_arrays("T", "K", "visual")
    def prompt(
        T: Size, K: Size, visual: Size, c: ModelDimensions, dtype: Dtype, cache_bits: int
    ) -> tuple[Kernel, ...]:
        """Kernels of one chunk of a prompt.

        Args:
            T: Tokens of the chunk.
            K: Keys that its tokens see on average at its end, including those of the chunk.
            visual: Visual tokens among them.
            c: The model's dimensions.
            dtype: Type of features.
            cache_bits: Bits per cached element.
        """
        t = RecordTape(dtype, stage=PREFILL.name)
        placed_features(t, t.input(visual * c.decoder.hidden_size, dtype))
        _fused(t, 1, T, K, c.decoder, cache_bits)
        return tuple(t.kernels)

    @staticmethod
    @for_arrays("B", "K")
    def step(
        B: Size, K: Size, c: ModelDimensions, dtype: Dtype, cache_bits: int
    ) -> tuple[Kernel, ...]:
        """Kernels of one decode step of B sequences over K keys each, with the new token's."""
        t = RecordTape(dtype, stage=DECODE.name)
        _fused(t, B, 1, K, c.decoder, cache_bits)
        return tuple(t.kernels)

    # --- memory

    def cache_elements(self, c: ModelDimensions) -> int:
        """Elements that all layers cache per token: in 8 bits, the bytes that a step writes."""
        written = (
            each for each in self.step(1, 1, c, BFLOAT16, 8) if each.operator == "cache_write"
        )
        return sum(each.total.bytes_written for each in written)

    @staticmethod
    @cache
    def quantizable_params(c: ModelDimensions) -> int:
        """Weights of the decoder's layers that engines quantize: linears, except the routers."""
        t = Tape(BFLOAT16)
        decoder(t, t.input(c.decoder.hidden_size, t.dtype), Pass(1, 1, flash=True), c.decoder)
        return sum(n for path, name, n in t.weights if path.endswith("_proj") and name == "weight")

    def activation_bytes(self, c: ModelDimensions, workload: Workload, dtype: Dtype) -> int:
        """Peak of one page's prefill pass besides weights and inputs.

        Without logits, of which engines keep only the last row.
        """
        B, T = workload.batch_size, workload.seq_len
        page = replace(workload, text_tokens=1, max_new_tokens=1)
        most, left = self._bytes_of_views(c, page, dtype)
        whole = symbolic_passes.prompt(
            self.model, c, dtype, flash=True, is_batched=B > 1, is_long=False
        )
        layers: int = highest(whole.layers, Values({"B": B, "T": T}))
        return max(most + B * T * c.decoder.hidden_size * dtype.nbytes, left + layers)

    @lru_cache(maxsize=4096)  # noqa: B019  # prompts of all lengths have a few kinds of pages
    def _bytes_of_views(self, c: ModelDimensions, page: Workload, dtype: Dtype) -> tuple[int, int]:
        """Bytes alive besides embeddings: the most until the decoder begins, and those left."""
        p = Pass(page.batch_size, page.seq_len)
        _, most, left = symbolic_passes.looked(self.model, c, dtype, p, page, {})
        return most, left

    def inputs_bytes(self, workload: Workload, dtype: Dtype) -> int:
        """Bytes of a workload's inputs."""
        return inputs_bytes(workload, dtype)


# --- the decoder -----------------------------------------------------------------------------


def _fused(t: Tape, B: Size, T: Size, K: Size, c: DecoderDimensions, cache_bits: int) -> None:
    """The decoder, for T new tokens in each of B sequences.

    Equal parts of layers are noted once for all of them, so attention of all layers comes first.
    """
    n, d, mixed = B * T, c.hidden_size, c.moe_layers
    x = embedding(t, t.input(n, INT64), c.vocab_size, d)
    for _ in t.turns(c.layers):
        x = fused_add_rms_norm(t, x, n, d)
        x = _attention(t, x, B, T, K, c, cache_bits)
        x = fused_add_rms_norm(t, x, n, d)
    for _ in t.turns(c.layers - mixed):
        x = _mlp(t, x, n, d, c.intermediate_size)
    for _ in t.turns(mixed):
        x = _mixture(t, x, n, c)
    x = fused_add_rms_norm(t, t.view(x, B * d), B, d)
    sampled(t, last_logits(t, x, B, d, c.vocab_size), B, c.vocab_size)


def _attention(
    t: Tape, x: Operand, B: Size, T: Size, K: Size, c: DecoderDimensions, cache_bits: int
) -> Operand:
    n, d, H, kv, D = B * T, c.hidden_size, c.heads, c.kv_heads, c.head_dim
    qkv = merged_linear(t, x, n, d, (H + 2 * kv) * D, bias=c.attention_bias)
    rotary_embedding(t, t.view(qkv, n * ((H + kv) * D)), n, D)
    cache_write(t, t.view(qkv, n * (2 * kv * D)), n, cache_bits)
    heads = paged_attention(t, t.view(qkv, n * (H * D)), B, T, K, c, cache_bits)
    return linear(t, heads, n, H * D, d, bias=c.attention_bias)


def _mlp(t: Tape, x: Operand, n: Size, d: int, f: int) -> Operand:
    return linear(t, silu_and_mul(t, merged_linear(t, x, n, d, 2 * f), n * f), n, f, d)


def _mixture(t: Tape, x: Operand, n: Size, c: DecoderDimensions) -> Operand:
    y = grouped_experts(t, x, router(t, x, n, c), n, c)
    if c.shared_intermediate_size:
        y = combined_experts(t, y, _mlp(t, x, n, c.hidden_size, c.shared_intermediate_size))
    return y


# --- fusions ---------------------------------------------------------------------------------

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
