"""Charts of reports: a page's cost by stage; predicted seconds; accuracy over speed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.pictures.picture import (
    DASHES,
    HATCHES,
    MARKERS,
    Picture,
    Top,
    drawing,
    label_bars,
    label_points,
    label_segments,
    paler,
    scale_axis,
    scale_logarithmically,
    scale_of,
)
from dsocr_analyze.pictures.settings import (
    Setting,
    axis_name,
    fixed_line,
    said_of,
    settings_of_model,
    settings_of_time,
    settings_of_workload,
    varying,
)
from dsocr_analyze.report.comparison import ComparisonDocument, Ranking, merged
from dsocr_analyze.report.ranking import sorting_row
from dsocr_analyze.report.table import counted
from dsocr_analyze.report.tables import (
    AMOUNTS,
    OUTSIDE,
    PALETTE,
    page_parts,
    seconds_parts,
    stage_colours,
)

if TYPE_CHECKING:
    from dsocr_analyze.hardware.devices import Gpu
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.report.time_tables import TimeReport

MOST_BARS: Final = 24
"""Most bars in one picture."""

_WHAT: Final = {
    "flops": ("FLOPs of one {}", "FLOPs"),
    "bytes": ("bytes moved for one {}", "B"),
    "seconds": ("predicted seconds of one {} alone", "s"),
}
_BAR_INCHES: Final = (0.75, 1.6)
_INCHES: Final = (8.0, 16.0)
_KEY: Final[dict[str, Any]] = {"color": "0.35", "linestyle": ""}
"""A mark in a legend that is of no line's colour."""


@dataclass(frozen=True)
class ChartedReport:
    """A named report, in a chart or beside others, and its config's name, if any."""

    name: str
    report: Report
    config: str | None = None


@dataclass(frozen=True)
class _Bar:
    """A bar: amounts by stage, and of the whole page."""

    name: str
    settings: Mapping[str, Setting]
    parts: Mapping[str, float]
    whole: float


def refuse_many_bars(count: int) -> None:
    """Raises WorkloadError for more bars than fit."""
    if count > MOST_BARS:
        raise WorkloadError(
            f"a plot of {count:,} bars is not readable; compare fewer, for at most {MOST_BARS}, or"
            " draw none"
        )


def stage_picture(compared: Sequence[ChartedReport], quantity: str) -> Picture:
    """Bars of a page's cost in "flops", "bytes" or "seconds": prefill stages, then decode steps.

    WorkloadError for too many bars.
    """
    bars = [bar for each in compared for bar in _bars_of(each, quantity)]
    refuse_many_bars(len(bars))
    reports = [each.report for each in compared]
    stages = [name for name in (*merged([list(each.stages) for each in reports]), OUTSIDE)
              if any(bar.parts.get(name) for bar in bars)]  # fmt: skip
    settings = {
        name: [bar.settings.get(name) for bar in bars] for bar in bars for name in bar.settings
    }
    one = "page" if any(each.workload.page for each in reports) else "prompt"
    what, unit = _WHAT[quantity][0].format(one), _WHAT[quantity][1]
    models = settings["model"]
    differing = [  # unless their models imply it
        name
        for name in varying(settings)
        if name not in ("config", "text_tokens")
        or len(set(zip(models, settings[name], strict=True))) > len(set(models))
    ]
    with drawing():
        picture = Picture(
            f"{what[0].upper()}{what[1:]}, stage by stage", fixed_line(settings),
            width=_width([_label(bar, differing) for bar in bars]),
        )  # fmt: skip
        scale = scale_of(max(bar.whole for bar in bars), unit)
        picture.name_axes(axis_name(*differing), f"{what} [{scale.unit}]")
        scale_axis(picture.axes.yaxis, scale)
        picture.name_bars([_label(bar, differing) for bar in bars])
        _stack(picture, bars, {name: _stage_label(name, reports) for name in stages})
        label_bars(picture, [
            Top(x, sum(bar.parts.values()), scale.text(bar.whole)) for x, bar in enumerate(bars)
        ])  # fmt: skip
        label_segments(picture, [
            (patch, scale.text(patch.get_height()), patch.get_height() / bar.whole)
            for row in picture.axes.containers
            for patch, bar in zip(row, bars, strict=True)
            if bar.whole and patch.get_height()
        ])  # fmt: skip
    return picture


