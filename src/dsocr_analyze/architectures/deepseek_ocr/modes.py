"""The modes of the DeepSeek-OCR paper."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.workload import Mode

__all__ = ["MODES"]

MODES: Final[dict[str, Mode]] = {
    mode.name: mode
    for mode in (
        Mode("tiny", 512, 512, crop_mode=False),
        Mode("small", 640, 640, crop_mode=False),
        Mode("base", 1024, 1024, crop_mode=False),
        Mode("large", 1280, 1280, crop_mode=False),
        Mode("gundam", 1024, 640, crop_mode=True),
        Mode("gundam-m", 1280, 1024, crop_mode=True),
    )
}
