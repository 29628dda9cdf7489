"""What an archive costs as a JSON document, and its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsocr_analyze.report.quantities import bytes_text, exact, scaled
from dsocr_analyze.report.tables import Table
from dsocr_analyze.sweep.histogram import Bar, grid_bars, token_bars

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsocr_analyze.sweep.archive import Archive, SettingTotals

__all__ = ["archive_document", "archive_tables"]

_BAR_WIDTH = 40


def archive_document(archive: Archive, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was counted, of JSON types only; counts are exact integers.

    Args:
        archive: The list of pages, added up.
        metadata: Which model, counted how.
    """
    return {
        "metadata": dict(metadata),
        "rows": archive.rows,
        "pages": archive.pages,
        "malformed": {
            "rows": archive.malformed.rows,
            "reported": [
                {"row": row, "reason": reason} for row, reason in archive.malformed.reported
            ],
        },
        "pages_by_grid": [
            {"grid": list(grid), "pages": pages}
            for grid, pages in sorted(archive.pages_by_grid.items())
        ],
        "totals": [_setting_document(totals) for totals in archive.totals],
    }


def _setting_document(totals: SettingTotals) -> dict[str, Any]:
    setting, mode = totals.setting, totals.setting.mode
    return {
        "mode": mode.name,
        "base_size": mode.base_size,
        "image_size": mode.image_size,
        "crop_mode": mode.crop_mode,
        "dtype": setting.dtype,
        "attention": setting.attention,
        "visual_tokens": totals.visual_tokens,
        "prompt_tokens": totals.prompt_tokens,
        "new_tokens": totals.new_tokens,
        **totals.counts,
        "largest_kv_cache_bytes": totals.largest_kv_cache_bytes,
        "pages_beyond_max_position_embeddings": totals.beyond_positions,
        "pages_by_prompt_tokens": [
            {"tokens": bar.label, "pages": bar.pages} for bar in token_bars(totals.pages_by_tokens)
        ],
    }


def archive_tables(archive: Archive, histogram: str) -> list[Table]:
    """The totals, a row a setting, and a histogram: of crop grids, or of tokens a setting.

    Args:
        archive: The list of pages, added up.
        histogram: `grid` or `tokens`.
    """
    tables = [_totals_table(archive)]
    if histogram == "grid":
        tables.append(_bars_table("Pages by crop grid", "grid", grid_bars(archive.pages_by_grid)))
    else:
        tables += [
            _bars_table(
                f"Pages by tokens of the prompt, mode {totals.setting.mode.name}",
                "tokens",
                token_bars(totals.pages_by_tokens),
            )
            for totals in archive.totals
        ]
    return tables


def _totals_table(archive: Archive) -> Table:
    columns = (
        "mode", "dtype", "attention", "prompt tokens", "new tokens", "prefill FLOPs", "FLOPs",
        "bytes read", "bytes written", "FLOPs a page", "largest KV cache",
    )  # fmt: skip
    rows = tuple(
        (
            totals.setting.mode.name,
            totals.setting.dtype,
            totals.setting.attention,
            scaled(totals.prompt_tokens),
            scaled(totals.new_tokens),
            scaled(totals.counts["prefill_pass_flops"]),
            scaled(totals.counts["page_flops"]),
            bytes_text(totals.counts["page_bytes_read"]),
            bytes_text(totals.counts["page_bytes_written"]),
            scaled(totals.counts["page_flops"] // archive.pages) if archive.pages else "-",
            bytes_text(totals.largest_kv_cache_bytes),
        )
        for totals in archive.totals
    )
    return Table(f"{exact(archive.pages)} pages", columns, rows, label_columns=3)


def _bars_table(title: str, label: str, bars: list[Bar]) -> Table:
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
    return Table(title, (label, "pages", "share", ""), rows)
