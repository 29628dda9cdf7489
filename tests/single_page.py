"""What tests of many pages are held to: one workload at a time, composed of kernel records."""

from types import SimpleNamespace

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.kernels import total_work


def page_costs(dimensions, workload, dtype=BFLOAT16, *, flash_attention=False) -> SimpleNamespace:
    """The costs of a workload on DeepSeek-OCR."""
    composition = DEFAULT.forms.compose(dimensions, workload, dtype, flash_attention)
    *prefill, decode_step = (stage.work for stage in composition.stages.values())
    memory = composition.memory
    return SimpleNamespace(
        workload=workload,
        prefill=total_work(prefill),
        decode_step=decode_step,
        batch=composition.batch,
        kv_cache_bytes=memory.kv_cache_bytes,
        peak_activation_bytes=memory.peak.nbytes,
        weights_bytes=memory.weights_bytes,
    )
