"""The document of `dsocr-analyze fit`: into which GPUs pages fit, and how many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from dsocr_analyze.report.build import model_document, workload_document
from dsocr_analyze.report.document import SCHEMA_VERSION, Count
from dsocr_analyze.report.opening import Options, PageOpening

if TYPE_CHECKING:
    from dsocr_analyze import workload as planned
    from dsocr_analyze.figures import ModelSource
    from dsocr_analyze.hardware.fit import BatchFit, Fit, Order

__all__ = ["FitDocument", "fit_document"]


class TideBytes(Struct, frozen=True, kw_only=True):
    """What is alive at a peak, besides the weights.

    Attributes:
        inputs_bytes: What the prefill pass is called with.
        cache_bytes: The KV cache.
        activation_bytes: All other tensors but the logits.
        logits_bytes: The logits.
    """

    inputs_bytes: Count
    cache_bytes: Count
    activation_bytes: Count
    logits_bytes: Count


class BatchNeed(Struct, frozen=True, kw_only=True):
    """What the batch that is asked for needs, and how large a batch may be.

    Attributes:
        assumption: In which order pages are prefilled, and what is held meanwhile.
        needed_bytes: Weights and the higher of two peaks.
        weights_bytes: Weights.
        prefill_bytes: Peak of the prefill pass.
        prefill: What that is made of.
        decode_bytes: Peak of the last decode step.
        decode: What that is made of.
        fits: Whether the batch fits.
        largest_batch: Prompts of the largest batch that fits; 0 where the GPU does not run it.
        limit: What takes most of the first batch that does not fit; null where there is none.
        limit_moment: At which peak; null for the weights.
    """

    assumption: str
    needed_bytes: Count
    weights_bytes: Count
    prefill_bytes: Count
    prefill: TideBytes
    decode_bytes: Count
    decode: TideBytes
    fits: bool
    largest_batch: Count
    limit: str | None
    limit_moment: str | None


class GpuFit(BatchNeed, frozen=True, kw_only=True):
    """One GPU; the need of this object itself is that of pages which prefill all at once.

    Attributes:
        gpu: Name of the GPU.
        memory_bytes: Its memory as sold.
        usable_bytes: What is left of it for pages and weights.
        lacks: Types and kernels that the GPU does not have.
        one_at_a_time: The same where pages prefill one after the other.
    """

    gpu: str
    memory_bytes: Count
    usable_bytes: Count
    lacks: tuple[str, ...]
    one_at_a_time: BatchNeed


class FitDocument(PageOpening, frozen=True, kw_only=True):
    """Into which GPUs a batch fits.

    Attributes:
        gpus: One entry per GPU.
    """

    gpus: tuple[GpuFit, ...]


def fit_document(
    model: ModelSource, workload: planned.Workload, fits: Sequence[Fit], options: Options
) -> FitDocument:
    """The document of some GPUs."""
    return FitDocument(
        schema_version=SCHEMA_VERSION,
        command="fit",
        options=options,
        model=model_document(model),
        workload=workload_document(workload),
        gpus=tuple(map(_gpu, fits)),
    )


def _gpu(each: Fit) -> GpuFit:
    return GpuFit(
        **structs.asdict(_need("at once", each.at_once, runs=not each.lacks)),
        gpu=each.gpu.name,
        memory_bytes=each.gpu.memory_bytes,
        usable_bytes=each.usable_bytes,
        lacks=tuple(lack.what for lack in each.lacks),
        one_at_a_time=_need("one at a time", each.one_at_a_time, runs=not each.lacks),
    )


def _need(order: Order, batch: BatchFit, *, runs: bool) -> BatchNeed:
    """How large a batch may be; 0 pages where the GPU does not run the model."""
    from dsocr_analyze.hardware.fit import ASSUMPTIONS

    limit, need = batch.limit if runs else None, batch.need
    return BatchNeed(
        assumption=ASSUMPTIONS[order],
        needed_bytes=need.total_bytes,
        weights_bytes=need.weights_bytes,
        prefill_bytes=need.prefill_bytes,
        prefill=TideBytes(**asdict(need.prefill)),
        decode_bytes=need.decode_bytes,
        decode=TideBytes(**asdict(need.decode)),
        fits=runs and batch.fits,
        largest_batch=batch.largest_batch if runs else 0,
        limit=None if limit is None else limit.part,
        limit_moment=None if limit is None else limit.moment,
    )
