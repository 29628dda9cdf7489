"""`dsocr-analyze measure`: real passes on a real device, compared with the prediction."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import completion, options, page_options
from dsocr_analyze.cli.kept_files import ProfileOption, user_profiles
from dsocr_analyze.cli.printing import Lines, Said, emit
from dsocr_analyze.cli.progress import announced_steps
from dsocr_analyze.cli.torch_start import start_torch
from dsocr_analyze.cli.used_options import options_used
from dsocr_analyze.cli.warnings import StrictOption, print_config_findings, warn_of_sizes
from dsocr_analyze.cli.words import in_options
from dsocr_analyze.errors import DeviceError

if TYPE_CHECKING:
    from dsocr_analyze.measuring.passes import Protocol
    from dsocr_analyze.measuring.predicted import Predicted
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.report.measurement import Measurement
    from dsocr_analyze.report.opening import Options
    from dsocr_analyze.session import DeepSeekOCRSession
    from dsocr_analyze.workload import AnyWorkload

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
    model: options.ModelOption = None,
    arch: options.ArchOption = None,
    config: options.ConfigOption = None,
    stages: options.StagesOption = None,
    hf_config: options.HfConfigOption = None,
    sliding_window: options.SlidingWindowOption = None,
    trust_remote_code: options.TrustOption = False,
    device: DeviceOption = "cpu",
    dtype: options.DtypeOption = "bfloat16",
    use_flash_attn: options.FlashOption = 0,
    repeats: RepeatsOption = 5,
    warmups: WarmupsOption = 2,
    steps: StepsOption = 4,
    autocast: AutocastOption = 0,
    profile: ProfileOption = None,
    output_format: options.FormatOption = "table",
    json_file: options.JsonOption = None,
    strict: StrictOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Run a page's passes on a device, and compare them with the prediction."""
    under_autocast = options.switch("--autocast", autocast)
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    directory = options.model_directory_from(
        model, arch, config, trust_remote_code=trust_remote_code, sliding_window=sliding_window,
        stages=stages, hf_config=hf_config,
    )  # fmt: skip
    workload = page_options.page_request(context, directory).workload(directory.architecture)
    print_config_findings(context, directory, by_closed_forms=False)
    warn_of_sizes(context, directory, workload)
    start_torch()
    from dsocr_analyze.measuring.passes import Protocol
    from dsocr_analyze.session import DeepSeekOCRSession, parse_device

    protocol = Protocol(repeats, warmups, steps, under_autocast)
    if parse_device(device).type == "meta":
        raise DeviceError("--device meta computes nothing; use cpu or cuda:N")
    _check_memory(directory, workload, device=device, dtype=dtype, flash_attention=flash_attention)
    with announced_steps(in_lines=True) as announce:
        announce("building the model")
        session = DeepSeekOCRSession.from_directory(
            directory, device=device, dtype=dtype, flash_attention=flash_attention,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
        found = _measured(
            session, workload, protocol, user_profiles(profile), announce, options_used(context)
        )
    context.obj.begin_writing()
    print_measurement(found, "json" if json_file == "-" else output_format, json_file)


def _check_memory(
    directory: ModelDirectory,
    workload: AnyWorkload,
    *,
    device: str,
    dtype: str,
    flash_attention: bool,
) -> None:
    """Check that the passes fit in memory before allocating it.

    Raises:
        DeviceError: Weights and the higher memory peak exceed free memory; suggests what would fit.
    """
    from dataclasses import replace

    from dsocr_analyze.dtypes import dtype_named
    from dsocr_analyze.hardware.fit import largest_batch, memory_need
    from dsocr_analyze.measuring.machine import free_bytes
    from dsocr_analyze.report.quantities import bytes_text
    from dsocr_analyze.session import parse_device
    from dsocr_analyze.workload import Workload

    architecture = directory.architecture
    if architecture.closed_forms is None or not isinstance(workload, Workload):
        return

    def needed(batch: int, name: str) -> int:
        return memory_need(
            architecture, directory.dimensions(), replace(workload, batch_size=batch),
            dtype=dtype_named(name), flash_attention=flash_attention,
        ).total_bytes  # fmt: skip

    free = free_bytes(parse_device(device))
    need = needed(workload.batch_size, dtype)
    if need <= free:
        return
    largest = largest_batch(lambda batch: needed(batch, dtype) <= free)
    fitting = [f"--batch-size {largest}"] if largest else []
    if dtype == "float32" and needed(workload.batch_size, "bfloat16") <= free:
        fitting.append("--dtype bfloat16")
    fits = f"{' or '.join(fitting)} would fit" if fitting else "not even one page fits"
    raise DeviceError(
        f"--device {device} has {bytes_text(free)} free, and the passes need {bytes_text(need)};"
        f" {fits}"
    )


def _measured(
    session: DeepSeekOCRSession,
    workload: AnyWorkload,
    protocol: Protocol,
    profiles: Sequence[Path],
    announce: Callable[[str], None],
    used: Options,
) -> Measurement:
    import torch

    from dsocr_analyze.measuring.kept_memory import can_keep_memory
    from dsocr_analyze.measuring.machine import device_title, versions
    from dsocr_analyze.measuring.passes import measure_page
    from dsocr_analyze.measuring.preprocessing import measured_preprocessing
    from dsocr_analyze.report.build import workload_document
    from dsocr_analyze.report.document import SCHEMA_VERSION
    from dsocr_analyze.report.measurement import (
        Measurement,
        measured_bytes,
        measured_seconds,
    )
    from dsocr_analyze.timing.assumptions import estimated_preprocessing
    from dsocr_analyze.workload import Workload

    model, architecture = session.loaded, session.architecture
    announce("prediction")
    predicted, source, unpredicted = _predicted(session, workload, protocol, profiles)
    found = measure_page(model, workload, architecture, protocol, on_progress=announce)
    preprocessing = None
    if isinstance(workload, Workload) and architecture.closed_forms is not None:
        announce("preprocessing")
        content = architecture.closed_forms.page_in_views(workload)[-1].content
        preprocessing = measured_seconds(
            measured_preprocessing(workload, content, protocol.repeats),
            estimated_preprocessing(architecture, workload),
        )
    seconds = {name: float(span.seconds) for name, span in predicted.stages.items()}
    decode = None if architecture.decode is None else architecture.decode.name
    whole = sum(each for name, each in seconds.items() if name != decode)
    return Measurement(
        schema_version=SCHEMA_VERSION,
        command="measure",
        options=used,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        model=session.model_source,
        workload=workload_document(workload),
        device=str(model.device),
        title=device_title(model.device),
        versions=versions(model.device),
        threads=torch.get_num_threads(),
        dtype=session.dtype.name,
        attention=model.attention,
        weights="checkpoint" if model.has_weights else "random",
        autocast=protocol.autocast,
        repeats=protocol.repeats,
        warmups=protocol.warmups,
        keeps_memory=can_keep_memory(model.device),
        steps=protocol.steps,
        profile=source,
        unpredicted=unpredicted,
        stages={
            name: measured_seconds(samples, seconds.get(name))
            for name, samples in found.stages.items()
        },
        prefill=measured_seconds(found.prefill, whole if seconds else None),
        reference=measured_seconds(found.reference, None),
        preprocessing=preprocessing,
        peak=measured_bytes(found.peak_bytes, predicted.peak_bytes),
    )


def _predicted(
    session: DeepSeekOCRSession,
    workload: AnyWorkload,
    protocol: Protocol,
    profiles: Sequence[Path],
) -> tuple[Predicted, str | None, str | None]:
    """The prediction, the source of its seconds, and the reason if there are none."""
    from dsocr_analyze.hardware.profile import all_profiles
    from dsocr_analyze.measuring.machine import matching_device
    from dsocr_analyze.measuring.predicted import predicted_page

    model, architecture = session.loaded, session.architecture
    device = matching_device(model.device, all_profiles(profiles))
    why = (
        "there is no profile of this device; measure one with dsocr-analyze calibrate --device"
        f" {model.device}"
    )
    if device is not None:
        try:
            found = predicted_page(model, workload, architecture, protocol, device)
        except DeviceError as error:  # measure anyway
            why = in_options(str(error), error.arguments)
        else:
            return found, device.profile.source, None
    return predicted_page(model, workload, architecture, protocol, None), None, why


def print_measurement(found: Measurement, output_format: str, json_file: str | None) -> None:
    """Print a measurement in a format, and write its JSON file if one is named."""
    from dsocr_analyze.output_files import write_files
    from dsocr_analyze.report.json_text import dump_json
    from dsocr_analyze.report.measurement import measurement_notes, measurement_tables
    from dsocr_analyze.report.tables import model_text

    if json_file not in (None, "-"):
        write_files({Path(str(json_file)): dump_json(found)})

    def said() -> Said:
        opening = f"Measured: {model_text(found.model)}, {found.dtype}, {found.attention} attention"
        notes = Lines("Notes", measurement_notes(found), before="")
        return Said(opening, measurement_tables(found), [notes])

    emit(output_format, lambda: found, said)
