"""Turns the record of a run into figures: stages, the ledger, the batch, modules for a tree."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import filterfalse, pairwise, starmap
from operator import attrgetter, itemgetter

from dsocr_analyze.architectures.stages import StageScope, owner_among
from dsocr_analyze.figures import OperatorLedger, StageFigures
from dsocr_analyze.kernels import Kernel, Work, merged, total_work, with_ancestors, work_by
from dsocr_analyze.model.torch_calls import Shapes
from dsocr_analyze.module_tree import NestedShapes, TracedModule
from dsocr_analyze.trace.passes import PassTraces
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.workload import PageWorkload


def stage_figures(
    traces: PassTraces, stages: Sequence[StageScope], own_params: Mapping[str, Mapping[str, int]]
) -> dict[str, StageFigures]:
    """Divides the prefill pass and the first decode step among stages.

    Vision stages get the work of their own modules, `prefill` the rest of that pass, and `decode`
    the step. `own_params` are parameters of each stage by the module that holds them.
    """
    kernels: dict[str, list[Kernel]] = defaultdict(list)
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    prefill = stages[[*map(attrgetter("role"), stages)].index("prefill")]

    @cache
    def stage_of(path: str) -> str:
        owner = owner_among(stages, path)
        return owner.name if owner is not None and owner.role == "vision" else prefill.name

    for kernel in traces.prefill.kernels:
        kernels[stage_of(kernel.path)].append(kernel)
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
            kernels=tuple(map(partial(Kernel._replace, stage=name), merged(kernels[name]))),
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


def step_stretches(new_tokens: int, cuts: Sequence[int]) -> list[range]:
    """Ranges of decode steps of `new_tokens`, cut before the steps whose work changes in kind.

    The prefill pass yields one token, each step another.
    """
    bounds, steps = [0, *cuts, new_tokens - 1], range(new_tokens - 1)
    stretches = map(steps.__getitem__, starmap(slice, pairwise(bounds)))
    return [*filter(None, stretches)]


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
    total = with_ancestors(work_by(trace.kernels, "path"))
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
