"""Learned position tables, resized to the grid of a view."""

from __future__ import annotations

from dsocr_analyze.knowledge.machinery.page import Symbol

__all__ = ["resize_formula", "resize_symbols"]


def resize_symbols(target: str) -> dict[str, Symbol]:
    """Symbols of the page of a table resized to `target` entries per side."""
    return {
        "l": Symbol("l", "entries per side of the learned table"),
        target: Symbol(target, "target entries per side"),
        "d": Symbol("d", "width"),
    }


def resize_formula(source: str, target: str, channels: str) -> str:
    """FLOPs of antialiased bicubic resizing of a square table; 0 if the size is unchanged."""
    taps = f"2 * max(2, ceil(2 * {source} / {target})) + 1"
    return f"({source} != {target}) * 2 * ({taps}) * {channels} * {target} * ({source} + {target})"
