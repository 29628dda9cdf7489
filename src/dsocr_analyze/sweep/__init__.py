"""Many pages at once: what an archive costs, and what other sizes and lengths would.

The batch function `count_pages` takes and returns Arrow data and runs wherever Arrow batches do.
No torch in this room; numpy and pyarrow are imported by what needs them.
"""

from __future__ import annotations

from dsocr_analyze.sweep.batch import count_pages

__all__ = ["count_pages"]
