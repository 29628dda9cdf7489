"""Choosing a mode for a page: the resolution, cost and published accuracy of each.

Geometry and costs are exact; accuracy is quoted only from published figures, with their limits. No
torch in this room.
"""
