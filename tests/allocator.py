"""The witness of memory: what PyTorch's CPU allocator handed out during a pass."""

from __future__ import annotations

from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache

from dsocr_analyze.running.forward import running
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.workload import Workload


def allocated_at_most(session: DeepSeekOCRSession, workload: Workload) -> int:
    """The most bytes that the prefill pass held at once, by the profiler's memory events.

    What was there before the pass (weights, inputs) does not count, as in a peak of figures.
    """
    model = session.loaded
    with running(model.device, has_weights=model.has_weights):
        inputs = session.architecture.prefill_inputs(model.device, model.dtype, workload)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            model.module(**inputs, past_key_values=DynamicCache())
    events = profiled.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), place, event.nbytes())
        for place, event in enumerate(events)
        if event.name() == "[memory]"
    )
    alive = most = 0
    for _, _, nbytes in changes:
        alive += nbytes
        most = max(most, alive)
    return most
