"""Pages of DeepSeek-OCR-2 as its `infer()` lays them out, and passes over them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.architectures.deepseek_ocr_2.reference import deepencoderv2
from dsocr_analyze.figures import StageFigures
from dsocr_analyze.kernels import with_ancestors
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import LoadedModel, load_model
from dsocr_analyze.trace.passes import PassTraces, trace_passes
from dsocr_analyze.trace.summary import stage_figures
from dsocr_analyze.workload import PageWorkload, ViewBatch

REFERENCE = Path(deepencoderv2.__file__).parent
OCR2 = ARCHITECTURES["deepseek-ocr-2"]
GOLDENS = json.loads((Path(__file__).parent / "data" / "golden2_ocr2_workloads.json").read_text())


def loaded(path: Path, *, device: str = "meta", dtype=torch.bfloat16, flash=False, **config: Any):
    directory = ModelDirectory.read(path)
    return load_model(
        dataclasses.replace(directory, config={**directory.config, **config}),
        device=torch.device(device),
        dtype=dtype,
        flash_attention=flash,
        trust_remote_code=True,
    )


def tokens_of(size: int) -> int:
    """Visual tokens of a view, by `infer()`'s own formula."""
    side = -(-(size // 16) // 4)
    return side * side


def laid_out(
    *,
    grid: tuple[int, int] = (1, 1),
    base_size: int = 1024,
    image_size: int = 768,
    crop_mode: bool = True,
    text_tokens: int = 10,
    batch_size: int = 1,
) -> PageWorkload:
    """Tiles, global view and separator, without newlines; crop off: one view of `image_size`."""
    tiles = grid[0] * grid[1]
    whole = ViewBatch(1, base_size if crop_mode else image_size)
    views = (ViewBatch(tiles, image_size), whole) if tiles > 1 else (whole,)
    return PageWorkload(
        page=(1, 1),
        base_size=base_size,
        image_size=image_size,
        crop_mode=crop_mode,
        grid=grid,
        views=views,
        visual_tokens=1 + sum(view.count * tokens_of(view.resolution) for view in views),
        text_tokens=text_tokens,
        batch_size=batch_size,
        max_new_tokens=2,
    )


def workload_of(golden: dict[str, Any]) -> PageWorkload:
    return laid_out(
        grid=tuple(golden["grid"]),
        base_size=golden["base_size"],
        image_size=golden["image_size"],
        crop_mode=golden["crop_mode"],
        text_tokens=golden["text_tokens"],
    )


def traced(model: LoadedModel, workload: PageWorkload, **options: Any) -> PassTraces:
    return trace_passes(model, workload, OCR2, **options)


def stages_of(traces: PassTraces) -> dict[str, StageFigures]:
    nothing: dict[str, dict[str, int]] = {name: {} for name in OCR2.stage_names}
    return stage_figures(traces, OCR2.stages, nothing)


def flops_by_stage(traces: PassTraces) -> dict[str, int]:
    stages = stages_of(traces)
    head = with_ancestors(stages["prefill"].own)["lm_head"].matrix_flops
    found = {name: stages[name].work.matrix_flops for name in ("sam", "encoder", "projector")}
    found |= {"layers": stages["prefill"].work.matrix_flops - head, "lm_head": head}
    return {**found, "total": sum(found.values())}


def decode_flops(traces: PassTraces) -> dict[str, int]:
    decode = stages_of(traces)["decode"]
    head = with_ancestors(decode.own)["lm_head"].matrix_flops
    total = decode.work.matrix_flops
    return {"total": total, "layers": total - head, "lm_head": head}


def golden_ids() -> Iterator[str]:
    for golden in GOLDENS:
        crop = "crop" if golden["crop_mode"] else "whole"
        yield f"{golden['page']}-{golden['image_size']}-{crop}"
