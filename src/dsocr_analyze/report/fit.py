"""The document of `dsocr-analyze fit`: which GPUs pages fit on, and how many; and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from dsocr_analyze.hardware.fit import GpuFit
from dsocr_analyze.report.build import workload_document
from dsocr_analyze.report.document import SCHEMA_VERSION, Options, PageOpening
from dsocr_analyze.report.table import Table, bytes_text, counted

if TYPE_CHECKING:
    from dsocr_analyze import workload as planned
    from dsocr_analyze.figures.origin import Model

__all__ = ["FitDocument", "fit_document", "fit_tables"]


class FitDocument(PageOpening, frozen=True, kw_only=True):
    """Which GPUs a batch fits on.

    Attributes:
        gpus: One entry per GPU.
    """

    gpus: tuple[GpuFit, ...]


def fit_document(
    model: Model, workload: planned.Workload, gpus: Sequence[GpuFit], options: Options
) -> FitDocument:
    """The document for some GPUs."""
    return FitDocument(
        schema_version=SCHEMA_VERSION,
        command="fit",
        options=options,
        model=model,
        workload=workload_document(workload),
        gpus=tuple(gpus),
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
