"""`dsocr-analyze measure`: real passes on a real device, compared with the prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import completion, options, page_options
from dsocr_analyze.cli.kept_files import ProfileOption, user_profiles
from dsocr_analyze.cli.printing import Lines, Said, emit
from dsocr_analyze.cli.progress import announced_steps
from dsocr_analyze.cli.torch_start import start_torch
from dsocr_analyze.cli.words import print_config_findings, warn_of_sizes
from dsocr_analyze.errors import DeviceError

if TYPE_CHECKING:
    from dsocr_analyze.report.measured import Measurement

__all__ = ["measure", "print_measurement"]

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
    profile: ProfileOption = None,
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
    start_torch()
    from dsocr_analyze.cli.device_runs import check_memory, measured
    from dsocr_analyze.measuring.passes import Protocol
    from dsocr_analyze.session import DeepSeekOCRSession, parse_device

    protocol = Protocol(repeats, warmups, steps, under_autocast)
    if parse_device(device).type == "meta":
        raise DeviceError("--device meta computes nothing; use cpu or cuda:N")
    check_memory(directory, workload, device=device, dtype=dtype, flash_attention=flash_attention)
    with announced_steps(in_lines=True) as announce:
        announce("building the model")
        session = DeepSeekOCRSession.from_directory(
            directory, device=device, dtype=dtype, flash_attention=flash_attention,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
        found = measured(
            session,
            workload,
            protocol,
            user_profiles(profile),
            announce,
            options.options_used(context),
        )
    context.obj.begin_writing()
    print_measurement(found, "json" if json_file == "-" else output_format, json_file)


def print_measurement(found: Measurement, output_format: str, json_file: str | None) -> None:
    """Print a measurement in a format, and write its JSON file if one is named."""
    from dsocr_analyze.output_files import write_files
    from dsocr_analyze.report.json_text import dump_json
    from dsocr_analyze.report.measured import measurement_notes, measurement_tables
    from dsocr_analyze.report.tables import model_text

    if json_file not in (None, "-"):
        write_files({Path(str(json_file)): dump_json(found)})

    def said() -> Said:
        opening = f"Measured: {model_text(found.model)}, {found.dtype}, {found.attention} attention"
        notes = Lines("Notes", measurement_notes(found), before="")
        return Said(opening, measurement_tables(found), [notes])

    emit(output_format, lambda: found, said)
