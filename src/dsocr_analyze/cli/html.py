"""The HTML page of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsocr_analyze.report.comparison import Comparison
    from dsocr_analyze.report.document import Report

__all__ = ["comparison_page"]


def comparison_page(comparison: Comparison, reports: Sequence[tuple[str, Report]]) -> str:
    """The page of a comparison; each report comes with its name."""
    from dsocr_analyze.report.html.page import comparison_contents, render_html

    return render_html(comparison_contents(comparison, [report for _, report in reports]))
