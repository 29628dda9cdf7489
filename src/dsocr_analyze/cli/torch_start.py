"""The start of torch, which takes seconds of C++ that no interruption may cut short."""

from __future__ import annotations

from pathlib import Path

from dsocr_analyze.errors import AnalyzeError
from dsocr_analyze.interruption import kept_out

__all__ = ["start_torch"]


def start_torch() -> None:
    """Imports torch; an interruption waits until it is there, since it would abort the process.

    To be called before anything that imports torch.

    Raises:
        AnalyzeError: There is no current folder, without which libraries of torch end the process.
    """
    try:
        Path.cwd()
    except OSError:
        raise AnalyzeError("the current folder has been removed; change to another one") from None
    with kept_out():
        import torch  # noqa: F401  # for whoever imports it next
