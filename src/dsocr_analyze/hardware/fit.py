"""Whether a page, or how many at a time, fit into a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from dsocr_analyze.costs import page_costs
from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.model.dimensions import ModelDimensions
from dsocr_analyze.workload import Workload

__all__ = ["LARGEST_BATCH", "Fit", "MemoryNeed", "fit", "memory_need"]

LARGEST_BATCH: Final = 1 << 20

_FP32_BYTES: Final = 4


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a batch needs at its two high tides.

    Attributes:
        weights_bytes: All parameters.
        prefill_bytes: Tensors alive at once in the prefill pass, the filling KV cache among them.
        decode_bytes: The last decode step: the full KV cache, one layer of it twice while it grows
            by a token, and the logits in their own type and in fp32.
    """

    weights_bytes: int
    prefill_bytes: int
    decode_bytes: int

    @property
    def total_bytes(self) -> int:
        """Weights and the higher of the two tides."""
        return self.weights_bytes + max(self.prefill_bytes, self.decode_bytes)


@dataclass(frozen=True)
class Fit:
    """What fits into one GPU."""

    gpu: Gpu
    usable_bytes: int
    need: MemoryNeed
    """Of the asked-for batch."""
    largest_batch: int
    """Most pages at a time; 0 where not even one fits."""

    @property
    def fits(self) -> bool:
        """Whether the asked-for batch fits."""
        return self.need.total_bytes <= self.usable_bytes


def memory_need(
    dimensions: ModelDimensions,
    workload: Workload,
    *,
    element_bytes: int,
    flash_attention: bool,
) -> MemoryNeed:
    """What a workload needs, by the closed forms."""
    costs = page_costs(
        dimensions, workload, element_bytes=element_bytes, flash_attention=flash_attention
    )
    decoder = dimensions.decoder
    layer = costs.kv_cache_bytes // decoder.layers
    logits = workload.batch_size * decoder.vocab_size * (element_bytes + _FP32_BYTES)
    return MemoryNeed(
        costs.weights_bytes, costs.peak_activation_bytes, costs.kv_cache_bytes + layer + logits
    )


def fit(
    gpu: Gpu,
    dimensions: ModelDimensions,
    workload: Workload,
    *,
    element_bytes: int,
    flash_attention: bool,
    reserved: float,
) -> Fit:
    """Whether `workload` fits into `gpu`, and what batch does.

    Args:
        gpu: The GPU.
        dimensions: The model.
        workload: The page and the asked-for batch.
        element_bytes: Bytes of a weight and an activation.
        flash_attention: FlashAttention in place of eager attention.
        reserved: Part of the memory (0 to 1) kept for the driver, the allocator and kernels.
    """
    usable = int(gpu.memory_bytes * (1 - reserved))

    def need(batch: int) -> MemoryNeed:
        return memory_need(
            dimensions,
            replace(workload, batch_size=batch),
            element_bytes=element_bytes,
            flash_attention=flash_attention,
        )

    largest = _largest(lambda batch: need(batch).total_bytes <= usable)
    return Fit(gpu, usable, need(workload.batch_size), largest)


def _largest(possible: Callable[[int], bool]) -> int:
    """The largest batch that is possible, where every smaller one is; 0 for none."""
    if not possible(1):
        return 0
    low, high = 1, 2
    while high <= LARGEST_BATCH and possible(high):
        low, high = high, 2 * high
    high = min(high, LARGEST_BATCH + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if possible(middle) else (low, middle)
    return low
