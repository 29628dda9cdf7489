"""Whether pages fit into a GPU's memory, how many at once, and what limits that."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace as with_changes

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.figures import BytesAlive, Count
from dsocr_analyze.hardware.devices import Gpu, missing_features
from dsocr_analyze.kernels import Dtype
from dsocr_analyze.workload import PageWorkload

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

TRACED_ASSUMPTION: Final = (
    "batches of 1, 2, 4 and on to 256 prompts are traced, as far as they fit, and the memory of"
    " others lies between; cache and logits at the prefill pass's peak are among its activations"
)
"""What is assumed of a described model."""


Part = Literal["weights", "inputs", "cache", "activations", "logits"]


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a batch needs: weights, and what else is alive at its two peaks."""

    weights_bytes: int
    prefill: BytesAlive
    decode: BytesAlive
    """In the last decode step."""

    @property
    def total_bytes(self) -> int:
        """Weights plus the larger of the two peaks."""
        return self.weights_bytes + max(self.prefill.nbytes, self.decode.nbytes)

    def limit(self, usable_bytes: int) -> tuple[Part, Literal["prefill", "decode"] | None]:
        """What takes the most of a memory that is too small, and at which peak."""
        if self.weights_bytes > usable_bytes:
            return "weights", None
        is_prefill = self.prefill.nbytes >= self.decode.nbytes
        alive = self.prefill if is_prefill else self.decode
        parts: dict[Part, int] = {
            "inputs": alive.inputs_bytes,
            "cache": alive.cache_bytes,
            "activations": alive.activation_bytes,
            "logits": alive.logits_bytes,
        }
        largest = max(parts, key=parts.__getitem__)
        return largest, "prefill" if is_prefill else "decode"


class BatchNeed(Struct, frozen=True, kw_only=True):
    """The memory that the requested batch needs, and the largest batch that fits.

    Attributes:
        assumption: How pages prefill, and what stays in memory meanwhile.
        needed_bytes: Weights plus the higher of the two peaks.
        weights_bytes: Weights.
        prefill_bytes: Peak of the prefill pass.
        prefill: Breakdown of that peak.
        decode_bytes: Peak of the last decode step.
        decode: Breakdown of that peak.
        fits: Whether the requested batch fits.
        largest_batch: Prompts in the largest batch that fits; 0 if the GPU cannot run the model.
        limit: What takes most of the smallest batch that does not fit; null if every batch fits.
        limit_moment: The peak at which it does; null for the weights.
    """

    assumption: str
    needed_bytes: Count
    weights_bytes: Count
    prefill_bytes: Count
    prefill: BytesAlive
    decode_bytes: Count
    decode: BytesAlive
    fits: bool
    largest_batch: Count
    limit: str | None
    limit_moment: str | None


class GpuFit(BatchNeed, frozen=True, kw_only=True):
    """One GPU; this object's own figures are for prefilling all pages at once.

    Attributes:
        gpu: Name of the GPU.
        memory_bytes: Its memory as sold.
        usable_bytes: Of it, for weights and pages.
        lacks: Data types and kernels that the GPU lacks.
        one_at_a_time: The same figures for pages that prefill one at a time.
    """

    gpu: str
    memory_bytes: Count
    usable_bytes: Count
    lacks: tuple[str, ...]
    one_at_a_time: BatchNeed


def memory_need(
    architecture: Architecture,
    dimensions: Any,
    workload: PageWorkload,
    *,
    dtype: Dtype,
    flash_attention: bool,
    order: Order = "at once",
) -> MemoryNeed:
    """The memory that a workload needs; `dimensions` are None of a model that is traced."""
    alone = replace(workload, batch_size=1)
    prefilling = workload if order == "at once" else alone
    prefill = architecture.forms.prefill_bytes_alive(dimensions, prefilling, dtype, flash_attention)
    decode = architecture.forms.decode_bytes_alive(dimensions, workload, dtype, flash_attention)
    memory = architecture.forms.memory(dimensions, alone, dtype, flash_attention)
    if order == "one at a time":
        decoding = (workload.batch_size - 1) * memory.kv_cache_bytes
        prefill = with_changes(prefill, cache_bytes=prefill.cache_bytes + decoding)
        decode = with_changes(decode, inputs_bytes=0)
    return MemoryNeed(memory.weights_bytes, prefill, decode)


def fit(
    gpu: Gpu,
    architecture: Architecture,
    dimensions: Any,
    workload: PageWorkload,
    *,
    dtype: Dtype,
    flash_attention: bool,
    reserved: float,
) -> GpuFit:
    """Whether a workload fits into a GPU whose fraction `reserved` of memory is kept free.

    Raises:
        WorkloadError: `reserved` is out of range.
    """
    if not 0 <= reserved < 1:
        raise WorkloadError(
            f"reserved {reserved} is out of range; give a fraction, at least 0 and below 1",
            arguments=["reserved"],
        )
    usable = int(gpu.memory_bytes * (1 - reserved))
    lacks = missing_features(gpu, dtype, flash_attention=flash_attention)

    def batch_need(order: Order) -> BatchNeed:
        def need(batch: int) -> MemoryNeed:
            pages = replace(workload, batch_size=batch)
            return memory_need(
                architecture, dimensions, pages, dtype=dtype, flash_attention=flash_attention,
                order=order,
            )  # fmt: skip

        found, largest, part, moment = need(workload.batch_size), 0, None, None
        if not lacks:
            largest = largest_batch(lambda batch: need(batch).total_bytes <= usable)
        if not lacks and largest < LARGEST_BATCH:
            part, moment = need(largest + 1).limit(usable)
        return BatchNeed(
            assumption=ASSUMPTIONS[order],
            needed_bytes=found.total_bytes,
            weights_bytes=found.weights_bytes,
            prefill_bytes=found.prefill.nbytes,
            prefill=found.prefill,
            decode_bytes=found.decode.nbytes,
            decode=found.decode,
            fits=not lacks and found.total_bytes <= usable,
            largest_batch=largest,
            limit=part,
            limit_moment=moment,
        )

    return GpuFit(
        **asdict(batch_need("at once")),
        gpu=gpu.name,
        memory_bytes=gpu.memory_bytes,
        usable_bytes=usable,
        lacks=tuple(lacks),
        one_at_a_time=batch_need("one at a time"),
    )


def largest_batch(possible: Callable[[int], bool]) -> int:
    """The largest possible batch, if every smaller one is possible; 0 if none is."""
    high = 1
    while high <= LARGEST_BATCH and possible(high):
        high *= 2
    between = range(high // 2 + 1, min(high, LARGEST_BATCH + 1))
    return high // 2 + bisect_left(between, True, key=lambda batch: not possible(batch))
