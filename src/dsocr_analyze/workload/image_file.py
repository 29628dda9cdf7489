"""Page sizes from an image file's headers."""

import errno
import io
import logging
import os
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from dsocr_analyze import forking, input_files
from dsocr_analyze.errors import PageError
from dsocr_analyze.workload import check_page

MOST_FRAMES: Final = 100_000
"""Most frames of a file; one with more is broken or hostile."""

_WIDTH: Final = 256
_HEIGHT: Final = 257
_ORIENTATION: Final = 274
"""The numbers of a TIFF's tags; EXIF has the same."""

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
"""What Pillow's readers raise for a broken header."""

_PDF: Final = (
    "it is a PDF, whose pages dsocr-analyze archive counts; give a PNG, JPEG, TIFF or WebP file"
)

_pillow_settings = threading.Lock()


def _free_lock() -> None:
    """For a forked process, which may lack the thread that held the lock."""
    global _pillow_settings
    _pillow_settings = threading.Lock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_free_lock)


@dataclass
class ImagePages:
    """The pages of an image file: every frame of a TIFF, the first frame of any other file.

    After the first frame, a TIFF's reduced copies and transparency masks (bits 0 and 2 of
    NewSubfileType) are not pages. Only headers are read. An EXIF orientation that turns an image
    on its side swaps width and height, as in the vendor's `load_image`.

    Attributes:
        has_more_frames: Whether a file that is no TIFF has frames that are skipped; known once the
            first size has been read.
        copies: Copies and masks of a TIFF skipped so far.
    """

    path: Path
    has_more_frames: bool = False
    copies: int = 0

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Width and height of each page; raises PageError at a damaged one."""
        size, self.has_more_frames = _header(self.path)
        if size is not None:
            yield check_page(*size)
            return
        name = repr(str(self.path))
        try:
            with input_files.opened(self.path) as file:
                for number, (size, is_copy) in enumerate(_tiff_frames(file), 1):
                    if number > MOST_FRAMES:
                        raise PageError(f"image {name} has more than {MOST_FRAMES:,} frames")
                    if number > 1 and is_copy:
                        self.copies += 1
                    else:
                        yield check_page(*size)
        except _DAMAGE as error:
            is_short = isinstance(error, struct.error)
            why = "the file ends within a directory" if is_short else _reason(error, name)
            raise PageError(f"cannot read the next frame of image {name}: {why}") from error


def _header(file: Path) -> tuple[tuple[int, int] | None, bool]:
    """Width and height as displayed, and whether it has more frames; None and False of a TIFF."""
    name = repr(str(file))
    try:
        return _opened_header(file)
    except FileNotFoundError as error:
        raise PageError(f"no image {name}; give an image file, or a page size instead") from error
    except _DAMAGE as error:
        is_pdf = file.suffix.lower() == ".pdf" and isinstance(error, UnidentifiedImageError)
        why = _PDF if is_pdf else _reason(error, name)
        raise PageError(f"cannot read the size of image {name}: {why}") from error


def _opened_header(file: Path) -> tuple[tuple[int, int] | None, bool]:
    # Pillow's guard against huge images is a process-wide setting. It protects the decoding of
    # pixels, which does not happen here.
    silence = logging.NullHandler()  # else a damaged TIFF also logs to stderr
    with _pillow_settings:
        guard, filters = Image.MAX_IMAGE_PIXELS, warnings.filters

        def put_back() -> None:
            Image.MAX_IMAGE_PIXELS, warnings.filters = guard, filters
            logging.getLogger("PIL").removeHandler(silence)

        with forking.undone(put_back):
            warnings.filters = [("ignore", None, Warning, None, 0)]
            logging.getLogger("PIL").addHandler(silence)
            Image.MAX_IMAGE_PIXELS = None
            with (
                input_files.opened(file) as raw,
                _Bounded(raw.raw) as content,
                Image.open(content) as image,
            ):
                if isinstance(image, TiffImageFile):
                    return None, False
                # By the base class's method: PNG's decodes the pixels to find metadata after them.
                # A broken orientation counts as none, as in `load_image`.
                turned = _if_intact(lambda: Image.Image.getexif(image).get(_ORIENTATION))
                has_more = _if_intact(lambda: getattr(image, "is_animated", False))
                return _displayed(*image.size, turned), bool(has_more)


def _displayed(width: int, height: int, orientation: object) -> tuple[int, int]:
    return (height, width) if orientation in _SIDEWAYS else (width, height)


def _if_intact(read: Callable[[], object]) -> object:
    try:
        return read()
    except _DAMAGE:
        return None


_MOST_READS: Final = 1_000_000
"""Limit for a header, which may have endless comments that are read byte by byte."""


class _Bounded(io.BufferedReader):
    """A file that raises OSError after `_MOST_READS` reads."""

    _reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads += 1
        if self._reads > _MOST_READS:
            raise OSError(errno.EFBIG, "its header does not end")
        return super().read(size)


def _reason(error: Exception, name: str) -> str:
    """What went wrong, on one line and without the path."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image that Pillow can read; give a PNG, JPEG, TIFF or WebP file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).replace(name, "").split())
    return text or type(error).__name__


