"""Runs under the recorder, of the passes of a page or of a module on its own, and their figures."""

import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import filterfalse
from operator import attrgetter, itemgetter
from typing import Any

import torch

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.figures import OperatorLedger, StageFigures, StageScope, owner_among
from dsocr_analyze.kernels import (
    NO_WORK,
    Kernel,
    Work,
    grouped,
    merged,
    total_work,
    with_ancestors,
    work_by,
)
from dsocr_analyze.model.forward import blamed_on, running
from dsocr_analyze.model.generation import Generation, flash_attention, left_as_it_was
from dsocr_analyze.model.loading import LoadedModel
from dsocr_analyze.model.process_settings import (
    Arguments,
    Function,
    Keywords,
    Shapes,
    Value,
    exclusive,
    tensors_in,
)
from dsocr_analyze.module_tree import NestedShapes, TracedModule
from dsocr_analyze.trace.record import Alike, Trace, TracedCall
from dsocr_analyze.trace.recorder import Recorder
from dsocr_analyze.workload import AnyWorkload, PageWorkload

RunStep = Callable[[int], Trace]
"""Returns the trace of a decode step by number, running it if need be."""


@dataclass(frozen=True)
class PassTraces:
    """Traces of the passes of a page.

    Attributes:
        decode_steps: In the order of `step_numbers`.
        step_numbers: Step i runs over a cache of `seq_len + i` tokens.
        kv_cache_bytes: Size of the cache after the prefill pass.
        inputs_bytes: Size of the prefill pass's inputs.
        step_cache_bytes: Size of the cache after each step.
        stretches: Ranges of steps whose work is linear in the cache length, if known.
        longer_step: If asked for, a step over one cached token more than the last.
    """

    prefill: Trace
    decode_steps: tuple[Trace, ...]
    step_numbers: tuple[int, ...]
    kv_cache_bytes: int
    inputs_bytes: int
    step_cache_bytes: tuple[int, ...] = ()
    stretches: Sequence[range] = ()
    longer_step: Trace | None = None


def trace_passes(
    model: LoadedModel,
    workload: AnyWorkload,
    architecture: Architecture,
    *,
    step_numbers: Sequence[int] = (0,),
    with_longer_step: bool = False,
    explore: Callable[[RunStep], Sequence[range]] | None = None,
    repeats: Alike | None = None,
    recorder_type: Callable[..., Recorder] = Recorder,
    on_progress: Callable[[str], None] = lambda _: None,
) -> PassTraces:
    """Runs the workload's prefill pass and some decode steps under the recorder.

    Args:
        model: On `meta` nothing is computed.
        workload: The page, the text and the batch.
        architecture: Calls the model's forward.
        step_numbers: Decode steps to run, ascending from 0, if the model decodes; the cache has
            zeros for those that do not run.
        with_longer_step: Whether to run another step, over one cached token more than the last.
        explore: Runs further steps in any order, and returns the stretches that it found.
        repeats: On `meta`, equal calls of modules of one name are recorded once.
        recorder_type: Makes the recorder, of the model and what repeats.
        on_progress: Called with the name of each step as it starts.

    Raises:
        ModelCodeError: The model's code raised.
        DeviceError: The device ran out of memory.
    """
    alike = repeats if model.device.type == "meta" else None
    recorder = recorder_type(model.module, alike)
    longer_step = None
    stretches: Sequence[range] = ()
    flash = recorded_flash_attention(recorder)
    with (
        exclusive(),
        blamed_on(
            model.directory, f"failed on {model.device}", str(model.device), model.module,
            on_progress,
        ) as announce,
        left_as_it_was(model.module.modules()),
        running(model.device, flash, has_weights=model.has_weights),
        recorder,  # which sees on a CPU what inputs are the host's
    ):  # fmt: skip
        generation = Generation(model, workload, architecture, recorder.begin, announce)
        prefill = generation.prefill()
        if architecture.decode is not None:
            generation.goes_back = explore is not None
            for number in step_numbers:
                generation.step(number)
            if explore is not None:
                stretches = explore(generation.step)
            if with_longer_step:
                longer_step = generation.longer_step()
    steps = dict(sorted(generation.steps.items()))
    records, cache_bytes = zip(*steps.values(), strict=True) if steps else ((), ())
    return PassTraces(
        prefill,
        records,
        tuple(steps),
        generation.kv_cache_bytes,
        generation.inputs_bytes,
        cache_bytes,
        stretches,
        longer_step,
    )


