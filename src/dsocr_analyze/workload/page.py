"""Page sizes: from a name, or from `WxH`."""

from __future__ import annotations

import re
from typing import Any, Final

from dsocr_analyze.errors import PageError
from dsocr_analyze.names import did_you_mean

__all__ = [
    "LARGEST_SIDE",
    "PAPERS",
    "check_page",
    "paper_dpi",
    "parse_page",
]

_DEFAULT_DPI: Final = 150

LARGEST_SIDE: Final = 1_000_000
"""Most pixels per side of a page."""

PAPERS: Final[dict[str, tuple[int, int]]] = {
    "a3": (2970, 4200),
    "a4": (2100, 2970),
    "a5": (1480, 2100),
    "letter": (2159, 2794),
    "legal": (2159, 3556),
}
"""Width and height of each named paper in tenths of a millimetre."""

_RIGHT: Final = (
    f"give {', '.join(PAPERS)} (at {_DEFAULT_DPI} dpi, or at others like a4@300), "
    "or WIDTHxHEIGHT like 1240x1754"
)
_NAMED: Final = re.compile(r"(?P<paper>[a-z0-9]+)(?:@(?P<dpi>[0-9]{1,6}))?")
_PIXELS: Final = re.compile(r"(?P<width>-?[0-9]{1,18}) *x *(?P<height>-?[0-9]{1,18})")


def check_page(width: Any, height: Any) -> tuple[int, int]:
    """The sides of a page; raises PageError unless both are from 1 to `LARGEST_SIDE` pixels."""
    for side in (width, height):
        if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= LARGEST_SIDE:
            raise PageError(
                f"a page of {width!r} x {height!r} pixels is invalid; "
                f"give whole numbers from 1 to {LARGEST_SIDE} per side"
            )
    return width, height


def parse_page(text: str) -> tuple[int, int]:
    """Width and height in pixels of a page size; raises PageError for anything else.

    Args:
        text: A name from `PAPERS` (portrait), with a resolution or not (`a4@300`), or
            `WIDTHxHEIGHT` in pixels, in any case.
    """
    wanted = text.strip().lower()
    if pixels := _PIXELS.fullmatch(wanted):
        return check_page(int(pixels["width"]), int(pixels["height"]))
    named = _NAMED.fullmatch(wanted)
    if named is None or named["paper"] not in PAPERS:
        near = did_you_mean(wanted.partition("@")[0], PAPERS)
        raise PageError(f"no page size {_shortened(text)}; {near}{_RIGHT}")
    dpi = int(named["dpi"] or _DEFAULT_DPI)
    if dpi < 1:
        raise PageError(f"no page size {_shortened(text)}: {dpi} dpi; {_RIGHT}")
    width, height = PAPERS[named["paper"]]
    # Rounded to nearest; an inch is 254 tenths of a millimetre.
    return check_page((2 * width * dpi + 254) // 508, (2 * height * dpi + 254) // 508)


def paper_dpi(text: str) -> int | None:
    """Pixels per inch of a page that `parse_page` reads by name; None for others."""
    named = _NAMED.fullmatch(text.strip().lower())
    if named is None or named["paper"] not in PAPERS:
        return None
    return int(named["dpi"] or _DEFAULT_DPI)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
