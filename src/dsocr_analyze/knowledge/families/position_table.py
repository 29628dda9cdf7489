"""Learned tables of positions, resized to the grid of a view."""

from __future__ import annotations

__all__ = ["resize_formula"]


def resize_formula(source: str, target: str, channels: str) -> str:
    """FLOPs of resizing a square table bicubically, antialiased; 0 where nothing changes."""
    taps = f"2 * max(2, ceil(2 * {source} / {target})) + 1"
    return f"({source} != {target}) * 2 * ({taps}) * {channels} * {target} * ({source} + {target})"