def recorded_flash_attention(recorder: Recorder) -> Callable[..., torch.Tensor]:
    """flash-attn's function under the recorder."""

    def flash_attn_func(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Value, **kwargs: Value
    ) -> torch.Tensor:
        causal = args[2] if len(args) > 2 else kwargs.get("causal", False)
        return recorder.record_whole(
            "flash_attention",
            [q, k, v],
            {"is_causal": bool(causal)},
            lambda: flash_attention(q, k, v, *args, **kwargs),
        )

    return flash_attn_func


# --- a module or function on its own --------------------------------------------------------------


class CallRecorder(Recorder):
    """Keeps the trace's `modules`; of equal calls that run once, the first."""

    def _run_in_full(
        self, path: str, forward: Function, args: Arguments, kwargs: Keywords
    ) -> Value:
        with self._own_trace(path) as trace:
            output = super()._run_in_full(path, forward, args, kwargs)
        with torch._C.DisableTorchFunction():
            returned = output.values() if isinstance(output, dict) else (output,)
            function = getattr(forward, "__func__", forward)
            names = _parameters(function)[function is not forward :]
            given = dict(zip(names, args, strict=False)) | kwargs
            looked = given | {"returned": next(tensors_in(returned), None)}
            trace.modules.setdefault(path, []).append(
                TracedCall(
                    tuple(trace.kernels),
                    trace.peak.nbytes,
                    _cache_bytes(getattr(forward, "__self__", None), given, output),
                    {
                        name: tuple(value.shape)
                        for name, value in looked.items()
                        if isinstance(value, torch.Tensor)
                    },
                )
            )
        return output


@cache
def _parameters(function: Function) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _cache_bytes(module: torch.nn.Module | None, given: Keywords, output: Value) -> int:
    """Keys and values in a call's cache, or in the module's own layer of it."""
    cache = given.get("past_key_value", given.get("past_key_values"))
    if cache is None:
        cache = getattr(output, "past_key_values", None)
    if cache is None:
        return 0
    index = getattr(getattr(module, "self_attn", module), "layer_idx", None)
    pairs = list(cache) if index is None else [cache[index]]
    return sum(tensor.numel() * tensor.element_size() for pair in pairs for tensor in pair)


