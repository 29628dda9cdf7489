"""A profile of this machine's CPU: kernels measured and fitted, and Python's overhead."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.hardware.cpu.contributions import contributions, family_of, names_of
from dsocr_analyze.hardware.cpu.kernels import CACHED_BYTES, CpuKernels, Family
from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.hardware.profile import Profile
from dsocr_analyze.kernels import Gemm, Kernel, KernelsOf
from dsocr_analyze.measuring.cpu_passes import TimedPasses, shallow_network
from dsocr_analyze.measuring.cpu_samples import MeasuredKernel, kernels_alone
from dsocr_analyze.measuring.kept_memory import kept_memory
from dsocr_analyze.measuring.least_squares import fitted
from dsocr_analyze.measuring.passes import Protocol, measure_page
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.running.loading import load_model

__all__ = ["CPU_NAME", "calibrated_cpu", "cpu_title", "fitted_families"]

CPU_NAME: Final = "cpu"
"""Name of the profile of this machine's CPU."""
_ROUNDS: Final = 2
_BYTES_OF_PASSES: Final = 2_500_000_000
"""Memory of the shallow network and its passes per byte of an element, rounded up."""
_SHARE_OF_PASSES: Final = 0.6
"""Share of the measuring time spent on passes."""
_IMPORTANCE_IN_PASS: Final = 5.0
"""Weight of a kernel measured in a pass, relative to one measured alone."""
_FEWEST: Final = 4
"""Kernels that a fit needs; with fewer in training, all are used and none is held out."""

_TINY: Final[Mapping[str, Any]] = {
    "num_hidden_layers": 12, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64,
    "moe_intermediate_size": 16, "num_attention_heads": 4, "num_key_value_heads": 4,
    "projector_config": {"n_embed": 64},
}  # fmt: skip
"""A decoder whose kernels take almost no time, so that Python's overhead is what remains."""


