"""Computations alongside a model that do not count as its own work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["uncounted"]


@contextmanager
def uncounted() -> Iterator[None]:
    """Runs the body outside every hook and mode, so its operators are not counted."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield
