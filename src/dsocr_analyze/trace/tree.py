"""What a traced pass recorded of each module, for the tree of a model."""

from __future__ import annotations

from collections import Counter

from dsocr_analyze.kernels import with_ancestors
from dsocr_analyze.model.torch_calls import Shapes
from dsocr_analyze.module_tree import NestedShapes, TracedModule
from dsocr_analyze.trace.record import Trace

__all__ = ["traced_modules"]


def traced_modules(trace: Trace) -> dict[str, TracedModule]:
    """Calls, shapes and FLOPs (with all modules below) of every path that took part."""
    total = with_ancestors(trace.own_work())
    calls = Counter(trace.calls)
    found = {}
    for path in calls.keys() | total.keys():
        inputs, outputs = trace.shapes.get(path, (None, None))
        flops = total[path].flops if path in total else 0
        found[path] = TracedModule(
            calls.get(path, 0), _tensors_only(inputs), _tensors_only(outputs), flops
        )
    return found


def _tensors_only(shapes: Shapes) -> NestedShapes:
    """Nested shapes without empty items; a single shape is unwrapped."""
    if shapes is None:
        return None
    if isinstance(shapes, tuple):
        return list(shapes)
    kept: list[NestedShapes] = [item for item in map(_tensors_only, shapes) if item is not None]
    if not kept:
        return None
    return kept[0] if len(kept) == 1 else kept
