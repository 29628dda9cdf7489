"""Choosing a mode for a page: the resolution, cost and published accuracy of each.

Geometry and costs are exact; accuracy is quoted only from published figures, with their limits. No
torch in this room.
"""

from __future__ import annotations

from dsocr_analyze.advice.build import PageAsked, advise

__all__ = ["PageAsked", "advise"]