def calibrated_cpu(
    *,
    budget_seconds: float,
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16),
    free_bytes: int | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Measure the CPU with torch's number of threads.

    Args:
        budget_seconds: Approximate time for measuring kernels.
        dtypes: Data types.
        free_bytes: Memory that may be used; passes are skipped if a network does not fit. None for
            no limit.
        on_progress: Called with what is being measured.
    """
    measured, without_passes = [], []
    with kept_memory(torch.device("cpu")):
        for dtype in dtypes:
            budget = budget_seconds / len(dtypes)
            if free_bytes is None or free_bytes >= _BYTES_OF_PASSES * dtype.itemsize:
                measured += _measured_kernels(dtype, budget, on_progress)
            else:
                measured += _measured_alone(dtype, budget, on_progress)
                without_passes.append(str(dtype).removeprefix("torch."))
    on_progress("operators of a tiny model")
    without_python = CpuKernels(torch.get_num_threads(), 0.0, fitted_families(measured))
    kernels = dataclasses.replace(without_python, operator_us=_operator_us(without_python))
    now = dt.datetime.now(dt.UTC).date().isoformat()
    source = f"dsocr-analyze calibrate, {now}, torch {torch.__version__}, {kernels.threads} threads"
    if without_passes:
        source += f", too little memory for passes in {' and '.join(without_passes)}"
    return Profile(_peaks(measured, kernels.threads, source), source, "", {}, cpu=kernels)


def _measured_kernels(
    dtype: torch.dtype, budget_seconds: float, on_progress: Callable[[str], None]
) -> list[MeasuredKernel]:
    """Kernels alone and in passes, in rounds, so that a disturbance affects only one round."""
    name = str(dtype).removeprefix("torch.")
    on_progress(f"{name}: a shallow network")
    passes = TimedPasses(shallow_network(dtype), _SHARE_OF_PASSES * budget_seconds, 2 * _ROUNDS)
    of_a_round = (1 - _SHARE_OF_PASSES) * budget_seconds / _ROUNDS
    rounds = []
    for number in range(1, _ROUNDS + 1):
        on_progress(f"{name}: kernels alone, round {number} of {_ROUNDS}")
        rounds.append(kernels_alone(dtype, budget_seconds=of_a_round))
        on_progress(f"{name}: kernels in passes, round {number} of {_ROUNDS}")
        for _ in range(2):  # the first run prepares the library
            passes.run()
    alone = [min(same, key=lambda each: each.seconds) for same in zip(*rounds, strict=True)]
    return [*alone, *passes.kernels()]


def _measured_alone(
    dtype: torch.dtype, budget_seconds: float, on_progress: Callable[[str], None]
) -> list[MeasuredKernel]:
    """Kernels alone, for when a network does not fit into memory."""
    name = str(dtype).removeprefix("torch.")
    on_progress(f"{name}: kernels alone; too little memory for a network and its passes")
    return kernels_alone(dtype, budget_seconds=budget_seconds)


def fitted_families(measured: Iterable[MeasuredKernel]) -> dict[tuple[str, str], Family]:
    """Coefficients of each family, and their error on the held-out groups."""
    rows: dict[tuple[str, str], list[MeasuredKernel]] = defaultdict(list)
    for each in measured:
        rows[family_of(each.kernel), each.kernel.dtype].append(each)
    return {key: _family(key[0], members) for key, members in sorted(rows.items())}


def _family(family: str, members: list[MeasuredKernel]) -> Family:
    names = names_of(family)
    parts = [contributions(each.kernel) for each in members]
    sizes = np.array([[part.get(name, 0.0) for name in names] for part in parts])
    microseconds = np.array([1e6 * each.seconds for each in members])
    training = np.array([not each.is_held_out for each in members])
    if training.sum() < _FEWEST:
        training[:] = True
    importance = np.array([_IMPORTANCE_IN_PASS if each.calls_in_pass else 1.0 for each in members])
    found = fitted(sizes[training], microseconds[training], importance[training])
    errors = np.abs(sizes @ found / microseconds - 1)
    held_out = errors[~training] if not training.all() else errors
    return Family(
        {name: float(f"{value:.5g}") for name, value in zip(names, found, strict=True) if value},
        float(f"{np.median(held_out):.3g}"),
        float(f"{np.quantile(held_out, 0.9):.3g}"),
        int((~training).sum()),
        int(training.sum()),
    )


# --- Python's overhead -----------------------------------------------------------------------


def _operator_us(kernels: CpuKernels) -> float:
    """Microseconds per operator of a model that the kernels do not explain."""
    directory = ModelDirectory.read(DEFAULT.reference)
    config = copy.deepcopy(dict(directory.config))
    for key, value in _TINY.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    directory = directory.with_config(config)
    model = load_model(directory, device=torch.device("cpu"), dtype=torch.float32)
    workload = DEFAULT.plan(page=(64, 64), crop_mode=False, image_size=64, max_new_tokens=64)
    measured = measure_page(model, workload, DEFAULT, Protocol(repeats=5, warmups=2, steps=16))
    composed = DEFAULT.forms.compose(
        DEFAULT.forms.dimensions(directory.config), workload, dtype_named("float32"), False,
        KernelsOf("cpu", kernels.threads),
    )  # fmt: skip
    step = composed.stages["decode"].kernels
    explained = sum(each.calls * kernels.seconds(each) for each in step)
    calls = sum(each.calls for each in step)
    left = measured.stages["decode"].fastest - explained
    return max(0.01, 1e6 * left / calls)


# --- peaks -----------------------------------------------------------------------------------


def _peaks(measured: Iterable[MeasuredKernel], threads: int, source: str) -> Gpu:
    """The highest rates that any kernel reached."""
    rows = list(measured)
    rates = {"float32": 0.0, "bfloat16": 0.0}
    for each in rows:
        if isinstance(each.kernel.dimensions, Gemm) and each.kernel.dtype in rates:
            rate = 2 * each.kernel.work.macs / each.seconds
            rates[each.kernel.dtype] = max(rates[each.kernel.dtype], rate)
    moved = max(_bytes_per_second(each.kernel, each.seconds) for each in rows)
    highest = max(rates.values())
    return Gpu(
        name=CPU_NAME,
        title=f"{cpu_title()}, {threads} threads",
        tensor_tflops=float(f"{(rates['bfloat16'] or highest) / 1e12:.4g}"),
        float32_tflops=float(f"{(rates['float32'] or highest) / 1e12:.4g}"),
        bandwidth_gb_s=float(f"{moved / 1e9:.4g}"),
        memory_gb=max(1, round(_memory_bytes() / 1e9)),
        source=source,
        sms=threads,
        l2_mb=1,
    )


def _bytes_per_second(kernel: Kernel, seconds: float) -> float:
    """Bandwidth of kernels that move far more than fits in caches; 0 for others."""
    large = kernel.work.bytes_moved > CACHED_BYTES or (
        isinstance(kernel.dimensions, Gemm) and kernel.dimensions.m == 1
    )
    return kernel.work.bytes_moved / seconds if large else 0.0


def cpu_title() -> str:
    """The CPU's name according to the system."""
    file = Path("/proc/cpuinfo")
    if file.is_file():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
