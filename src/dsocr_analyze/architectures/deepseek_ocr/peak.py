"""Peak activation: the most bytes of tensors alive at once in the prefill pass.

Counted is what the pass makes, besides weights and inputs, each tensor from the operator that
writes it until nothing holds it any more. A moment is a point of the pass at which much is alive,
with the module in whose own forward it falls; the peak is the largest moment. Tensors live as long
as the reference's code holds them; code that holds a temporary longer (or shorter) peaks a little
higher (or lower).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsocr_analyze.architectures.deepseek_ocr.decoder import cache_width
from dsocr_analyze.architectures.deepseek_ocr.stages import CLIP, PROJECTOR, SAM
from dsocr_analyze.architectures.deepseek_ocr.vision import grid_side, token_side
from dsocr_analyze.costs.sam_attention import window_count
from dsocr_analyze.dtypes import FLOAT32, INT64, Dtype
from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import KernelsOf

if TYPE_CHECKING:
    from dsocr_analyze.architectures.deepseek_ocr.dimensions import (
        ClipDimensions,
        DecoderDimensions,
        ModelDimensions,
        SamDimensions,
    )
    from dsocr_analyze.workload import ViewBatch, Workload

__all__ = ["moments", "peak"]

_FP32 = FLOAT32.nbytes
_TOP_BYTES = FLOAT32.nbytes + INT64.nbytes
_SAM, _CLIP, _PROJECTOR = SAM.prefixes[0], CLIP.prefixes[0], PROJECTOR.prefixes[0]


def peak(
    dimensions: ModelDimensions,
    workload: Workload,
    dtype: Dtype,
    *,
    flash_attention: bool,
    kernels_of: KernelsOf = "cuda",
) -> Peak:
    """The largest of `moments`.

    Args:
        dimensions: The model.
        workload: Page, text and batch.
        dtype: Type of features.
        flash_attention: FlashAttention in place of the decoder's eager attention.
        kernels_of: Whose kernels run.
    """
    found = moments(dimensions, workload, dtype, flash_attention=flash_attention)
    return max(found, key=lambda moment: moment.nbytes)


def moments(
    dimensions: ModelDimensions, workload: Workload, dtype: Dtype, *, flash_attention: bool
) -> list[Peak]:
    """The moments of the prefill pass that may be its peak, in order.

    Args:
        dimensions: The model.
        workload: Page, text and batch.
        dtype: Type of features.
        flash_attention: FlashAttention in place of the decoder's eager attention.
    """
    row = dimensions.decoder.hidden_size * dtype.nbytes
    embeddings = workload.batch_size * workload.seq_len * row
    # Behind the first page of a batch, the tokens of the one before are still held.
    held = embeddings + (workload.visual_tokens * row if workload.batch_size > 1 else 0)
    found: list[Peak] = []
    for view in workload.views:
        found += [
            Peak(held + moment.nbytes, moment.path)
            for moment in _vision(dimensions, view, dtype.nbytes)
        ]
        if view is workload.local_views:
            q = token_side(view.resolution, dimensions.sam)
            columns, rows = workload.grid
            held += rows * q * (columns * q + 1) * row
    decoder = _Decoder(dimensions.decoder, workload, dtype.nbytes, flash_attention)
    found += decoder.moments(page=workload.visual_tokens * row)
    return found


def _vision(dimensions: ModelDimensions, view: ViewBatch, element_bytes: int) -> Iterator[Peak]:
    """Moments of one call on N views, over what was alive before it."""
    sam, clip = dimensions.sam, dimensions.clip
    N, g = view.count, grid_side(view.resolution, sam)
    q = token_side(view.resolution, sam)
    yield from _sam(N, g, sam, element_bytes)
    features = N * q * q * sam.out_channels * element_bytes
    classed = N * (q * q + 1) * clip.width * element_bytes
    for moment in _clip(N, q, clip, element_bytes):
        yield Peak(features + moment.nbytes, moment.path)
    joined = N * q * q * (sam.out_channels + clip.width) * element_bytes
    projected = N * q * q * dimensions.projector.n_embed * element_bytes
    tensors = 1 if dimensions.projector.projector_type == "linear" else 2
    yield Peak(features + classed + joined + tensors * projected, f"{_PROJECTOR}.layers")


def _sam(N: int, g: int, sam: SamDimensions, element_bytes: int) -> Iterator[Peak]:
    """Moments of SAM; `x` is the stream `[N, g, g, d]`."""
    positions = g * g * sam.width
    x = N * positions * element_bytes
    if g != sam.position_grid:
        table = sam.position_grid**2 * sam.width
        source = 0 if element_bytes == _FP32 else _FP32 * table
        yield Peak(x + source + _FP32 * positions, _SAM)
        yield Peak(2 * x + element_bytes * positions, _SAM)
    windowed = [index for index in range(sam.layers) if not sam.is_global(index)]
    if windowed:
        windows = window_count(g, sam.window)
        side = windows * sam.window
        padded = N * side * side * sam.width * element_bytes
        shares_norm = windows == 1 and side == g
        held = 2 * x + (0 if shares_norm else padded)
        attention = _grid_attention(N * windows * windows, sam.window, sam, element_bytes)
        yield Peak(held + attention, f"{_SAM}.blocks.{windowed[0]}.attn.proj")
    yield Peak(3 * x + 2 * N * g * g * sam.mlp * element_bytes, f"{_SAM}.blocks.0.mlp.act")
    if sam.global_attn_indexes:
        first = sam.global_attn_indexes[0]
        attention = _grid_attention(N, g, sam, element_bytes)
        yield Peak(2 * x + attention, f"{_SAM}.blocks.{first}.attn.proj")


def _grid_attention(N: int, g: int, sam: SamDimensions, element_bytes: int) -> int:
    """Within SAM's attention on N grids: q, k, v, the bias and its terms, result and projection."""
    features = N * g * g * sam.width * element_bytes
    term = N * sam.heads * g**3 * element_bytes
    bias = N * sam.heads * g**4 * element_bytes
    qkv = 3 * features
    split = qkv if N > 1 and sam.heads > 1 else 0
    return qkv + split + bias + 2 * term + 2 * features


