"""A picture of many workloads or pages: several series as lines, or as bars side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from dsocr_analyze.pictures.picture import DASHES, HATCHES, MARKERS, Picture, drawing, paler
from dsocr_analyze.pictures.values import Scale, Top, label_bars, scale_axis, scale_of
from dsocr_analyze.report.tables import PALETTE

__all__ = ["MOST_SERIES", "Series", "series_picture"]

MOST_SERIES: Final = 10
"""Most lines, or bars side by side, that can be told apart."""

Series: TypeAlias = Mapping[str, tuple[Sequence[Any], Sequence[float]]]
"""Positions and values of each line or colour of bars, by label."""

_BAR_INCHES: Final = 0.16  # wide enough for a vertical value label
_INCHES: Final = (8.0, 14.0)
_MARKED_POINTS: Final = 40


def series_picture(
    title: str,
    below: str,
    across: str,
    up: str,
    unit: str,
    series: Series,
    *,
    lines: str = "",
) -> Picture:
    """Draw series over one axis, with a legend unless there is nothing to tell apart.

    Args:
        title: The picture's title.
        below: The line below it.
        across: Name of the axis, with its unit.
        up: Name of the values.
        unit: Their unit; pages and tokens are whole numbers.
        series: What is drawn.
        lines: How points are joined, as matplotlib names it; empty for bars.
    """
    drawn = [value for _, values in series.values() for value in values]
    bars = 0 if lines else len(drawn)
    scale = scale_of(max(drawn, default=0), unit)
    of_scale = scale.unit.removesuffix(up).rstrip()  # "pages" need not say that they are pages
    with drawing():
        width = min(max(_INCHES[0], 1.2 + _BAR_INCHES * bars), _INCHES[1])
        picture = Picture(title, below, width=width)
        picture.name_axes(across, f"{up} [{of_scale}]" if of_scale else up)
        scale_axis(picture.axes.yaxis, scale, whole=unit in ("pages", "tokens"))
        handles, tops = _lines(picture, series, lines) if lines else _bars(picture, series, scale)
        if any(handles):
            picture.add_legend(list(handles.values()), list(handles))
        picture.lay_out()
        if not lines:
            label_bars(picture, tops)
    return picture


def _lines(picture: Picture, series: Series, style: str) -> tuple[dict[str, Any], list[Top]]:
    """Lines by label, with markers, so that they can be told apart without colour; no tops."""
    scale_axis(picture.axes.xaxis, Scale(1, ""), whole=True)
    handles = {}
    for index, (label, (positions, values)) in enumerate(series.items()):
        [handles[label]] = picture.axes.plot(
            positions, values, drawstyle=style, color=PALETTE[index % len(PALETTE)],
            marker=MARKERS[index], linestyle=DASHES[index % len(DASHES)],
            markevery=max(1, -(-len(positions) // _MARKED_POINTS)),
        )  # fmt: skip
    picture.axes.set_ylim(bottom=0)
    return handles, []


def _bars(picture: Picture, series: Series, scale: Scale) -> tuple[dict[str, Any], list[Top]]:
    """Bars by label, side by side for each name on the x axis, and their tops."""
    names = dict.fromkeys(name for positions, _ in series.values() for name in positions)
    place = {name: index for index, name in enumerate(names)}
    width = 0.8 / max(len(series), 1)
    handles, tops = {}, []
    for index, (label, (positions, values)) in enumerate(series.items()):
        shift = (index - (len(series) - 1) / 2) * width
        middles = [place[name] + shift for name in positions]
        colour = PALETTE[index % len(PALETTE)]
        handles[label] = picture.axes.bar(
            middles, values, width, color=colour, hatch=HATCHES[index], edgecolor=paler(colour)
        )
        tops += [Top(x, value, scale.text(value)) for x, value in zip(middles, values, strict=True)]
    picture.name_bars(list(names))
    return handles, tops
