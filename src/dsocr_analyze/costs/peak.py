"""Peak activation: the most bytes of tensors alive at once in the prefill pass.

Counted is what the pass makes, besides weights and inputs, each tensor from the operator that
writes it until nothing holds it any more. A moment is a point of the pass at which much is alive;
the peak is the largest moment. Tensors live as long as the reference's code holds them; code that
holds a temporary longer (or shorter) peaks a little higher (or lower).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsocr_analyze.costs.decoder import cache_width
from dsocr_analyze.costs.movement import FP32_BYTES, INDEX_BYTES
from dsocr_analyze.costs.sam_attention import window_count
from dsocr_analyze.costs.vision import grid_side, token_side

if TYPE_CHECKING:
    from dsocr_analyze.model.dimensions import (
        ClipDimensions,
        DecoderDimensions,
        ModelDimensions,
        SamDimensions,
    )
    from dsocr_analyze.workload.workload import ViewBatch, Workload

__all__ = ["peak_activation_bytes", "peak_moments"]

_TOP_BYTES: Final = FP32_BYTES + INDEX_BYTES


def peak_activation_bytes(
    dimensions: ModelDimensions,
    workload: Workload,
    *,
    element_bytes: int,
    flash_attention: bool,
) -> int:
    """The largest of `peak_moments`.

    Args:
        dimensions: The model.
        workload: Page, text and batch.
        element_bytes: Bytes of a feature.
        flash_attention: FlashAttention in place of the decoder's eager attention.
    """
    moments = peak_moments(
        dimensions, workload, element_bytes=element_bytes, flash_attention=flash_attention
    )
    return max(moments.values())


def peak_moments(
    dimensions: ModelDimensions,
    workload: Workload,
    *,
    element_bytes: int,
    flash_attention: bool,
) -> dict[str, int]:
    """Bytes alive at the moments of the prefill pass that may be its peak, by name.

    Args:
        dimensions: The model.
        workload: Page, text and batch.
        element_bytes: Bytes of a feature.
        flash_attention: FlashAttention in place of the decoder's eager attention.
    """
    row = dimensions.decoder.hidden_size * element_bytes
    embeddings = workload.batch_size * workload.seq_len * row
    # Behind the first page of a batch, the tokens of the one before are still held.
    held = embeddings + (workload.visual_tokens * row if workload.batch_size > 1 else 0)
    moments: dict[str, int] = {}
    for view in workload.views:
        name = "global view" if view is workload.global_view else "local views"
        for moment, size in _vision(dimensions, view, element_bytes).items():
            moments[f"{name}: {moment}"] = held + size
        if view is workload.local_views:
            q = token_side(view.resolution, dimensions.sam)
            columns, rows = workload.grid
            held += rows * q * (columns * q + 1) * row
    page = workload.visual_tokens * row
    return moments | _Decoder(dimensions.decoder, workload, element_bytes, flash_attention).moments(
        page
    )


def _vision(dimensions: ModelDimensions, view: ViewBatch, element_bytes: int) -> dict[str, int]:
    """Moments of one call on N views, over what was alive before it."""
    sam, clip = dimensions.sam, dimensions.clip
    N, g = view.count, grid_side(view.resolution, sam)
    q = token_side(view.resolution, sam)
    moments = {f"sam {name}": size for name, size in _sam(N, g, sam, element_bytes).items()}
    features = N * q * q * sam.out_channels * element_bytes
    classed = N * (q * q + 1) * clip.width * element_bytes
    for name, size in _clip(N, q, clip, element_bytes).items():
        moments[f"clip {name}"] = features + size
    joined = N * q * q * (sam.out_channels + clip.width) * element_bytes
    projected = N * q * q * dimensions.projector.n_embed * element_bytes
    tensors = 1 if dimensions.projector.projector_type == "linear" else 2
    moments["projector"] = features + classed + joined + tensors * projected
    return moments


def _sam(N: int, g: int, sam: SamDimensions, element_bytes: int) -> dict[str, int]:
    """Moments of SAM; `x` is the stream `[N, g, g, d]`."""
    positions = g * g * sam.width
    x = N * positions * element_bytes
    moments = {"mlp": 3 * x + 2 * N * g * g * sam.mlp * element_bytes}
    if g != sam.position_grid:
        table = sam.position_grid**2 * sam.width
        source = 0 if element_bytes == FP32_BYTES else FP32_BYTES * table
        moments["position table"] = x + source + FP32_BYTES * positions
        moments["position addition"] = 2 * x + element_bytes * positions
    if len(sam.global_attn_indexes) < sam.layers:
        windows = window_count(g, sam.window)
        side = windows * sam.window
        padded = N * side * side * sam.width * element_bytes
        shares_norm = windows == 1 and side == g
        held = 2 * x + (0 if shares_norm else padded)
        attention = _grid_attention(N * windows * windows, sam.window, sam, element_bytes)
        moments["window attention"] = held + attention
    if sam.global_attn_indexes:
        moments["global attention"] = 2 * x + _grid_attention(N, g, sam, element_bytes)
    return moments


def _grid_attention(N: int, g: int, sam: SamDimensions, element_bytes: int) -> int:
    """Within SAM's attention on N grids: q, k, v, the bias and its terms, result and projection."""
    features = N * g * g * sam.width * element_bytes
    term = N * sam.heads * g**3 * element_bytes
    bias = N * sam.heads * g**4 * element_bytes
    qkv = 3 * features
    split = qkv if N > 1 and sam.heads > 1 else 0
    return qkv + split + bias + 2 * term + 2 * features


