"""A picture of a list of pages: its histogram."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.pictures.picture import HATCHES, Picture, drawing, paler
from dsocr_analyze.pictures.settings import fixed_line
from dsocr_analyze.pictures.values import Scale, Top, label_bars, scale_axis, scale_of
from dsocr_analyze.report.parts import PALETTE

if TYPE_CHECKING:
    from dsocr_analyze.archive.histogram import Histogram
    from dsocr_analyze.archive.pages import Pages
    from dsocr_analyze.columns.setting import Setting

__all__ = ["SeenPages", "histogram_picture", "settings_of_list"]

_BAR_INCHES: Final = 0.16  # wide enough for a vertical value label
_INCHES: Final = (8.0, 14.0)


class SeenPages:
    """Minimum and maximum of each property of a list's pages; settings where the two are equal."""

    def __init__(self) -> None:
        self._values: dict[str, set[int]] = {}

    def watched(self, batches: Iterable[Pages]) -> Iterator[Pages]:
        """The same batches, observed as they pass."""
        for pages in batches:
            if len(pages.numbers):
                self._see("page_width", pages.widths)
                self._see("page_height", pages.heights)
                self._see("text_tokens", pages.text_tokens)
                self._see("max_new_tokens", pages.max_new_tokens)
            yield pages

    def _see(self, name: str, values: Any) -> None:
        ends = {values} if isinstance(values, int) else {int(values.min()), int(values.max())}
        known = self._values.get(name, set()) | ends
        self._values[name] = {min(known), max(known)}

    @property
    def settings(self) -> dict[str, Sequence[Any]]:
        """Settings for a picture; the page is one of them if width and height are constant."""
        found: dict[str, Sequence[Any]] = {
            name: sorted(values) for name, values in self._values.items()
        }
        sides = [found.get(name, ()) for name in ("page_width", "page_height")]
        if all(len(each) == 1 for each in sides):
            found["page"] = ["{} x {}".format(*(each[0] for each in sides))]
        return found


def settings_of_list(
    model: Mapping[str, Any], settings: Sequence[Setting], seen: SeenPages
) -> dict[str, Sequence[Any]]:
    """The settings a list was counted with.

    Args:
        model: Settings of the model.
        settings: Modes, data types and kinds of attention.
        seen: Its pages.
    """
    return {
        **{name: [value] for name, value in model.items()},
        **seen.settings,
        "mode": [each.mode.name for each in settings],
        "dtype": [each.dtype.name for each in settings],
        "attention": [each.attention for each in settings],
    }


def histogram_picture(
    histograms: Sequence[Histogram], pages: str, settings: Mapping[str, Sequence[Any]]
) -> Picture:
    """A picture of one histogram, or of several with the same bins side by side.

    Args:
        histograms: The histograms.
        pages: Which pages they show.
        settings: The settings they were counted with.
    """
    first = histograms[0]
    shown = ("mode",) if first.label == "tokens" else ()  # its title or its legend says the mode
    fixed = fixed_line(settings, shown)
    most = max((bar.pages for each in histograms for bar in each.bars), default=0)
    bars = sum(len(each.bars) for each in histograms)
    width = min(max(_INCHES[0], 1.2 + _BAR_INCHES * bars), _INCHES[1])
    with drawing():
        picture = Picture(first.title, ", ".join(filter(None, (pages, fixed))), width=width)
        scale = scale_of(most, "pages")
        unit = "pages" if scale.divisor == 1 else f"pages [{scale.unit.removesuffix(' pages')}]"
        picture.name_axes(first.axis, unit)
        scale_axis(picture.axes.yaxis, scale, whole=True)
        handles, tops = _draw(picture, histograms, scale)
        picture.name_bars([bar.label for bar in first.bars])
        if len(histograms) > 1:
            picture.add_legend(handles, [f"{each.series} mode" for each in histograms])
        picture.lay_out()
        label_bars(picture, tops)
    return picture


def _draw(
    picture: Picture, histograms: Sequence[Histogram], scale: Scale
) -> tuple[list[Any], list[Top]]:
    """Draw groups of bars; returns each histogram's legend handle and the tops of all bars."""
    width = 0.8 / len(histograms)
    handles, tops = [], []
    for index, each in enumerate(histograms):
        shift = (index - (len(histograms) - 1) / 2) * width
        middles = [x + shift for x in range(len(each.bars))]
        pages = [bar.pages for bar in each.bars]
        colour = PALETTE[index % len(PALETTE)]
        handles.append(
            picture.axes.bar(
                middles, pages, width, color=colour, hatch=HATCHES[index], edgecolor=paler(colour)
            )
        )
        tops += [Top(x, count, scale.text(count)) for x, count in zip(middles, pages, strict=True)]
    return handles, tops
