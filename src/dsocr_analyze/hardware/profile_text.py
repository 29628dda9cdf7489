"""Write device profiles in the format that `profile_from_file` reads."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsocr_analyze.hardware.devices import Gpu
    from dsocr_analyze.hardware.kernel_times.coefficients import Coefficients
    from dsocr_analyze.hardware.kernel_times.fitting import FitErrors
    from dsocr_analyze.hardware.profile import MeasuredHost, Profile

__all__ = ["cpu_profile_text", "gpu_text", "host_text", "kind_text", "top_text"]

_LEAST_ERROR: Final = 1e-4
"""Floor for stated errors: 0 would look as if nothing had been held out."""


def top_text(**entries: str) -> str:
    """The keys before the first table: `name`, `source`, `licence`."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in entries.items())


def gpu_text(gpu: Gpu) -> str:
    """The `[gpu]` table of a GPU that is not in the catalogue."""
    defaults = {field.name: field.default for field in dataclasses.fields(gpu)}
    values: Mapping[str, str | float] = dataclasses.asdict(gpu)
    lines = [
        f"{key} = {json.dumps(value) if isinstance(value, str) else _number(value)}"
        for key, value in values.items()
        if key != "name" and value != defaults[key]
    ]
    return "\n".join(["[gpu]", *lines]) + "\n"


def host_text(host: MeasuredHost) -> str:
    """The `[host]` table of measured host figures."""
    values: Mapping[str, float] = dataclasses.asdict(host)
    return "".join(["[host]\n", *(f"{key} = {_number(each)}\n" for key, each in values.items())])


def kind_text(
    kind: str,
    dtype: str,
    coefficients: Coefficients,
    errors: FitErrors,
    framework: str,
    left_out: tuple[float, float] | None = None,
) -> str:
    """The tables of a kernel kind in a data type.

    Args:
        kind: The kernel kind.
        dtype: Data type.
        coefficients: The fitted coefficients.
        errors: The errors of the fit.
        framework: What launched the kernels, with its version.
        left_out: For experts: median and 90th percentile of the error on each training group under
            a fit to the others.
    """
    median, ninety = (max(_LEAST_ERROR, e) for e in (errors.held_out_median, errors.held_out_p90))
    lines = [
        f"[{kind}.{dtype}]", f"framework = {json.dumps(framework)}",
        f"training_rows = {errors.training_rows}",
        f"training_median = {errors.training_median:.4f}",
        f"held_out_rows = {errors.held_out_rows}",
        f"held_out_groups = {errors.held_out_groups}",
        f"held_out_median = {median:.4f}", f"held_out_p90 = {ninety:.4f}",
        *([] if left_out is None
          else [f"left_out_median = {left_out[0]:.4f}", f"left_out_p90 = {left_out[1]:.4f}"]),
        "", f"[{kind}.{dtype}.coefficients]",
        *(f"{name} = {_number(value)}"
          for name, value in dataclasses.asdict(coefficients).items()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def cpu_profile_text(profile: Profile) -> str:
    """The whole profile of a CPU."""
    cpu = profile.cpu
    assert cpu is not None, "it is a CPU's"
    tables = [
        top_text(name=profile.gpu.name, source=profile.source),
        gpu_text(profile.gpu),
        f"[cpu]\nthreads = {cpu.threads}\noperator_us = {_number(cpu.operator_us)}\n",
    ]
    for (family, dtype), entry in cpu.families.items():
        lines = [
            f"[kernels.{family}.{dtype}]",
            f"training_rows = {entry.training_rows}",
            f"held_out_rows = {entry.held_out_rows}",
            f"held_out_median = {_number(entry.median)}",
            f"held_out_p90 = {_number(entry.p90)}",
            "",
            f"[kernels.{family}.{dtype}.coefficients]",
            *(f'"{name}" = {_number(value)}' for name, value in entry.coefficients.items()),
        ]
        tables.append("\n".join(lines) + "\n")
    return "\n".join(tables)


def _number(value: float) -> str:
    """A number to six significant digits; integers without a decimal point."""
    return f"{value:.6g}"
