"""A picture of throughput and latency over concurrency."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dsocr_analyze.columns.picture import new_figure, save_picture

if TYPE_CHECKING:
    from dsocr_analyze.report.time_report import TimeReport

__all__ = ["plot_throughput"]


def plot_throughput(path: Path, report: TimeReport) -> None:
    """Draws pages per second with their band (solid), and seconds per page (dotted).

    A GPU and runtime have one colour; the second scale, on the right, is that of the seconds.

    Args:
        path: The picture; its name tells the format.
        report: The predictions.

    Raises:
        OutputError: The file cannot be written.
    """
    figure, axes = new_figure(
        "Predicted throughput (solid, with band) and latency (dotted)",
        report.workload.title,
    )
    latency = axes.twinx()
    for entry in report.time:
        at = [load.concurrency for load in entry.throughput]
        rates = [load.pages_per_second for load in entry.throughput]
        bands = [load.pages_per_second_band for load in entry.throughput]
        label = f"{entry.gpu}, {entry.runtime}"
        if entry.assumptions.correction is not None:
            label += ", corrected by benchmarks"
        (line,) = axes.plot(at, rates, marker="o", label=label)
        colour = line.get_color()
        axes.fill_between(
            at, [each.low for each in bands], [each.high for each in bands], color=colour, alpha=0.2
        )
        seconds = [load.page_seconds for load in entry.throughput]
        latency.plot(at, seconds, linestyle=":", marker=".", color=colour)
    axes.set_xlabel("pages at once")
    axes.set_ylabel("pages per second")
    latency.set_ylabel("seconds per page")
    axes.set_ylim(bottom=0)
    latency.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    save_picture(figure, path)
