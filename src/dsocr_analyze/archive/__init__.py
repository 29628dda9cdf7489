"""Lists of pages: what a whole archive costs.

A list is opened (`source`), its rows are read as pages (`pages`), grouped into distinct workloads
(`distinct`), evaluated and summed (`totals`), and reported (`document`, `tables`, `plot`).

The batch function `count_pages` takes and returns Arrow data, so it runs in any Arrow pipeline.
Never imports torch; numpy and pyarrow are imported only by modules that need them.
"""

from __future__ import annotations

from dsocr_analyze.archive.arrow import count_pages

__all__ = ["count_pages"]