def _bars_of(compared: ChartedReport, quantity: str) -> Iterator[_Bar]:
    report = compared.report
    about = report.metadata
    settings = {
        **settings_of_model(about.model, compared.config),
        **settings_of_workload(report.workload, about.model.architecture),
        "dtype": about.dtype,
        "attention": about.attention,
    }
    if quantity == "seconds":
        del settings["batch_size"]  # seconds are of a page alone
        for entry in report.time:
            yield _Bar(
                compared.name, settings | settings_of_time(entry),
                seconds_parts(report, entry), entry.page_seconds,
            )  # fmt: skip
        return
    page = report.total.page
    yield _Bar(
        compared.name, settings, page_parts(report, AMOUNTS[quantity]),
        page.flops if quantity == "flops" else page.bytes_moved,
    )  # fmt: skip


def _label(bar: _Bar, differing: Sequence[str]) -> str:
    """The bar's name, and differing settings that it doesn't mention."""
    values = {name: bar.settings.get(name) for name in differing}
    said = (
        said_of(name, value)
        for name, value in values.items()
        if str(value).casefold() not in bar.name.casefold()
    )
    return "\n".join(filter(None, (bar.name, *said)))


def _width(labels: Sequence[str]) -> float:
    """Inches that the bars' names need, within limits."""
    longest = max(len(word) for label in labels for word in label.split())
    least, most = _BAR_INCHES
    inches = 1.2 + len(labels) * min(most, max(least, 0.1 + 0.082 * longest))
    return min(max(inches, _INCHES[0]), _INCHES[1])


def _stack(picture: Picture, bars: Sequence[_Bar], labels: Mapping[str, str]) -> None:
    """Draws bars stage by stage, with these labels."""
    colours, below = stage_colours(labels), [0.0] * len(bars)
    for name, label in labels.items():
        colour, heights = colours[name], [bar.parts.get(name, 0.0) for bar in bars]
        picture.list_in_legend(picture.axes.bar(
            range(len(bars)), heights, width=0.8, bottom=below, color=colour,
            hatch=HATCHES[PALETTE.index(colour)], edgecolor=paler(colour), linewidth=0.6,
        ), label)  # fmt: skip
        below = [low + height for low, height in zip(below, heights, strict=True)]


def _stage_label(name: str, reports: Sequence[Report]) -> str:
    """A stage's name; a decode stage's with its steps if reports agree on them."""
    found = {report.total.batch.decode_steps for report in reports if report.decode_name == name}
    if not found:
        return name
    return f"{name} ({counted(found.pop(), 'step')})" if len(found) == 1 else f"{name} (all steps)"


# --- predicted seconds ---------------------------------------------------------------------------


