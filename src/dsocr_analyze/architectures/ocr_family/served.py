"""A relative or a neighbour as a serving engine runs it, on a tape.

The encoders run as in the model's own code (`vllm/model_executor/models/deepseek_ocr.py`), but with
some of the fused kernels in `FUSIONS` if the model is of transformers. A prompt runs alone, a step
runs all sequences, as these kernels, which do the matrix work of what they replace, except for
logits that nobody reads and tables of angles.

B is sequences, T new tokens and K keys of each, integers or arrays; n is tokens, d the width.

Source: vLLM (`model_executor/layers`), whose classes are named below, and SGLang's layers of the
same names.
"""

from dataclasses import replace
from functools import cache, lru_cache
from operator import attrgetter
from typing import Final, cast

from dsocr_analyze.architectures.ocr_family.attention import Pass, scores_of_later_tokens
from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions, ModelDimensions
from dsocr_analyze.architectures.ocr_family.ocr_model import OcrModel
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.figures import DECODE_STAGE, PREFILL_STAGE
from dsocr_analyze.kernels import (
    BFLOAT16,
    FLOAT32,
    INT64,
    UINT8,
    Attention,
    Dtype,
    Experts,
    Kernel,
    Rows,
    Work,
    grouped,
    merged,
    total_work,
)
from dsocr_analyze.tape import ArrayTape, Operand, Size, Tape, maximum
from dsocr_analyze.tape.modules import (
    embedding,
    fused_attention,
    fused_rms_norm,
    fused_swiglu,
    linear,
)
from dsocr_analyze.workload import PageWorkload, ViewBatch

FUSIONS: Final = {
    "placed_features": "joining the views' features, and the masked scatter",
    "deepstack_add": "the copy of all tokens, and the sum with visual ones at their places",
    "fused_add_rms_norm": "the residual addition and the casts, squares and products of a norm",
    "merged_linear": "the products of q, k and v, or of gate and up, with weights joined",
    "rotary_embedding": "tables of cosines and sines, halves, negations and products",
    "fused_rms_norm": "the casts, squares and products of a norm without a residual",
    "cache_write": "the concatenation of cache and new keys and values",
    "paged_attention": "products, scale, mask and softmax of attention",
    "silu_and_mul": "the activation and the product with the other half",
    "router": "the casts of tokens and weights to fp32, and the product in it",
    "grouped_experts": (
        "top-k, sorting, three products and an activation for every expert, weights and sum"
    ),
    "combined_experts": "the addition of shared and routed experts",
    "last_logits": "the head over all positions: the last of each sequence is enough",
    "sampled": "the choice of the next token",
}
"""What the model's own code runs instead, in the order in which a prompt meets it."""


