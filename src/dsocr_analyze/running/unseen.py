"""Computing beside a model, so that nothing of it counts as the model's own work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["unseen"]


@contextmanager
def unseen() -> Iterator[None]:
    """Computes outside every hook and mode: an answer is not an operator of the model."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield
