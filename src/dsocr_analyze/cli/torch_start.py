"""Imports torch, which spends seconds in C++ code that must not be interrupted."""

from __future__ import annotations

from pathlib import Path

from dsocr_analyze.errors import AnalyzeError
from dsocr_analyze.interruption import kept_out

__all__ = ["start_torch"]


def start_torch() -> None:
    """Import torch with interrupts held back, since one would abort the process.

    Call this before anything else that imports torch.

    Raises:
        AnalyzeError: The current folder was removed; libraries of torch abort the process then.
    """
    try:
        Path.cwd()
    except OSError:
        raise AnalyzeError("the current folder has been removed; change to another one") from None
    with kept_out():
        import torch  # noqa: F401  # for later imports
