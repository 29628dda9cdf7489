"""Garbage collection while the tests run."""

import gc

__all__ = ["freeze", "is_more_frozen"]

gc.disable()  # what is imported and collected lives to the end
_frozen = 0


def freeze() -> None:
    """Collects garbage from now on, but spares what there is."""
    global _frozen
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()
    _frozen = gc.get_freeze_count()


def is_more_frozen() -> bool:
    """Whether somebody else has frozen objects since; those of `freeze` may have been freed."""
    return gc.get_freeze_count() > _frozen
