"""The formula of every kernel kind, chosen by the record of its coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware.kernel_times import Floats, Machine, attention, products

__all__ = ["Machine", "formula_seconds"]


def formula_seconds(
    c: records.Coefficients,
    size: Mapping[str, Any],
    machine: Machine,
    element_bytes: float,
    *,
    causal: bool,
) -> Floats:
    """Seconds of kernels with these sizes by name, and bytes per weight or cached element.

    `batch` is 1 by default, and `moved` by masked attention is in 16 bits.
    """
    match c:
        case records.GemmCoefficients():
            return products.gemm_seconds(
                size["m"], size["n"], size["k"], element_bytes, machine, c,
                batch=size.get("batch", 1.0), activation_bytes=max(2, element_bytes),
            )  # fmt: skip
        case records.ScaledGemmCoefficients():
            return products.scaled_gemm_seconds(size["m"], size["n"], size["k"], machine, c)
        case records.ExpertsCoefficients():
            *columns, gated, fallback = map(size.__getitem__, products.ExpertSizes._fields)
            experts = products.ExpertSizes._make([*columns, gated > 0, fallback > 0])
            return products.experts_seconds(experts, machine, c, weight_bytes=element_bytes)
        case records.MovementCoefficients():
            moved: Floats = size["moved"]  # by elementwise kernels, norms and copies
            return (moved + c.ramp_mb * 1e6) / machine.bandwidth(moved, c) + c.launch_us * 1e-6
    sizes = [*map(size.__getitem__, attention.SIZES)]
    match c:
        case records.MaskedCoefficients():
            moved = size["moved"] if "moved" in size else attention.masked_bytes(sizes)
            return attention.masked_attention_seconds(sizes, moved, machine, c)
        case records.PrefillCoefficients():
            return attention.prefill_attention_seconds(
                sizes, machine, c, causal=causal, element_bytes=element_bytes
            )
        case records.GenerationCoefficients():
            return attention.generation_attention_seconds(
                sizes, machine, c, element_bytes=element_bytes
            )
