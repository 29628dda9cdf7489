"""`dsocr-analyze measure`: real passes on a real device, compared with the prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsocr_analyze import analysis
from dsocr_analyze.cli import (
    completion,
    kept_files,
    options,
    page_options,
    printing,
)
from dsocr_analyze.cli.words import print_config_findings, warn_of_sizes

__all__ = ["measure"]

DeviceOption = Annotated[
    str, typer.Option("--device", metavar="cpu|cuda:N", help="Device to run on.")
]
RepeatsOption = Annotated[int, typer.Option("--repeats", metavar="N", help="Timed repeats.")]
WarmupsOption = Annotated[
    int, typer.Option("--warmups", metavar="N", help="Untimed repeats before them.")
]
StepsOption = Annotated[
    int, typer.Option("--steps", metavar="N", help="Decode steps of each repeat.")
]
AutocastOption = Annotated[
    int,
    typer.Option(
        "--autocast",
        metavar="0|1",
        autocompletion=completion.one_of("0", "1"),
        help="Run under the autocast of the vendor's infer(), in bfloat16.",
    ),
]


@page_options.of_a_page()
def measure(
    context: typer.Context,
    model: str | None = None,
    arch: str | None = None,
    config: Path | None = None,
    stages: Path | None = None,
    hf_config: Path | None = None,
    sliding_window: int | None = None,
    trust_remote_code: bool = False,
    device: DeviceOption = "cpu",
    dtype: str = "bfloat16",
    use_flash_attn: int = 0,
    repeats: RepeatsOption = 5,
    warmups: WarmupsOption = 2,
    steps: StepsOption = 4,
    autocast: AutocastOption = 0,
    profile: kept_files.ProfileOption = None,
    output_format: str = "table",
    json_file: str | None = None,
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Run a page's passes on a device, and compare them with the prediction."""
    under_autocast = options.switch("--autocast", autocast)
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    directory = page_options.model_directory_from(
        model, arch, config, trust_remote_code=trust_remote_code, sliding_window=sliding_window,
        stages=stages, hf_config=hf_config,
    )  # fmt: skip
    workload = page_options.page_request(context, directory).workload(directory.architecture)
    print_config_findings(context, directory, by_closed_forms=False)
    warn_of_sizes(context, directory, workload)
    analysis.start_torch()
    from dsocr_analyze.cli import device_runs
    from dsocr_analyze.measuring.passes import Protocol

    found = device_runs.measured(
        directory, workload, Protocol(repeats, warmups, steps, under_autocast), device=device,
        dtype=dtype, flash_attention=flash_attention, trust_remote_code=trust_remote_code,
        profiles=profile, options=options.options_used(context),
    )  # fmt: skip
    printing.emit(context, found, lambda: device_runs.measurement_said(found))
