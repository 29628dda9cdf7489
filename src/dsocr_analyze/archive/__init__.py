"""Sweeps, lists of pages, and which mode a page needs: many workloads at once. No torch.

A model under fixed settings (`setting`) turns columns of workloads into columns of costs
(`evaluate`) and of seconds (`seconds`). A sweep evaluates every combination of sizes, modes,
lengths and batches (`axes`, `combinations`). An archive is a list of pages (`pages`), of which
distinct workloads are evaluated and summed (`totals`). Advice compares the modes for a
page: what each sees of it, its cost, and published accuracy with its limits (`advice`).

The batch function `count_pages` takes and returns Arrow data, and is imported with numpy and
pyarrow on first use.
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
