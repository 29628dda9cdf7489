"""Lists of pages: what a whole archive costs.

A list is opened (`source`), its rows become pages (`pages`), those distinct workloads (`distinct`),
which are evaluated and summed (`totals`) and reported (`document`, `tables`, `plot`).

The batch function `count_pages` takes and returns Arrow data and runs wherever Arrow batches do.
No torch in this room; numpy and pyarrow are imported by what needs them.
"""

from __future__ import annotations

from dsocr_analyze.archive.arrow import count_pages

__all__ = ["count_pages"]
