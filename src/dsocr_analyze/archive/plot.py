"""A picture of a list of pages: its histogram."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsocr_analyze.columns.picture import new_figure, readable_scale, save_picture, tick_style

if TYPE_CHECKING:
    from dsocr_analyze.archive.histogram import Histogram

__all__ = ["plot_histogram"]


def plot_histogram(path: Path, histograms: Sequence[Histogram], subtitle: str) -> None:
    """Draws a histogram of pages, or several of equal bins as groups of bars.

    Args:
        path: The picture; its name tells the format.
        histograms: The bars of each.
        subtitle: Which pages they are.

    Raises:
        OutputError: The file cannot be written.
    """
    histogram = histograms[0]
    figure, axes = new_figure(histogram.title, subtitle)
    labels = [bar.label for bar in histogram.bars]
    positions = range(len(labels))
    most = max((bar.pages for each in histograms for bar in each.bars), default=0)
    divisor, unit = readable_scale(most, "pages")
    width = 0.8 / len(histograms)
    for index, each in enumerate(histograms):
        shift = (index - (len(histograms) - 1) / 2) * width
        places = [position + shift for position in positions]
        axes.bar(places, [bar.pages / divisor for bar in each.bars], width, label=each.series)
    if len(histograms) > 1:
        axes.legend(title="mode", fontsize="small")
    axes.set_xticks(positions, labels, **tick_style(labels))
    axes.set_xlabel(histogram.axis)
    axes.set_ylabel("pages" if divisor == 1 else f"pages [{unit.removesuffix(' pages')}]")
    axes.grid(axis="y", alpha=0.3)
    save_picture(figure, path)
