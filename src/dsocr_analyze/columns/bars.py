"""Bars in a picture of many workloads or pages: groups of them, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from dsocr_analyze.pictures.picture import HATCHES, Picture, paler
from dsocr_analyze.pictures.values import Scale, Top, label_bars
from dsocr_analyze.report.stage_colours import PALETTE

__all__ = ["Series", "add_legend", "draw_groups", "width_for"]

Series: TypeAlias = Mapping[str, tuple[Sequence[Any], Sequence[float]]]
"""Positions and values of each line or colour of bars, by label."""

_BAR_INCHES: Final = 0.16  # wide enough for a vertical value label
_INCHES: Final = (8.0, 14.0)


def width_for(bars: int) -> float:
    """Inches of a picture with that many bars."""
    return min(max(_INCHES[0], 1.2 + _BAR_INCHES * bars), _INCHES[1])


def draw_groups(picture: Picture, series: Series, scale: Scale) -> None:
    """Draw bars side by side for each name on the x axis, labelled with their values.

    Args:
        picture: The picture, with named axes.
        series: Names and values.
        scale: The scale of the values.
    """
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
    add_legend(picture, handles)
    label_bars(picture, tops)


def add_legend(picture: Picture, handles: Mapping[str, Any]) -> None:
    """Add a legend unless there is nothing to tell apart, and lay the picture out.

    Args:
        picture: The picture.
        handles: What is drawn, by label.
    """
    if any(handles):
        picture.add_legend(list(handles.values()), list(handles))
    picture.lay_out()
