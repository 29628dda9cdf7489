"""Folders of images and PDFs as lists of pages; only headers and page boxes are read."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from dsocr_analyze.archive.page_list import PAGES
from dsocr_analyze.archive.pdf_pages import has_reader, pdf_pages
from dsocr_analyze.errors import PageError, WorkloadError
from dsocr_analyze.escaping import visible
from dsocr_analyze.row_files.kind import RawRows, RowSource
from dsocr_analyze.workload import ImagePages

__all__ = ["DEFAULT_PDF_DPI", "FolderFiles", "is_countable", "open_file", "open_folder"]

DEFAULT_PDF_DPI: Final = 150
"""The same as for named papers."""

_PDF: Final = ".pdf"
_PAGES_A_BATCH: Final = 512
_MOST_EXTENSIONS: Final = 1_000
_LONGEST_EXTENSION: Final = 16


@dataclass
class FolderFiles:
    """What the files of a folder turned out to be; complete once all pages have been read.

    Attributes:
        pdf_dpi: Resolution assumed for rendering PDF pages, in pixels per inch.
        images: Image files with at least one counted page.
        image_pages: Pages in them.
        pdfs: PDFs with at least one counted page.
        pdf_pages: Pages in them.
        unread_pdfs: PDFs that are not counted because no PDF reader is installed.
        several_frames: Images whose frames are not pages; only the first frame counts.
        copies: Smaller copies and masks in TIFFs, which are not pages.
        hidden: Files and folders whose names start with a dot, which are ignored.
        linked_folders: Links to folders, which are not followed, to avoid cycles.
        others: Other files by lower-case extension; empty if they have none.
    """

    pdf_dpi: int
    images: int = 0
    image_pages: int = 0
    pdfs: int = 0
    pdf_pages: int = 0
    unread_pdfs: int = 0
    several_frames: int = 0
    copies: int = 0
    hidden: int = 0
    linked_folders: int = 0
    others: Counter[str] = field(default_factory=Counter)

    def add_other(self, suffix: str) -> None:
        """Count a file that is neither image nor PDF, in bounded memory."""
        known = len(self.others) < _MOST_EXTENSIONS or suffix in self.others
        named = suffix if known and len(suffix) <= _LONGEST_EXTENSION else "others"
        self.others[named] += 1


class _Page(NamedTuple):
    """A page of a file, or the reason why it can't be counted.

    Attributes:
        path: The file, relative to the folder.
        number: Its number in the file, from 1.
        size: Width and height in pixels; None if unknown.
        reason: Why the size is unknown.
    """

    path: str
    number: int
    size: tuple[int, int] | None
    reason: str = ""


def is_countable(path: Path) -> bool:
    """Whether a file has the extension of an image or PDF."""
    suffix = path.suffix.lower()
    return suffix == _PDF or suffix in _image_suffixes()


def open_folder(path: Path, pdf_dpi: int) -> tuple[RowSource, FolderFiles]:
    """Open a folder and all folders in it, in order of names.

    Args:
        path: The folder.
        pdf_dpi: Resolution assumed for rendering PDF pages, in pixels per inch.

    Returns:
        The pages, and what the files are, which is complete once the pages have been read.

    Raises:
        PageError: It is unreadable, or no file in it has the extension of an image or PDF.
    """
    files = FolderFiles(pdf_dpi)
    names = _countable_files(path, files)
    first = next(names, None)
    if first is None:
        found = f"; it contains {_listed(files.others)}" if files.others else ""
        raise PageError(f"no image or PDF in {str(path)!r} or a folder in it{found}; {PAGES.right}")
    pages = _pages(path, itertools.chain([first], names), files)
    return RowSource(_batches(pages)), files


def open_file(path: Path, pdf_dpi: int) -> tuple[RowSource, FolderFiles]:
    """Open one image or PDF as a list of its pages; arguments and result as in `open_folder`."""
    files = FolderFiles(pdf_dpi)
    return RowSource(_batches(_pages(path.parent, iter([path.name]), files))), files


def _listed(extensions: Counter[str]) -> str:
    """Number of files by extension, in one line: 3 .docx, 1 .txt."""
    shown = extensions.most_common(10)
    named = ", ".join(f"{count:,} {name or 'without extension'}" for name, count in shown)
    rest = extensions.total() - sum(count for _, count in shown)
    return f"{named}, {rest:,} more" if rest else named


def _countable_files(folder: Path, files: FolderFiles) -> Iterator[str]:
    """Relative paths of all images and PDFs in order of names; other files are just counted."""
    suffixes = _image_suffixes() | {_PDF}

    def give_up(error: OSError) -> None:
        raise PAGES.unreadable(folder, f"{error.filename}: {error.strerror}") from error

    for directory, folders, names in os.walk(folder, onerror=give_up):
        files.hidden += sum(name.startswith(".") for name in (*folders, *names))
        shown = [name for name in folders if not name.startswith(".")]
        folders[:] = sorted(
            name
            for name in shown
            if not os.path.islink(os.path.join(directory, name))  # noqa: PTH114, PTH118 - a Path for each of 100,000 names takes seconds
        )
        files.linked_folders += len(shown) - len(folders)
        inner = Path(directory).relative_to(folder)
        for name in sorted(names):
            suffix = Path(name).suffix.lower()
            if name.startswith("."):
                continue
            if suffix in suffixes:
                yield (inner / name).as_posix()
            else:
                files.add_other(suffix)


def _image_suffixes() -> frozenset[str]:
    """Suffixes of the formats that Pillow can open."""
    from PIL import Image

    known = Image.registered_extensions()
    return frozenset(suffix for suffix, kind in known.items() if kind in Image.OPEN)


def _pages(folder: Path, names: Iterator[str], files: FolderFiles) -> Iterator[_Page]:
    """All pages of all files."""
    reads_pdfs = has_reader()
    for name in names:
        if not name.lower().endswith(_PDF):
            yield from _pages_of_image(folder, name, files)
        elif reads_pdfs:
            yield from _pages_of_pdf(folder, name, files)
        else:
            files.unread_pdfs += 1


def _pages_of_image(folder: Path, name: str, files: FolderFiles) -> Iterator[_Page]:
    image = ImagePages(folder / name)
    number = 0
    try:
        for number, size in enumerate(image.sizes(), 1):
            files.image_pages += 1
            yield _Page(name, number, size)
    except WorkloadError as error:
        yield _Page(name, number + 1, None, str(error))
    files.images += number > 0
    files.several_frames += image.has_more_frames
    files.copies += image.copies


def _pages_of_pdf(folder: Path, name: str, files: FolderFiles) -> Iterator[_Page]:
    number = good = 0
    try:
        for number, size in enumerate(pdf_pages(folder / name, files.pdf_dpi), 1):
            if isinstance(size, PageError):
                yield _Page(name, number, None, str(size))
            else:
                good += 1
                yield _Page(name, number, size)
    except PageError as error:
        yield _Page(name, number + 1, None, str(error))
    files.pdfs += good > 0
    files.pdf_pages += good


def _batches(pages: Iterator[_Page]) -> Iterator[RawRows]:
    """Pages as rows; pages without a size are rejected rows."""
    import numpy as np
    import pyarrow as pa

    numbered = enumerate(pages, 1)
    while chunk := list(itertools.islice(numbered, _PAGES_A_BATCH)):
        good = [(row, page, page.size) for row, page in chunk if page.size is not None]
        columns = {
            "path": pa.array([_cell(page.path) for _, page, _ in good], pa.string()),
            "file_page": pa.array([page.number for _, page, _ in good], pa.int64()),
            "width": pa.array([width for _, _, (width, _) in good], pa.int64()),
            "height": pa.array([height for _, _, (_, height) in good], pa.int64()),
        }
        numbers = np.array([row for row, _, _ in good], np.int64)
        rejected = {row: page.reason for row, page in chunk if page.size is None}
        yield RawRows(pa.record_batch(columns), numbers, rejected)


def _cell(path: str) -> str:
    """A relative path as text for a table, where nothing in it acts and no formula begins."""
    text = visible(os.fsencode(path).decode("utf-8", "replace"))
    return f"./{text}" if text.startswith(("=", "+", "-", "@")) else text