def _clip(N: int, q: int, clip: ClipDimensions, element_bytes: int) -> Iterator[Peak]:
    """Moments of CLIP; `x` is the stream `[N, 1 + q q, d]`."""
    x = N * (q * q + 1) * clip.width * element_bytes
    hidden = N * (q * q + 1) * clip.mlp * element_bytes
    side = clip.image_size // clip.patch_size
    if q != side:
        table = side * side * clip.width
        source = (clip.positions * clip.width + table) * element_bytes
        if element_bytes != _FP32:
            source += _FP32 * table
        yield Peak(x + source + _FP32 * q * q * clip.width, f"{_CLIP}.embeddings")
    # From the second layer on, the input of the first is held beside the stream.
    behind = int(clip.layers > 1)
    yield Peak((3 + behind) * x + 3 * hidden, f"{_CLIP}.transformer.layers.{behind}.mlp")


class _Decoder:
    """Moments of the decoder over B prompts of T tokens."""

    def __init__(
        self, decoder: DecoderDimensions, workload: Workload, element_bytes: int, flash: bool
    ) -> None:
        self.decoder = decoder
        self.B, self.T = workload.batch_size, workload.seq_len
        self.n = self.B * self.T
        self.element_bytes = element_bytes
        self.flash = flash
        self.stream = self.n * decoder.hidden_size * element_bytes
        self.layer_cache = self.n * cache_width(decoder, flash=flash) * element_bytes
        self.tables = 0
        if decoder.use_mla:
            # Each layer keeps its cosines and sines.
            self.tables = 2 * self.T * decoder.qk_rope_head_dim * element_bytes
            if flash and decoder.v_head_dim == decoder.head_dim:
                # Values that need no padding are kept with the keys they were projected with.
                kept = decoder.qk_nope_head_dim * element_bytes
                self.layer_cache += self.n * decoder.heads * kept

    def moments(self, *, page: int) -> Iterator[Peak]:
        """Moments of embedding, layers, norm and head.

        Args:
            page: Bytes of the last page's visual tokens, held until the decoder is through.
        """
        decoder, layers = self.decoder, self.decoder.layers
        base = self.stream + page + INT64.nbytes * self.T
        if not self.flash:
            square = self.T * self.T
            cast = 0 if self.element_bytes == _FP32 else self.element_bytes
            yield Peak(base + (_FP32 + max(cast, 1)) * square, "model")
            base += self.element_bytes * square
        for is_moe in (False, True):
            last = max((i for i in range(layers) if decoder.is_moe(i) == is_moe), default=None)
            if last is not None:
                yield from self._layer(last, base + self._behind(last), is_moe=is_moe)
        yield Peak(base + self._behind(layers) + self._norm(), "model.norm")
        cached = layers * (self.layer_cache + self.tables)
        is_cast = self.element_bytes != _FP32
        yield Peak(cached + self.stream + self._logits(), "" if is_cast else "lm_head")

    def _layer(self, index: int, entry: int, *, is_moe: bool) -> Iterator[Peak]:
        """Moments of one layer, over the `entry` bytes that are alive when it begins."""
        decoder, path = self.decoder, f"model.layers.{index}"
        yield Peak(entry + self._attention(), f"{path}.self_attn")
        inner = entry + self.layer_cache + self.tables + 2 * self.stream
        yield Peak(inner + self._norm(), f"{path}.post_attention_layernorm")
        inner += self.stream
        if not is_moe:
            yield Peak(inner + self._swiglu(decoder.intermediate_size), f"{path}.mlp")
            return
        yield Peak(inner + self._mixture(), f"{path}.mlp")
        if decoder.shared_intermediate_size:
            shared = self._routes() + self.stream + self._swiglu(decoder.shared_intermediate_size)
            yield Peak(inner + shared, f"{path}.mlp.shared_experts")

    def _behind(self, layers: int) -> int:
        """What so many layers leave behind: the cache, and a stream beside the embeddings."""
        return layers * (self.layer_cache + self.tables) + (self.stream if layers else 0)

    def _norm(self) -> int:
        """Two fp32 tensors and the means."""
        return 2 * _FP32 * self.n * self.decoder.hidden_size + _FP32 * self.n

    def _swiglu(self, f: int) -> int:
        """Activated gate, up and their product."""
        return 3 * self.n * f * self.element_bytes

    def _routes(self) -> int:
        """Chosen scores and experts, held through the mixture."""
        return _TOP_BYTES * self.n * self.decoder.num_experts_per_tok

    def _mixture(self) -> int:
        """The weighted sum of the experts' results."""
        decoder, n, e = self.decoder, self.n, self.element_bytes
        E, k, d = decoder.n_routed_experts or 0, decoder.num_experts_per_tok, decoder.hidden_size
        tables = INT64.nbytes * (n * E + E + n * k)
        # Sorted tokens, experts' results one by one, joined, and back in the tokens' order.
        features = 4 * n * k * d * e
        weighing = _FP32 * n * d
        if e != _FP32:
            weighing += _FP32 * n * k * d + n * d * e
        return self._routes() + tables + features + weighing

    def _logits(self) -> int:
        """Logits and their fp32 copy."""
        wide = 0 if self.element_bytes == _FP32 else _FP32
        return self.n * self.decoder.vocab_size * (self.element_bytes + wide)

    def _attention(self) -> int:
        """Within attention, the normalised stream included."""
        if self.decoder.use_mla:
            return self.stream + self.tables + self._latent()
        decoder, n, e = self.decoder, self.n, self.element_bytes
        query = n * decoder.heads * decoder.head_dim * e
        key = n * decoder.kv_heads * decoder.head_dim * e
        held = self.stream + query + 2 * key
        turning = 2 * self.T * decoder.head_dim * e + max(3 * query, query + 3 * key)
        if self.flash:
            return held + max(turning, query + self.stream)
        is_repeated = decoder.heads != decoder.kv_heads and decoder.kv_heads > 1
        repeated = 2 * query if is_repeated else 0
        # The scores and their softmax are still there when the heads are joined and projected.
        joining = 2 * e * n * self.T * decoder.heads + query + max(query, self.stream)
        return held + max(turning, repeated + max(self._scores(2), joining))

    def _scores(self, operands: int) -> int:
        """Scores `[B, H, T, T]`: those of a sum, or those around the fp32 softmax."""
        e = self.element_bytes
        wide = _FP32 + (0 if e == _FP32 else e)
        return self.n * self.T * self.decoder.heads * max(operands * e, e + wide)

    def _latent(self) -> int:
        """Within latent attention."""
        decoder, n, e = self.decoder, self.n, self.element_bytes
        H, P, r = decoder.heads, decoder.qk_rope_head_dim, decoder.kv_lora_rank
        query = n * H * decoder.head_dim * e
        turned = n * H * P * e
        if not self.flash:
            return query + turned + self.layer_cache + n * H * r * e + self._scores(3)
        joint = n * (r + P) * e
        up = n * H * (decoder.qk_nope_head_dim + decoder.v_head_dim) * e
        held = query + joint + up + turned + n * P * e
        # Joined queries and keys, attention's result, its projection; padding where it takes some.
        results = 3 * query + self.stream
        if decoder.v_head_dim != decoder.head_dim:
            results += query + n * H * decoder.v_head_dim * e
        return held + results
