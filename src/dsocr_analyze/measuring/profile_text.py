"""A device profile as the TOML that `hardware.profile` reads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.hardware.profile import Profile

__all__ = ["cpu_profile_text"]


def cpu_profile_text(profile: Profile) -> str:
    """The profile of a CPU."""
    cpu = profile.cpu
    assert cpu is not None, "it is a CPU's"
    lines = [
        f"name = {_value(profile.gpu.name)}",
        f"source = {_value(profile.source)}",
        "",
        "[gpu]",
        *_rows(_columns(profile.gpu)),
        "",
        "[cpu]",
        *_rows({"threads": cpu.threads, "operator_us": float(f"{cpu.operator_us:.4g}")}),
    ]
    for (family, dtype), entry in cpu.families.items():
        lines += [
            "",
            f"[kernels.{family}.{dtype}]",
            *_rows(
                {
                    "training_rows": entry.training_rows,
                    "held_out_rows": entry.held_out_rows,
                    "held_out_median": entry.median,
                    "held_out_p90": entry.p90,
                }
            ),
            f"[kernels.{family}.{dtype}.coefficients]",
            *_rows(entry.coefficients),
        ]
    return "\n".join(lines) + "\n"


def _columns(gpu: Gpu) -> dict[str, Any]:
    """What is not left at its default."""
    return {
        field.name: value
        for field in dataclasses.fields(gpu)
        if field.name != "name" and (value := getattr(gpu, field.name)) != field.default
    }


def _rows(values: Mapping[str, Any]) -> list[str]:
    return [f"{json.dumps(name)} = {_value(value)}" for name, value in values.items()]


def _value(value: Any) -> str:
    # TOML writes texts and numbers as JSON does.
    return json.dumps(value, ensure_ascii=False)
