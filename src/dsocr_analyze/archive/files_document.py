"""What the files of a folder turned out to be, for the JSON document and for readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from dsocr_analyze.archive.pdf_pages import INSTALL

if TYPE_CHECKING:
    from dsocr_analyze.archive.folder import FolderFiles

__all__ = ["FilesDocument", "file_lines", "file_warnings", "files_document"]

_SHOWN_EXTENSIONS = 12


class CountedFiles(msgspec.Struct, frozen=True):
    """Files of one kind with at least one counted page.

    Attributes:
        files: Number of files.
        pages: Number of pages in them.
    """

    files: int
    pages: int


class OtherFiles(msgspec.Struct, frozen=True):
    """Files of one extension that are neither images nor PDFs.

    Attributes:
        extension: Lower case with a dot; empty if there is none; `others` for overlong extensions
            and for those after the first thousand.
        files: Number of files.
    """

    extension: str
    files: int


class FilesDocument(msgspec.Struct, frozen=True):
    """The files that were counted, and those that were not.

    Attributes:
        images: Images. Every frame of a TIFF is a page; of other images only the first.
        pdfs: PDFs.
        pdf_dpi: Resolution assumed for rendering PDF pages, in pixels per inch.
        pdfs_without_reader: PDFs that are not counted because the extra `pdf` is not installed.
        not_counted: Other files, most frequent extension first.
        hidden: Files and folders whose names start with a dot, which are ignored.
        linked_folders: Links to folders, which are not followed.
        images_with_more_frames: Animations and the like, of which only the first frame is a page.
        tiff_copies: Smaller copies and masks in TIFFs, which are not pages.
    """

    images: CountedFiles
    pdfs: CountedFiles
    pdf_dpi: int
    pdfs_without_reader: int
    not_counted: tuple[OtherFiles, ...]
    hidden: int
    linked_folders: int
    images_with_more_frames: int
    tiff_copies: int


def files_document(files: FolderFiles) -> FilesDocument:
    """A folder's files, for the document."""
    return FilesDocument(
        images=CountedFiles(files.images, files.image_pages),
        pdfs=CountedFiles(files.pdfs, files.pdf_pages),
        pdf_dpi=files.pdf_dpi,
        pdfs_without_reader=files.unread_pdfs,
        not_counted=tuple(OtherFiles(*each) for each in _others(files)),
        hidden=files.hidden,
        linked_folders=files.linked_folders,
        images_with_more_frames=files.several_frames,
        tiff_copies=files.copies,
    )


def file_lines(files: FolderFiles) -> Iterator[str]:
    """Lines for readers: what was counted, and what was not."""
    counted = []
    if files.images:
        counted.append(_pages_text(files.image_pages, files.images, "image"))
    if files.pdfs:
        said = _pages_text(files.pdf_pages, files.pdfs, "PDF")
        counted.append(f"{said} (at {files.pdf_dpi} dpi)")
    yield f"Files: {' and '.join(counted) or 'no pages'}"
    others = _others(files)
    if others:
        named = [f"{count:,} {name or 'without extension'}" for name, count in others]
        if len(named) > _SHOWN_EXTENSIONS:
            rest = sum(count for _, count in others[_SHOWN_EXTENSIONS:])
            named = [*named[:_SHOWN_EXTENSIONS], f"{rest:,} more"]
        yield f"Not counted: {', '.join(named)}"
    for count, what, why in (
        (files.hidden, "hidden file or folder", "ignored"),
        (files.linked_folders, "link to a folder", "not followed"),
        (files.several_frames, "image with several frames", "except for the first frame"),
        (files.copies, "smaller copy or mask in a TIFF", "not a page"),
    ):
        if count:
            yield f"Not counted: {_counted(count, what)}, {why}"


def file_warnings(files: FolderFiles) -> Iterator[str]:
    """Warnings about files that could not be counted but should be."""
    if files.unread_pdfs:
        are = "is" if files.unread_pdfs == 1 else "are"
        yield (
            f"{_counted(files.unread_pdfs, 'PDF')} {are} not counted: reading them needs pypdf, the"
            f" optional extra 'pdf'; install it with {INSTALL}"
        )


def _others(files: FolderFiles) -> list[tuple[str, int]]:
    """Extensions and their numbers of files, most frequent first."""
    return sorted(files.others.items(), key=lambda each: (-each[1], each[0]))


def _pages_text(pages: int, count: int, what: str) -> str:
    return f"{_counted(pages, 'page')} in {_counted(count, what)}"


_PLURALS = {
    "hidden file or folder": "hidden files or folders",
    "image with several frames": "images with several frames",
    "link to a folder": "links to folders",
    "smaller copy or mask in a TIFF": "smaller copies or masks in TIFFs",
}


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what if count == 1 else _PLURALS.get(what, what + 's')}"
