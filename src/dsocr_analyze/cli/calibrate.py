"""`dsocr-analyze calibrate`: measures a profile of this machine's device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import options
from dsocr_analyze.cli.kept_files import PROFILES
from dsocr_analyze.cli.printing import print_table
from dsocr_analyze.cli.progress import announced_steps
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.cli.torch_start import start_torch
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.measuring import calibration_needs as needs
from dsocr_analyze.own_folder import own_folder_to_write

if TYPE_CHECKING:
    import torch

    from dsocr_analyze.hardware.cpu.kernels import Family
    from dsocr_analyze.hardware.profile import Fitted

__all__ = ["calibrate", "print_calibration"]

DeviceOption = Annotated[
    str, typer.Option("--device", metavar="cpu|cuda:N", help="The device to measure.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="File for the profile. Default: one in $XDG_CONFIG_HOME/dsocr-analyze/devices, where"
        " every command finds it.",
    ),
]
TimeOption = Annotated[
    float,
    typer.Option(
        "--seconds",
        metavar="N",
        help="Time for the whole calibration, 20 to 3600. From 90 on, a CPU's kernels are measured"
        " in passes too.",
    ),
]


def calibrate(
    context: typer.Context,
    device: DeviceOption = "cpu",
    output: OutputOption = None,
    seconds: TimeOption = 300.0,
    debug: bool = False,
) -> None:
    """Measure this device's kernels and write a profile that predicts its seconds."""
    began = time.monotonic()
    least, most = needs.LEAST_SECONDS, needs.MOST_SECONDS
    if not least <= seconds <= most:
        raise WorkloadError(f"--seconds {seconds:g} is out of range; give {least:g} to {most:g}")
    needs.check_memory(seconds, on_cpu=device == "cpu")
    memory = needs.stated_memory(seconds, on_cpu=device == "cpu")
    complain(f"calibration of {device} takes about {seconds:g} s, up to {memory}")
    start_torch()
    from dsocr_analyze.session import parse_device

    torch_device = parse_device(device)
    if torch_device.type == "meta":
        raise DeviceError("--device meta computes nothing; use cpu or cuda:N")
    with announced_steps(in_lines=True) as announce:
        left = seconds - (time.monotonic() - began)
        text = _calibrated(torch_device, left, announce, has_passes=needs.has_passes(seconds))
    import tomllib

    from dsocr_analyze.output_files import write_files

    name = tomllib.loads(text)["name"]
    file = output or own_folder_to_write() / PROFILES / f"{name}.toml"
    context.obj.begin_writing()
    options.prepare_output(file.parent)
    write_files({file: text})
    print_calibration(file, device)


def _calibrated(
    device: torch.device, seconds: float, announce: Callable[[str], None], *, has_passes: bool
) -> str:
    """The text of a profile of the device, measured in some seconds."""
    if device.type == "cuda":
        from dsocr_analyze.measuring.gpu_calibration import calibrated_gpu

        return calibrated_gpu(device, on_progress=announce, budget_seconds=seconds)
    from dsocr_analyze.hardware.profile_text import cpu_profile_text
    from dsocr_analyze.measuring.cpu_calibration import calibrated_cpu
    from dsocr_analyze.running.failures import is_out_of_memory

    try:
        found = calibrated_cpu(budget_seconds=seconds, has_passes=has_passes, on_progress=announce)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceError(
            f"{device} ran out of memory during calibration; free some, or raise the limit of this"
            " process"
        ) from error
    return cpu_profile_text(found)


def print_calibration(file: Path, device: str) -> None:
    """Print the errors of a profile, read back from its file as any command would."""
    from dsocr_analyze.hardware.profile import profile_from_file
    from dsocr_analyze.report.table import Table

    profile = profile_from_file(file)
    measured: Mapping[tuple[str, str], Fitted | Family] = profile.fitted
    if profile.cpu is not None:
        measured = profile.cpu.families
    rows = tuple(
        (name, dtype, f"{100 * each.median:.1f} %", f"{100 * each.p90:.0f} %",
         str(each.held_out_rows), str(each.training_rows))
        for (name, dtype), each in measured.items()
    )  # fmt: skip
    title = f"{profile.gpu.title}: error of predicted kernel times on sizes held out of the fit"
    columns = ("kernel", "type", "median", "90th", "held out", "fitted")
    print_table(Table(title, columns, rows, label_columns=2))
    if profile.cpu is not None:
        print(f"an operator of a model adds {profile.cpu.operator_us:.1f} us")
    print(f"wrote {file}; use it with: dsocr-analyze measure --device {device}")
