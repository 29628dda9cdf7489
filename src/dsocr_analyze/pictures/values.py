"""Values on bars: horizontal if they fit, else vertical, else none."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from dsocr_analyze.pictures.picture import Picture
from dsocr_analyze.report.table import percent_text, ratio_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.patches import Rectangle

__all__ = ["Scale", "Top", "label_bars", "label_segments", "scale_axis", "scale_of"]

_PREFIXES: Final = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"),
                    (10**3, "k"))  # fmt: skip

_SIZES: Final = (8.0, 7.0, 6.0)
_GAP: Final = 3.0  # pixels between adjacent texts
_ABOVE: Final = 5.0  # pixels between a bar and its value


class Scale(NamedTuple):
    """A power of ten, and the unit of a value divided by it."""

    divisor: int
    unit: str

    def text(self, value: float) -> str:
        """Whole numbers in full, others with four digits, as in tables."""
        is_whole = self.divisor == 1 and value == int(value)
        return f"{int(value):,}" if is_whole else ratio_text(value / self.divisor)


def scale_of(largest: float, unit: str) -> Scale:
    """The scale for values up to the largest."""
    for divisor, prefix in _PREFIXES:
        if largest >= divisor:
            if unit in ("FLOPs", "B"):
                return Scale(divisor, f"{prefix}{unit}")
            if divisor >= 10**6:
                return Scale(10**6, f"million {unit}")
    return Scale(1, unit)


def scale_axis(axis: Axis, scale: Scale, *, whole: bool = False) -> None:
    """Labels an axis in the scale's unit, or with whole numbers alone."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale.divisor:,.6g}"))
    if whole and scale.divisor == 1:
        axis.set_major_locator(MaxNLocator(integer=True))


class Top(NamedTuple):
    """The centre of a bar's top, and its value."""

    x: float
    height: float
    text: str


def label_bars(picture: Picture, tops: Sequence[Top]) -> None:
    """Writes values above bars, vertically if these are narrow, or none if too narrow.

    The picture must be laid out, and is again.
    """
    axes, measure = picture.axes, picture.measure
    first, last = axes.get_xlim()
    centres = sorted(top.x for top in tops)
    slots = [right - left for left, right in itertools.pairwise(centres)]
    slot = 0.97 * axes.bbox.width * min(slots, default=last - first) / (last - first) - 1
    for rotation, size in ((turned, size) for turned in (0, 90) for size in _SIZES):
        high = measure.height("0", size)
        wide = max((measure.width(top.text, size) for top in tops), default=0)
        if (high if rotation else wide) <= slot:
            break
    else:
        _end_axis(axes, tops, 0)
        picture.lay_out()
        return
    _end_axis(axes, tops, (wide if rotation else high) + _ABOVE)
    picture.lay_out()
    for x, height, text in tops:
        axes.annotate(
            text, (x, height), (0, 72 * _ABOVE / 2 / picture.figure.dpi),
            textcoords="offset points", ha="center", va="bottom", rotation=rotation, fontsize=size,
            annotation_clip=False,
        ).set_in_layout(False)  # fmt: skip


def _end_axis(axes: Axes, tops: Sequence[Top], pixels: float) -> None:
    """Extends the value axis by a text of that many pixels."""
    room = axes.bbox.height
    highest = max((top.height for top in tops), default=0)
    axes.set_ylim(0, 1.03 * highest * room / max(room - pixels, room / 4) or 1)


def label_segments(picture: Picture, segments: Sequence[tuple[Rectangle, str, float]]) -> None:
    """Writes value and share, or the share, into segments of the final layout that have room.

    A segment is a rectangle, its value, and its share of the bar.
    """
    axes, measure, size = picture.axes, picture.measure, 8.0
    for patch, text, share in segments:
        box = patch.get_window_extent()
        said_share = percent_text(share)
        wordings = (f"{text}\n{said_share}", f"{text} ({said_share})", said_share)
        fitting = (
            said
            for said in wordings
            if measure.width(said, size) + 2 * _GAP <= box.width
            and measure.height(said, size) + 2 * _GAP <= box.height
        )
        said = next(fitting, None)
        if said is None:
            continue
        colour = patch.get_facecolor()
        axes.text(
            patch.get_x() + patch.get_width() / 2, patch.get_y() + patch.get_height() / 2, said,
            ha="center", va="center", fontsize=size, color="white", linespacing=1.25,
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
        ).set_in_layout(False)  # fmt: skip