class Served:
    """The kernels that a serving engine launches for a relative.

    Attributes:
        notes: What is assumed of them besides.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, model: OcrModel) -> None:
        self.model = model

    def check(self, c: ModelDimensions) -> None:
        """Raises ConfigError for anything that no fusion covers."""
        act = c.decoder.hidden_act
        for is_wrong, said in (
            (c.decoder.use_mla,
             "'use_mla' is true, and serving engines are modelled for plain attention only; use"
             " runtime='eager', or a model with 'use_mla' false"),
            (act != "silu",
             f"'hidden_act' is {act!r}, and serving engines fuse 'silu' only; use runtime='eager'"),
            (c.decoder.rope_scaling == "dynamic",
             "'rope_scaling' of type 'dynamic' is not modelled for serving engines; use"
             " runtime='eager'"),
        ):  # fmt: skip
            if is_wrong:
                raise ConfigError(f"config.json: {said}", arguments=["runtime"])

    # --- kernels

    @lru_cache(maxsize=128)  # noqa: B019  # pages of a mode share a few grids, whatever the GPU
    def views(
        self, view: ViewBatch, c: ModelDimensions, dtype: Dtype
    ) -> dict[str, tuple[Kernel, ...]]:
        """Kernels of one call on some views, by stage, without paths."""
        t = Tape(dtype, self.model.begins, is_served=c.decoder.is_of_transformers)
        self.model.served_views(t, view, c)
        launched = grouped((kernel.stage, kernel.at("")) for kernel in t.kernels)
        return {
            stage.name: merged(launched.get(stage.name, ()))
            for stage in self.model.stages
            if stage.role == "vision"
        }

    @staticmethod
    def prompt(
        T: Size, K: Size, visual: Size, c: ModelDimensions, dtype: Dtype, cache_bits: int
    ) -> tuple[Kernel, ...]:
        """Kernels of a chunk of T tokens of a prompt, of which `visual` are visual.

        At its end, its tokens see K keys on average, those of the chunk included.
        """
        t = ArrayTape(dtype, stage=PREFILL_STAGE)
        # Joined, then written to their places (`embed_multimodal`, `_merge_multimodal_embeddings`).
        features = t.input(visual * c.decoder.hidden_size, dtype)
        t.move("placed_features", t.move("placed_features", features))
        _fused(t, 1, T, K, c.decoder, cache_bits)
        # Of all tokens, zero but for the visual ones (`_set_deepstack_input_embeds`).
        hidden, placed = (t.input(T * c.decoder.hidden_size, dtype) for _ in range(2))
        for _ in t.turns(c.decoder.deepstack):
            t.map("deepstack_add", hidden, t.move("placed_features", features, into=placed))
        return tuple(t.kernels)

    @staticmethod
    def step(
        B: Size, K: Size, c: ModelDimensions, dtype: Dtype, cache_bits: int
    ) -> tuple[Kernel, ...]:
        """Kernels of a decode step of B sequences over K keys each, with the new token's."""
        t = ArrayTape(dtype, stage=DECODE_STAGE)
        _fused(t, B, 1, K, c.decoder, cache_bits)
        return tuple(t.kernels)

    # --- memory

    @cache  # noqa: B019  # a model lives as long as the process
    def cache_elements(self, c: ModelDimensions) -> int:
        """Elements that all layers cache per token."""
        kernels = self.step(1, 1, c, BFLOAT16, 8)
        [written] = [each for each in kernels if each.operator == "cache_write"]
        return written.total.bytes_written  # of 8 bits each

    @cache  # noqa: B019  # a model lives as long as the process
    def quantizable_params(self, c: ModelDimensions) -> int:
        """Weights that engines quantize: the layers' linears, but no routers.

        A token meets every weight of a linear once.
        """
        kernels, experts = self.step(1, 1, c, BFLOAT16, 8), c.decoder.n_routed_experts or 0
        quantized = (each for each in kernels if each.operator in ("merged_linear", "linear"))
        linears = total_work(map(attrgetter("total"), quantized))
        return linears.macs + c.decoder.moe_layers * experts * c.decoder.expert_params

    def activation_bytes(self, c: ModelDimensions, workload: PageWorkload, dtype: Dtype) -> Size:
        """Peak of a prefill pass besides weights, inputs and logits, for one length or many."""
        B, T = workload.batch_size, cast("Size", workload.seq_len)
        page = replace(workload, text_tokens=1, max_new_tokens=1)
        views, left = self._bytes_of_views(c, page, dtype)
        if isinstance(T, int):
            layers = self._bytes_of_layers(c, B, T, dtype)
        else:
            lengths = range(1, (1 << int(T.max()).bit_length()) + 1)
            layers = self._bytes_of_layers(c, B, lengths, dtype)[T - 1]
        return maximum(views + B * T * c.decoder.hidden_size * dtype.nbytes, left + layers)

    @lru_cache(maxsize=64)  # noqa: B019  # prompts of all lengths are looked up in one table
    def _bytes_of_layers(self, c: ModelDimensions, B: int, T: int | range, dtype: Dtype) -> Size:
        """The most bytes alive in the decoder, embeddings included, of one length or many."""
        import numpy as np  # here because few runs need it and the import takes time

        lengths = T if isinstance(T, int) else np.array(T)
        t, p = ArrayTape(dtype, weights=False), Pass(B, lengths, flash=True)
        embeds = t.empty(p.tokens * c.decoder.hidden_size, dtype)
        self.model.decoder(t, embeds, p, c.decoder)
        return t.peak.nbytes

    @lru_cache(maxsize=4096)  # noqa: B019  # prompts of all lengths have a few kinds of pages
    def _bytes_of_views(
        self, c: ModelDimensions, page: PageWorkload, dtype: Dtype
    ) -> tuple[int, int]:
        """Bytes alive besides embeddings before the decoder: the most, and those left."""
        t = Tape(dtype, records=False, is_served=c.decoder.is_of_transformers)
        p = Pass(page.batch_size, page.seq_len)
        embeds, seen = self.model.embedded_page(t, c, p, page)
        found = t.peak.nbytes - embeds.nbytes, t.alive - embeds.nbytes
        del embeds, seen
        t.check_nothing_is_left()
        return found


# --- the decoder -----------------------------------------------------------------------------


