"""What a list of pages costs, as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsocr_analyze.archive.histogram import Histogram, histograms_of
from dsocr_analyze.report.quantities import bytes_text, counted, exact, price_text, scaled
from dsocr_analyze.report.tables import Table

if TYPE_CHECKING:
    from dsocr_analyze.archive.time_totals import TimeTotals
    from dsocr_analyze.archive.totals import Archive

__all__ = ["archive_tables"]

_BAR_WIDTH: Final = 40


def archive_tables(archive: Archive, histogram: str) -> list[Table]:
    """The totals with one row per setting, seconds, and a histogram of grids or tokens.

    Args:
        archive: The list's totals.
        histogram: "grid" or "tokens".
    """
    histograms = histograms_of(archive, histogram)
    times = _time_tables(archive.times) if archive.times else []
    return [_totals_table(archive), *times, _histogram_table(histograms)]


def _totals_table(archive: Archive) -> Table:
    columns = (
        "mode", "dtype", "attention", "prompt tokens", "new tokens", "prefill FLOPs", "FLOPs",
        "bytes read", "bytes written", "FLOPs per page", "largest KV cache",
    )  # fmt: skip
    rows = tuple(
        (
            totals.setting.mode.name,
            totals.setting.dtype.name,
            totals.setting.attention_label,
            scaled(totals.prompt_tokens),
            scaled(totals.new_tokens),
            scaled(totals.prefill_pass.flops),
            scaled(totals.page.flops),
            bytes_text(totals.page.bytes_read),
            bytes_text(totals.page.bytes_written),
            scaled(totals.page.flops // archive.pages) if archive.pages else "-",
            bytes_text(totals.largest_kv_cache_bytes),
        )
        for totals in archive.totals
    )
    title = counted(archive.pages, "page")
    if archive.batch_size > 1:
        title += f" in batches of {archive.batch_size} with equal prompts"
    if archive.times and archive.times[0].time.has_lengths:
        title += "; FLOPs and bytes for the most new tokens, seconds for those given"
    return Table(title, columns, rows, label_columns=3)


def _time_tables(times: list[TimeTotals]) -> list[Table]:
    """GPU-hours by GPU and setting, and what follows from them; at most 80 columns wide.

    The kind of attention is shown only if it differs.
    """
    time = times[0].time
    price, hours = time.requested.job.price_per_hour, time.deadline_hours
    attentions = {each.setting.attention_label for each in times}
    names = ("GPU", "mode", "dtype", "attention")[: 3 if len(attentions) == 1 else 4]
    spent, follows = [], []
    for each in times:
        setting = each.setting
        parts = (each.gpu, setting.mode.name, setting.dtype.name, setting.attention_label)
        label = parts[: len(names)]
        spent.append((*label, _three(each.gpu_hours), *map(_three, each.band), each.bound))
        row = [*label, _three(each.pages_per_second)]
        if each.cost is not None:
            row.append(price_text(each.cost))
        if each.gpus_for_deadline is not None:
            row.append(exact(each.gpus_for_deadline))
        follows.append(tuple(row))
    columns, title = [*names, "pages/s"], "Results: pages/s of one GPU"
    if price is not None:
        columns.append("cost")
        title += f", cost at {price:g} per hour"
    if hours is not None:
        columns.append("GPUs")
        title += f", GPUs to finish in {hours:g} h"
    return [
        Table(
            f"Predicted: {times[0].runtime}, {time.concurrency} pages at once",
            (*names, "GPU-hours", "low", "high", "bound"), tuple(spent),
            label_columns=len(names),
        ),
        Table(title, tuple(columns), tuple(follows), label_columns=len(names)),
    ]  # fmt: skip


def _three(value: float) -> str:
    """Three digits with thousands separators; two for small values."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.1 else f"{value:.2g}"


def _histogram_table(histograms: list[Histogram]) -> Table:
    """One histogram with shares and bars, or several side by side."""
    histogram = histograms[0]
    bars = histogram.bars
    if len(histograms) > 1:
        counts = zip(*([exact(bar.pages) for bar in each.bars] for each in histograms), strict=True)
        return Table(
            f"{histogram.title}, by mode",
            (histogram.label, *(each.series for each in histograms)),
            tuple((bar.label, *row) for bar, row in zip(bars, counts, strict=True)),
        )
    pages = sum(bar.pages for bar in bars)
    most = max((bar.pages for bar in bars), default=0)
    rows = tuple(
        (
            bar.label,
            exact(bar.pages),
            f"{100 * bar.pages / pages:.1f} %",
            "#" * -(-_BAR_WIDTH * bar.pages // most),
        )
        for bar in bars
    )
    return Table(histogram.title, (histogram.label, "pages", "share", ""), rows)
