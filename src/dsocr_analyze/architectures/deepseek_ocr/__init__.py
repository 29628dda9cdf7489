"""DeepSeek-OCR: SAM and CLIP encoders, a projector, and a mixture-of-experts decoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.architectures.architecture import Architecture, Served
from dsocr_analyze.architectures.config_rules import findings_of
from dsocr_analyze.architectures.deepseek_ocr.composition import (
    compose,
    experts_by_stage,
    memory,
    model_params,
    step_kernels,
)
from dsocr_analyze.architectures.deepseek_ocr.config_table import CONFIG_TABLE
from dsocr_analyze.architectures.deepseek_ocr.crop_grid_codes import CROP_GRIDS
from dsocr_analyze.architectures.deepseek_ocr.decoder import NOT_MODELLED, expert_params
from dsocr_analyze.architectures.deepseek_ocr.dimensions import dimensions_of
from dsocr_analyze.architectures.deepseek_ocr.modes import MODES
from dsocr_analyze.architectures.deepseek_ocr.plan import notes_of, plan_workload
from dsocr_analyze.architectures.deepseek_ocr.preprocessing import (
    pixel_work,
    pixel_work_of_pages,
)
from dsocr_analyze.architectures.deepseek_ocr.recognition import PUBLISHED_CODE, recognizes
from dsocr_analyze.architectures.deepseek_ocr.repetition import alike
from dsocr_analyze.architectures.deepseek_ocr.serving import (
    cache_elements,
    check_served,
    quantizable_params,
    served_activation_bytes,
    served_prompt,
    served_step,
    served_views,
)
from dsocr_analyze.architectures.deepseek_ocr.stages import ROUTED_EXPERT, STAGES
from dsocr_analyze.architectures.deepseek_ocr.tides import decode_tide, prefill_tide
from dsocr_analyze.architectures.deepseek_ocr.totals import page_totals

if TYPE_CHECKING:
    import torch

    from dsocr_analyze.workload import Workload

__all__ = ["DEEPSEEK_OCR"]


def _prefill_inputs(device: torch.device, dtype: torch.dtype, workload: Workload) -> dict[str, Any]:
    # Imported here: it brings torch.
    from dsocr_analyze.architectures.deepseek_ocr.inputs import prefill_inputs

    return prefill_inputs(device, dtype, workload)


def _decode_inputs(device: torch.device, workload: Workload, cached: int) -> dict[str, Any]:
    # Imported here: it brings torch.
    from dsocr_analyze.architectures.deepseek_ocr.inputs import decode_inputs

    return decode_inputs(device, workload, cached)


DEEPSEEK_OCR: Final = Architecture(
    name="deepseek-ocr",
    title="DeepSeek-OCR",
    stages=STAGES,
    modes=MODES,
    default_mode="gundam",
    reference=Path(__file__).parent / "reference",
    published_code=PUBLISHED_CODE,
    routed_expert=ROUTED_EXPERT,
    not_modelled=NOT_MODELLED,
    recognizes=recognizes,
    dimensions=dimensions_of,
    config_findings=lambda config, code: findings_of(config, CONFIG_TABLE, code),
    plan=plan_workload,
    notes_of=notes_of,
    compose=compose,
    step_kernels=step_kernels,
    page_totals=page_totals,
    crop_grids=CROP_GRIDS,
    parameter_count=lambda dimensions: sum(model_params(dimensions).values()),
    memory=memory,
    prefill_tide=prefill_tide,
    decode_tide=decode_tide,
    expert_params=expert_params,
    experts_touched=experts_by_stage,
    repeats=alike,
    prefill_inputs=_prefill_inputs,
    decode_inputs=_decode_inputs,
    served=Served(
        check=check_served,
        views=served_views,
        prompt=served_prompt,
        step=served_step,
        cache_elements=cache_elements,
        quantizable_params=quantizable_params,
        activation_bytes=served_activation_bytes,
    ),
    pixel_work=pixel_work,
    pixel_work_of_pages=pixel_work_of_pages,
)
