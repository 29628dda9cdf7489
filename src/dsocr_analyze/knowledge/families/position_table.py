"""Learned position tables, resized to the grid of a view."""

from __future__ import annotations

__all__ = ["resize_formula"]


def resize_formula(source: str, target: str, channels: str) -> str:
    """FLOPs of antialiased bicubic resizing of a square table; 0 if the size is unchanged."""
    taps = f"2 * max(2, ceil(2 * {source} / {target})) + 1"
    return f"({source} != {target}) * 2 * ({taps}) * {channels} * {target} * ({source} + {target})"
