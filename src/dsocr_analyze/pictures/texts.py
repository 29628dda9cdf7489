"""Measures texts in a picture, and wraps them to fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from dsocr_analyze.report.table import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LINE_HEIGHT", "TextMeasure"]

LINE_HEIGHT: Final = 1.25
"""Line spacing, as a multiple of the font size."""

_SEPARATORS: Final = (
    re.compile(r".+?(?:, +|$)"),
    re.compile(r"\S+(?: x \S+)?\s*"),
    re.compile(r".[^-/\\:_.,]*[-/\\:_.,]?\s*"),
)
"""Parts of a text: between commas, words (2 x 3 counts as one), and parts of words."""


class TextMeasure:
    """Measures texts in the font that a figure draws them with.

    Args:
        figure: The figure, with an Agg canvas.
    """

    def __init__(self, figure: Figure) -> None:
        self._dpi = figure.dpi
        self._renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # Agg has one

    def width(self, text: str, size: float) -> float:
        """Width of the widest line in pixels, in a font of `size` points."""
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
        """Upper bound for the height of all lines, in pixels."""
        return (text.count("\n") + 1) * LINE_HEIGHT * size * self._dpi / 72

    def wrapped(self, text: str, room: float, size: float) -> list[str]:
        """Lines no wider than `room` pixels.

        Lines break after commas; parts wider than a line break at spaces, words wider than a line
        after separators, and anything still too wide is shortened.

        Args:
            text: The text.
            room: Pixels.
            size: Font size in points.
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
        """The text on one line of at most `room` pixels, cut in the middle if it is wider."""
        wide = self.width(text, size)
        if wide <= room:
            return text
        columns = int(len(text) * room / wide) + 1
        while columns > 2:
            short = shortened(text, columns)
            if self.width(short, size) <= room:
                return short
            columns -= 1
        return "\u2026"

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
