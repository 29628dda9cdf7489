"""Page sizes from an image file's header, of one page or of all that the file holds."""

from __future__ import annotations

import errno
import io
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dsocr_analyze.errors import PageError
from dsocr_analyze.input_files import opened
from dsocr_analyze.workload.page import check_page
from dsocr_analyze.workload.tiff_directories import tiff_directories

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["MOST_FRAMES", "ImagePages", "page_of_image"]

MOST_FRAMES: Final = 100_000
"""Frames of a file that are read; one that has more is broken or hostile."""

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


class _Header(NamedTuple):
    """What the header of an image says.

    Attributes:
        size: Width and height as the image is looked at.
        is_tiff: Whether it is a TIFF, whose frames are pages.
        has_more_frames: Whether it is of another kind and has several: an animation, layers.
    """

    size: tuple[int, int]
    is_tiff: bool
    has_more_frames: bool


def page_of_image(path: str | PathLike[str]) -> tuple[int, int]:
    """Width and height in pixels of an image file as it is looked at; of several frames, the first.

    Reads the header only, never the pixels, so neither the image's size nor damage further on
    matters. An EXIF orientation that lays the image on its side swaps the two, as the vendor's
    `load_image` does.

    Args:
        path: The file, in any format that Pillow reads.

    Raises:
        PageError: The file is missing, unreadable or no image.
    """
    return check_page(*_header(Path(path)).size)


@dataclass
class ImagePages:
    """The pages that an image file holds: every frame of a TIFF, the first one of all others.

    An animated GIF, WebP or PNG is one picture that moves, so its other frames are no pages. Nor
    are a TIFF's smaller copies of a page and its transparency masks (bits 0 and 2 of its
    NewSubfileType), wherever they stand behind the first frame.

    Attributes:
        path: The file, in any format that Pillow reads.
        has_more_frames: Whether frames were left out because they are no pages; true of no TIFF.
            Known once the first size has been read.
        copies: Copies and masks of a TIFF that were left out, among what has been read.
    """

    path: Path
    has_more_frames: bool = False
    copies: int = 0

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Width and height of each page as it is looked at; headers are read, never pixels.

        Raises:
            PageError: The file is missing, unreadable or no image, or, once the pages before have
                been handed out, its next frame is damaged.
        """
        header = _header(self.path)
        if not header.is_tiff:
            self.has_more_frames = header.has_more_frames
            yield check_page(*header.size)
            return
        with opened(self.path) as file:
            directories = enumerate(tiff_directories(file), 1)
            while True:
                try:
                    number, tags = next(directories, (0, None))
                except _DAMAGE as error:
                    raise self._damaged(error) from error
                if tags is None:
                    return
                if number > MOST_FRAMES:
                    raise PageError(
                        f"image {str(self.path)!r} has more than {MOST_FRAMES:,} frames"
                    )
                if number > 1 and tags.is_copy:
                    self.copies += 1
                    continue
                sideways = tags.orientation in _SIDEWAYS
                width, height = tags.width, tags.height
                yield check_page(*((height, width) if sideways else (width, height)))

    def _damaged(self, error: Exception) -> PageError:
        name = repr(str(self.path))
        return PageError(f"cannot read the next frame of image {name}: {_reason(error, name)}")


def _header(file: Path) -> _Header:
    """What the header says; raises PageError where there is none."""
    name = repr(str(file))
    try:
        return _opened_header(file)
    except FileNotFoundError as error:
        raise PageError(f"no image {name}; give an image file, or a page size instead") from error
    except _DAMAGE as error:
        raise PageError(f"cannot read the size of image {name}: {_reason(error, name)}") from error


def _opened_header(file: Path) -> _Header:
    """The header with its size swapped where its orientation says so."""
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
            with opened(file) as raw, _Bounded(raw.raw) as content, Image.open(content) as image:
                is_tiff = isinstance(image, TiffImageFile)
                if isinstance(image, TiffImageFile):
                    # Some versions swap a TIFF's size on opening; its own tags are as stored.
                    width, height = image.tag_v2[256], image.tag_v2[257]
                    orientation = image.tag_v2.get(_ORIENTATION_TAG)
                else:
                    width, height = image.size
                    orientation = _exif_orientation(image)
                size = (height, width) if orientation in _SIDEWAYS else (width, height)
                return _Header(size, is_tiff, not is_tiff and _has_more_frames(image))
        finally:
            Image.MAX_IMAGE_PIXELS = guard
            logging.getLogger("PIL").removeHandler(silence)


_MOST_READS: Final = 1_000_000
"""Of a header; some formats are read byte by byte, and their comments have no end."""


class _Bounded(io.BufferedReader):
    """A file whose header ends, at the latest after so many reads; raises OSError then."""

    _reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads += 1
        if self._reads > _MOST_READS:
            raise OSError(errno.EFBIG, "its header has no end")
        return super().read(size)


def _exif_orientation(image: Image.Image) -> object:
    """Orientation of an opened image; None where it has none or, as in `load_image`, a broken one.

    Read with the base class's method: that of PNG decodes the pixels to look behind them.
    """
    from PIL import Image

    try:
        return Image.Image.getexif(image).get(_ORIENTATION_TAG)
    except _DAMAGE:
        return None


def _has_more_frames(image: Image.Image) -> bool:
    """Whether an opened image has several frames; a broken one behind the first is none."""
    try:
        return bool(getattr(image, "is_animated", False))
    except _DAMAGE:
        return False


def _reason(error: Exception, name: str) -> str:
    """What went wrong, on one line and without the path that the message has already."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image that Pillow knows; give a PNG, JPEG, TIFF or WebP file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).replace(name, "").split())
    return text or type(error).__name__
