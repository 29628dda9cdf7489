"""What a page costs on DeepSeek-OCR: exact FLOPs, bytes and memory, on any machine.

`DeepSeekOCRSession` loads a model and reports on a page; it is imported on first use, because it
brings torch.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dsocr_analyze.errors import AnalyzeError
from dsocr_analyze.workload import Workload, plan_workload

if TYPE_CHECKING:
    from dsocr_analyze.analysis import DeepSeekOCRSession

__all__ = ["AnalyzeError", "DeepSeekOCRSession", "Workload", "__version__", "plan_workload"]

__version__ = version("dsocr-analyze")


def __getattr__(name: str) -> Any:
    if name == "DeepSeekOCRSession":
        from dsocr_analyze.analysis import DeepSeekOCRSession

        return DeepSeekOCRSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
