"""What one recorded pass shows of every module, for the module tree."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dsocr_analyze.model.tree import TracedModule
from dsocr_analyze.trace.recorder import Trace

__all__ = ["traced_modules"]


def traced_modules(trace: Trace) -> dict[str, TracedModule]:
    """Calls, shapes and FLOPs (of a module and all below it) of every path that took part."""
    flops: Counter[str] = Counter()
    own: Counter[str] = Counter()
    for path, _, _, work in trace.entries:
        own[path] += work.flops
    for path, count in own.items():
        parts = path.split(".") if path else []
        for length in range(len(parts) + 1):
            flops[".".join(parts[:length])] += count
    calls = Counter(trace.calls)
    found = {}
    for path in calls.keys() | flops.keys():
        inputs, outputs = trace.shapes.get(path, (None, None))
        found[path] = TracedModule(
            calls.get(path, 0), _tensors_only(inputs), _tensors_only(outputs), flops.get(path, 0)
        )
    return found


def _tensors_only(shapes: Any) -> Any:
    """Nested shapes without the arguments that hold no tensor; a lone shape stands by itself."""
    if shapes is None:
        return None
    if isinstance(shapes, tuple):
        return list(shapes)
    kept = [item for item in map(_tensors_only, shapes) if item is not None]
    if not kept:
        return None
    return kept[0] if len(kept) == 1 else kept