def _fused(t: Tape, B: Size, T: Size, K: Size, c: DecoderDimensions, cache_bits: int) -> None:
    """The decoder, for T new tokens in each of B sequences; equal parts are noted once for all.

    Logits are of each sequence's last position (`LogitsProcessor`); the largest, as fp32, is taken
    (`Sampler`).
    """
    n, d, mixed, V = B * T, c.hidden_size, c.moe_layers, c.vocab_size
    x = embedding(t, t.input(n, INT64), V, d)
    for _ in t.turns(c.layers):
        x = fused_add_rms_norm(t, x, n, d)
        x = _attention(t, x, B, T, K, c, cache_bits)
        x = fused_add_rms_norm(t, x, n, d)
        if c.output_norms:
            x = fused_rms_norm(t, fused_rms_norm(t, x, n, d), n, d)
    for _ in t.turns(c.layers - mixed):
        x = fused_swiglu(t, x, n, d, c.intermediate_size)
    for _ in t.turns(mixed):
        x = _mixture(t, x, n, c)
    x = fused_add_rms_norm(t, t.view(x, B * d), B, d)
    logits = t.move("sampled", linear(t, x, B, d, V, operator="last_logits"), dtype=FLOAT32)
    t.rows("reduction", "sampled", logits, Rows(B, V), (B, INT64), flops=logits.n)


def fused_add_rms_norm(t: Tape, x: Operand, n: Size, d: int) -> Operand:
    """`RMSNorm` of the sum with the residual; reads and writes both, `[n, d]`."""
    both = 2 * x.nbytes
    work = Work(0, 5 * x.n, 0, both + t.weight(d).nbytes, both)
    t.record("normalization", "fused_add_rms_norm", Rows(n, d), x.dtype, x.dtype, work)
    return x


def _attention(
    t: Tape, x: Operand, B: Size, T: Size, K: Size, c: DecoderDimensions, cache_bits: int
) -> Operand:
    """Queries and keys are rotated in place by a table row per token (`RotaryEmbedding`).

    Keys and values go to cache pages (`reshape_and_cache_flash`), from which all K are read
    (PagedAttention, Kwon et al. 2023; `Attention`).
    """
    n, d, H, kv, D = B * T, c.hidden_size, c.heads, c.kv_heads, c.head_dim
    width, bias = (H + 2 * kv) * D, c.attention_bias
    qkv = linear(t, x, n, d, width, bias=bias, operator="merged_linear")  # `QKVParallelLinear`
    if c.head_norms:
        for heads_normed in (H, kv):
            fused_rms_norm(t, t.view(qkv, n * (heads_normed * D)), n * heads_normed, D)
    table, positions = t.input(n * (c.axes * D), x.dtype), t.input(n * c.axes, INT64)
    qk, new = t.view(qkv, n * ((H + kv) * D)), t.view(qkv, n * (2 * kv * D))
    t.map("rotary_embedding", qk, table, positions, flops=3, into=qk)
    t.move("cache_write", new, positions, written=new.n * cache_bits // 8, into=new)
    pages = t.input(B * K * (2 * kv * D) * cache_bits // 8, UINT8)
    skipped = scores_of_later_tokens(t, Pass(B, T), H)
    shape = Attention(B, H, kv, T, K, D, D, skippable_scores=skipped)
    heads = fused_attention(t, "paged_attention", shape, t.view(qkv, n * (H * D)), pages)
    return linear(t, heads, n, H * D, d, bias=bias and not c.is_of_transformers)


def _mixture(t: Tape, x: Operand, n: Size, c: DecoderDimensions) -> Operand:
    """`DeepseekV2MoE` or `Qwen2MoeSparseMoeBlock`.

    The router and the gate of the shared experts are `ReplicatedLinear`, never quantized.
    """
    scores = linear(t, x, n, c.hidden_size, c.n_routed_experts or 0, operator="router")
    y = _grouped_experts(t, x, scores, n, c)
    if not c.shared_intermediate_size:
        return y
    shared = fused_swiglu(t, x, n, c.hidden_size, c.shared_intermediate_size)
    if not c.has_shared_gate:
        return t.map("combined_experts", y, shared)
    gate = linear(t, x, n, c.hidden_size, 1, operator="router")
    return t.map("combined_experts", y, shared, gate, flops=2)


def _grouped_experts(
    t: Tape, x: Operand, scores: Operand, n: Size, c: DecoderDimensions
) -> Operand:
    """Routed experts of a layer (`FusedMoE`), from fp32 scores to the weighted sum `[n, d]`.

    Without the bytes of experts' weights: the time prediction estimates how many are touched.
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
