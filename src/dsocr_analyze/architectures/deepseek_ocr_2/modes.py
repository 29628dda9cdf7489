"""The modes of DeepSeek-OCR-2: the `infer()` call of its README, and each view size alone."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.workload import Mode

__all__ = ["MODES"]

MODES: Final[dict[str, Mode]] = {
    mode.name: mode
    for mode in (
        Mode("dynamic", 1024, 768, crop_mode=True),
        Mode("small", 768, 768, crop_mode=False),
        Mode("base", 1024, 1024, crop_mode=False),
    )
}
