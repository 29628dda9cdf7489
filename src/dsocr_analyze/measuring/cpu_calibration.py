"""A profile of this machine's CPU: kernels measured and fitted, and Python's overhead.

Kernels are measured alone, and in passes of a shallow network: there, a kernel finds caches and
memory as the previous operators left them.
"""

import copy
import dataclasses
import datetime as dt
import itertools
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.coefficients import Fitted
from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.hardware.timed_device import (
    UNREPLACED,
    CpuKernels,
    Device,
    contributions,
    family_of,
    measured_family,
    names_of,
)
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.kernels import Gemm, Kernel, dtype_named, grouped
from dsocr_analyze.measuring.machine import (
    CPU_NAME,
    device_title,
    give_back_memory,
    kept_memory,
)
from dsocr_analyze.measuring.samples import (
    KernelsAlone,
    MeasuredKernel,
    all_samples,
)
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running, running_unwatched
from dsocr_analyze.model.generation import Generation, left_as_it_was
from dsocr_analyze.model.loading import LoadedModel, load_model
from dsocr_analyze.model.process_settings import (
    Arguments,
    DispatchMode,
    Keywords,
    Operator,
    Value,
    exclusive,
)
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder

_CPU: Final = torch.device("cpu")
_LEAST_ROUNDS: Final = 2
_ROUND_SECONDS: Final = 90.0
_SHARE_OF_PASSES: Final = 0.6
"""Of a round."""
_SHARE_OF_TINY: Final = 0.06
_TINY_RUNS: Final = 7
_TINY_STEPS: Final = 8
_SHARE_OF_FITS: Final = 0.04
_IMPORTANCE_IN_PASS: Final = 5.0
"""Relative to a kernel alone."""
_FEWEST: Final = 4
"""With fewer kernels, none is held out."""


def calibrated_cpu(
    *,
    budget_seconds: float,
    has_passes: bool,
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16),
    on_progress: Callable[[str], None] = lambda _: None,
) -> Device:
    """Measure the CPU with torch's number of threads, in passes too if it `has_passes`.

    Raises:
        DeviceError: Too little was measured in that time.
    """
    began = time.monotonic()
    end = began + budget_seconds * (1 - _SHARE_OF_FITS)
    on_progress("operators of a tiny model")
    step, step_seconds = _tiny_step(began + _SHARE_OF_TINY * budget_seconds)
    measured: list[MeasuredKernel] = []
    with kept_memory(_CPU):
        for number, dtype in enumerate(dtypes):
            now = time.monotonic()
            deadline = now + (end - now) / (len(dtypes) - number)
            measured += _measured_kernels(dtype, deadline, has_passes, on_progress)
    on_progress("fits")
    families = fitted_families(measured)
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    missing = [f"{family} in {name}" for family in UNREPLACED for name in names
               if (family, name) not in families]  # fmt: skip
    missing += [each.operator for each in step if measured_family(each, families) is None]
    if missing:
        raise DeviceError(
            f"too few kernels could be measured in {budget_seconds:.0f} s: no {missing[0]}; give it"
            " more time, or stop other programs"
        )
    kernels = CpuKernels(torch.get_num_threads(), 0.0, families)
    explained = sum(each.calls * kernels.seconds(each) for each in step)
    left = 1e6 * (step_seconds - explained) / sum(each.calls for each in step)
    kernels = dataclasses.replace(kernels, operator_us=max(0.01, left))
    today = dt.datetime.now(dt.UTC).date().isoformat()
    source = (
        f"dsocr-analyze calibrate, {today}, torch {torch.__version__}, {kernels.threads} threads"
    )
    if not has_passes:
        source += ", too little time for passes"
    return Device(_peaks(measured, kernels.threads, source), source, "", {}, cpu=kernels)


