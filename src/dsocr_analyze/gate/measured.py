"""A saved measurement: whether it is of a workload, as it is now, and of its device."""

from collections.abc import Iterator
from typing import Any, Final

from dsocr_analyze.report.document import Report
from dsocr_analyze.report.measured import Measurement

_OF_WORKLOAD: Final = (
    "page", "base_size", "image_size", "crop_mode", "prompt_pages", "batch_size", "text_tokens",
    "seq_len", "max_new_tokens",
)  # fmt: skip
_DIGEST: Final = 12
"""Characters of a digest that are shown."""


def differences(measured: Measurement, report: Report, device: str) -> list[str]:
    """What was measured otherwise than a report counts it, and than on a device, in words."""
    return [
        f"{name} {_text(was)}, not {_text(now)}"
        for name, was, now in _parts(measured, report, device)
        if was != now
    ]


def _parts(measured: Measurement, report: Report, device: str) -> Iterator[tuple[str, Any, Any]]:
    """What has to be alike: its name, as measured, as asked for."""
    old, new = measured.model, report.metadata.model
    yield "device", measured.title, device
    yield "dtype", measured.dtype, report.metadata.dtype
    yield "attention", measured.attention, report.metadata.attention
    for name in _OF_WORKLOAD:
        yield name, getattr(measured.workload, name), getattr(report.workload, name)
    yield "config", old.config_digest[:_DIGEST], new.config_digest[:_DIGEST]
    yield "the model's code", old.code_digest[:_DIGEST], new.code_digest[:_DIGEST]


def _text(value: Any) -> str:
    if isinstance(value, bool | None):
        return "none" if value is None else str(value).lower()
    return " x ".join(map(str, value)) if isinstance(value, tuple) else str(value)
