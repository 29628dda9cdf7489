"""Sweeps, lists of pages, and which mode a page needs: many workloads at once. No torch.

A sweep evaluates every combination of its axes; an archive is a list of pages, of which distinct
workloads are evaluated and summed. `count_pages` imports numpy and pyarrow on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsocr_analyze.archive.pages import count_pages

__all__ = ["count_pages"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dsocr_analyze.archive.pages import count_pages

    return count_pages
