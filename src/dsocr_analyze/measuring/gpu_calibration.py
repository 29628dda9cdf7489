"""Measure a CUDA GPU's kernels and its host, fit formulas to them, and write a device profile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np
import torch

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware.devices import Gpu, gpu_catalogue
from dsocr_analyze.hardware.kernel_times.fitting import (
    SEED,
    MeasuredRows,
    check_can_fit,
    first_guess,
    fit_errors,
    fitted,
    with_slow_sizes,
)
from dsocr_analyze.hardware.kernel_times.products import BEST_64, BEST_128, BY_EXPERTS, BY_TOKENS
from dsocr_analyze.hardware.profile import (
    all_profiles,
    gpu_text,
    host_text,
    kind_text,
    top_text,
)
from dsocr_analyze.hardware.timed_device import MeasuredHost
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.measuring.calibration_needs import GPU_BYTES
from dsocr_analyze.measuring.gpu_cases import KernelCase, gpu_cases, rows_of
from dsocr_analyze.measuring.gpu_kernels import GpuKernels
from dsocr_analyze.measuring.installed_gpu import detect_gpu, host_figures
from dsocr_analyze.model.forward import is_out_of_memory
from dsocr_analyze.model.process_settings import exclusive

__all__ = [
    "calibrated_gpu",
    "calibrated_profile",
]


_BUDGET_SECONDS: Final = 300.0
_SHARE_OF_FITS: Final = 0.15
"""Share of the time that is left to fits."""

_SHARE_OF_TENSORS: Final = 0.8
"""Share of the stated memory; CUDA and its libraries take the rest."""

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
"""Share of the time of each kind and data type."""

Say = Callable[[str], None]


def calibrated_gpu(
    device: torch.device, *, on_progress: Say, budget_seconds: float = _BUDGET_SECONDS
) -> str:
    """The text of a profile of a CUDA device and its host, measured in so many seconds.

    `on_progress` is called with what is being measured and with the error of each fit.

    Raises:
        DeviceError: There is no such GPU, its memory is in use, or scipy is not installed.
    """
    end = time.monotonic() + budget_seconds
    check_can_fit()
    if device.type != "cuda" or not torch.cuda.is_available():
        raise DeviceError(f"device {device} is not a CUDA GPU; give cuda:0", arguments=["device"])
    dtype = "bfloat16" if _has_bfloat16(device) else "float16"
    try:
        with (
            exclusive(), torch.cuda.device(device), torch.random.fork_rng([device]),
            _limited_memory(device),
        ):  # fmt: skip
            kernels = GpuKernels(device, getattr(torch, dtype))
            on_progress("warming up the clocks")
            kernels.warm_up()
            found = detect_gpu(device, dtype, kernels)
            on_progress(f"{found.title}: the host")
            host = host_figures(device)
            return calibrated_profile(found, kernels, host, end - time.monotonic(), on_progress)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise DeviceError(
                f"{device} has too little free memory for calibration; stop other programs on it"
            ) from error
        first_line = (str(error).splitlines() or [""])[0]
        raise DeviceError(f"{device} could not be calibrated: {first_line}") from error
    finally:
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _limited_memory(device: torch.device) -> Iterator[None]:
    """Lets tensors take their share of the stated memory."""
    total = torch.cuda.get_device_properties(device).total_memory
    share = _SHARE_OF_TENSORS * GPU_BYTES / total
    torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def _has_bfloat16(device: torch.device) -> bool:
    if torch.version.hip is not None:
        return True
    return torch.cuda.get_device_capability(device) >= (8, 0)


def calibrated_profile(
    gpu: Gpu,
    timer: GpuKernels,
    host: MeasuredHost,
    budget_seconds: float,
    on_progress: Say,
    *,
    cases: Callable[[str, str], Sequence[KernelCase]] = gpu_cases,
) -> str:
    """The text of a GPU's profile, with a timer for its kernels.

    `cases` are to be measured of a kind and a data type, in order of priority.

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
        rows = _measured_rows(kind, cases(kind, dtype), timer, now + seconds, name, on_progress)
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
        parts.append(kind_text(kind, dtype, coefficients, errors, rows.version))
    if not parts:
        raise DeviceError(
            f"too few kernels of {gpu.title} could be measured in {budget_seconds:g} s;"
            " give it more time or more free memory"
        )
    head = top_text(name=gpu.name, source=gpu.source)
    own = [] if gpu.name in gpu_catalogue() else [gpu_text(gpu)]
    return "\n".join([head, *own, host_text(host), *parts])


def _is_wanted(kind: str, dtype: str, gpu: Gpu, timer: GpuKernels) -> bool:
    """Whether to measure a kind; torch's experts add nothing to a serving engine's."""
    if kind == "experts" and gpu.name in gpu_catalogue():
        known = all_profiles()[gpu.name].kinds.get((kind, dtype))
        if known is not None and not known.extrapolated:
            return False
    return timer.can_launch(kind)


def _measured_rows(
    kind: str, cases: Sequence[KernelCase], timer: GpuKernels, deadline: float, name: str,
    on_progress: Say,
) -> MeasuredRows | None:  # fmt: skip
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
    return rows_of(done, seconds, timer.framework(kind)) if done else None


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
"""Integer coefficients to try for each kind."""

_FEW: Final = 150
"""Rows used to try them."""
_LEAST_ROWS: Final = 24
_LEAST_HELD_OUT: Final = 8


def _coefficients(kind: str, dtype: str, training: MeasuredRows, gpu: Gpu) -> records.Coefficients:
    choices = _CHOICES[kind]
    guess: Any = first_guess(kind, dtype)
    tried: list[records.Coefficients] = [
        replace(guess, **dict(zip(choices, values, strict=True)))
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
