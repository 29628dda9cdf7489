"""`dsocr-analyze calibrate`: measures a profile of this machine's device."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from dsocr_analyze import analysis
from dsocr_analyze.cli import kept_files, options, printing
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.measuring import calibration_needs as needs
from dsocr_analyze.output_files import write_files
from dsocr_analyze.own_folder import own_folder_to_write

__all__ = ["calibrate"]

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
    analysis.start_torch()
    from dsocr_analyze.cli import device_runs

    text = device_runs.calibrated(
        device, ends=began + seconds, has_passes=needs.has_passes(seconds)
    )
    named = f"{tomllib.loads(text)['name']}.toml"
    file = output or own_folder_to_write() / kept_files.PROFILES / named
    context.obj.begin_writing()
    options.prepare_output(file.parent)
    write_files({file: text})
    printing.show("table", None, lambda: device_runs.calibration_said(file, device))
