"""Every key of a DeepSeek-OCR `config.json`, and what it does to the figures."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.architectures.deepseek_ocr.published import PUBLISHED_SECTIONS
from dsocr_analyze.architectures.ocr_family.config_table import (
    CLIP_KEYS,
    PROJECTOR_KEYS,
    SAM_KEYS,
    key_table,
)

__all__ = ["CONFIG_TABLE"]

CONFIG_TABLE: Final = key_table(SAM_KEYS | CLIP_KEYS | PROJECTOR_KEYS, PUBLISHED_SECTIONS)
