"""Memory of a workload, in bytes: what is alive at the peaks of its two kinds of passes.

`prefill_bytes_alive` and `decode_bytes_alive` assume that the model's own `generate` runs a batch:
all pages prefill at once, and the prefill pass's inputs are held until the last token.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from dsocr_analyze.architectures.ocr_family.attention import Pass
from dsocr_analyze.architectures.ocr_family.dimensions import RelativeDimensions
from dsocr_analyze.architectures.ocr_family.network import Network
from dsocr_analyze.architectures.ocr_family.page import head
from dsocr_analyze.architectures.ocr_family.passes import Held, model_params, prefill
from dsocr_analyze.dtypes import BOOL, FLOAT32, INT64, Dtype
from dsocr_analyze.figures import BytesAlive, Memory
from dsocr_analyze.tape import Tape
from dsocr_analyze.workload import Workload

__all__ = ["decode_bytes_alive", "inputs_bytes", "memory", "memory_of", "prefill_bytes_alive"]

_CHANNELS: Final = 3
_LAYER: Final = re.compile(r"model\.layers\.(?P<index>\d+)(?:\..*)?")
_HEAD: Final = ("", "lm_head")
"""Path of the peak if it is in the head: the model itself casts the logits."""


@lru_cache(maxsize=4096)  # a search for the largest batch asks for the same again and again
def _held(
    network: Network, c: RelativeDimensions, workload: Workload, dtype: Dtype, flash: bool
) -> Held:
    return prefill(network, c, workload, dtype, flash=flash, records=False)[1]


def memory(
    network: Network,
    c: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    flash_attention: bool,
) -> Memory:
    """Bytes that a workload holds in memory; arguments as for `compose`."""
    held = _held(network, c, workload, dtype, flash_attention)
    return memory_of(network, c, workload, dtype, held)


def memory_of(
    network: Network, c: RelativeDimensions, workload: Workload, dtype: Dtype, held: Held
) -> Memory:
    """The same, from what the prefill pass holds."""
    generated = workload.max_new_tokens - 1
    if c.sliding_window is not None:
        generated = min(generated, c.sliding_window)
    per_token = held.cache_bytes // workload.seq_len
    return Memory(
        weights_bytes=model_params(network, c) * dtype.nbytes,
        inputs_bytes=inputs_bytes(workload, dtype),
        prefill_cache_bytes=held.cache_bytes,
        kv_cache_bytes=held.cache_bytes + per_token * generated,
        peak=held.peak,
    )


def inputs_bytes(workload: Workload, dtype: Dtype) -> int:
    """Pixels, token ids, positions, the padding and image masks, and the crop grid.

    If there are no local views, a blank fp32 patch replaces them.
    """
    pages = workload.prompt_pages
    pixels = pages * sum(_CHANNELS * view.count * view.resolution**2 for view in workload.views)
    page = pixels * dtype.nbytes + workload.seq_len * (3 * INT64.nbytes + BOOL.nbytes)
    if workload.local_views is None:
        page += _CHANNELS * workload.base_size**2 * FLOAT32.nbytes
    return workload.batch_size * (page + pages * len(workload.grid) * INT64.nbytes)


def prefill_bytes_alive(
    network: Network,
    c: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    flash_attention: bool,
) -> BytesAlive:
    """Bytes alive at the peak of the prefill pass.

    Args:
        network: The relative.
        c: Its dimensions.
        workload: Page, text and batch.
        dtype: Type of weights and activations.
        flash_attention: FlashAttention instead of the decoder's eager attention.
    """
    if flash_attention:
        network.check_flash(c)
    held = memory(network, c, workload, dtype, flash_attention)
    decoder, path = c.decoder, held.peak.path
    cached = _layers_cached(path, decoder.layers) * held.prefill_cache_bytes // decoder.layers
    logits = 0
    if path in _HEAD:
        logits = _logits_bytes(c, Pass(workload.batch_size, workload.seq_len), dtype)
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
    c: RelativeDimensions,
    workload: Workload,
    dtype: Dtype,
    flash_attention: bool,
) -> BytesAlive:
    """Bytes alive in the last decode step; arguments as for `prefill_bytes_alive`.

    The full KV cache, with one layer duplicated while it grows by a token, and the logits.
    """
    decoder = c.decoder
    held = memory(network, c, workload, dtype, flash_attention)
    return BytesAlive(
        inputs_bytes=held.inputs_bytes,
        cache_bytes=held.kv_cache_bytes + held.kv_cache_bytes // decoder.layers,
        activation_bytes=0,
        logits_bytes=_logits_bytes(c, Pass(workload.batch_size, 1), dtype),
    )


def _logits_bytes(c: RelativeDimensions, p: Pass, dtype: Dtype) -> int:
    """Bytes of a pass's logits, in every type in which they exist at once."""
    t = Tape(dtype, records=False)
    t.call("", head, t.input(p.tokens * c.decoder.hidden_size, dtype), p, c)
    t.check_nothing_is_left()
    return t.peak.nbytes
