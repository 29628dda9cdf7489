"""What a list of pages costs, as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsocr_analyze.archive.histogram import Histogram, histograms_of
from dsocr_analyze.report.quantities import bytes_text, exact, scaled
from dsocr_analyze.report.tables import Table

if TYPE_CHECKING:
    from dsocr_analyze.archive.totals import Archive

__all__ = ["archive_tables"]

_BAR_WIDTH: Final = 40


def archive_tables(archive: Archive, histogram: str) -> list[Table]:
    """The totals, one row per setting, and a histogram of crop grids, or one of tokens per setting.

    Args:
        archive: The list of pages, added up.
        histogram: One of `HISTOGRAMS`.
    """
    histograms = histograms_of(archive, histogram)
    return [_totals_table(archive), *(_histogram_table(one) for one in histograms)]


def _totals_table(archive: Archive) -> Table:
    columns = (
        "mode", "dtype", "attention", "prompt tokens", "new tokens", "prefill FLOPs", "FLOPs",
        "bytes read", "bytes written", "FLOPs a page", "largest KV cache",
    )  # fmt: skip
    rows = tuple(
        (
            totals.setting.mode.name,
            totals.setting.dtype.name,
            totals.setting.attention,
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
    return Table(f"{exact(archive.pages)} pages", columns, rows, label_columns=3)


def _histogram_table(histogram: Histogram) -> Table:
    bars = histogram.bars
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
