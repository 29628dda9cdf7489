"""Tensors alive at the two peaks of memory: in the prefill pass and in the last decode step.

Both assume that the model's own `generate` runs a batch: all pages prefill at once, and the prefill
pass's inputs are held until the last token.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures.ocr_family.composition import memory
from dsocr_analyze.costs.lm_head import logits_bytes
from dsocr_analyze.figures import BytesAlive

if TYPE_CHECKING:
    from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions
    from dsocr_analyze.architectures.ocr_family.network import Network
    from dsocr_analyze.dtypes import Dtype
    from dsocr_analyze.workload import Workload

__all__ = ["decode_bytes_alive", "prefill_bytes_alive"]

_LAYER: Final = re.compile(r"model\.layers\.(?P<index>\d+)(?:\..*)?")
_HEAD: Final = ("", "lm_head")
"""Path of the peak if it is in the head: the model itself casts the logits."""


def prefill_bytes_alive(
    network: Network,
    dimensions: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    flash_attention: bool,
) -> BytesAlive:
    """Bytes alive at the peak of the prefill pass.

    Args:
        network: The relative.
        dimensions: Its dimensions.
        workload: Page, text and batch.
        dtype: Type of weights and activations.
        flash_attention: FlashAttention instead of the decoder's eager attention.
    """
    if flash_attention:
        network.check_flash(dimensions)
    held = memory(network, dimensions, workload, dtype, flash_attention)
    decoder, path = dimensions.decoder, held.peak.path
    cached = _layers_cached(path, decoder.layers) * held.prefill_cache_bytes // decoder.layers
    logits = 0
    if path in _HEAD:
        tokens = workload.batch_size * workload.seq_len
        logits = logits_bytes(tokens, decoder.vocab_size, dtype.nbytes)
    return BytesAlive(
        inputs_bytes=held.inputs_bytes,
        cache_bytes=cached,
        activation_bytes=held.peak.nbytes - cached - logits,
        logits_bytes=logits,
    )


def _layers_cached(path: str, layers: int) -> int:
    """Layers whose keys and values exist when the module at `path` runs."""
    if path in (*_HEAD, "model.norm"):
        return layers
    found = _LAYER.fullmatch(path)
    return int(found["index"]) + 1 if found else 0


def decode_bytes_alive(
    network: Network,
    dimensions: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    flash_attention: bool,
) -> BytesAlive:
    """Bytes alive in the last decode step; arguments as for `prefill_bytes_alive`.

    The full KV cache, with one layer duplicated while it grows by a token, and the logits.
    """
    decoder = dimensions.decoder
    held = memory(network, dimensions, workload, dtype, flash_attention)
    return BytesAlive(
        inputs_bytes=held.inputs_bytes,
        cache_bytes=held.kv_cache_bytes + held.kv_cache_bytes // decoder.layers,
        activation_bytes=0,
        logits_bytes=logits_bytes(workload.batch_size, decoder.vocab_size, dtype.nbytes),
    )