def _measured_kernels(
    dtype: torch.dtype, deadline: float, has_passes: bool, on_progress: Callable[[str], None]
) -> list[MeasuredKernel]:
    """Alone and in passes, in rounds: a disturbance affects only one."""

    def say(text: str) -> None:
        on_progress(f"{str(dtype).removeprefix('torch.')}: {text}")

    alone = KernelsAlone(dtype, all_samples(dtype))
    if not has_passes:
        while time.monotonic() < deadline:
            alone.run(deadline, say)
        return alone.kernels()
    say("a shallow network")
    passes = TimedPasses(reduced_network(dtype, _SHALLOW, sam_layers=4, clip_layers=8))
    rounds = max(_LEAST_ROUNDS, round((deadline - time.monotonic()) / _ROUND_SECONDS))
    for left in range(rounds, 0, -1):
        now = time.monotonic()
        of_round = (deadline - now) / left
        give_back_memory()
        alone.run(now + (1 - _SHARE_OF_PASSES) * of_round, say)
        give_back_memory()
        passes.run(now + of_round, say)
    return [*alone.kernels(), *passes.kernels()]


def fitted_families(measured: Iterable[MeasuredKernel]) -> dict[tuple[str, str], Fitted]:
    """Each family's coefficients, and their error on held-out groups."""
    rows = grouped(((family_of(each.kernel), each.kernel.dtype), each) for each in measured)
    return {key: _family(key[0], members) for key, members in sorted(rows.items())}


def _family(family: str, members: list[MeasuredKernel]) -> Fitted:
    names = names_of(family)
    parts = [contributions(each.kernel) for each in members]
    sizes = np.array([[part.get(name, 0.0) for name in names] for part in parts])
    microseconds = np.array([1e6 * each.seconds for each in members])
    training = np.array([not each.is_held_out for each in members])
    if training.sum() < _FEWEST:
        training[:] = True
    importance = np.array([_IMPORTANCE_IN_PASS if each.calls_in_pass else 1.0 for each in members])
    found = _fitted(sizes[training], microseconds[training], importance[training])
    errors = np.abs(sizes @ found / microseconds - 1)
    held_out = errors[~training] if not training.all() else errors
    return Fitted(
        {name: float(f"{value:.5g}") for name, value in zip(names, found, strict=True) if value},
        float(f"{np.median(held_out):.3g}"),
        float(f"{np.quantile(held_out, 0.9):.3g}"),
        int((~training).sum()),
        int(training.sum()),
    )


# --- kernels in passes -----------------------------------------------------------------------


_STEPS: Final = 3


class PageOfPass(NamedTuple):
    """A page whose kernels are measured, of another size than those of the published modes."""

    base_size: int
    image_size: int = 0
    """0 for no tiles."""
    page: tuple[int, int] = (1000, 1400)
    """Width and height in pixels, which decide the number of tiles."""
    is_held_out: bool = False


_PAGES: Final = (
    PageOfPass(448),
    PageOfPass(704, is_held_out=True),
    PageOfPass(832),
    PageOfPass(704, 448, (1800, 900)),
    PageOfPass(576),
    PageOfPass(960),
    PageOfPass(896, 384, (1200, 1800), is_held_out=True),
    PageOfPass(832, 704, (1800, 900)),
)
"""The last ones are left out if there is too little time."""


_TINY: Final[Mapping[str, Any]] = {
    "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64,
    "moe_intermediate_size": 16, "num_attention_heads": 4, "num_key_value_heads": 4,
    "projector_config": {"projector_type": "linear", "input_dim": 2048, "n_embed": 64},
}  # fmt: skip
"""A decoder whose kernels take almost no time: what remains is Python's."""
_SHALLOW: Final[Mapping[str, Any]] = {
    "num_hidden_layers": 4, "n_routed_experts": 16, "vocab_size": 32_768
}  # fmt: skip
"""The published widths with fewer layers, experts and words: 1.9 GB in float32."""


def reduced_network(
    dtype: torch.dtype, changes: Mapping[str, Any], *, sam_layers: int, clip_layers: int
) -> LoadedModel:
    """The reference with changes of its decoder, and so many layers of its encoders."""
    directory = ModelDirectory.read(DEFAULT.reference)
    config = copy.deepcopy({**directory.config, **changes})
    width = config["vision_config"]["width"]
    width["sam_vit_b"] |= {"layers": sam_layers, "global_attn_indexes": [sam_layers - 1]}
    width["clip-l-14-224"] |= {"layers": clip_layers}
    return load_model(directory.with_config(config), device=_CPU, dtype=dtype)


