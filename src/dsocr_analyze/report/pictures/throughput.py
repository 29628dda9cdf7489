"""A picture of throughput and latency over concurrency."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dsocr_analyze.report.pictures.picture import DASHES, MARKERS, Picture, drawing
from dsocr_analyze.report.pictures.settings import (
    fixed_line,
    said_of,
    settings_of_model,
    settings_of_time,
    settings_of_workload,
    varying,
)
from dsocr_analyze.report.pictures.values import Scale, scale_axis
from dsocr_analyze.report.tables import PALETTE

if TYPE_CHECKING:
    from matplotlib.artist import Artist

    from dsocr_analyze.report.time_tables import TimeReport

__all__ = ["throughput_picture"]


def throughput_picture(
    report: TimeReport, dtype: str, attention: str, config: Path | None = None
) -> Picture:
    """Pages per second with their band (filled markers), and seconds per page (hollow, dotted).

    Each GPU and runtime has one colour and marker; the scale on the right is for the seconds.
    """
    about = {
        **settings_of_model(report.model, config),
        **settings_of_workload(report.workload, report.model.architecture),
        "dtype": dtype,
        "attention": attention,
    }
    del about["batch_size"]  # it is the x axis
    rows = [about | settings_of_time(entry) for entry in report.time]
    settings = {name: [row[name] for row in rows] for name in rows[0]}
    differing = varying(settings)
    handles: list[Artist] = []
    labels: list[str] = []
    with drawing():
        picture = Picture("Predicted throughput and latency of pages", fixed_line(settings))
        axes, latency = picture.axes, picture.axes.twinx()
        latency.spines["top"].set_visible(False)
        for index, (entry, row) in enumerate(zip(report.time, rows, strict=True)):
            at = [load.concurrency for load in entry.throughput]
            bands = [load.pages_per_second_band for load in entry.throughput]
            colour, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
            handles += axes.plot(
                at, [load.pages_per_second for load in entry.throughput], color=colour,
                marker=marker, linestyle=DASHES[index // len(PALETTE) % 3],
            )  # fmt: skip
            axes.fill_between(
                at, [each.low for each in bands], [each.high for each in bands], color=colour,
                alpha=0.2, linewidth=0,
            )  # fmt: skip
            latency.plot(
                at, [load.page_seconds for load in entry.throughput], color=colour, linestyle=":",
                marker=marker, markerfacecolor="white",
            )  # fmt: skip
            labels.append(", ".join(filter(None, (said_of(name, row[name]) for name in differing))))
        picture.name_axes("pages at once", "pages per second (filled markers, with band)")
        latency.set_ylabel(picture.upright("seconds per page (hollow markers, dotted)"))
        scale_axis(axes.xaxis, Scale(1, ""), whole=True)
        axes.set_ylim(bottom=0)
        latency.set_ylim(bottom=0)
        if differing:
            picture.add_legend(handles, labels)
        picture.lay_out()
    return picture
