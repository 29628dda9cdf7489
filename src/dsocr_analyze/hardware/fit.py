"""Whether pages fit into a GPU's memory, how many fit at once, and what limits that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.hardware.devices import MissingFeature, missing_features

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture, ModelDimensions
    from dsocr_analyze.dtypes import Dtype
    from dsocr_analyze.figures import BytesAlive
    from dsocr_analyze.hardware.devices import Gpu
    from dsocr_analyze.workload import Workload

__all__ = [
    "ASSUMPTIONS",
    "LARGEST_BATCH",
    "BatchFit",
    "Fit",
    "Limit",
    "MemoryNeed",
    "Order",
    "fit",
    "largest_batch",
    "memory_need",
]

LARGEST_BATCH: Final = 1 << 20

Order = Literal["at once", "one at a time"]
"""How the pages of a batch go through the prefill pass."""

ASSUMPTIONS: Final[dict[Order, str]] = {
    "at once": "all pages prefill at once, as in the model's own generate, and their inputs stay in"
    " memory until the last token",
    "one at a time": "one page prefills while all the others decode, each with a full-length cache"
    " and its inputs freed",
}
"""What each order assumes, for readers."""


Part = Literal["weights", "inputs", "cache", "activations", "logits"]
"""What takes memory."""


class Limit(NamedTuple):
    """What stops a larger batch from fitting."""

    part: Part
    """`activations` are the rest of a peak: not inputs, cache or logits."""
    moment: Literal["prefill", "decode"] | None
    """Which of the two peaks; None for the weights, which are always present."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a batch needs at its two peaks.

    Attributes:
        weights_bytes: All parameters.
        prefill: Everything else alive at the peak of a prefill pass.
        decode: Everything else alive in the last decode step.
    """

    weights_bytes: int
    prefill: BytesAlive
    decode: BytesAlive

    @property
    def prefill_bytes(self) -> int:
        """Bytes alive at the peak of a prefill pass, weights excluded."""
        return self.prefill.nbytes

    @property
    def decode_bytes(self) -> int:
        """Bytes alive in the last decode step, weights excluded."""
        return self.decode.nbytes

    @property
    def total_bytes(self) -> int:
        """Weights plus the larger of the two peaks."""
        return self.weights_bytes + max(self.prefill_bytes, self.decode_bytes)

    def limit(self, usable_bytes: int) -> Limit:
        """What takes the most of a memory that is too small for this need.

        The weights if they alone do not fit, else the largest part of the larger peak.
        """
        if self.weights_bytes > usable_bytes:
            return Limit("weights", None)
        is_prefill = self.prefill_bytes >= self.decode_bytes
        alive = self.prefill if is_prefill else self.decode
        parts: dict[Part, int] = {
            "inputs": alive.inputs_bytes,
            "cache": alive.cache_bytes,
            "activations": alive.activation_bytes,
            "logits": alive.logits_bytes,
        }
        largest = max(parts, key=parts.__getitem__)
        return Limit(largest, "prefill" if is_prefill else "decode")


@dataclass(frozen=True)
class BatchFit:
    """How large a batch may be if its pages prefill in one order.

    Attributes:
        usable_bytes: Available memory.
        need: What the requested batch needs.
        largest_batch: Most pages in a batch; 0 if not even one fits.
        limit: What takes the most memory in the first batch that does not fit; None if
            `LARGEST_BATCH` pages fit.
    """

    usable_bytes: int
    need: MemoryNeed
    largest_batch: int
    limit: Limit | None

    @property
    def fits(self) -> bool:
        """Whether the requested batch fits into memory."""
        return self.need.total_bytes <= self.usable_bytes


@dataclass(frozen=True)
class Fit:
    """What fits into one GPU.

    Attributes:
        gpu: The GPU.
        lacks: Features that the model needs and the GPU does not have; if there are any, nothing
            runs, however much memory there is.
        at_once: For a batch whose pages all prefill at once.
        one_at_a_time: For a batch in which one page prefills while the others decode.
    """

    gpu: Gpu
    lacks: tuple[MissingFeature, ...]
    at_once: BatchFit
    one_at_a_time: BatchFit

    @property
    def usable_bytes(self) -> int:
        """Available memory, less what is reserved."""
        return self.at_once.usable_bytes

    @property
    def need(self) -> MemoryNeed:
        """What the requested batch needs if all its pages prefill at once."""
        return self.at_once.need

    @property
    def fits(self) -> bool:
        """Whether the GPU can run the requested batch with all its pages prefilling at once."""
        return not self.lacks and self.at_once.fits

    @property
    def largest_batch(self) -> int:
        """Most pages in a batch whose pages all prefill at once; 0 if nothing runs."""
        return 0 if self.lacks else self.at_once.largest_batch


def memory_need(
    architecture: Architecture,
    dimensions: ModelDimensions,
    workload: Workload,
    *,
    dtype: Dtype,
    flash_attention: bool,
    order: Order = "at once",
) -> MemoryNeed:
    """The memory that a workload needs, from the closed forms.

    Args:
        architecture: The model's architecture.
        dimensions: The model's dimensions.
        workload: The page and the batch.
        dtype: Type of weights and activations.
        flash_attention: FlashAttention instead of eager attention.
        order: How its pages prefill; see `ASSUMPTIONS`.
    """
    alone = replace(workload, batch_size=1)
    prefilling = workload if order == "at once" else alone
    prefill = architecture.forms.prefill_bytes_alive(dimensions, prefilling, dtype, flash_attention)
    decode = architecture.forms.decode_bytes_alive(dimensions, workload, dtype, flash_attention)
    memory = architecture.forms.memory(dimensions, alone, dtype, flash_attention)
    if order == "one at a time":
        decoding = (workload.batch_size - 1) * memory.kv_cache_bytes
        prefill = replace(prefill, cache_bytes=prefill.cache_bytes + decoding)
        decode = replace(decode, inputs_bytes=0)
    return MemoryNeed(memory.weights_bytes, prefill, decode)


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
    """Whether `workload` fits into `gpu`, and the largest batches that do.

    Args:
        gpu: The GPU.
        architecture: The model's architecture.
        dimensions: The model's dimensions.
        workload: The page and the requested batch.
        dtype: Type of weights and activations.
        flash_attention: FlashAttention instead of eager attention.
        reserved: Fraction of the memory, from 0 to below 1, kept for the driver, the allocator and
            kernels.

    Raises:
        WorkloadError: `reserved` is out of range.
    """
    if not 0 <= reserved < 1:
        raise WorkloadError(
            f"reserved {reserved} is out of range; give a fraction, at least 0 and below 1",
            arguments=["reserved"],
        )
    usable = int(gpu.memory_bytes * (1 - reserved))

    def batch_fit(order: Order) -> BatchFit:
        def need(batch: int) -> MemoryNeed:
            return memory_need(
                architecture,
                dimensions,
                replace(workload, batch_size=batch),
                dtype=dtype,
                flash_attention=flash_attention,
                order=order,
            )

        largest = largest_batch(lambda batch: need(batch).total_bytes <= usable)
        limit = need(largest + 1).limit(usable) if largest < LARGEST_BATCH else None
        return BatchFit(usable, need(workload.batch_size), largest, limit)

    lacks = missing_features(gpu, dtype, flash_attention=flash_attention)
    return Fit(gpu, lacks, batch_fit("at once"), batch_fit("one at a time"))


def largest_batch(possible: Callable[[int], bool]) -> int:
    """The largest possible batch, given that every smaller one is possible; 0 if none is."""
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
