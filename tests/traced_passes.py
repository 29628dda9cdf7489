"""Whole passes of the reference in a trace, step by step.

A step is a piece of memory that an operator makes: the module that runs, the operator's name, and
the bytes alive right after.
"""

from collections import Counter
from types import SimpleNamespace

import torch
from drawn_passes import Case
from taped_passes import Level
from tracing import LevelRecorder

from dsocr_analyze.architectures.ocr_family.family_member import DECODE, PREFILL
from dsocr_analyze.kernels import merged
from dsocr_analyze.model.loading import LoadedModel, load_model
from dsocr_analyze.trace import record
from dsocr_analyze.trace.passes import trace_passes


def loaded(case: Case, device: str) -> LoadedModel:
    return load_model(
        case.directory,
        device=torch.device(device),
        dtype=getattr(torch, case.dtype.name),
        flash_attention=case.flash,
        sliding_window=case.dimensions.decoder.sliding_window,
        trust_remote_code=True,
    )


def traced(case: Case) -> dict[int | None, SimpleNamespace]:
    """The passes of the reference on meta: the prefill pass as None, each decode step by number."""
    model = loaded(case, "meta")
    passes = trace_passes(
        model,
        case.workload,
        case.arch,
        step_numbers=case.steps,
        recorder_type=LevelRecorder,
    )
    weights = {name: each.numel() for name, each in model.module.named_parameters()}
    begins = ("model.embed_tokens.", "model.layers.", "model.norm.", "lm_head.")
    of_decoder = {name: n for name, n in weights.items() if name.startswith(begins)}
    steps = zip(passes.decode_steps, passes.step_cache_bytes, strict=True)
    return {
        None: _of_trace(case, passes.prefill, passes.kv_cache_bytes, weights),
        **{
            number: _of_trace(case, *step, of_decoder, DECODE.name)
            for number, step in zip(passes.step_numbers, steps, strict=True)
        },
    }


def _of_trace(
    case: Case, trace: record.Trace, cache_bytes: int, weights: dict[str, int], stage: str = ""
) -> SimpleNamespace:
    assert not trace.unknown
    kernels = (each._replace(stage=stage or _stage_at(case, each.path)) for each in trace.kernels)
    figures = {
        "records": Counter({each: each.calls for each in merged(kernels)}),
        "calls": Counter(trace.calls),
        "weights": weights,
        "cache": cache_bytes,
        "peak": trace.peak,
    }
    return SimpleNamespace(levels=levels_of(trace), figures=figures)


def _stage_at(case: Case, path: str) -> str:
    """The vision stage of a module, otherwise the prefill pass."""
    owners = (
        stage.name
        for stage in case.arch.stages[:-2]  # before prefill and decode
        if f"{path}.".startswith(tuple(f"{prefix}." for prefix in stage.prefixes))
    )
    return next(owners, PREFILL.name)


def levels_of(trace: record.Trace) -> list[Level]:
    """A trace's levels, allocations under one name."""
    return [
        Level(path, "empty" if name.startswith(("empty", "new_empty")) else name, nbytes)
        for path, name, nbytes in trace.levels
    ]
