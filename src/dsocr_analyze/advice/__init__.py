"""Which mode for a page: how finely each sees it, what it costs, and what is published of it.

Geometry and costs are exact; of accuracy only published figures are quoted, with their limits. No
torch in this room.
"""

from __future__ import annotations

from dsocr_analyze.advice.build import PageAsked, Wanted, advise

__all__ = ["PageAsked", "Wanted", "advise"]
