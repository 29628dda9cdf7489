"""A picture's frame (title, fixed settings and legend), its texts, and values on bars."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import math
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsocr_analyze.errors import FormatError
from dsocr_analyze.escaping import visible, visible_lines
from dsocr_analyze.extras import require_extra
from dsocr_analyze.interruption import held
from dsocr_analyze.output_files import replacing
from dsocr_analyze.report.table import percent_text, ratio_text, shortened

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.patches import Rectangle
    from matplotlib.text import Text

_FORMATS: Final = {".png": "png", ".svg": "svg"}

_DPI: Final = 150
_MARGIN: Final = 0.12  # inches
_PLOT_HEIGHT: Final = 4.2  # inches, tick labels included
_LEAST_AXIS: Final = 3.2  # inches
_TICK_NAMES: Final = 8.5  # points
_MOST_TICK_LINES: Final = 6
_LEAST_PLACES: Final = 4  # of bars, so that a single one doesn't fill the width
_LONGEST_SLANTED: Final = 1.9  # inches

MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES: Final[tuple[str | tuple[int, tuple[int, ...]], ...]] = (
    "-",
    "--",
    "-.",
    (0, (1, 1)),
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (8, 2)),
)
HATCHES: Final = ("", "///", "---", "\\\\\\", "xx", "|||", "++", "//", "\\\\--", "//||")
"""They tell series apart without colour."""


def picture_format(path: Path) -> str:
    """A picture's format by its name.

    Raises FormatError for another one, and ExtraError without matplotlib.
    """
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise FormatError(
            f"cannot tell the format of picture {str(path)!r}; give a name that ends in "
            f"{' or '.join(_FORMATS)}"
        )
    require_extra("a picture", "plot", "matplotlib")
    return kind


def paler(colour: str) -> tuple[float, float, float]:
    """A colour halfway to white."""
    red, green, blue = (1 + int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red / 2, green / 2, blue / 2


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Pictures look the same here whatever the user's matplotlib settings."""
    settings: dict[str, str | bool | float] = {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "dsocr-analyze",
        "text.parse_math": False,  # no mathtext for a $ in a file name
        "hatch.linewidth": 0.7,
    }
    silence = logging.NullHandler()  # matplotlib would log paths on stderr, unescaped
    logging.getLogger("matplotlib").addHandler(silence)
    try:
        mpl = _matplotlib()
        with mpl.rc_context(), warnings.catch_warnings():
            # A missing glyph is drawn as a box; in an SVG it is still there as text.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            # Not `rcdefaults`, which reads the user's style files; some defaults are deprecated.
            warnings.filterwarnings("ignore", category=mpl.MatplotlibDeprecationWarning)
            defaults = dict(mpl.rcParamsDefault.items())
            del defaults["backend"]  # which nothing would restore
            mpl.rcParams.update(defaults | settings)
            yield
    finally:
        logging.getLogger("matplotlib").removeHandler(silence)


def _matplotlib() -> ModuleType:
    """matplotlib with none but its own settings, if this imports it.

    It looks for `matplotlibrc` in the current folder, which may be anybody's, and in the user's,
    each by `os.path.exists`.
    """
    if "matplotlib" in sys.modules:
        return sys.modules["matplotlib"]
    exists, here = os.path.exists, threading.get_ident()

    def exists_for_us(path: Any) -> bool:
        if threading.get_ident() == here and Path(path).name == "matplotlibrc":
            return Path(path).parent == Path(sys.modules["matplotlib"].get_data_path())
        return exists(path)

    with held():
        own = {name: os.environ.pop(name, None) for name in ("MATPLOTLIBRC", "MPLBACKEND")}
        os.path.exists = exists_for_us
        try:
            return importlib.import_module("matplotlib")
        finally:
            os.path.exists = exists
            os.environ.update({name: value for name, value in own.items() if value is not None})


