"""What `calibrate`, `measure` and `infer` run; imported once torch is."""

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import torch

from dsocr_analyze import analysis
from dsocr_analyze.architectures import PageRequest
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.cli import kept_files, printing, streams, words
from dsocr_analyze.cli.time_requests import time_request
from dsocr_analyze.errors import DeviceError
from dsocr_analyze.figures import PageFigures
from dsocr_analyze.hardware import fit
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.input_files import is_regular
from dsocr_analyze.kernels import dtype_named
from dsocr_analyze.measuring import cpu_calibration, inference, machine, passes
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import is_out_of_memory
from dsocr_analyze.report import measured, opening, table
from dsocr_analyze.session import DeepSeekOCRSession, parse_device
from dsocr_analyze.timing import TimeEntry, assumptions
from dsocr_analyze.workload import AnyWorkload, PageWorkload

# --- calibrate ---------------------------------------------------------------------------------


def calibrated(announce: Callable[[str], None], *, ends: float, has_passes: bool) -> Device:
    """This CPU, measured until `time.monotonic()` is `ends`.

    Raises:
        DeviceError: No memory is left, or too little was measured.
    """
    try:
        return cpu_calibration.calibrated_cpu(
            budget_seconds=ends - time.monotonic(), has_passes=has_passes, on_progress=announce
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceError(
            "cpu ran out of memory during calibration; free some, or raise the limit of this"
            " process"
        ) from error


def calibration_said(profile: Device, file: Path) -> printing.Said:
    """The errors of a CPU's profile, and where it was written."""
    cpu = profile.cpu
    assert cpu is not None, "it was calibrated"
    errors = table.Table(
        f"{profile.gpu.title}: error of predicted kernel times on sizes held out of the fit",
        ("kernel", "type", "median", "90th", "held out", "fitted"),
        tuple(
            (name, dtype, f"{100 * each.median:.1f} %", f"{100 * each.p90:.0f} %",
             str(each.held_out_rows), str(each.training_rows))
            for (name, dtype), each in cpu.families.items()
        ),
        label_columns=2,
    )  # fmt: skip
    overhead = f"an operator of a model adds {cpu.operator_us:.1f} us"
    return printing.Said(
        "", [errors], [printing.Lines("Overhead", [overhead], before="")],
        [f"{file}; use it with: dsocr-analyze measure --device cpu"],
    )  # fmt: skip


# --- measure -----------------------------------------------------------------------------------


def _check_memory(directory: ModelDirectory, asked: PageRequest, device: str) -> None:
    """Raises DeviceError, with what would fit, if the passes exceed free memory."""
    architecture, workload, dtype = directory.architecture, asked.workload, asked.dtype
    if architecture.closed_forms is None or not isinstance(workload, PageWorkload):
        return

    def needed(batch: int, name: str) -> int:
        return fit.memory_need(
            architecture, directory.dimensions(), replace(workload, batch_size=batch),
            dtype=dtype_named(name), flash_attention=asked.flash_attention,
        ).total_bytes  # fmt: skip

    free, need = machine.free_bytes(parse_device(device)), needed(workload.batch_size, dtype)
    if need <= free:
        return
    largest = fit.largest_batch(lambda batch: needed(batch, dtype) <= free)
    fitting = [f"--batch-size {largest}"] if largest else []
    if dtype == "float32" and needed(workload.batch_size, "bfloat16") <= free:
        fitting.append("--dtype bfloat16")
    fits = f"{' or '.join(fitting)} would fit" if fitting else "not even one page fits"
    raise DeviceError(
        f"--device {device} has {table.bytes_text(free)} free, and the passes need"
        f" {table.bytes_text(need)}; {fits}"
    )


def measurement(
    directory: ModelDirectory,
    asked: PageRequest,
    given: Mapping[str, Any],
    announce: streams.Announce,
    options: opening.Options,
) -> measured.Measurement:
    """A page's passes on a device, and their prediction; `given` are the command's parameters.

    Raises:
        DeviceError: There is no such device, or it has not the memory.
    """
    device, trusted, profiles = given["device"], given["trust_remote_code"], given["profile"]
    protocol = passes.Protocol(
        given["repeats"], given["warmups"], given["steps"], bool(given["autocast"])
    )
    parse_device(device, computes=True)
    _check_memory(directory, asked, device)
    workload, compared = asked.workload, measured.MeasuredSeconds.of
    announce("building the model")
    session = analysis.Engine(directory, device, trusted).session(asked)
    model, architecture = session.loaded, session.architecture
    announce("prediction")
    page, source, unpredicted = _predicted(session, workload, protocol, profiles)
    found = passes.measure_page(model, workload, architecture, protocol, on_progress=announce)
    announce("preprocessing")
    prepared = _preprocessing(architecture, workload, protocol.repeats)
    seconds = {name: float(span.seconds) for name, span in page.stages.items()}
    decode = "" if architecture.decode is None else architecture.decode.name
    whole = sum(each for name, each in seconds.items() if name != decode)
    return measured.Measurement(
        schema_version=opening.SCHEMA_VERSION,
        command="measure",
        options=options,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        model=session.provenance.model,
        workload=opening.workload_document(workload),
        device=str(model.device),
        title=machine.device_title(model.device),
        versions=machine.versions(model.device),
        threads=torch.get_num_threads(),
        dtype=session.dtype.name,
        attention=model.attention,
        weights="checkpoint" if model.has_weights else "random",
        autocast=protocol.autocast,
        repeats=protocol.repeats,
        warmups=protocol.warmups,
        keeps_memory=machine.can_keep_memory(model.device),
        steps=protocol.steps,
        profile=source,
        unpredicted=unpredicted,
        stages={name: compared(each, seconds.get(name)) for name, each in found.stages.items()},
        prefill=compared(found.prefill, whole if seconds else None),
        page=compared(
            found.whole(decode, workload.max_new_tokens),
            whole + (workload.max_new_tokens - 1) * seconds.get(decode, 0.0) if seconds else None,
        ),
        reference=compared(found.reference),
        preprocessing=prepared,
        peak=measured.MeasuredBytes(
            measured=found.peak_bytes,
            predicted=page.peak_bytes,
            besides=found.peak_bytes - page.peak_bytes,
        ),
    )


def _preprocessing(
    architecture: Architecture, workload: AnyWorkload, repeats: int
) -> measured.MeasuredSeconds | None:
    """None where no pages are read, or a processor chooses the sides."""
    if architecture.closed_forms is None or not isinstance(workload, PageWorkload):
        return None
    if not workload.image_size:
        return None
    content = architecture.forms.model.page_rule.page_in_views(workload)[-1].content
    return measured.MeasuredSeconds.of(
        passes.measured_preprocessing(workload, content, repeats),
        assumptions.estimated_preprocessing(architecture, workload),
    )


def _predicted(
    session: DeepSeekOCRSession,
    workload: AnyWorkload,
    protocol: passes.Protocol,
    profiles: Sequence[Path] | None,
) -> tuple[passes.Predicted, str | None, str | None]:
    """The prediction, its source, and why it has no seconds."""
    model, architecture = session.loaded, session.architecture
    device = machine.matching_device(model.device, kept_files.gpu_profiles(profiles))
    way = "measure one with dsocr-analyze calibrate --device cpu"
    if model.device.type == "cuda":
        way = "give one with --profile"
    why = f"there is no profile of this device; {way}"
    if device is not None:
        try:
            found = passes.predicted_page(model, workload, architecture, protocol, device)
            return found, device.source, None
        except DeviceError as error:  # measure anyway
            why = words.in_options(str(error), error.arguments)
    return passes.predicted_page(model, workload, architecture, protocol, None), None, why


def measurement_said(found: measured.Measurement) -> printing.Said:
    """What a reader sees of a measurement."""
    return printing.Said(
        measured.measurement_headline(found),
        measured.measurement_tables(found),
        [printing.Lines("Notes", measured.measurement_notes(found), before="")],
    )


# --- infer -------------------------------------------------------------------------------------


def inferred(
    directory: ModelDirectory,
    planned: PageWorkload,
    given: Mapping[str, Any],
    announce: streams.Announce,
    options: opening.Options,
) -> measured.InferenceReport:
    """The time of one call of `infer()`, and the cost of its passes."""
    inference.check_image(given["image"])
    question = inference.InferArguments(
        given["image"], given["prompt"], planned, given["output"], bool(given["save_results"]),
        given["max_new_tokens"],
    )  # fmt: skip
    has_own = is_regular(directory.tokenizer_file)
    tokenizer = inference.load_tokenizer(directory) if has_own else inference.stand_in_tokenizer()
    device = given["device"] or ("cuda:0" if torch.cuda.is_available() else "cpu")
    parse_device(device, computes=True)
    session = DeepSeekOCRSession.from_directory(
        directory,
        device=device,
        flash_attention=bool(given["use_flash_attn"]),
        random_weights=given["random_weights"],
        trust_remote_code=given["trust_remote_code"],
    )
    timed = inference.measure_inference(
        session.loaded, tokenizer, question, session.architecture, on_progress=announce
    )
    # Derived from the request alone, so that a difference from what ran can show.
    counted = PageRequest(
        architecture=session.architecture,
        page=planned.page,
        base_size=planned.base_size,
        image_size=planned.image_size,
        crop_mode=planned.crop_mode,
        text_tokens=inference.text_tokens(tokenizer, question.prompt),
        max_new_tokens=timed.tokens,
        dtype=session.dtype.name,
        flash_attention=session.loaded.attention != "eager",
    )
    entry = predicted_seconds(session, counted, given["profile"])
    return inference_report(
        session, question, timed, counted.workload_of_page, entry,
        has_own_tokenizer=has_own, options=options,
    )  # fmt: skip


def predicted_seconds(
    session: DeepSeekOCRSession, asked: PageRequest, profiles: Sequence[Path] | None
) -> TimeEntry | None:
    """By the profile of the session's device, if there is one."""
    loaded = session.loaded
    try:
        device = machine.matching_device(loaded.device, kept_files.gpu_profiles(profiles))
        if device is not None:
            request = time_request([device.gpu.name], {"profile": profiles, "runtime": "eager"})
            return analysis.Engine(loaded.directory, time=request).entries(asked)[0]
        if loaded.device.type == "cuda":
            raise DeviceError(f"there is no profile of {machine.device_title(loaded.device)}")
    except DeviceError as error:  # keep the measurements anyway
        streams.complain(f"no seconds are predicted: {error}")
    return None


def inference_report(
    session: DeepSeekOCRSession,
    question: inference.InferArguments,
    timed: inference.MeasuredInference,
    counted: PageWorkload,
    entry: TimeEntry | None,
    *,
    has_own_tokenizer: bool,
    options: opening.Options = opening.NO_OPTIONS,
) -> measured.InferenceReport:
    """The document of one call; `entry` has the predicted seconds, if any."""
    figures, steps = session.composed(counted), len(timed.steps)
    provenance, compared = figures.provenance, measured.Compared.of
    return measured.InferenceReport(
        schema_version=opening.SCHEMA_VERSION,
        command="infer",
        options=options,
        model=provenance.model,
        device=provenance.device,
        dtype=provenance.dtype,
        attention=provenance.attention,
        autocast="bfloat16",
        weights="checkpoint" if session.loaded.has_weights else "random",
        tokenizer="directory" if has_own_tokenizer else "stand-in",
        versions=dict(provenance.versions),
        image=str(question.image_file),
        prompt=question.prompt,
        workload=opening.workload_document(counted),
        stages=_stages(timed, figures, entry),
        preprocess_seconds=compared(
            timed.preprocess_seconds,
            None if entry is None else entry.assumptions.preprocess_seconds,
        ),
        first_token_seconds=compared(
            timed.preprocess_seconds + timed.prefill_seconds,
            None if entry is None else entry.ttft_seconds,
        ),
        next_token_seconds=None
        if not steps
        else compared(
            (timed.generate_seconds - timed.prefill_seconds) / steps,
            None if entry is None else entry.tpot_seconds,
        ),
        infer_seconds=compared(timed.infer_seconds, None if entry is None else entry.page_seconds),
        tokens=timed.tokens,
        tokens_per_second=timed.tokens / timed.infer_seconds,
        weights_bytes=figures.memory.weights_bytes,
        peak_bytes=compared(timed.peak_bytes, figures.memory.peak.nbytes),
        predicted_for=None if entry is None else entry.gpu,
        differences=timed.differences(counted),
        notes=_notes(session),
        text=timed.text,
    )


def _stages(
    timed: inference.MeasuredInference, figures: PageFigures, entry: TimeEntry | None
) -> dict[str, measured.MeasuredStage]:
    # A view that infer() skipped is absent.
    ran = {
        name: (1, stage.work, timed.prefill[name])
        for name, stage in figures.stages.items()
        if name in timed.prefill
    }
    foreseen = {name: each.seconds for name, each in entry.stages.items()} if entry else {}
    steps = len(timed.steps)
    if figures.decode is not None and steps:
        name = figures.decode.name
        ran[name] = (steps, figures.batch.minus(figures.prefill_pass), sum(timed.steps))
        if entry is not None and entry.tpot_seconds is not None:
            foreseen[name] = steps * entry.tpot_seconds
    return {
        name: measured.MeasuredStage.of(
            calls, work.flops, work.bytes_moved, seconds, foreseen.get(name)
        )
        for name, (calls, work, seconds) in ran.items()
    }


def _notes(session: DeepSeekOCRSession) -> tuple[str, ...]:
    model = session.loaded
    notes = {
        "FLOPs, bytes and memory are counted for the passes without autocast; infer() runs them in"
        " autocast to bfloat16, whose casts add bytes but no FLOPs": True,
        "bytes are counted for each operator on its own; caches serve some of them, so the"
        " bandwidth may exceed the memory's": True,
        "each token after the first includes what generate does between two passes; a stage's"
        " seconds do not": True,
        "bytes of experts' weights are counted for tokens that spread evenly; the checkpoint's"
        " own routing touches as many experts or fewer": model.has_weights,
        "routing is uniform, since random weights would make it arbitrary": not model.has_weights,
        "torchvision is not installed: stand-ins for its three transforms compute the same"
        " values; preprocessing times may differ": inference.stands_in_for_torchvision(model),
    }
    return tuple(compress(notes, notes.values()))


def inference_said(report: measured.InferenceReport, written: Sequence[Path]) -> printing.Said:
    """What a reader sees of a call, on a terminal without its text, and of written files."""
    return printing.Said(
        measured.inference_headline(report),
        measured.inference_tables(report),
        [printing.Lines("Notes", report.notes, "- ")],
        written,
        {
            "markdown": partial(measured.inference_markdown, report),
            "text": lambda: f"{report.text}\n",
        },
    )
