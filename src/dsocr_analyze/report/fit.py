"""The document of `dsocr-analyze fit`: which GPUs pages fit on, and how many; and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from dsocr_analyze.hardware.fit import ASSUMPTIONS, BatchFit, Fit, Order
from dsocr_analyze.report.build import workload_document
from dsocr_analyze.report.document import SCHEMA_VERSION, Count
from dsocr_analyze.report.opening import Options, PageOpening
from dsocr_analyze.report.quantities import bytes_text, counted
from dsocr_analyze.report.table import Table

if TYPE_CHECKING:
    from dsocr_analyze import workload as planned
    from dsocr_analyze.figures.origin import Model

__all__ = ["FitDocument", "fit_document", "fit_tables"]


class BytesAlive(Struct, frozen=True, kw_only=True):
    """What is alive at a memory peak, in addition to the weights.

    Attributes:
        inputs_bytes: Inputs of the prefill pass.
        cache_bytes: The KV cache.
        activation_bytes: All other tensors except the logits.
        logits_bytes: The logits.
    """

    inputs_bytes: Count
    cache_bytes: Count
    activation_bytes: Count
    logits_bytes: Count


class BatchNeed(Struct, frozen=True, kw_only=True):
    """How much memory the requested batch needs, and the largest batch that fits.

    Attributes:
        assumption: How pages are prefilled, and what is held in memory meanwhile.
        needed_bytes: Weights plus the higher of the two peaks.
        weights_bytes: Weights.
        prefill_bytes: Peak of the prefill pass.
        prefill: Breakdown of that peak.
        decode_bytes: Peak of the last decode step.
        decode: Breakdown of that peak.
        fits: Whether the requested batch fits.
        largest_batch: Prompts in the largest batch that fits; 0 if the GPU cannot run the model.
        limit: What takes most memory in the smallest batch that does not fit; null if there is
            none.
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
        usable_bytes: The part of it available for weights and pages.
        lacks: Data types and kernels that the GPU does not support.
        one_at_a_time: The same figures for prefilling pages one at a time.
    """

    gpu: str
    memory_bytes: Count
    usable_bytes: Count
    lacks: tuple[str, ...]
    one_at_a_time: BatchNeed


class FitDocument(PageOpening, frozen=True, kw_only=True):
    """Which GPUs a batch fits on.

    Attributes:
        gpus: One entry per GPU.
    """

    gpus: tuple[GpuFit, ...]


def fit_document(
    model: Model, workload: planned.Workload, fits: Sequence[Fit], options: Options
) -> FitDocument:
    """The document for some GPUs."""
    return FitDocument(
        schema_version=SCHEMA_VERSION,
        command="fit",
        options=options,
        model=model,
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
    """Memory that a batch needs; the largest batch is 0 if the GPU cannot run the model."""
    limit, need = batch.limit if runs else None, batch.need
    return BatchNeed(
        assumption=ASSUMPTIONS[order],
        needed_bytes=need.total_bytes,
        weights_bytes=need.weights_bytes,
        prefill_bytes=need.prefill_bytes,
        prefill=BytesAlive(**asdict(need.prefill)),
        decode_bytes=need.decode_bytes,
        decode=BytesAlive(**asdict(need.decode)),
        fits=runs and batch.fits,
        largest_batch=batch.largest_batch if runs else 0,
        limit=None if limit is None else limit.part,
        limit_moment=None if limit is None else limit.moment,
    )


def fit_tables(document: FitDocument, titles: Sequence[str]) -> Iterator[Table]:
    """What the requested batch needs, and the largest batches.

    Args:
        document: The document.
        titles: The GPUs' names for readers.
    """
    # The requested batch needs the same on every GPU.
    at_once, one = document.gpus[0], document.gpus[0].one_at_a_time
    workload = document.workload
    yield Table(
        f"{counted(workload.batch_size, 'page')} of {counted(workload.seq_len, 'token')} need"
        f" {bytes_text(at_once.needed_bytes)}, one at a time {bytes_text(one.needed_bytes)}:"
        f" weights {bytes_text(at_once.weights_bytes)}, and the higher of two peaks",
        ("prefill", "peak", "bytes", "inputs", "KV cache", "activations", "logits"),
        tuple(
            (order, peak, *map(bytes_text, (nbytes, *structs.astuple(alive))))
            for order, need in (("at once", at_once), ("one at a time", one))
            for peak, nbytes, alive in (
                ("prefill pass", need.prefill_bytes, need.prefill),
                ("last decode step", need.decode_bytes, need.decode),
            )
        ),
        label_columns=2,
    )
    yield Table(
        "Largest batches",
        ("GPU", "name", "usable", "fits", "at once", "limited by", "one at a time", "limited by"),
        tuple(
            (title, each.gpu, bytes_text(each.usable_bytes), *_answers(each))
            for title, each in zip(titles, document.gpus, strict=True)
        ),
        label_columns=2,
        optional=("GPU",),
    )


def _answers(each: GpuFit) -> tuple[str, ...]:
    if each.lacks:
        return (", ".join(f"no {lack}" for lack in each.lacks), "-", "", "-", "")
    cells = ["yes" if each.fits else "no"]
    for batch in (each, each.one_at_a_time):
        moment = "" if batch.limit_moment is None else f" ({batch.limit_moment})"
        cells += [str(batch.largest_batch), f"{batch.limit or ''}{moment}"]
    return tuple(cells)
