"""Predictions for a measured page: seconds of its stages, and its peak memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.measuring.passes import Protocol
from dsocr_analyze.model.loading import LoadedModel
from dsocr_analyze.timing.duration import Duration
from dsocr_analyze.timing.eager import eager_pass, eager_step
from dsocr_analyze.timing.runtimes import EAGER
from dsocr_analyze.trace.passes import trace_passes
from dsocr_analyze.trace.summary import stage_figures
from dsocr_analyze.workload import AnyWorkload, Workload

__all__ = ["Predicted", "predicted_page"]


class Predicted(NamedTuple):
    """Predictions from the kernel records of a page."""

    stages: Mapping[str, Duration]
    """By stage; empty without a profile of the device."""
    peak_bytes: int
    """Of the prefill pass, excluding weights and inputs."""


def predicted_page(
    model: LoadedModel,
    workload: AnyWorkload,
    architecture: Architecture,
    protocol: Protocol,
    device: Device | None,
) -> Predicted:
    """Predict what `measure_page` measures with the same arguments; no seconds without a device.

    Under autocast, or without closed forms, the records are from a trace on the device itself.

    Raises:
        DeviceError: The profile lacks the data type.
    """
    forms = None if protocol.autocast else architecture.closed_forms
    if forms is None or not isinstance(workload, Workload):
        records, peak = _traced(model, workload, architecture, protocol)
    else:
        records, peak = _composed(model, workload, architecture)
    spans: dict[str, Duration] = {}
    if device is not None:
        decode = None if architecture.decode is None else architecture.decode.name
        step = None if decode is None else records.pop(decode, None)
        host = EAGER.on(device)
        spans = eager_pass(records, device, host)
        if decode is not None and step is not None:
            # A step alone, without the work of `generate` between steps.
            alone = replace(host, step_us=0.0, sequence_us=0.0)
            spans[decode] = eager_step(step, device, alone, workload.batch_size)
    return Predicted(spans, peak)


def _composed(
    model: LoadedModel, workload: Workload, architecture: Architecture
) -> tuple[dict[str, Sequence[Kernel]], int]:
    dtype = dtype_named(str(model.dtype).removeprefix("torch."))
    composed = architecture.forms.compose(
        model.directory.dimensions(), workload, dtype, model.attention != "eager"
    )
    records: dict[str, Sequence[Kernel]] = {
        name: stage.kernels for name, stage in composed.stages.items()
    }
    return records, composed.memory.peak.nbytes


def _traced(
    model: LoadedModel, workload: AnyWorkload, architecture: Architecture, protocol: Protocol
) -> tuple[dict[str, Sequence[Kernel]], int]:
    with torch.autocast(model.device.type, torch.bfloat16, enabled=protocol.autocast):
        decodes = architecture.decode is not None and workload.max_new_tokens > 1
        traces = trace_passes(model, workload, architecture, step_numbers=[0] if decodes else [])
    nothing: dict[str, dict[str, int]] = {name: {} for name in architecture.stage_names}
    stages = stage_figures(traces, architecture.stages, nothing)
    records: dict[str, Sequence[Kernel]] = {
        name: stage.kernels for name, stage in stages.items() if stage.kernels
    }
    return records, traces.prefill.peak.nbytes