class FunctionModule(torch.nn.Module):
    """A function as a module, to be traced like one."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.forward = function


def trace_module(
    module: torch.nn.Module,
    device: torch.device,
    *args: Any,
    repeats: Alike | None = None,
    **kwargs: Any,
) -> tuple[Trace, Any]:
    """Runs one call under the recorder; returns the trace and the module's output.

    `repeats` is as in `trace_passes`; the other arguments are those of its forward.
    """
    ((trace, output),) = trace_calls(module, device, [kwargs], repeats, *args)
    return trace, output


def trace_calls(
    module: torch.nn.Module,
    device: torch.device,
    calls: Sequence[Keywords],
    repeats: Alike | None = None,
    *args: Any,
) -> list[tuple[Trace, Any]]:
    """The same for several calls, by their keyword arguments."""
    recorder = CallRecorder(module, repeats if device.type == "meta" else None)
    flash = recorded_flash_attention(recorder)
    with left_as_it_was(module.modules()), running(device, flash), recorder:
        return [(recorder.begin(), module(*args, **kwargs)) for kwargs in calls]


# --- figures of traces ---------------------------------------------------------------------------


def stage_figures(
    traces: PassTraces, stages: Sequence[StageScope], own_params: Mapping[str, Mapping[str, int]]
) -> dict[str, StageFigures]:
    """Divides the prefill pass and the first decode step among stages.

    Vision stages get the work of their own modules, `prefill` the rest of that pass, and `decode`
    the step. `own_params` are parameters of each stage by the module that holds them.
    """
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    prefill = stages[[*map(attrgetter("role"), stages)].index("prefill")]

    @cache
    def stage_of(path: str) -> str:
        owner = owner_among(stages, path)
        return owner.name if owner is not None and owner.role == "vision" else prefill.name

    kernels = grouped((stage_of(kernel.path), kernel) for kernel in traces.prefill.kernels)
    for path in traces.prefill.calls:
        calls[stage_of(path)][path] += 1
    figures = {}
    for stage in stages:
        name = stage.name
        if stage.role == "decode":
            kernels[name] = traces.decode_steps[0].kernels
            calls[name] = Counter(traces.decode_steps[0].calls)
        # Of both passes, the outermost module is the model itself.
        outermost = stage.prefixes if stage.role == "vision" else ("",)
        figures[name] = StageFigures(
            name=name,
            params=sum(own_params[name].values()),
            own_params=own_params[name],
            calls=next(filter(None, map(calls[name].get, outermost)), 0),
            kernels=tuple(map(partial(Kernel._replace, stage=name), merged(kernels.get(name, ())))),
            module_calls=dict(calls[name]),
            notes=stage.notes,
        )
    return figures


def count_experts(stage: StageFigures, routed_expert: re.Pattern[str] | None) -> int:
    """Routed experts of all layers that ran in a stage."""
    if routed_expert is None:
        return 0
    paths = {*map(attrgetter("path"), stage.kernels)}
    found = filter(None, map(routed_expert.fullmatch, paths))
    return len({*map(itemgetter("experts", "index"), found)})


def ledger_of(*traces: Trace) -> OperatorLedger:
    """Calls of every executed operator, by status and name."""
    counted, free, unknown = Counter[str](), Counter[str](), Counter[str]()
    for trace in traces:
        for kernel in trace.kernels:
            counted[kernel.operator] += kernel.calls
        free.update(trace.free)
        unknown.update(trace.unknown)
    return OperatorLedger(
        counted=dict(sorted(counted.items())),
        free=dict(sorted(free.items())),
        unknown=dict(sorted(unknown.items())),
    )


def batch_work(
    prefill: Work,
    traces: PassTraces,
    stretches: Iterable[range],
    routed_expert: re.Pattern[str] | None,
) -> Work:
    """Adds up the prefill pass and all decode steps, each over one more cached token.

    Within a stretch, step i costs the first plus i times the difference of the second: every
    operator ignores the cache or is linear in its length. Routed experts ignore it, but differ
    between steps, so the difference leaves them out. Of every stretch, the first two steps were
    traced.
    """
    traced = dict(zip(traces.step_numbers, traces.decode_steps, strict=True))
    batch = prefill
    for stretch in stretches:
        first, steps = traced[stretch[0]], len(stretch)
        batch = batch.plus(total_work(map(attrgetter("total"), first.kernels)).times(steps))
        if steps > 1:
            second = growing_work(traced[stretch[1]], routed_expert)
            growth = second.minus(growing_work(first, routed_expert))
            batch = batch.plus(growth.times(steps * (steps - 1) // 2))
    return batch


def causal_savable_flops(
    traces: PassTraces, workload: PageWorkload, routed_expert: re.Pattern[str] | None
) -> int:
    """Matrix FLOPs of eager attention over the prompts that a causal kernel may skip.

    A query and a key cost what one more cached token adds to a decode step: `longer_step`, or else
    the second. In a prompt of T tokens, T (T - 1) / 2 pairs have their key after the query.
    """
    if traces.longer_step is None:
        first, second = traces.decode_steps[:2]
    else:
        first, second = traces.decode_steps[-1], traces.longer_step
    growth = growing_work(second, routed_expert).minus(growing_work(first, routed_expert))
    return growth.matrix_flops * (workload.seq_len * (workload.seq_len - 1) // 2)


def linear_stretches(steps: range, run: Callable[[int], Work]) -> list[range]:
    """Ranges of decode steps within which the work is linear in the step number.

    Runs the first two steps, the middle one and the last. If those are not on a line (a window has
    filled up, rotary angles are recomputed), examines each half.
    """
    if not steps:
        return []
    half, last = len(steps) // 2, len(steps) - 1
    first = run(steps[0])
    growth = run(steps[min(1, last)]).minus(first)
    if all(run(steps[i]) == first.plus(growth.times(i)) for i in (half, last)):
        return [steps]
    return [*linear_stretches(steps[:half], run), *linear_stretches(steps[half:], run)]


def growing_work(step: Trace, routed_expert: re.Pattern[str] | None) -> Work:
    """Work of a decode step without its routed experts."""
    own = work_by(step.kernels, "path")
    grown = own if routed_expert is None else filterfalse(routed_expert.fullmatch, own)
    return total_work(map(own.__getitem__, grown))


def traced_modules(trace: Trace) -> dict[str, TracedModule]:
    """Calls, shapes and FLOPs (with all modules below) of every path that took part."""
    total, calls = with_ancestors(work_by(trace.kernels, "path")), Counter(trace.calls)
    found = {}
    for path in calls.keys() | total.keys():
        inputs, outputs = map(_tensors_only, trace.shapes.get(path, (None, None)))
        found[path] = TracedModule(calls[path], inputs, outputs, total.get(path, NO_WORK).flops)
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
