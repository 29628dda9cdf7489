"""Rows of sweeps and lists of pages by the scalar closed forms."""

from types import SimpleNamespace

from dsocr_analyze import kernels
from dsocr_analyze.architectures import DEFAULT, plan_workload
from dsocr_analyze.archive.setting import published_model

FIGURES = ("matrix_flops", "vector_flops", "flops", "bytes_read", "bytes_written")


def planned(page, mode, **lengths):
    """A page under a mode: the sizes of its views, and whether it is cut."""
    return plan_workload(
        page=page, base_size=mode.base_size, image_size=mode.image_size,
        crop_mode=mode.crop_mode, **lengths,
    )  # fmt: skip


def page_costs(
    dimensions, workload, dtype=kernels.BFLOAT16, *, flash_attention=False
) -> SimpleNamespace:
    """The costs of a workload on DeepSeek-OCR, composed of kernel records."""
    composition = DEFAULT.forms.compose(dimensions, workload, dtype, flash_attention)
    *prefill, decode_step = (stage.work for stage in composition.stages.values())
    memory = composition.memory
    return SimpleNamespace(
        prefill=kernels.total_work(prefill),
        decode_step=decode_step,
        batch=composition.batch,
        kv_cache_bytes=memory.kv_cache_bytes,
        peak_activation_bytes=memory.peak.nbytes,
        weights_bytes=memory.weights_bytes,
    )


def figures_of(part, work):
    """The columns of some work."""
    return {f"{part}_{figure}": getattr(work, figure) for figure in FIGURES}


def scalar_row(page, mode, dtype="bfloat16", attention="eager", **lengths):
    """Columns of `BATCH_RESULTS` and `weights_bytes`; a page's share for a batch of one."""
    workload = planned(page, mode, **lengths)
    costs = page_costs(
        published_model().dimensions, workload, kernels.dtype_named(dtype),
        flash_attention=attention == "flash_attention_2",
    )  # fmt: skip
    return {
        "grid_columns": workload.grid[0],
        "grid_rows": workload.grid[1],
        "visual_tokens": workload.visual_tokens,
        "seq_len": workload.seq_len,
        **figures_of("prefill_pass", costs.prefill),
        **figures_of("decode_step", costs.decode_step),
        **figures_of("batch", costs.batch),
        **figures_of("page", costs.batch),
        "kv_cache_bytes": costs.kv_cache_bytes,
        "peak_activation_bytes": costs.peak_activation_bytes,
        "weights_bytes": costs.weights_bytes,
    }
