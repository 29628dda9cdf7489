"""What a page costs on DeepSeek-OCR: exact FLOPs, bytes and memory, on any machine.

`analyze` reports on a page; `DeepSeekOCRSession` keeps a model loaded for several pages; `compare`
puts reports side by side; `sweep_workloads` counts every combination of some ranges; `predict`,
`fit` and `plan` say what pages take on GPUs; `count` counts any module. Names are imported on first
use: the session imports torch, and the command line must first install its signal handlers.
"""

from __future__ import annotations

# Not imported from typing: an interruption during that import would go unhandled.
TYPE_CHECKING = bool()  # noqa: UP018  # with a plain False, jedi completes none of these names
if TYPE_CHECKING:
    from typing import Any

    from dsocr_analyze.analysis import analyze, compare, sweep_workloads
    from dsocr_analyze.architectures import plan_workload
    from dsocr_analyze.counting import count
    from dsocr_analyze.errors import AnalyzeError
    from dsocr_analyze.predictions import fit, plan, predict
    from dsocr_analyze.session import DeepSeekOCRSession
    from dsocr_analyze.workload import PageWorkload as Workload

    __version__: str

__all__ = [
    "AnalyzeError",
    "DeepSeekOCRSession",
    "Workload",
    "__version__",
    "analyze",
    "compare",
    "count",
    "fit",
    "plan",
    "plan_workload",
    "predict",
    "sweep_workloads",
]

_PLACES = {
    "AnalyzeError": ("dsocr_analyze.errors", "AnalyzeError"),
    "DeepSeekOCRSession": ("dsocr_analyze.session", "DeepSeekOCRSession"),
    "Workload": ("dsocr_analyze.workload", "PageWorkload"),
    "__version__": ("dsocr_analyze.version", "VERSION"),
    "analyze": ("dsocr_analyze.analysis", "analyze"),
    "compare": ("dsocr_analyze.analysis", "compare"),
    "count": ("dsocr_analyze.counting", "count"),
    "predict": ("dsocr_analyze.predictions", "predict"),
    "fit": ("dsocr_analyze.predictions", "fit"),
    "plan": ("dsocr_analyze.predictions", "plan"),
    "sweep_workloads": ("dsocr_analyze.analysis", "sweep_workloads"),
    "plan_workload": ("dsocr_analyze.architectures", "plan_workload"),
}

_RUNNING = frozenset({"DeepSeekOCRSession", "count"})
"""Names whose modules import torch."""


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    import importlib

    try:
        module, attribute = _PLACES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    from dsocr_analyze.forking import importing

    if name in _RUNNING:
        from dsocr_analyze.extras import require_trace

        require_trace()
    with importing():
        return getattr(importlib.import_module(module), attribute)