class Picture:
    """A figure `width` inches wide, within `drawing`; the subtitle says what is constant.

    Panels stand one above the other and share their x axis; `axes` is the first.

    Draw into `axes`, name them, list what the legend has and call `lay_out`; then label bars.
    """

    def __init__(self, title: str, subtitle: str, *, width: float = 8.0, panels: int = 1) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.title = visible(title)
        self.figure = Figure(figsize=(width, _PLOT_HEIGHT), dpi=_DPI, layout="constrained")
        FigureCanvasAgg(self.figure)
        self.measure = _TextMeasure(self.figure)
        self.panels = self.figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
        self.axes = self.panels[0]
        for axes in self.panels:
            axes.set_axisbelow(True)
            axes.grid(axis="y", alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        self._names: list[str] = []
        self._listed: list[tuple[Artist, str]] = []
        self._legend: Legend | None = None
        self._heads: list[tuple[Text, float]] = []
        self._header = _MARGIN
        self._least_axis = _LEAST_AXIS / math.sqrt(panels)
        self._plot_height = _PLOT_HEIGHT * math.sqrt(panels)
        self._head("title", title, size=13, colour="black")
        self._head("subtitle", subtitle, size=9, colour="0.35")

    @property
    def _room(self) -> float:
        """Pixels between the margins."""
        return float((self.figure.get_figwidth() - 2 * _MARGIN) * _DPI)

    def _head(self, name: str, text: str, *, size: float, colour: str) -> None:
        """Adds a text above the axes, below previous ones."""
        lines = self.measure.wrapped(visible(text), self._room, size)
        if not lines:
            return
        artist = self.figure.text(
            0, 1, "\n".join(lines), fontsize=size, color=colour, va="top", linespacing=_LINE_HEIGHT
        )
        artist.set_gid(name)
        artist.set_in_layout(False)
        self._heads.append((artist, self._header))
        self._header += self.measure.height("\n".join(lines), size) / _DPI + 0.05

    def name_axes(self, x: str, *y: str) -> None:
        """Labels the x axis and the panels' y axes, with units."""
        self.panels[-1].set_xlabel(visible(x))
        for axes, name in zip(self.panels, y, strict=True):
            lines = self.measure.wrapped(visible(name), self._least_axis * _DPI, 10)
            axes.set_ylabel("\n".join(lines))

    def name_bars(self, names: Sequence[str]) -> None:
        """Labels bars at x = 0, 1, 2, ...; names keep their line breaks."""
        self._names = list(map(visible_lines, names))

    def list_in_legend(self, drawn: Sequence[Artist], label: str) -> None:
        """Adds what is drawn, by its first part, to the legend."""
        self._listed.append((drawn[0], label))

    def _add_legend(self) -> None:
        """Adds a legend below the axes, in as many columns as fit, unless all labels are empty."""
        handles, labels, room = *zip(*self._listed, strict=True), self._room
        lines = (self.measure.wrapped(visible(each), room - 0.6 * _DPI, 9) for each in labels)
        # matplotlib leaves out labels that start with an underscore.
        texts = [re.sub("^_", " _", "\n".join(each)) for each in lines]
        for columns in range(min(len(handles), 8), 0, -1):
            self._legend = self.figure.legend(
                handles, texts, loc="lower left", ncols=columns, frameon=False, fontsize=9,
                borderaxespad=0, handlelength=2.4, columnspacing=1.4,
                bbox_to_anchor=(_MARGIN / self.figure.get_figwidth(), 0),
            )  # fmt: skip
            self._legend.set_in_layout(False)
            if self._legend.get_window_extent().width <= room:
                break
            if columns > 1:
                self._legend.remove()

    def lay_out(self) -> None:
        """Makes room for every text: the figure grows with title and legend."""
        footer = _MARGIN
        if self._legend is None and any(label for _, label in self._listed):
            self._add_legend()
        if self._legend is not None:
            footer = self._legend.get_window_extent().height / _DPI + 0.05
        self._divide(footer)
        if self._names:
            self._draw_names()
            self._divide(footer)
        lacking = self._least_axis - self.axes.bbox.height / _DPI
        if lacking > 0.01:  # long names below the axis
            self._plot_height += lacking
            self._divide(footer)

    def _divide(self, footer: float) -> None:
        """Places title, axes and legend, which is `footer` inches high."""
        width, height = self.figure.get_figwidth(), self._header + self._plot_height + footer
        self.figure.set_figheight(height)
        for artist, top in self._heads:
            artist.set_position((_MARGIN / width, 1 - top / height))
        rect = (0, footer / height, 1, self._plot_height / height)
        engine: Any = self.figure.get_layout_engine()
        engine.set(rect=rect, w_pad=_MARGIN, h_pad=0.04)
        engine.execute(self.figure)

    def _draw_names(self) -> None:
        """Draws names level and wrapped if they fit, else slanted, perhaps not all."""
        count = len(self._names)
        places = max(count, _LEAST_PLACES)
        slot = self.axes.bbox.width / places
        self.axes.set_xlim((count - 1 - places) / 2, (count - 1 + places) / 2)
        lines = self._level_names(0.92 * slot)
        if lines is not None:
            self.axes.set_xticks(range(count), lines, fontsize=_TICK_NAMES)
            return
        height = self.measure.height("x", _TICK_NAMES)
        step = max(1, math.ceil(1.6 * height / slot))
        room = _LONGEST_SLANTED * _DPI
        slanted = [
            self.measure.shortened(", ".join(name.split("\n")), room, _TICK_NAMES)
            for name in self._names[::step]
        ]
        self.axes.set_xticks(
            range(0, count, step), slanted, rotation=45, ha="right", rotation_mode="anchor",
            fontsize=_TICK_NAMES,
        )  # fmt: skip

    def _level_names(self, room: float) -> list[str] | None:
        """Names wrapped to a few lines of `room` pixels; None if they don't fit."""
        found = []
        for name in self._names:
            lines = [
                piece
                for line in name.split("\n")
                for piece in self.measure.wrapped(line, room, _TICK_NAMES)
            ]
            text = "\n".join(lines)
            if len(lines) > _MOST_TICK_LINES or text.count("\u2026") > name.count("\u2026"):
                return None
            found.append(text)
        return found

    def save(self, path: Path) -> None:
        """Writes the picture, the same bytes for the same data; OutputError if it cannot."""
        kind = picture_format(path)
        metadata: dict[str, str | None] = {"Title": self.title}
        metadata |= {"Date": None} if kind == "svg" else {"Software": None}
        with drawing(), replacing(path) as temporary:
            self.figure.savefig(temporary, format=kind, dpi=_DPI, metadata=metadata)


# --- texts -----------------------------------------------------------------------------------


_LINE_HEIGHT: Final = 1.25
"""Line spacing, in font sizes."""

_SEPARATORS: Final = (
    re.compile(r".+?(?:, +|$)"),
    re.compile(r"\S+(?: x \S+)?\s*"),
    re.compile(r".[^-/\\:_.,]*[-/\\:_.,]?\s*"),
)
"""Parts of a text: between commas, words (2 x 3 is one), parts of words."""


class _TextMeasure:
    """Measures texts in the font of a figure with an Agg canvas."""

    def __init__(self, figure: Figure) -> None:
        self._dpi = figure.dpi
        self._renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # Agg has one

    def width(self, text: str, size: float) -> float:
        """Pixels of the widest line, at `size` points."""
        from matplotlib.font_manager import FontProperties

        font = FontProperties(size=size)
        return max(
            (
                self._renderer.get_text_width_height_descent(line, font, ismath=False)[0]
                for line in text.split("\n")
            ),
            default=0.0,
        )

    def height(self, text: str, size: float) -> float:
        """Most pixels of all lines."""
        return (text.count("\n") + 1) * _LINE_HEIGHT * size * self._dpi / 72

    def wrapped(self, text: str, room: float, size: float) -> list[str]:
        """Lines no wider than `room` pixels, at `size` points.

        They break after commas, wider parts at spaces, wider words after separators.
        """
        lines: list[str] = []
        line = ""
        for piece in self._pieces(text, _SEPARATORS, room, size):
            if line and self.width((line + piece).rstrip(), size) > room:
                lines.append(line.rstrip())
                line = ""
            line += piece
        return [*lines, line.rstrip()] if line.strip() else lines

    def shortened(self, text: str, room: float, size: float) -> str:
        """One line of at most `room` pixels, cut in the middle if need be."""
        wide = self.width(text, size)
        if wide <= room:
            return text
        columns = int(len(text) * room / wide) + 1
        cut = (shortened(text, count) for count in range(columns, 2, -1))
        return next((each for each in cut if self.width(each, size) <= room), "\u2026")

    def _pieces(
        self, text: str, separators: Sequence[re.Pattern[str]], room: float, size: float
    ) -> Iterator[str]:
        """The text in as few parts as fit."""
        if self.width(text.rstrip(), size) <= room:
            yield text
        elif separators:
            for part in separators[0].findall(text):
                yield from self._pieces(part, separators[1:], room, size)
        else:
            yield self.shortened(text, room, size)


# --- values on bars: level if they fit, else vertical, else none ---------------------------------


_PREFIXES: Final = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"),
                    (10**3, "k"))  # fmt: skip

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


