"""`dsocr-analyze calibrate`: a profile of the device at hand, measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import options
from dsocr_analyze.cli.devices import profile_folder
from dsocr_analyze.cli.progress import announced_steps
from dsocr_analyze.cli.torch_start import start_torch
from dsocr_analyze.errors import DeviceError, WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.hardware.cpu.kernels import Family
    from dsocr_analyze.report.tables import Table

__all__ = ["calibrate"]

DeviceOption = Annotated[
    str, typer.Option("--device", metavar="cpu|cuda:N", help="The device to measure.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Where the profile goes. Default: $XDG_CONFIG_HOME/dsocr-analyze/devices, where every"
        " command finds it.",
    ),
]
BudgetOption = Annotated[
    float,
    typer.Option(
        "--seconds", metavar="N", help="About how long kernels are measured, from 20 to 3600."
    ),
]


def calibrate(
    context: typer.Context,
    device: DeviceOption = "cpu",
    output: OutputOption = None,
    seconds: BudgetOption = 180.0,
    debug: options.DebugOption = False,
) -> None:
    """Measure this device's kernels and write a profile that predicts its seconds."""
    if not 20 <= seconds <= 3600:
        raise WorkloadError(f"--seconds {seconds:g} is not possible; give 20 to 3600")
    start_torch()
    from dsocr_analyze.session import parse_device

    torch_device = parse_device(device)
    if torch_device.type == "meta":
        raise DeviceError("--device meta computes nothing; use cpu or cuda:N")
    with announced_steps() as announce:
        from dsocr_analyze.measuring.cpu_calibration import calibrated_cpu
        from dsocr_analyze.measuring.profile_text import cpu_profile_text

        profile = calibrated_cpu(budget_seconds=seconds, on_progress=announce)
    file = output or profile_folder() / f"{profile.gpu.name}.toml"
    context.obj.begin_writing()
    _write(file, cpu_profile_text(profile))
    from dsocr_analyze.cli.printing import print_table

    assert profile.cpu is not None, "a CPU was measured"
    print_table(_table(profile.gpu.title, profile.cpu.families))
    print(f"an operator of a model adds {profile.cpu.operator_us:.1f} us")
    print(f"wrote {file}; use it with: dsocr-analyze measure --device {device}")


def _write(file: Path, text: str) -> None:
    from dsocr_analyze.report.files import write_files

    options.prepare_output(file.parent)
    write_files({file: text})


def _table(title: str, families: Mapping[tuple[str, str], Family]) -> Table:
    from dsocr_analyze.report.tables import Table

    return Table(
        f"{title}: error of predicted kernel times on sizes held out of the fit",
        ("kernel", "type", "median", "90th", "held out", "fitted"),
        tuple(
            (name, dtype, f"{100 * each.median:.1f} %", f"{100 * each.p90:.0f} %",
             str(each.held_out_rows), str(each.training_rows))
            for (name, dtype), each in families.items()
        ),
        label_columns=2,
    )  # fmt: skip
