"""A page and its workload: sizes, views, lengths, batch. No torch in this room."""

from __future__ import annotations

from dsocr_analyze.workload.page import ImagePages, page_of_image, parse_page
from dsocr_analyze.workload.workload import (
    AnyWorkload,
    DecodeStep,
    Lengths,
    Mode,
    ViewBatch,
    Workload,
    text_parts,
)

__all__ = [
    "AnyWorkload",
    "DecodeStep",
    "ImagePages",
    "Lengths",
    "Mode",
    "ViewBatch",
    "Workload",
    "page_of_image",
    "parse_page",
    "text_parts",
]
