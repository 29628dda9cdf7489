"""A relative as a serving engine runs it, on a tape.

The encoders run as in the model's own code: engines neither compile them nor capture them in graphs
(`vllm/model_executor/models/deepseek_ocr.py`). Each prompt runs alone, and each step runs all
sequences together, as the fused kernels of `fusions`. B is the sequences, T the new tokens of each,
K the keys that they see: integers, or arrays of them, for which a forward runs once on symbols.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache

from dsocr_analyze.architectures.ocr_family import symbolic_passes
from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.decoder import decoder
from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions, RelativeDimensions
from dsocr_analyze.architectures.ocr_family.fusions import (
    cache_write,
    combined_experts,
    fused_add_rms_norm,
    grouped_experts,
    last_logits,
    merged_linear,
    paged_attention,
    placed_features,
    rotary_embedding,
    router,
    sampled,
    silu_and_mul,
)
from dsocr_analyze.architectures.ocr_family.network import Network, ViewFeatures
from dsocr_analyze.architectures.ocr_family.page import pixels_of
from dsocr_analyze.architectures.ocr_family.stages import DECODE, PREFILL
from dsocr_analyze.dtypes import BFLOAT16, INT64, Dtype
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.kernels import Kernel, merged
from dsocr_analyze.tape import Operand, Size, Tape, embedding, linear
from dsocr_analyze.tape.polynomial import Values, highest
from dsocr_analyze.tape.symbolic import RecordTape, for_arrays
from dsocr_analyze.workload import ViewBatch, Workload

__all__ = [
    "activation_bytes",
    "cache_elements",
    "check",
    "prompt",
    "quantizable_params",
    "step",
    "views",
]


def check(c: RelativeDimensions) -> None:
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


# --- forwards --------------------------------------------------------------------------------


@lru_cache(maxsize=128)  # pages of a mode share a few grids, whatever the GPU
def views(
    network: Network, N: int, R: int, c: RelativeDimensions, dtype: Dtype
) -> dict[str, tuple[Kernel, ...]]:
    """Kernels of one vision call on N views of R pixels per side, by stage, whatever their path."""
    t, view = RecordTape(dtype, network.begins), ViewBatch(N, R)
    t.call("model", network.encode, ViewFeatures(), pixels_of(t, view), view, c, is_served=True)
    return {
        stage.name: merged(each.at("") for each in t.kernels if each.stage == stage.name)
        for stage in network.vision
    }


@for_arrays("T", "K", "visual")
def prompt(
    T: Size, K: Size, visual: Size, c: RelativeDimensions, dtype: Dtype, cache_bits: int
) -> tuple[Kernel, ...]:
    """Kernels of one chunk of a prompt.

    Args:
        T: Tokens of the chunk.
        K: Keys that its tokens see on average at its end, including those of the chunk.
        visual: Visual tokens among them.
        c: Dimensions.
        dtype: Type of features.
        cache_bits: Bits per cached element.
    """
    t = RecordTape(dtype, stage=PREFILL.name)
    placed_features(t, t.input(visual * c.decoder.hidden_size, dtype))
    _fused(t, 1, T, K, c.decoder, cache_bits)
    return tuple(t.kernels)


@for_arrays("B", "K")
def step(
    B: Size, K: Size, c: RelativeDimensions, dtype: Dtype, cache_bits: int
) -> tuple[Kernel, ...]:
    """Kernels of one decode step of B sequences over K keys each, including the new token's."""
    t = RecordTape(dtype, stage=DECODE.name)
    _fused(t, B, 1, K, c.decoder, cache_bits)
    return tuple(t.kernels)


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


# --- memory ----------------------------------------------------------------------------------


def activation_bytes(
    network: Network, c: RelativeDimensions, workload: Workload, dtype: Dtype
) -> int:
    """Peak of the prefill pass without its logits, of which engines keep only the last row."""
    B, T = workload.batch_size, workload.seq_len
    page = replace(workload, text_tokens=1, max_new_tokens=1)
    most, left = _bytes_of_views(network, c, page, dtype)
    whole = symbolic_passes.prompt(network, c, dtype, flash=True, is_several=B > 1, is_long=False)
    layers: int = highest(whole.layers, Values({"B": B, "T": T}))
    return max(most + B * T * c.decoder.hidden_size * dtype.nbytes, left + layers)


@lru_cache(maxsize=4096)  # prompts of all lengths have a few kinds of pages
def _bytes_of_views(
    network: Network, c: RelativeDimensions, page: Workload, dtype: Dtype
) -> tuple[int, int]:
    """Bytes alive besides embeddings: the most until the decoder begins, and those left then."""
    p = Pass(page.batch_size, page.seq_len)
    _, most, left = symbolic_passes.looked(network, c, dtype, p, page, {})
    return most, left


def cache_elements(c: RelativeDimensions) -> int:
    """Elements that all layers cache per token: in 8 bits, the bytes that a token's step writes."""
    written = (each for each in step(1, 1, c, BFLOAT16, 8) if each.operator == "cache_write")
    return sum(each.total.bytes_written for each in written)


@cache
def quantizable_params(c: RelativeDimensions) -> int:
    """Weights of the decoder's layers that engines quantize: every linear except the routers."""
    t = Tape(BFLOAT16)
    decoder(t, t.input(c.decoder.hidden_size, t.dtype), Pass(1, 1, flash=True), c.decoder)
    return sum(n for path, name, n in t.weights if path.endswith("_proj") and name == "weight")