def _clip(N: int, q: int, clip: ClipDimensions, element_bytes: int) -> dict[str, int]:
    """Moments of CLIP; `x` is the stream `[N, 1 + q q, d]`."""
    x = N * (q * q + 1) * clip.width * element_bytes
    hidden = N * (q * q + 1) * clip.mlp * element_bytes
    moments = {"mlp": (4 if clip.layers > 1 else 3) * x + 3 * hidden}
    side = clip.image_size // clip.patch_size
    if q != side:
        table = side * side * clip.width
        source = (clip.positions * clip.width + table) * element_bytes
        if element_bytes != FP32_BYTES:
            source += FP32_BYTES * table
        moments["position table"] = x + source + FP32_BYTES * q * q * clip.width
    return moments


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

    def moments(self, page: int) -> dict[str, int]:
        """Moments by name.

        Args:
            page: Bytes of the last page's visual tokens, held until the decoder is through.
        """
        decoder, layers = self.decoder, self.decoder.layers
        base = self.stream + page + INDEX_BYTES * self.T
        moments: dict[str, int] = {}
        if not self.flash:
            square = self.T * self.T
            cast = 0 if self.element_bytes == FP32_BYTES else self.element_bytes
            moments["causal mask"] = base + (FP32_BYTES + max(cast, 1)) * square
            base += self.element_bytes * square
        for name, is_moe in (("mlp", False), ("moe", True)):
            last = max((i for i in range(layers) if decoder.is_moe(i) == is_moe), default=None)
            if last is None:
                continue
            entry = base + self._behind(last)
            moments[f"{name} layer: attention"] = entry + self._attention()
            inner = entry + self.layer_cache + self.tables + 2 * self.stream
            moments[f"{name} layer: norm"] = inner + self._norm()
            mlp = self._mixture() if is_moe else self._swiglu(decoder.intermediate_size)
            moments[f"{name} layer: {name}"] = inner + self.stream + mlp
        moments["norm"] = base + self._behind(layers) + self._norm()
        cached = layers * (self.layer_cache + self.tables)
        moments["logits"] = cached + self.stream + self._logits()
        return moments

    def _behind(self, layers: int) -> int:
        """What so many layers leave behind: the cache, and a stream beside the embeddings."""
        return layers * (self.layer_cache + self.tables) + (self.stream if layers else 0)

    def _norm(self) -> int:
        """Two fp32 tensors and the means."""
        return 2 * FP32_BYTES * self.n * self.decoder.hidden_size + FP32_BYTES * self.n

    def _swiglu(self, f: int) -> int:
        """Activated gate, up and their product."""
        return 3 * self.n * f * self.element_bytes

    def _mixture(self) -> int:
        """The weighted sum of the experts' results, or the shared experts' MLP after it."""
        decoder, n, e = self.decoder, self.n, self.element_bytes
        E, k, d = decoder.n_routed_experts or 0, decoder.num_experts_per_tok, decoder.hidden_size
        routes = _TOP_BYTES * n * k
        tables = INDEX_BYTES * (n * E + E + n * k)
        # Sorted tokens, experts' results one by one, joined, and back in the tokens' order.
        features = 4 * n * k * d * e
        weighing = FP32_BYTES * n * d
        if e != FP32_BYTES:
            weighing += FP32_BYTES * n * k * d + n * d * e
        shared = self.stream + self._swiglu(decoder.shared_intermediate_size)
        return routes + max(tables + features + weighing, shared)

    def _logits(self) -> int:
        """Logits and their fp32 copy."""
        wide = 0 if self.element_bytes == FP32_BYTES else FP32_BYTES
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
        wide = FP32_BYTES + (0 if e == FP32_BYTES else e)
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
