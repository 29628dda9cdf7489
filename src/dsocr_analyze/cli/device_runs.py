"""What `measure` and `infer` run on a device; imported once torch is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dsocr_analyze.cli.kept_files import user_profiles
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.cli.time_options import time_request
from dsocr_analyze.cli.words import in_options
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.fit import largest_batch, memory_need
from dsocr_analyze.hardware.profile import all_profiles
from dsocr_analyze.input_files import is_regular
from dsocr_analyze.measuring import machine
from dsocr_analyze.measuring.infer_call import stands_in_for_torchvision
from dsocr_analyze.measuring.inference import Question, measure_inference
from dsocr_analyze.measuring.kept_memory import can_keep_memory
from dsocr_analyze.measuring.passes import Protocol, measure_page
from dsocr_analyze.measuring.predicted import Predicted, predicted_page
from dsocr_analyze.measuring.preprocessing import measured_preprocessing
from dsocr_analyze.measuring.tokenizer import load_tokenizer, stand_in_tokenizer, text_tokens
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.report.build import workload_document
from dsocr_analyze.report.document import SCHEMA_VERSION, Options
from dsocr_analyze.report.measured import (
    InferenceReport,
    MeasuredBytes,
    Measurement,
    inference_report,
    measured_seconds,
)
from dsocr_analyze.report.table import bytes_text
from dsocr_analyze.session import DeepSeekOCRSession, parse_device
from dsocr_analyze.timing.assumptions import estimated_preprocessing
from dsocr_analyze.timing.prediction import TimeEntry
from dsocr_analyze.workload import AnyWorkload, Workload

__all__ = ["check_memory", "inferred", "measured", "predicted_seconds"]


def check_memory(
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
    architecture = directory.architecture
    if architecture.closed_forms is None or not isinstance(workload, Workload):
        return

    def needed(batch: int, name: str) -> int:
        return memory_need(
            architecture, directory.dimensions(), replace(workload, batch_size=batch),
            dtype=dtype_named(name), flash_attention=flash_attention,
        ).total_bytes  # fmt: skip

    free = machine.free_bytes(parse_device(device))
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


def measured(
    session: DeepSeekOCRSession,
    workload: AnyWorkload,
    protocol: Protocol,
    profiles: Sequence[Path],
    announce: Callable[[str], None],
    used: Options,
) -> Measurement:
    """A page's passes on a device, and their prediction.

    Args:
        session: The model and its device.
        workload: The page.
        protocol: How to measure.
        profiles: The user's own profiles.
        announce: Called with what starts.
        used: The command line's options.
    """
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
        title=machine.device_title(model.device),
        versions=machine.versions(model.device),
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
        peak=MeasuredBytes(
            measured=found.peak_bytes,
            predicted=predicted.peak_bytes,
            besides=found.peak_bytes - predicted.peak_bytes,
        ),
    )


def _predicted(
    session: DeepSeekOCRSession,
    workload: AnyWorkload,
    protocol: Protocol,
    profiles: Sequence[Path],
) -> tuple[Predicted, str | None, str | None]:
    """The prediction, the source of its seconds, and the reason if there are none."""
    model, architecture = session.loaded, session.architecture
    device = machine.matching_device(model.device, all_profiles(profiles))
    why = (
        "there is no profile of this device; measure one with dsocr-analyze calibrate --device"
        f" {model.device}"
    )
    if device is not None:
        try:
            found = predicted_page(model, workload, architecture, protocol, device)
            return found, device.profile.source, None
        except DeviceError as error:  # measure anyway
            why = in_options(str(error), error.arguments)
    return predicted_page(model, workload, architecture, protocol, None), None, why


def inferred(
    directory: ModelDirectory,
    question: Question,
    planned: Workload,
    *,
    device: str | None,
    flash_attention: bool,
    random_weights: bool,
    trust_remote_code: bool,
    profiles: Sequence[Path] | None,
    announce: Callable[[str], None],
    used: Options,
) -> InferenceReport:
    """The time of one call of `infer()`, and the cost of its passes.

    Args:
        directory: The vendor's directory; without a tokenizer, a stand-in is used.
        question: Arguments of `infer()`.
        planned: The page.
        device: The device; None for the first CUDA GPU, or else the CPU.
        flash_attention: Whether the decoder uses FlashAttention-2.
        random_weights: Whether to leave a checkpoint out.
        trust_remote_code: Whether to execute the directory's files without a trust record.
        profiles: The user's own profiles.
        announce: Called with what starts.
        used: The command line's options.
    """
    has_own = is_regular(directory.tokenizer_file)
    tokenizer = load_tokenizer(directory) if has_own else stand_in_tokenizer()
    first = "cuda:0" if torch.cuda.is_available() else "cpu"
    name = first if device is None else device
    parse_device(name, computes=True)
    session = DeepSeekOCRSession.from_directory(
        directory,
        device=name,
        flash_attention=flash_attention,
        random_weights=random_weights,
        trust_remote_code=trust_remote_code,
    )
    loaded, architecture = session.loaded, session.architecture
    timed = measure_inference(loaded, tokenizer, question, architecture, on_progress=announce)
    # Derived from the request alone, so that a difference from what ran can show.
    counted: Workload = architecture.plan(
        page=planned.page,
        base_size=planned.base_size,
        image_size=planned.image_size,
        crop_mode=planned.crop_mode,
        text_tokens=text_tokens(tokenizer, question.prompt),
        max_new_tokens=timed.tokens,
    )
    return inference_report(
        timed,
        session.composed(counted),
        counted,
        predicted_seconds(session, counted, profiles),
        image=str(question.image_file),
        prompt=question.prompt,
        weights="checkpoint" if loaded.has_weights else "random",
        tokenizer="directory" if has_own else "stand-in",
        notes=_notes(session),
        options=used,
    )


def predicted_seconds(
    session: DeepSeekOCRSession, workload: Workload, profiles: Sequence[Path] | None
) -> TimeEntry | None:
    """Seconds predicted by the profile of the session's own device; None if there is none.

    Args:
        session: The model and its device.
        workload: The page.
        profiles: The user's own profiles.
    """
    try:
        known = all_profiles(user_profiles(profiles))
        device = machine.matching_device(session.loaded.device, known)
        if device is None:
            if session.loaded.device.type == "cuda":
                title = machine.device_title(session.loaded.device)
                complain(f"no seconds are predicted: there is no profile of {title}")
            return None
        request = time_request(
            [device.name], profile=profiles, runtime="eager", server="vllm",
            concurrency="1", preprocess_ms=None, workers=1, price=None,
        )  # fmt: skip
        (entry,) = request.entries(
            session.architecture, session.loaded.directory.dimensions(), workload,
            dtype=session.dtype.name, flash_attention=session.loaded.attention != "eager",
        )  # fmt: skip
    except DeviceError as error:  # keep the measurements anyway
        complain(f"no seconds are predicted: {error}")
        return None
    return entry


def _notes(session: DeepSeekOCRSession) -> tuple[str, ...]:
    routing = "routing is uniform, since random weights would make it arbitrary"
    if session.loaded.has_weights:
        routing = (
            "bytes of experts' weights are counted for tokens that spread evenly; the checkpoint's"
            " own routing touches as many experts or fewer"
        )
    stand_ins = (
        "torchvision is not installed: stand-ins for its three transforms compute the same"
        " values; preprocessing times may differ"
    )
    return (
        "FLOPs, bytes and memory are counted for the passes without autocast; infer() runs them in"
        " autocast to bfloat16, whose casts add bytes but no FLOPs",
        "bytes are counted for each operator on its own; caches serve some of them, so the"
        " bandwidth may exceed the memory's",
        "each token after the first includes what generate does between two passes; a stage's"
        " seconds do not",
        routing,
        *([stand_ins] if stands_in_for_torchvision(session.loaded) else []),
    )
