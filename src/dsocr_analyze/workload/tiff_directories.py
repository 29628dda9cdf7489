"""Read the sizes in the directories of a TIFF, one directory per frame.

Not done with Pillow, which compares each frame's offset with all earlier ones and, in some
versions, allocates its pixels: a scan of thousands of pages would take minutes.

Source: TIFF Revision 6.0, section 2, and the layout of BigTIFF (Adobe's, by AWare Systems).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

__all__ = ["TiffDirectory", "tiff_directories"]

_MOST_ENTRIES: Final = 4_096
"""Most entries of a directory; one that claims more is damaged."""

_NEW_SUBFILE_TYPE: Final = 254
_WIDTH: Final = 256
_HEIGHT: Final = 257
_ORIENTATION: Final = 274
_READ: Final = (_NEW_SUBFILE_TYPE, _WIDTH, _HEIGHT, _ORIENTATION)

_VALUE_OF_TYPE: Final = {1: "B", 3: "H", 4: "L", 16: "Q"}
"""`struct` formats of integer values, by TIFF type number."""


class TiffDirectory(NamedTuple):
    """The fields of a frame that are read.

    Attributes:
        width: Pixels as stored.
        height: Pixels as stored.
        orientation: Orientation for display, 1 to 8.
        is_copy: Whether it is a reduced copy of another frame, or a transparency mask.
    """

    width: int
    height: int
    orientation: int
    is_copy: bool


class _Layout(NamedTuple):
    """`struct` formats of a directory's parts, including the byte order."""

    entries: str
    entry: str
    offset: str


def tiff_directories(file: BinaryIO) -> Iterator[TiffDirectory]:
    """The directories in the order of their chain, stopping if it loops.

    Args:
        file: The file, which must be seekable.

    Raises:
        EOFError: The file ends within a directory.
        ValueError: A directory is invalid or lacks a size.
    """
    layout, offset = _start(file)
    seen: set[int] = set()
    while offset and offset not in seen:
        seen.add(offset)
        file.seek(offset)
        (count,) = _unpacked(file, layout.entries)
        if not 0 < count <= _MOST_ENTRIES:
            raise ValueError(f"a directory with {count} entries is invalid")
        values = _values(file, layout, count)
        (offset,) = _unpacked(file, layout.offset)
        if _WIDTH not in values or _HEIGHT not in values:
            raise ValueError("a directory without width and height")
        kind = values.get(_NEW_SUBFILE_TYPE, 0)
        orientation = values.get(_ORIENTATION, 1)
        yield TiffDirectory(
            values[_WIDTH], values[_HEIGHT], orientation, is_copy=bool(kind & 0b101)
        )


def _start(file: BinaryIO) -> tuple[_Layout, int]:
    """The layout of the file's directories, and the offset of the first one."""
    start = file.read(4)
    order = {b"II": "<", b"MM": ">"}.get(start[:2])
    if order is None:
        raise ValueError("not a TIFF header")
    if 43 in start[2:]:
        _unpacked(file, f"{order}HH")  # size of an offset, always 8, and a zero
        layout = _Layout(f"{order}Q", f"{order}HHQ8s", f"{order}Q")
    else:
        layout = _Layout(f"{order}H", f"{order}HHL4s", f"{order}L")
    return layout, _unpacked(file, layout.offset)[0]


def _values(file: BinaryIO, layout: _Layout, count: int) -> dict[int, int]:
    """The values of a directory's tags in `_READ`, by tag."""
    values: dict[int, int] = {}
    size = struct.calcsize(layout.entry)
    entries = file.read(size * count)
    if len(entries) < size * count:
        raise EOFError("the file ends within a directory")
    for tag, kind, length, field in struct.iter_unpack(layout.entry, entries):
        form = _VALUE_OF_TYPE.get(kind)
        if tag in _READ and tag not in values and form is not None and length == 1:
            (values[tag],) = struct.unpack_from(layout.offset[0] + form, field)
    return values


def _unpacked(file: BinaryIO, form: str) -> tuple[int, ...]:
    size = struct.calcsize(form)
    found = file.read(size)
    if len(found) < size:
        raise EOFError("the file ends within a directory")
    return struct.unpack(form, found)
