"""Garbage collection while the tests run."""

from __future__ import annotations

import gc

__all__ = ["freeze", "is_more_frozen"]

_frozen = 0


def freeze() -> None:
    """Spares garbage collection what was imported and collected, which lives to the end."""
    global _frozen
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    _frozen = gc.get_freeze_count()


def is_more_frozen() -> bool:
    """Whether somebody else has frozen objects since; those of `freeze` may have been freed."""
    return gc.get_freeze_count() > _frozen
