"""The witness of memory: what PyTorch's CPU allocator handed out, by the profiler's events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsocr_analyze.measuring import memory
from dsocr_analyze.running.forward import running
from dsocr_analyze.running.generation import empty_cache
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.workload import Workload


def allocated_at_most(function: Callable[..., Any], *args: Any) -> int:
    """The most bytes that a call held at once; what was there before does not count."""
    with torch.no_grad():
        return memory.allocated_at_most(torch.device("cpu"), lambda: function(*args))


def allocated_by_prefill(session: DeepSeekOCRSession, workload: Workload) -> int:
    """The same of a prefill pass, without its weights and inputs, as in a peak of figures."""
    model = session.loaded
    with running(model.device, has_weights=model.has_weights):
        inputs = session.architecture.prefill_inputs(model.device, model.dtype, workload)
        cache = empty_cache(model.directory)
        return allocated_at_most(lambda: model.module(**inputs, past_key_values=cache))
