"""Sizes of a PDF's pages in pixels, from their boxes, without rendering. Needs the extra `pdf`.

Source: ISO 32000-2, 7.7.3 (page tree, inherited attributes) and 14.11.2 (page boundaries).
"""

import contextlib
import ctypes
import importlib.util
import logging
import math
import mmap
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from dsocr_analyze.errors import PageError, refuse
from dsocr_analyze.input_files import opened
from dsocr_analyze.workload import check_page

DEFAULT_PDF_DPI: Final = 150
"""Pixels per inch, as for named papers."""

INSTALL: Final = "pip install 'dsocr-analyze[pdf]'"

MOST_SECONDS: Final = 8.0
"""CPU seconds per file; a book of 10,000 pages takes 3."""

_MOST_NEW_BYTES: Final = 400 * 2**20
"""What a file may add to the process's memory."""

_SECONDS_BETWEEN_LOOKS: Final = 0.05

_DAMAGE: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
"""What pypdf raises beside its own errors."""


def has_reader() -> bool:
    """Whether the package that reads PDFs is installed."""
    return importlib.util.find_spec("pypdf") is not None


def pdf_pages(path: Path, dpi: int) -> Iterator[tuple[int, int] | PageError]:
    """Width and height of each page in pixels as displayed, or why it has none.

    A page is its CropBox clipped to its MediaBox, or its MediaBox if it has no CropBox, scaled by
    UserUnit and turned by Rotate. Raises PageError if no further page can be read.
    """
    from pypdf.errors import DependencyError, PyPdfError

    damage = (*_DAMAGE, PyPdfError, DependencyError, RecursionError, MemoryError, _TooMuch)
    found: list[tuple[int, int] | PageError] = []
    ended: BaseException | None = None
    try:
        # Given a path, pypdf would read the whole file at once.
        with opened(path) as file, _within_limits():
            for page in _pages(path, file):
                try:
                    found.append(check_page(*_pixels(page, dpi)))
                except _TooMuch:
                    raise
                except (PageError, *damage) as error:
                    text = f"page {len(found) + 1} of PDF {str(path)!r}: {_reason(error)}"
                    found.append(PageError(text))
    except damage as error:
        ended = error
    yield from found
    if ended is not None:
        raise PageError(f"cannot read PDF {str(path)!r}: {_reason(ended)}") from ended
    if not found:
        raise PageError(f"PDF {str(path)!r} has no pages")


class _TooMuch(BaseException):
    """A file takes too much; not an Exception, which pypdf might take for damage and go on."""

    def __str__(self) -> str:
        return (
            f"reading it takes more than {MOST_SECONDS:g} s or {_MOST_NEW_BYTES >> 20} MiB of"
            " memory"
        )


@contextlib.contextmanager
def _within_limits() -> Iterator[None]:
    """Raises `_TooMuch` in the body, from another thread; drops pypdf's messages.

    pypdf itself limits single streams, but not their number.
    """
    reader = threading.get_ident()
    ends, most_bytes = MOST_SECONDS + _seconds_of(reader), _memory_bytes() + _MOST_NEW_BYTES
    is_over, turn = threading.Event(), threading.Lock()

    def watch(ends: float, most_bytes: float) -> None:
        while not is_over.wait(_SECONDS_BETWEEN_LOOKS):
            seconds = _seconds_of(reader)
            if seconds > ends or _memory_bytes() > most_bytes:
                with turn:
                    if not is_over.is_set():
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(
                            ctypes.c_ulong(reader), ctypes.py_object(_TooMuch)
                        )
                # A destructor or callback that it met swallowed it if the body goes on.
                ends, most_bytes = seconds + MOST_SECONDS / 8, math.inf

    silence = logging.NullHandler()
    logging.getLogger("pypdf").addHandler(silence)
    watcher = threading.Thread(target=watch, args=(ends, most_bytes), daemon=True)
    watcher.start()
    try:
        try:
            yield
        finally:
            with turn:
                is_over.set()
            watcher.join()  # what it has raised is raised here at the latest
    finally:
        logging.getLogger("pypdf").removeHandler(silence)


def _seconds_of(thread: int) -> float:
    """CPU seconds of a thread; where unknown, the clock's."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    return time.monotonic() if clock_of is None else time.clock_gettime(clock_of(thread))


def _memory_bytes() -> int:
    try:
        with opened(Path("/proc/self/statm")) as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def _pages(path: Path, file: Any) -> Iterator[Mapping[str, Any]]:
    """The pages in tree order, with the attributes that they inherit.

    Raises ValueError after the last one if the file states more, as pypdf skips what is no page.
    """
    from pypdf import PasswordType, PdfReader

    reader = PdfReader(file)
    if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
        raise PageError(f"PDF {str(path)!r} is encrypted and needs a password")
    yield from reader.pages
    tree: Any = reader.root_object["/Pages"]
    stated, found = tree.get("/Count"), len(reader.pages)
    if isinstance(stated, int) and stated > found:
        raise ValueError(f"it states {stated:,} pages, of which {found:,} can be found")


def _pixels(page: Mapping[str, Any], dpi: int) -> tuple[int, int]:
    if "/MediaBox" not in page:
        raise PageError("it has no MediaBox")
    left, low, right, high = _box(page["/MediaBox"])
    if "/CropBox" in page:
        crop = _box(page["/CropBox"])
        inner = max(left, crop[0]), max(low, crop[1]), min(right, crop[2]), min(high, crop[3])
        if inner[0] < inner[2] and inner[1] < inner[3]:
            left, low, right, high = inner
    unit = _number(page.get("/UserUnit", 1))
    turn = _number(page.get("/Rotate", 0))
    refuse(
        PageError,
        (unit <= 0, f"its UserUnit {float(unit):g} is not a valid size"),
        (turn % 90, f"its Rotate {float(turn):g} is not a multiple of 90"),
    )
    scale = unit * dpi / 72  # points per inch
    width, height = (int(side * scale + Fraction(1, 2)) for side in (right - left, high - low))
    return (height, width) if turn % 180 else (width, height)


def _box(value: Any) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    """Left, bottom, right and top of a rectangle, from opposite corners."""
    corners = [_number(each) for each in value.get_object()]
    if len(corners) != 4:
        raise PageError(f"it has a box of {len(corners)} numbers")
    x, y, other_x, other_y = corners
    return min(x, other_x), min(y, other_y), max(x, other_x), max(y, other_y)


def _number(value: Any) -> Fraction:
    number = value if isinstance(value, int) else value.get_object()
    if isinstance(number, bool) or not isinstance(number, int | float | Decimal):
        raise PageError(f"it has {str(number)[:40]!r} instead of a number")
    # Exact decimals: 841.89 must not become the nearest binary fraction.
    return Fraction(str(number))


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    text = "".join(character if character.isprintable() else "?" for character in text)
    if isinstance(error, PageError | _TooMuch):
        return text
    return f"{text[:160]} ({type(error).__name__})" if text else type(error).__name__
