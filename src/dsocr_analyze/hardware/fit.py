"""Whether a page, or how many at a time, fit into a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from dsocr_analyze.architectures.architecture import Architecture, ModelDimensions
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.workload import Workload

__all__ = ["LARGEST_BATCH", "Fit", "MemoryNeed", "fit", "memory_need"]

LARGEST_BATCH: Final = 1 << 20


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a batch needs at its two peaks.

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
    architecture: Architecture,
    dimensions: ModelDimensions,
    workload: Workload,
    *,
    dtype: Dtype,
    flash_attention: bool,
) -> MemoryNeed:
    """What a workload needs, by closed forms; arguments as for `fit`."""
    memory = architecture.memory(dimensions, workload, dtype, flash_attention)
    decode = architecture.decode_peak_bytes(dimensions, workload, dtype, flash_attention)
    return MemoryNeed(memory.weights_bytes, memory.peak.nbytes, decode)


def fit(
    gpu: Gpu,
    architecture: Architecture,
    dimensions: ModelDimensions,
    workload: Workload,
    *,
    dtype: Dtype,
    flash_attention: bool,
    reserved: float,
) -> Fit:
    """Whether `workload` fits into `gpu`, and the largest batch that fits.

    Args:
        gpu: The GPU.
        architecture: The model's architecture.
        dimensions: The model's dimensions.
        workload: The page and the asked-for batch.
        dtype: Type of weights and activations.
        flash_attention: FlashAttention in place of eager attention.
        reserved: Part of the memory, from 0 to below 1, kept for the driver, the allocator and
            kernels.

    Raises:
        WorkloadError: `reserved` is no such part.
    """
    if not 0 <= reserved < 1:
        raise WorkloadError(
            f"reserved {reserved} is not possible; give a part from 0 to below 1",
            arguments=["reserved"],
        )
    usable = int(gpu.memory_bytes * (1 - reserved))

    def need(batch: int) -> MemoryNeed:
        return memory_need(
            architecture,
            dimensions,
            replace(workload, batch_size=batch),
            dtype=dtype,
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
