"""Measure a CUDA GPU's kernels and its host, fit formulas to them, and write a profile."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import shutil
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware import profile
from dsocr_analyze.hardware.devices import Gpu, catalogue_name, gpu_catalogue, plain_name
from dsocr_analyze.hardware.kernel_times.fitting import (
    SEED,
    MeasuredRows,
    check_can_fit,
    first_guess,
    fit_errors,
    fitted,
    with_slow_sizes,
)
from dsocr_analyze.hardware.kernel_times.formulas import BEST_64, BEST_128, BY_EXPERTS, BY_TOKENS
from dsocr_analyze.hardware.timed_device import MeasuredHost
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.kernels import Elements, Gemm
from dsocr_analyze.measuring.calibration_needs import GPU_BYTES
from dsocr_analyze.measuring.gpu_kernels import GpuKernels, KernelCase, gpu_cases, rows_of
from dsocr_analyze.measuring.machine import timer_of
from dsocr_analyze.model.forward import is_out_of_memory
from dsocr_analyze.model.process_settings import exclusive, quiet_transformers, replaced
from dsocr_analyze.model.torch_calls import Arguments, DispatchMode, Keywords, Operator, Value

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

__all__ = [
    "StepTimes",
    "calibrated_gpu",
    "calibrated_profile",
    "detect_gpu",
    "step_times",
]


_SHARE_OF_FITS: Final = 0.15
_SHARE_OF_TENSORS: Final = 0.8
"""Of the stated memory; CUDA and its libraries take the rest."""
_WARM_UP_SECONDS: Final = 1.0

_SHARES: Final = {
    ("gemm", "bfloat16"): 0.34,
    ("gemm", "float32"): 0.08,
    ("encoder_attention", "bfloat16"): 0.11,
    ("context_attention", "bfloat16"): 0.11,
    ("generation_attention", "bfloat16"): 0.12,
    ("masked_attention", "bfloat16"): 0.08,
    ("experts", "bfloat16"): 0.11,
    ("movement", "bfloat16"): 0.05,
}
"""Of the time, by kind and data type."""

Say = Callable[[str], None]


def calibrated_gpu(device: torch.device, *, on_progress: Say, budget_seconds: float) -> str:
    """The text of a profile of a CUDA device and its host, measured in so many seconds.

    Raises:
        DeviceError: There is no such GPU, its memory is in use, or scipy is not installed.
    """
    end = time.monotonic() + budget_seconds
    check_can_fit()
    if device.type != "cuda" or not torch.cuda.is_available():
        raise DeviceError(f"device {device} is not a CUDA GPU; give cuda:0", arguments=["device"])
    has_bfloat16 = torch.version.hip or torch.cuda.get_device_capability(device) >= (8, 0)
    dtype = "bfloat16" if has_bfloat16 else "float16"
    try:
        with exclusive(), torch.cuda.device(device), torch.random.fork_rng([device]):
            total = torch.cuda.get_device_properties(device).total_memory
            share = min(1.0, _SHARE_OF_TENSORS * GPU_BYTES / total)
            torch.cuda.set_per_process_memory_fraction(share, device)
            kernels = GpuKernels(device, getattr(torch, dtype))
            on_progress("warming up the clocks")
            settled = time.monotonic() + _WARM_UP_SECONDS
            while time.monotonic() < settled:
                kernels.seconds(_SQUARES["bfloat16"][0])
            found = detect_gpu(device, dtype, kernels)
            on_progress(f"{found.title}: the host")
            host = _host_figures(device)
            return calibrated_profile(found, kernels, host, end - time.monotonic(), on_progress)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise DeviceError(
                f"{device} has too little free memory for calibration; stop other programs on it"
            ) from error
        first_line = (str(error).splitlines() or [""])[0]
        raise DeviceError(f"{device} could not be calibrated: {first_line}") from error
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()


def calibrated_profile(
    gpu: Gpu,
    timer: GpuKernels,
    host: MeasuredHost,
    budget_seconds: float,
    on_progress: Say,
    *,
    cases: Callable[[str, str], Sequence[KernelCase]] = gpu_cases,
) -> str:
    """The text of a GPU's profile.

    `cases` gives what to measure of a kind and a data type, most important first.

    Raises:
        DeviceError: Too little was measured of every kind.
    """
    wanted = {key: share for key, share in _SHARES.items() if _is_wanted(*key, gpu, timer)}
    parts = []
    end, shares_left = time.monotonic() + budget_seconds, sum(wanted.values())
    for (kind, dtype), share in wanted.items():
        name = f"{kind} in {dtype if dtype == 'float32' else '16 bits'}"
        now = time.monotonic()
        seconds = (1 - _SHARE_OF_FITS) * max(0.0, end - now) * share / shares_left
        rows = _measured_rows(cases(kind, dtype), timer, now + seconds, name, on_progress)
        shares_left -= share
        held_out = 0 if rows is None else int(rows.held_out.sum())
        if rows is None or held_out < _LEAST_HELD_OUT or len(rows.seconds) - held_out < _LEAST_ROWS:
            on_progress(f"{name}: too few measurements; left out")
            continue
        coefficients = _coefficients(kind, dtype, rows.taken(~rows.held_out), gpu)
        errors = fit_errors(kind, rows, gpu, dtype, coefficients)
        on_progress(
            f"{name}: {len(rows.seconds)} kernels measured;"
            f" median error {100 * errors.held_out_median:.1f} % on kernels held out of the fit"
        )
        parts.append(profile.kind_text(kind, dtype, coefficients, errors, rows.version))
    if not parts:
        raise DeviceError(
            f"too few kernels of {gpu.title} could be measured in {budget_seconds:g} s;"
            " give it more time or more free memory"
        )
    head = profile.top_text(name=gpu.name, source=gpu.source)
    own = [] if gpu.name in gpu_catalogue() else [profile.gpu_text(gpu)]
    return "\n".join([head, *own, profile.host_text(host), *parts])


def _is_wanted(kind: str, dtype: str, gpu: Gpu, timer: GpuKernels) -> bool:
    """Whether to measure a kind; torch's experts add nothing to a serving engine's."""
    if kind == "experts" and gpu.name in gpu_catalogue():
        known = profile.all_profiles()[gpu.name].kinds.get((kind, dtype))
        if known is not None and not known.extrapolated:
            return False
    return timer.can_launch(kind)


def _measured_rows(
    cases: Sequence[KernelCase], timer: GpuKernels, deadline: float, name: str, on_progress: Say
) -> MeasuredRows | None:
    done: list[KernelCase] = []
    seconds: list[float] = []
    on_progress(f"{name}: up to {len(cases)} kernels, as time permits")
    for case in cases:
        safe_point()
        if time.monotonic() >= deadline:
            break
        try:
            seconds.append(timer.seconds(case))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            continue
        done.append(case)
    return rows_of(done, seconds, timer.framework(done[0].kind)) if done else None


# --- the fit ---------------------------------------------------------------------------------


_PREFILL: Final[dict[str, tuple[int, ...]]] = {
    "tile_queries": (64, 128, 192, 256), "tile_keys": (64, 128), "slots": (1, 2),
    "head_step": (32,), "splits": (0, 1),
}  # fmt: skip
_CHOICES: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "gemm": {},
    "encoder_attention": _PREFILL,
    "context_attention": _PREFILL,
    "generation_attention": {
        "tile_heads": (64,), "tile_keys": (64, 128), "slots": (1, 2), "split_needs_groups": (0,),
    },
    "masked_attention": {"tile_queries": (32, 64, 128), "tile_keys": (64, 128)},
    "experts": {"tiles": (BEST_64, BEST_128, BY_TOKENS, BY_EXPERTS), "inter_step": (1,)},
    "movement": {},
}  # fmt: skip
"""Integer coefficients to try."""

_FEW: Final = 150
"""Rows that try them."""
_LEAST_ROWS: Final = 24
_LEAST_HELD_OUT: Final = 8


def _coefficients(kind: str, dtype: str, training: MeasuredRows, gpu: Gpu) -> records.Coefficients:
    choices, guess = _CHOICES[kind], first_guess(kind, dtype)
    tried = [
        replace(guess, **dict(zip(choices, values, strict=True)))  # type: ignore[arg-type]  # integers
        for values in product(*choices.values())
    ]
    first = tried[0]
    if len(tried) > 1:
        order = np.random.default_rng(SEED).permutation(len(training.seconds))
        few = training.taken(order[:_FEW])
        costs = [fitted(kind, few, gpu, dtype, each, starts=1, evaluations=12) for each in tried]
        first = min(costs, key=lambda pair: pair[1])[0]
    found = fitted(kind, training, gpu, dtype, first, starts=3, evaluations=50)[0]
    if isinstance(found, records.GemmCoefficients) and dtype == "bfloat16":
        slowed = with_slow_sizes(found, training, gpu)
        found = fitted(kind, training, gpu, dtype, slowed, starts=1, evaluations=50)[0]
    return found


# --- the GPU ---------------------------------------------------------------------------------


_LIKE: Final = (
    (12, "rtx-pro-6000"), (10, "b200"), (9, "h100-sxm"), (8.1, "l40s"), (0, "a100-80gb-sxm"),
)  # fmt: skip
"""What fills in for unmeasured kinds, by least compute capability."""
_LIKE_ROCM: Final = "h100-sxm"
_LEAST_MEMORY: Final = 0.85
"""Of its memory that a whole GPU reports; a slice has less."""
_SQUARES: Final = {
    dtype: [KernelCase("gemm", Gemm(1, side, side, side), dtype=dtype) for side in (4096, 8192)]
    for dtype in ("bfloat16", "float32")
}
"""Products that reach the peak."""
_STREAMED: Final = KernelCase("movement", Elements(1 << 27), operator="clone")
"""A copy at the bandwidth."""


def detect_gpu(device: torch.device, dtype: str, timer: GpuKernels) -> Gpu:
    """The GPU of a CUDA device: the catalogue's if it is all of one.

    Others, and slices, have a name of their own and peaks that the timer measures.
    """
    properties, catalogue = torch.cuda.get_device_properties(device), gpu_catalogue()
    hip = torch.version.hip
    made_with = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}"
    source = (
        f"measured {dt.datetime.now(tz=dt.UTC).date()} on {properties.name}:"
        f" {_driver()}torch {torch.__version__}, {made_with}"
    )
    with contextlib.suppress(DeviceError):
        gpu = catalogue[catalogue_name(properties.name, catalogue)]
        if (
            properties.multi_processor_count == gpu.sms
            and properties.total_memory >= _LEAST_MEMORY * gpu.memory_bytes
        ):
            return replace(gpu, source=source)
    capability = float(f"{properties.major}.{properties.minor}")
    target = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    rocm = target if target.startswith("gfx") else ""
    like = next(name for least, name in _LIKE if capability >= least)
    name = plain_name(properties.name)
    with contextlib.suppress(DeviceError):
        catalogue_name(name, catalogue)  # a slice of a known one
        name = f"{name}-{properties.multi_processor_count}-sms"
    tflops = {
        of: max(2e-12 * each.macs / timer.seconds(each) for each in squares)
        for of, squares in _SQUARES.items()
    }
    return Gpu(
        name=name,
        title=properties.name,
        tensor_tflops=tflops["bfloat16"],
        bandwidth_gb_s=_STREAMED.nbytes / timer.seconds(_STREAMED) / 1e9,
        memory_gb=max(1, properties.total_memory // 10**9),
        source=source,
        tensor_dtype=dtype,
        sms=properties.multi_processor_count,
        l2_mb=properties.L2_cache_size / 1e6,
        float32_tflops=tflops["float32"],
        compute_capability=0 if rocm else capability,
        rocm_target=rocm,
        like=_LIKE_ROCM if rocm else like,
    )


def _driver() -> str:
    tool = shutil.which("nvidia-smi") or "nvidia-smi"
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"driver {said.split()[0]}, " if said.split() else ""


# --- the host --------------------------------------------------------------------------------


_REPEATS: Final = 200
_LEAST_US: Final = 0.01
"""Noise makes figures smaller."""
_COPIED: Final = 1 << 26
"""Bytes."""
_PROMPT: Final = 512
"""Tokens, which `infer()` searches for repeated n-grams."""
_NGRAM: Final = 35
_STEPS: Final = 40
_FIRST_STEPS: Final = 8
"""Discarded."""
_NO_KERNEL: Final = frozenset({
    "alias", "detach", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty",
    "_unsafe_view", "_reshape_alias", "_local_scalar_dense",
})  # fmt: skip
"""Operators besides views that launch nothing."""


def _host_figures(device: torch.device) -> MeasuredHost:
    steps = step_times(device)
    tiny = torch.zeros(64, device=device)
    issued = _seconds(lambda: tiny.add_(1).sum(), device, _REPEATS)
    waited = _seconds(lambda: tiny.add_(1).sum().item(), device, _REPEATS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tiny.add_(1)
    started = _seconds(graph.replay, device, _REPEATS)
    pageable = torch.ones(_COPIED, dtype=torch.uint8)
    return MeasuredHost(
        launch_us=steps.launch_us,
        sync_us=max(_LEAST_US, 1e6 * (waited - issued)),
        step_us=steps.between_us,
        graph_us=max(_LEAST_US, 1e6 * started),
        link_gb_s=_COPIED / _seconds(lambda: pageable.to(device), device, 1) / 1e9,
    )


def _seconds(run: Callable[[], Value], device: torch.device, repeats: int) -> float:
    """Per run: the median of some rounds, after a first one."""
    timer, found = timer_of(device), []
    for _ in range(6):
        timer.wait()
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        timer.wait()
        found.append((time.perf_counter() - start) / repeats)
    return statistics.median(found[1:])


class StepTimes(NamedTuple):
    """Of a `generate` step: operators launched, time per operator, and time between two calls."""

    operators: int
    launch_us: float
    between_us: float


def step_times(device: torch.device) -> StepTimes:
    """Run `generate` like `infer()`, on a decoder so small that only the host matters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_PROMPT + 2, hidden_size=64, intermediate_size=128, num_hidden_layers=6,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=4096,
        attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(device).eval()
    launched: list[Operator] = []

    def counted(operator: Operator, args: Arguments, kwargs: Keywords) -> Value:
        if not operator.is_view and operator.overloadpacket.__name__ not in _NO_KERNEL:
            launched.append(operator)
        return operator(*args, **kwargs)

    *_, (first, last) = _generated(model, 3, DispatchMode(counted), launched.__len__)
    operators = int(last - first)
    steps = _FIRST_STEPS + _STEPS
    spans = _generated(model, steps, contextlib.nullcontext(), time.perf_counter)[_FIRST_STEPS:]
    inside = statistics.median(end - start for start, end in spans)
    between = statistics.median(start - end for (_, end), (start, _) in pairwise(spans))
    return StepTimes(operators, 1e6 * inside / operators, 1e6 * between)


def _generated(
    model: LlamaForCausalLM,
    steps: int,
    around: contextlib.AbstractContextManager[object],
    clock: Callable[[], float],
) -> list[tuple[float, float]]:
    """When each call of the model, in a context, began and ended."""
    tokens, forward = torch.arange(2, _PROMPT + 2, device=model.device)[None], model.forward
    spans: list[tuple[float, float]] = []

    @functools.wraps(forward)
    def watched(*args: Value, **kwargs: Value) -> Value:
        safe_point()
        with around:
            start = clock()
            result: Value = forward(*args, **kwargs)
            spans.append((start, clock()))
        return result

    with (
        replaced(model, "forward", watched), torch.no_grad(), quiet_transformers(),
        warnings.catch_warnings(),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=steps,
            min_new_tokens=steps, do_sample=False, use_cache=True, eos_token_id=1,
            pad_token_id=0, no_repeat_ngram_size=_NGRAM,
        )  # fmt: skip
    return spans
