"""Measure the host of a GPU: launches, values it waits for, steps of `generate`, copies."""

from __future__ import annotations

import functools
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dsocr_analyze.hardware.profile import MeasuredHost
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.measuring.timers import timer_of
from dsocr_analyze.running.process_settings import quiet_transformers
from dsocr_analyze.running.torch_calls import Arguments, Keywords, Operator, Value

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

__all__ = ["StepTimes", "host_figures", "step_times"]

_REPEATS: Final = 200
_LEAST_US: Final = 0.01
"""Lower bound for figures that noise makes smaller."""
_COPIED: Final = 1 << 26
"""Bytes per copy to the GPU."""
_PROMPT: Final = 512
"""Prompt tokens before the steps; `infer()` searches them for repeated n-grams."""
_NGRAM: Final = 35
_STEPS: Final = 40
_FIRST_STEPS: Final = 8
"""Steps that are discarded while caches and allocators settle."""
_NO_KERNEL: Final = frozenset({
    "alias", "detach", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty",
    "_unsafe_view", "_reshape_alias", "_local_scalar_dense",
})  # fmt: skip
"""Operators that launch nothing, in addition to views."""


def host_figures(device: torch.device) -> MeasuredHost:
    """Measure the host of a GPU.

    Args:
        device: A CUDA device.
    """
    with torch.cuda.device(device):
        steps = step_times(device)
        tiny = torch.zeros(64, device=device)
        issued = _microseconds(lambda: tiny.add_(1).sum(), device)
        waited = _microseconds(lambda: tiny.add_(1).sum().item(), device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.graph(graph):
            tiny.add_(1)
        started = _microseconds(graph.replay, device)
    return MeasuredHost(
        launch_us=steps.launch_us,
        sync_us=max(_LEAST_US, waited - issued),
        step_us=steps.between_us,
        graph_us=max(_LEAST_US, started),
        link_gb_s=_link_gb_s(device),
    )


def _microseconds(run: Callable[[], Value], device: torch.device) -> float:
    """Microseconds per run of many consecutive ones."""
    timer = timer_of(device)
    found = []
    for _ in range(5):
        timer.wait()
        start = time.perf_counter()
        for _ in range(_REPEATS):
            run()
        timer.wait()
        found.append((time.perf_counter() - start) / _REPEATS)
    return 1e6 * statistics.median(found)


def _link_gb_s(device: torch.device) -> float:
    """Rate of a copy to the GPU from memory that is not pinned, GB/s."""
    there = torch.ones(_COPIED, dtype=torch.uint8)
    timer = timer_of(device)
    found = []
    for _ in range(6):
        timer.wait()
        start = time.perf_counter()
        there.to(device)
        timer.wait()
        found.append(time.perf_counter() - start)
    return _COPIED / statistics.median(found[1:]) / 1e9


@dataclass(frozen=True)
class StepTimes:
    """Times of `generate` steps, inside the model and between its calls.

    Attributes:
        operators: Operators launched per step.
        inside_us: Microseconds per call of the model.
        between_us: Microseconds from the end of one call to the start of the next.
    """

    operators: int
    inside_us: float
    between_us: float

    @property
    def launch_us(self) -> float:
        """Microseconds per operator, including the Python around it."""
        return self.inside_us / self.operators


def step_times(device: torch.device) -> StepTimes:
    """Run `generate` as `infer()` does, on a decoder so small that only the host matters.

    Args:
        device: The device to run on.
    """
    model = _small_decoder(device)
    counts: list[int] = []
    spans: list[tuple[float, float]] = []

    def counted(run: Callable[[], Value]) -> Value:
        with _Launches() as launches:
            result = run()
        counts.append(launches.count)
        return result

    def timed(run: Callable[[], Value]) -> Value:
        safe_point()
        start = time.perf_counter()
        result = run()
        spans.append((start, time.perf_counter()))
        return result

    _generate(model, 3, counted)
    _generate(model, _FIRST_STEPS + _STEPS, timed)
    steps = spans[_FIRST_STEPS:]
    inside = [end - start for start, end in steps]
    between = [start - end for (_, end), (start, _) in pairwise(steps)]
    return StepTimes(counts[-1], 1e6 * statistics.median(inside), 1e6 * statistics.median(between))


def _small_decoder(device: torch.device) -> LlamaForCausalLM:
    """A decoder with tensors so small that any GPU finishes before the next launch."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_PROMPT + 2, hidden_size=64, intermediate_size=128, num_hidden_layers=6,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=4096,
        attn_implementation="eager",
    )  # fmt: skip
    return LlamaForCausalLM(config).to(device).eval()


def _generate(
    model: LlamaForCausalLM, steps: int, around: Callable[[Callable[[], Value]], Value]
) -> None:
    """Generate tokens, with every call of the model made by `around`."""
    tokens = torch.arange(2, _PROMPT + 2, device=model.device)[None]
    forward = model.forward

    @functools.wraps(forward)
    def watched(*args: Value, **kwargs: Value) -> Value:
        return around(functools.partial(forward, *args, **kwargs))

    model.forward = watched
    try:
        with torch.no_grad(), quiet_transformers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.generate(
                tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=steps,
                min_new_tokens=steps, do_sample=False, use_cache=True, eos_token_id=1,
                pad_token_id=0, no_repeat_ngram_size=_NGRAM,
            )  # fmt: skip
    finally:
        model.forward = forward


class _Launches(TorchDispatchMode):
    """Counts operators that launch a kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated in torch
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Operator,
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Value:
        if not func.is_view and func.overloadpacket.__name__ not in _NO_KERNEL:
            self.count += 1
        return func(*args, **(kwargs or {}))