# --- TIFF ------------------------------------------------------------------------------------


_MOST_ENTRIES: Final = 4_096
"""Most entries of a directory that is not damaged."""

_NEW_SUBFILE_TYPE: Final = 254
_READ: Final = (_NEW_SUBFILE_TYPE, _WIDTH, _HEIGHT, _ORIENTATION)

_VALUE_OF_TYPE: Final = {1: "B", 3: "H", 4: "L", 16: "Q"}
"""`struct` formats of integer values, by TIFF type number."""


def _tiff_frames(file: BinaryIO) -> Iterator[tuple[tuple[int, int], bool]]:
    """The frames of a TIFF in the order of their chain, which may loop.

    Pillow would take minutes for thousands of pages: it compares each frame's offset with all
    earlier ones and, in some versions, allocates its pixels.

    Yields:
        Width and height as displayed, and whether it is a reduced copy or a transparency mask.

    Raises:
        struct.error: The file ends within a directory.
        ValueError: A directory is invalid or lacks a size.

    Source: TIFF Revision 6.0, section 2, and the layout of BigTIFF (Adobe's, by AWare Systems).
    """
    start = file.read(4)
    order = {b"II": "<", b"MM": ">"}.get(start[:2])
    if order is None:
        raise ValueError("not a TIFF header")
    counted, entry, pointer = f"{order}H", f"{order}HHL4s", f"{order}L"
    if 43 in start[2:]:
        counted, entry, pointer = f"{order}Q", f"{order}HHQ8s", f"{order}Q"
        _unpacked(file, f"{order}HH")  # size of an offset, always 8, and a zero
    (offset,) = _unpacked(file, pointer)
    seen: set[int] = set()
    while offset and offset not in seen:
        seen.add(offset)
        file.seek(offset)
        (count,) = _unpacked(file, counted)
        if not 0 < count <= _MOST_ENTRIES:
            raise ValueError(f"a directory with {count} entries is invalid")
        values = _values(file, entry, count)
        (offset,) = _unpacked(file, pointer)
        if _WIDTH not in values or _HEIGHT not in values:
            raise ValueError("a directory without width and height")
        size = _displayed(values[_WIDTH], values[_HEIGHT], values.get(_ORIENTATION))
        yield size, bool(values.get(_NEW_SUBFILE_TYPE, 0) & 0b101)


def _values(file: BinaryIO, entry: str, count: int) -> dict[int, int]:
    """Values of the tags in `_READ` from `count` entries of a directory."""
    entries = file.read(struct.calcsize(entry) * count)
    values: dict[int, int] = {}
    for tag, kind, length, field in struct.iter_unpack(entry, entries):
        form = _VALUE_OF_TYPE.get(kind)
        if tag in _READ and tag not in values and form is not None and length == 1:
            (values[tag],) = struct.unpack_from(entry[0] + form, field)
    return values


def _unpacked(file: BinaryIO, form: str) -> tuple[int, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))
