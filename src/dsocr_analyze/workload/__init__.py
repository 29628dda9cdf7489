"""A page, a mode and a prompt become views, a crop grid and token counts. No torch in this room."""

from __future__ import annotations

from dsocr_analyze.workload.grid import GRIDS, crop_grid
from dsocr_analyze.workload.modes import MODES, Mode, mode_named
from dsocr_analyze.workload.page import page_of_image, parse_page
from dsocr_analyze.workload.tokens import tokens_per_side
from dsocr_analyze.workload.workload import (
    ViewBatch,
    Workload,
    notes_of,
    plan_workload,
    warnings_of,
)

__all__ = [
    "GRIDS",
    "MODES",
    "Mode",
    "ViewBatch",
    "Workload",
    "crop_grid",
    "mode_named",
    "notes_of",
    "page_of_image",
    "parse_page",
    "plan_workload",
    "tokens_per_side",
    "warnings_of",
]
