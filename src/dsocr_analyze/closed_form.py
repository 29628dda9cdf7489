"""The report of a page by the closed forms alone: no torch, no model, microseconds."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from dsocr_analyze import __version__
from dsocr_analyze.costs import NOT_MODELLED, page_costs
from dsocr_analyze.errors import DeviceError
from dsocr_analyze.model.dimensions import ModelDimensions
from dsocr_analyze.model.stages import STAGES, Stage
from dsocr_analyze.report.document import (
    CONVENTIONS,
    SCHEMA_VERSION,
    STAGE_NOTES,
    UNIFORM_ROUTING_NOTE,
    Document,
    counts,
    counts_with_intensity,
    memory,
    model_metadata,
    totals,
)
from dsocr_analyze.work import NO_WORK, Work
from dsocr_analyze.workload import Workload, notes_of, warnings_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsocr_analyze.costs import PageCosts
    from dsocr_analyze.model.directory import ModelDirectory

__all__ = ["ELEMENT_BYTES", "closed_form_document", "element_bytes_of"]

ELEMENT_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}
DTYPE_ALIASES: Final = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
}


def dtype_named(name: str) -> str:
    """The full name of a floating-point type; raises DeviceError for one that is not counted."""
    full = DTYPE_ALIASES.get(name, name)
    if full not in ELEMENT_BYTES:
        raise DeviceError(f"--dtype {name!r} is unknown; use {', '.join(ELEMENT_BYTES)}")
    return full


def element_bytes_of(dtype: str) -> int:
    """Bytes of an element of the type called `dtype`."""
    return ELEMENT_BYTES[dtype_named(dtype)]


def closed_form_document(
    directory: ModelDirectory,
    workload: Workload,
    *,
    dtype: str = "bfloat16",
    flash_attention: bool = False,
) -> Document:
    """The report document of a workload, every figure from the closed forms.

    Args:
        directory: Where the config is; its code is neither imported nor executed.
        workload: The page.
        dtype: Type of weights and activations.
        flash_attention: FlashAttention-2 in the decoder instead of eager attention.

    Raises:
        ConfigError: The config lacks a key, or describes what has no closed form.
    """
    dimensions = ModelDimensions.from_config(directory.config)
    dtype = dtype_named(dtype)
    costs = page_costs(
        dimensions,
        workload,
        element_bytes=ELEMENT_BYTES[dtype],
        flash_attention=flash_attention,
    )
    warnings = warnings_of(workload, dimensions.decoder.max_position_embeddings)
    return {
        "schema_version": SCHEMA_VERSION,
        "metadata": {
            "model": {**model_metadata(directory), "weights": "none"},
            "versions": {"tool": __version__},
            "engine": "analytic",
            "device": "none",
            "dtype": dtype,
            "attention": "flash_attention_2" if flash_attention else "eager",
            "conventions": list(CONVENTIONS),
            "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        },
        "workload": workload.as_dict(),
        "total": totals(
            workload,
            costs.params,
            costs.prefill,
            costs.decode_step,
            costs.page,
            costs.causal_savable_flops,
        ),
        "stages": {stage: _stage_document(stage, costs) for stage in STAGES},
        "unassigned": {
            "params": costs.unassigned_params,
            "names": ["model.image_newline", "model.view_seperator"],
        },
        "memory": memory(
            workload,
            dtype,
            weights_bytes=costs.weights_bytes,
            kv_cache_bytes=costs.kv_cache_bytes,
            peak_bytes=costs.peak_activation_bytes,
        ),
        "agreement": None,
        "operator_ledger": {"counted": {}, "free": {}, "unknown": {}},
        "warnings": warnings,
        "notes": [
            *warnings,
            *notes_of(workload),
            UNIFORM_ROUTING_NOTE,
            "closed forms, nothing was run",
            *(f"not modelled: {entry.reason}" for entry in NOT_MODELLED),
        ],
    }


def _stage_document(stage: Stage, costs: PageCosts) -> Document:
    stage_costs, workload = costs.stages[stage], costs.workload
    vision_calls = len(workload.views) * workload.batch_size
    work = stage_costs.work
    causal = costs.causal_savable_flops if stage == "prefill" else 0
    return {
        "params": stage_costs.params,
        "calls": vision_calls if stage in ("sam", "clip", "projector") else 1,
        **counts_with_intensity(work),
        "causal_savable_flops": causal,
        "operators": {"closed_form": work.flops},
        "operator_families": {
            "closed_form": {
                "operators": ["closed_form"],
                "flops": work.flops,
                "bytes": work.bytes_read + work.bytes_written,
            }
        },
        "by_module": _modules(stage_costs.centres),
        "flops_analytic": work.flops,
        "notes": list(STAGE_NOTES.get(stage, [])),
    }


def _modules(own: Mapping[str, Work]) -> Document:
    """Rows of `by_module`: sums over everything below, from each module's own work."""
    sums: dict[str, Work] = {}
    for path, work in own.items():
        parts = path.split(".") if path else []
        for length in range(1, len(parts) + 1):
            ancestor = ".".join(parts[:length])
            sums[ancestor] = sums.get(ancestor, NO_WORK).plus(work)
    rows = {}
    for path, work in sums.items():
        mine = own.get(path, NO_WORK)
        rows[path] = counts(work) if mine == work else {**counts(work), "own": counts(mine)}
    return rows
