"""Page sizes: from a name, from `WxH`, or from an image file's header."""

from __future__ import annotations

import re
import struct
import threading
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsocr_analyze.errors import PageError
from dsocr_analyze.names import did_you_mean

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["DEFAULT_DPI", "LARGEST_SIDE", "PAPERS", "check_page", "page_of_image", "parse_page"]

DEFAULT_DPI: Final = 150

LARGEST_SIDE: Final = 1_000_000
"""Most pixels a side of a page."""

PAPERS: Final[dict[str, tuple[int, int]]] = {
    "a3": (2970, 4200),
    "a4": (2100, 2970),
    "a5": (1480, 2100),
    "letter": (2159, 2794),
    "legal": (2159, 3556),
}
"""Width and height of each named paper in tenths of a millimetre."""

_RIGHT: Final = (
    f"give {', '.join(PAPERS)} (at {DEFAULT_DPI} dpi, or like a4@300), "
    "or WIDTHxHEIGHT like 1240x1754"
)
_NAMED: Final = re.compile(r"(?P<paper>[a-z0-9]+)(?:@(?P<dpi>[0-9]{1,6}))?")
_PIXELS: Final = re.compile(r"(?P<width>-?[0-9]{1,18}) *x *(?P<height>-?[0-9]{1,18})")

_ORIENTATION_TAG: Final = 0x0112
_SIDEWAYS: Final = (5, 6, 7, 8)
_DAMAGE: Final = (
    ArithmeticError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
)
"""What Pillow's readers raise on a header that is none."""

_PILLOW_SETTINGS: Final = threading.Lock()


def check_page(width: object, height: object) -> tuple[int, int]:
    """The same page, if one can have that size.

    Args:
        width: Pixels.
        height: Pixels.

    Raises:
        PageError: A side is not a whole number from 1 to `LARGEST_SIDE`.
    """
    sides: list[int] = []
    for side in (width, height):
        if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= LARGEST_SIDE:
            raise PageError(
                f"a page of {width!r} x {height!r} pixels is not possible; "
                f"give whole numbers from 1 to {LARGEST_SIDE} a side"
            )
        sides.append(side)
    return sides[0], sides[1]


def parse_page(text: str) -> tuple[int, int]:
    """Width and height in pixels that a text names.

    Args:
        text: A name of `PAPERS`, upright, optionally with a resolution (`a4@300`), or
            `WIDTHxHEIGHT` in pixels; case does not matter.

    Raises:
        PageError: The text names no page size.
    """
    wanted = text.strip().lower()
    if pixels := _PIXELS.fullmatch(wanted):
        return check_page(int(pixels["width"]), int(pixels["height"]))
    named = _NAMED.fullmatch(wanted)
    if named is None or named["paper"] not in PAPERS:
        near = did_you_mean(wanted.partition("@")[0], PAPERS)
        raise PageError(f"no page size {_shortened(text)}; {near}{_RIGHT}")
    dpi = DEFAULT_DPI if named["dpi"] is None else int(named["dpi"])
    if dpi < 1:
        raise PageError(f"no page size {_shortened(text)}: {dpi} dpi; {_RIGHT}")
    width, height = PAPERS[named["paper"]]
    return check_page(_pixels(width, dpi), _pixels(height, dpi))


def _pixels(tenths_of_millimetre: int, dpi: int) -> int:
    """Length in pixels, rounded to the nearest; an inch is 254 tenths of a millimetre."""
    return (2 * tenths_of_millimetre * dpi + 254) // 508


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def page_of_image(path: str | PathLike[str]) -> tuple[int, int]:
    """Width and height in pixels of an image file as it is looked at.

    Reads the header only, never the pixels, so neither the image's size nor damage further on
    matters. An EXIF orientation that lays the image on its side swaps the two, as the vendor's
    `load_image` does.

    Args:
        path: The file, in any format that Pillow reads.

    Raises:
        PageError: The file is missing, unreadable or no image.
    """
    file = Path(path)
    name = repr(str(path))
    try:
        if not file.exists():
            raise PageError(f"no image {name}; give an image file, or a page size instead")
        if not file.is_file():
            raise PageError(f"image {name} is no file; give an image file, or a page size instead")
        size = _oriented_size(file)
    except _DAMAGE as error:
        raise PageError(f"cannot read the size of image {name}: {_reason(error, name)}") from error
    return check_page(*size)


def _oriented_size(file: Path) -> tuple[int, int]:
    """Size from the header, swapped where its orientation says so."""
    import logging
    import warnings

    from PIL import Image
    from PIL.TiffImagePlugin import TiffImageFile

    # Pillow's guard against huge images is one setting of the whole process. It protects whoever
    # decodes pixels, which nobody does here.
    with _PILLOW_SETTINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        silence = logging.NullHandler()  # else a damaged TIFF talks on stderr beside the error
        logging.getLogger("PIL").addHandler(silence)
        guard, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            with Image.open(file) as image:
                if isinstance(image, TiffImageFile):
                    # Some versions swap a TIFF's size on opening; its own tags are as stored.
                    width, height = image.tag_v2[256], image.tag_v2[257]
                    orientation = image.tag_v2.get(_ORIENTATION_TAG)
                else:
                    width, height = image.size
                    orientation = _exif_orientation(image)
        finally:
            Image.MAX_IMAGE_PIXELS = guard
            logging.getLogger("PIL").removeHandler(silence)
    return (height, width) if orientation in _SIDEWAYS else (width, height)


def _exif_orientation(image: Image.Image) -> object:
    """Orientation of an opened image; None where it has none or, as in `load_image`, a broken one.

    Read with the base class's method: that of PNG decodes the pixels to look behind them.
    """
    from PIL import Image

    try:
        return Image.Image.getexif(image).get(_ORIENTATION_TAG)
    except _DAMAGE:
        return None


def _reason(error: Exception, name: str) -> str:
    """What went wrong, on one line and without the path that the message has already."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image that Pillow knows; give a PNG, JPEG, TIFF or WebP file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).replace(name, "").split())
    return text or type(error).__name__