class TimedPasses:
    """Times the operators of repeated passes."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._fastest: dict[PageOfPass, _Run] = {}
        """By page, each stage's fastest run so far."""

    def run(self, deadline: float, on_progress: Callable[[str], None] = lambda _: None) -> None:
        """Run the pages in turn until a time of the monotonic clock, which ends a pass.

        The first time, pages not reached in half of the time are left out.
        """
        began = time.monotonic()
        if not self._fastest:
            for page in _PAGES:
                half = (began + deadline) / 2 if self._fastest else deadline
                if not self._run(page, half, on_progress):
                    break
        while self._fastest and all(
            self._run(page, deadline, on_progress) for page in tuple(self._fastest)
        ):
            pass

    def _run(self, page: PageOfPass, deadline: float, on_progress: Callable[[str], None]) -> bool:
        on_progress(f"kernels in passes, a page of {page.base_size} pixels")
        found = _timed(self._model, page, deadline)
        if found is None:
            return False
        before = self._fastest.get(page, found)
        self._fastest[page] = {
            stage: min(before[stage], run, key=lambda run: sum(seconds for _, seconds in run))
            for stage, run in found.items()
        }
        return True

    def kernels(self) -> list[MeasuredKernel]:
        """Operators that are single kernels: the mean of equal ones in a page's fastest stages."""
        found = []
        for page, run in self._fastest.items():
            equal = grouped(
                (kernels[0]._replace(path="", stage=""), seconds)
                for operators in run.values()
                for kernels, seconds in operators
                if len(kernels) == 1 and kernels[0].calls == 1
            )
            found += [
                MeasuredKernel(kernel, statistics.fmean(seconds), page.is_held_out, len(seconds))
                for kernel, seconds in equal.items()
            ]
        return found


_Timed = tuple[tuple[Kernel, ...], float]
_Run = dict[str, list[_Timed]]
"""By stage; all decode steps are one."""


class _TimeIsUp(Exception):  # noqa: N818 - no error
    """The deadline came before the end of a pass."""


def _timed(model: LoadedModel, page: PageOfPass, deadline: float) -> _Run | None:
    safe_point()
    workload = DEFAULT.plan(
        page=page.page, base_size=page.base_size, image_size=page.image_size or page.base_size,
        crop_mode=bool(page.image_size), max_new_tokens=_STEPS + 1,
    )  # fmt: skip
    recorder = Recorder(model.module)
    passes: list[_Pass] = [(recorder.trace, [])]

    def begin() -> _Pass:
        passes.append((recorder.begin(), []))
        return passes[-1]

    def run(operator: Operator, args: Arguments, kwargs: Keywords) -> Value:
        trace, calls = passes[-1]
        if time.monotonic() >= deadline:
            raise _TimeIsUp
        booked, is_whole, start = (
            len(trace.kernels), not recorder.inside_operator, time.perf_counter()
        )  # fmt: skip
        output = operator(*args, **kwargs)
        calls.append((booked, is_whole, time.perf_counter() - start))
        return output

    try:
        with (
            exclusive(),
            left_as_it_was(model.module.modules()),
            running(model.device),
            DispatchMode(run),
            recorder,
        ):
            generation = Generation(model, workload, DEFAULT, begin)
            prefill, *steps = generation.prefill(), *map(generation.step, range(_STEPS))
    except _TimeIsUp:
        return None
    found: _Run = defaultdict(list)
    vision = {stage.name for stage in DEFAULT.stages if stage.role == "vision"}
    for kernels, seconds in _operators(*prefill):
        owner = DEFAULT.owner_of(kernels[0].path)
        found[owner if owner in vision else "prefill"].append((kernels, seconds))
    found["decode"] = [*itertools.chain(*itertools.starmap(_operators, steps))]
    return found


_Pass = tuple[Trace, list[tuple[int, bool, float]]]
"""A trace and the calls below it: kernels booked before each, whether it is an operator of the
trace's, not a part of one, and its seconds."""


def _operators(trace: Trace, calls: list[tuple[int, bool, float]]) -> Iterator[_Timed]:
    """The operators of a pass that have kernels."""
    seen, seconds = 0, 0.0
    ends = [*(booked for booked, *_ in calls[1:]), len(trace.kernels)]
    for (_, is_whole, took), end in zip(calls, ends, strict=True):
        seconds += took
        if end > seen:
            yield tuple(trace.kernels[seen:end]), seconds
        if end > seen or is_whole:
            seen, seconds = end, 0.0


