"""The page in the file named by `--image`, and notes about what else is in the file."""

from __future__ import annotations

import contextlib
from pathlib import Path

from dsocr_analyze.cli.streams import complain
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import ImagePages

__all__ = ["page_of_file"]


def page_of_file(image: Path) -> tuple[int, int]:
    """The page in an image file; if there are several, the first, with a note."""
    found = ImagePages(image)
    sizes = found.sizes()
    size = next(sizes)
    more = 0
    with contextlib.suppress(WorkloadError):  # damage after the first frame does not matter
        for _ in sizes:
            more += 1
    if more:
        complain(
            f"note: {image} has {more + 1} pages and only the first is used; `dsocr-analyze archive"
            f" {image}` counts all of them"
        )
    elif found.has_more_frames:
        complain(f"note: {image} has several frames and only the first is used")
    return size