def throughput_picture(
    report: TimeReport, dtype: str, attention: str, config: Path | None = None
) -> Picture:
    """Pages per second with their band; below, seconds of a page and of its first token.

    A prompt stands for a page where a model has no pages, or a prompt has several.

    Each GPU and runtime has a colour and marker, hollow for the first token.
    """
    subtitle, labels = _fixed_and_labels(report, dtype, attention, config)
    unit, units = report.workload.unit, report.workload.units
    with drawing():
        picture = Picture(f"Predicted throughput and latency of {unit}s", subtitle, panels=2)
        rates, latency = picture.panels
        for index, (entry, label) in enumerate(zip(report.time, labels, strict=True)):
            loads = sorted(entry.throughput, key=lambda load: load.concurrency)
            at = [load.concurrency for load in loads]
            bands = [load.pages_per_second_band for load in loads]
            style: dict[str, Any] = {
                "color": PALETTE[index % len(PALETTE)], "marker": MARKERS[index % len(MARKERS)],
                "linestyle": DASHES[index // len(PALETTE) % 3],
            }  # fmt: skip
            picture.list_in_legend(
                rates.plot(at, [load.pages_per_second for load in loads], **style), label
            )
            rates.fill_between(
                at, [each.low for each in bands], [each.high for each in bands],
                color=style["color"], alpha=0.2, linewidth=0,
            )  # fmt: skip
            latency.plot(at, [load.page_seconds for load in loads], **style)
            latency.plot(at, [load.ttft_seconds for load in loads], markerfacecolor="w", **style)
        picture.name_axes(f"{unit}s at once", f"{units} per second, with band", "seconds")
        rates.set_ylim(bottom=0)
        scale_logarithmically(latency.xaxis, base=2)
        scale_logarithmically(latency.yaxis)
        for inside, what in ((_KEY["color"], unit), ("w", "first token")):
            picture.list_in_legend(
                latency.plot([], marker="o", markerfacecolor=inside, **_KEY), what
            )
        picture.lay_out()
    return picture


def roofline_picture(
    report: TimeReport,
    gpus: Mapping[str, Gpu],
    dtype: str,
    attention: str,
    config: Path | None = None,
) -> Picture:
    """FLOPs per second over FLOPs per byte: the roofs of GPUs, and the stages of a page alone.

    A stage's rate is its share of the peak; its share of the bandwidth gives its bytes.
    """
    subtitle, labels = _fixed_and_labels(report, dtype, attention, config)
    roofs = [
        (gpus[entry.gpu].tflops(dtype), gpus[entry.gpu].bandwidth_gb_s / 1e3)
        for entry in report.time
    ]
    found = [  # FLOPs per byte, TFLOP/s and names of stages
        [
            (peak * each.peak_share / (bandwidth * each.bandwidth_share), peak * each.peak_share,
             name)
            for name, each in entry.stages.items()
            if each.peak_share and each.bandwidth_share
        ]
        for entry, (peak, bandwidth) in zip(report.time, roofs, strict=True)
    ]  # fmt: skip
    markers = dict(zip(report.time[0].stages, itertools.cycle(MARKERS), strict=False))
    ridges = [peak / bandwidth for peak, bandwidth in roofs]
    across = [*ridges, *(x for points in found for x, _, _ in points)]
    least, most = min(across) / 2, 2 * max(across)
    with drawing():
        picture = Picture(
            f"Predicted roofline of the stages of a page alone, one step of {[*markers][-1]}",
            subtitle,
        )
        axes = picture.axes
        for index, (peak, bandwidth) in enumerate(roofs):
            colour = PALETTE[index % len(PALETTE)]
            picture.list_in_legend(
                axes.plot(
                    [least, ridges[index], most], [least * bandwidth, peak, peak], color=colour,
                    linestyle=DASHES[index % len(DASHES)],
                ),
                f"{labels[index]}: {peak:,g} TFLOP/s, {bandwidth:g} TB/s",
            )  # fmt: skip
            for x, y, name in found[index]:
                axes.plot(x, y, color=colour, marker=markers[name])
        picture.name_axes("arithmetic intensity [FLOPs/byte]", f"rate [TFLOP/s of {dtype}]")
        scale_logarithmically(axes.xaxis)
        scale_logarithmically(axes.yaxis)
        for name, marker in markers.items():
            picture.list_in_legend(axes.plot([], marker=marker, **_KEY), name)
        picture.lay_out()
        if len(found) == 1:
            label_points(picture, found[0])
    return picture


def _fixed_and_labels(
    report: TimeReport, dtype: str, attention: str, config: Path | None
) -> tuple[str, list[str]]:
    """What all predictions share, and in what each differs; the GPU's name if it is alone."""
    about = {
        **settings_of_model(report.model, config),
        **settings_of_workload(report.workload, report.model.architecture),
        "dtype": dtype,
        "attention": attention,
    }
    del about["batch_size"]  # the page is alone, or it is the x axis
    rows = [about | settings_of_time(entry) for entry in report.time]
    settings = {name: [row[name] for row in rows] for name in rows[0]}
    differing = varying(settings)
    said = ([said_of(name, row[name]) for name in differing or ["gpu"]] for row in rows)
    return fixed_line(settings), [", ".join(filter(None, each)) for each in said]


# --- accuracy over pages per second ---------------------------------------------------------------


def accuracy_picture(found: ComparisonDocument, ranking: Ranking, subtitle: str) -> Picture:
    """Models' published scores over their pages per second, one panel per benchmark and version.

    A score of another release than the counted one has a hollow marker.
    """
    rates = sorting_row(found, "pages-per-second")
    measured, benchmarks = set(found.architectures), [*ranking.accuracies.values()]
    shown = [each for each in benchmarks if measured & each.first.keys()] or benchmarks
    with drawing():
        picture = Picture(
            f"Published accuracy over predicted pages per second ({rates.quantity})",
            subtitle.replace("\n", ". "), width=_INCHES[1], panels=len(shown),
        )  # fmt: skip
        for place, (name, architecture, rate) in enumerate(
            zip(found.names, found.architectures, rates.values, strict=True)
        ):
            style: dict[str, Any] = {
                "color": PALETTE[place % len(PALETTE)], "marker": MARKERS[place % len(MARKERS)],
                "linestyle": "",
            }  # fmt: skip
            picture.list_in_legend(picture.axes.plot([], **style), name)
            for axes, benchmark in zip(picture.panels, shown, strict=True):
                if rate and (score := benchmark.first.get(architecture or "")):
                    inside = {} if score.counted else {"markerfacecolor": "white"}
                    axes.plot(rate, score.score, **style, **inside)
        picture.name_axes("pages per second", *(each.name for each in shown))
        picture.lay_out()
    return picture
