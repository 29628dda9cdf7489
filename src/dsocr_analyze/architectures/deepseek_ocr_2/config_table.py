"""Every key of a DeepSeek-OCR-2 `config.json`, and what it does to the figures."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.architectures.config_rules import Used
from dsocr_analyze.architectures.deepseek_ocr_2.published import PUBLISHED_SECTIONS
from dsocr_analyze.architectures.ocr_family.config_table import (
    PROJECTOR_KEYS,
    SAM_KEYS,
    Rules,
    key_table,
)

__all__ = ["CONFIG_TABLE"]

_ENCODER_KEYS: Final[Rules] = {
    f"vision_config.width.qwen2-0-5b.{key}": Used()
    for key in ("dim", "layers", "heads", "key_value_heads", "intermediate_size", "view_sizes")
}

CONFIG_TABLE: Final = key_table(SAM_KEYS | _ENCODER_KEYS | PROJECTOR_KEYS, PUBLISHED_SECTIONS)