# --- Python's overhead -----------------------------------------------------------------------


def _tiny_step(deadline: float) -> tuple[list[Kernel], float]:
    """The kernels of a tiny model's decode step, and the seconds of the fastest run."""
    model = reduced_network(torch.float32, _TINY, sam_layers=1, clip_layers=1)
    workload = DEFAULT.plan(page=(64, 64), crop_mode=False, image_size=64, max_new_tokens=64)
    composed = DEFAULT.forms.compose(
        model.directory.dimensions(), workload, dtype_named("float32"), False
    )
    found: list[float] = []
    with exclusive(), left_as_it_was(model.module.modules()), running_unwatched(_CPU):
        while not found or (time.monotonic() < deadline and len(found) < _TINY_RUNS):
            generation = Generation(model, workload, DEFAULT, time.perf_counter)
            generation.prefill()
            steps: list[float] = []
            while not steps or (time.monotonic() < deadline and len(steps) < _TINY_STEPS):
                began = generation.step(len(steps))
                steps.append(time.perf_counter() - began)
            found.append(statistics.fmean(steps))
    return [*composed.stages["decode"].kernels], min(found)


# --- peaks -----------------------------------------------------------------------------------


def _peaks(measured: Iterable[MeasuredKernel], threads: int, source: str) -> Gpu:
    rates, bandwidth = {"float32": 0.0, "bfloat16": 0.0}, 0.0
    for kernel, seconds, *_ in measured:
        product = kernel.dimensions if isinstance(kernel.dimensions, Gemm) else None
        if product is not None and kernel.dtype in rates:
            rates[kernel.dtype] = max(rates[kernel.dtype], 2 * kernel.work.macs / seconds)
        moved = kernel.work.bytes_moved  # by what moves far more than fits in caches
        if moved > CpuKernels.CACHED_BYTES or (product is not None and product.m == 1):
            bandwidth = max(bandwidth, moved / seconds)
    highest = max(rates.values())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Gpu(
        name=CPU_NAME,
        title=device_title(_CPU),
        tensor_tflops=float(f"{(rates['bfloat16'] or highest) / 1e12:.4g}"),
        float32_tflops=float(f"{(rates['float32'] or highest) / 1e12:.4g}"),
        bandwidth_gb_s=float(f"{bandwidth / 1e9:.4g}"),
        memory_gb=max(1, round(memory / 1e9)),
        source=source,
        sms=threads,
        l2_mb=1,
    )


# --- least squares ---------------------------------------------------------------------------


_ROUNDS = 6
_SWEEPS = 400
_SETTLED = 1e-9
"""Largest change, relative to the largest coefficient."""
_SCALE = 0.1
"""Relative error beyond which a row gets less weight."""

Floats = NDArray[np.float64]


def _fitted(sizes: Floats, seconds: Floats, importance: Floats) -> Floats:
    """Coefficients `x >= 0` that bring `sizes @ x` close to `seconds`, in relative error per row.

    Coordinate descent (Franc, Hlavac and Navara 2005), reweighted for a soft-L1 loss.

    Args:
        sizes: `[rows, columns]`, none below 0.
        seconds: `[rows]`, all above 0.
        importance: `[rows]`.
    """
    relative = sizes / seconds[:, None]
    scale = relative.max(axis=0)
    scale[scale == 0] = 1.0
    columns = relative / scale
    x = np.zeros(columns.shape[1])
    weights = importance
    for _ in range(_ROUNDS):
        weighted = columns * weights[:, None]
        gram, target = weighted.T @ columns, weighted.sum(axis=0)
        # Slight regularization, so that a column that others also explain stays small.
        gram[np.diag_indices_from(gram)] += 1e-9 * max(1.0, float(gram.max()))
        for _ in range(_SWEEPS):
            before = x.copy()
            for j in range(len(x)):
                slope = gram[j] @ x - target[j]
                x[j] = max(0.0, x[j] - slope / gram[j, j])
            if np.abs(x - before).max() <= _SETTLED * x.max():
                break
        errors = columns @ x - 1
        weights = importance / np.sqrt(1 + (errors / _SCALE) ** 2)
    found: Floats = x / scale
    return found
