"""What tests of many pages are held to: one workload at a time, composed of kernel records."""

from __future__ import annotations

from typing import NamedTuple

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.kernels import Work, total_work
from dsocr_analyze.workload import PageWorkload


class Costs(NamedTuple):
    """The totals of a composition."""

    workload: PageWorkload
    stages: dict[str, Work]
    prefill: Work
    decode_step: Work
    batch: Work
    kv_cache_bytes: int
    peak_activation_bytes: int
    weights_bytes: int


def page_costs(dimensions, workload, dtype=BFLOAT16, *, flash_attention=False) -> Costs:
    """The costs of a workload on DeepSeek-OCR."""
    composition = DEFAULT.forms.compose(dimensions, workload, dtype, flash_attention)
    stages = {name: figures.work for name, figures in composition.stages.items()}
    *prefill, decode_step = stages.values()
    return Costs(
        workload,
        stages,
        total_work(prefill),
        decode_step,
        composition.batch,
        composition.memory.kv_cache_bytes,
        composition.memory.peak.nbytes,
        composition.memory.weights_bytes,
    )
