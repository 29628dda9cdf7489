"""A picture of a list of pages: its histogram."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dsocr_analyze.columns.picture import new_figure, readable_scale, save_picture, tick_style

if TYPE_CHECKING:
    from dsocr_analyze.archive.histogram import Histogram

__all__ = ["plot_histogram"]


def plot_histogram(path: Path, histogram: Histogram, subtitle: str) -> None:
    """Draws a histogram of pages.

    Args:
        path: The picture; its name tells the format.
        histogram: The bars.
        subtitle: Which pages they are.

    Raises:
        OutputError: The file cannot be written.
    """
    figure, axes = new_figure(histogram.title, subtitle)
    labels = [bar.label for bar in histogram.bars]
    positions = range(len(labels))
    most = max((bar.pages for bar in histogram.bars), default=0)
    divisor, unit = readable_scale(most, "pages")
    axes.bar(positions, [bar.pages / divisor for bar in histogram.bars])
    axes.set_xticks(positions, labels, **tick_style(labels))
    axes.set_xlabel(histogram.axis)
    axes.set_ylabel("pages" if divisor == 1 else f"pages [{unit.removesuffix(' pages')}]")
    axes.grid(axis="y", alpha=0.3)
    save_picture(figure, path)