def scale_logarithmically(axis: Axis, *, base: int = 10) -> None:
    """Scales an axis around its positive values.

    Ticks are at powers of the base, if that is ten also at 2 and 5 of a few decades; values close
    to one another have ticks at even distances.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes, name = axis.axes, "x" if axis is axis.axes.xaxis else "y"
    low, high = axis.get_data_interval()
    axes.set(**{f"{name}scale": "log", f"{name}lim": (low / 1.25, 1.25 * high)})
    between = (1, 2, 5) if base == 10 and high < 10**4 * low else (1,)
    axis.set_major_locator(
        LogLocator(base, subs=between) if high > 4 * low
        else MaxNLocator(6, steps=[1, 2, 5, 10], integer=base == 2)
    )  # fmt: skip
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_locator(NullLocator())


class Top(NamedTuple):
    """The centre of a bar's top, and its value."""

    x: float
    height: float
    text: str


def label_bars(picture: Picture, tops: Sequence[Top]) -> None:
    """Lays a picture out with values above bars, vertically or not at all if narrow."""
    picture.lay_out()
    axes, measure = picture.axes, picture.measure
    first, last = axes.get_xlim()
    centres = sorted(top.x for top in tops)
    slots = [right - left for left, right in itertools.pairwise(centres)]
    slot = 0.97 * axes.bbox.width * min(slots, default=last - first) / (last - first) - 1
    room, labelled = 0.0, list[Top]()
    for rotation, size in ((turned, size) for turned in (0, 90) for size in (8.0, 7.0, 6.0)):
        high = measure.height("0", size)
        wide = max((measure.width(top.text, size) for top in tops), default=0)
        if (high if rotation else wide) <= slot:
            room, labelled = (wide if rotation else high) + _ABOVE, [*tops]
            break
    _end_axis(axes, tops, room)
    picture.lay_out()
    for x, height, text in labelled:
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

    A segment is a rectangle, its value, and its share.
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


# --- names beside points -------------------------------------------------------------------------


def label_points(picture: Picture, points: Iterable[tuple[float, float, str]]) -> None:
    """Writes names beside points of a laid out picture, each on a line that no other touches."""
    axes, size, in_points = picture.axes, 9.0, 72 / picture.figure.dpi
    line = picture.measure.height("x", size)
    level = axes.bbox.y1
    for place, height, name in sorted(points, key=itemgetter(1), reverse=True):
        x, y = axes.transData.transform((place, height))
        level = min(y, level - line)
        is_left = x > (axes.bbox.x0 + axes.bbox.x1) / 2
        axes.annotate(
            name, (place, height), (-size if is_left else size, (level - y) * in_points),
            textcoords="offset points", ha="right" if is_left else "left", va="center",
            fontsize=size,
        ).set_in_layout(False)  # fmt: skip
