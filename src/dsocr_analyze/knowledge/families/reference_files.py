"""Modules of the built-in networks that the usage snippets import from."""

from __future__ import annotations

from typing import Final

__all__ = ["DECODER", "OCR", "QWEN2", "VISION"]

_REFERENCE: Final = "dsocr_analyze.architectures.deepseek_ocr.reference"

VISION: Final = f"{_REFERENCE}.deepencoder"
DECODER: Final = f"{_REFERENCE}.modeling_deepseekv2"
OCR: Final = f"{_REFERENCE}.modeling_deepseekocr"
QWEN2: Final = "dsocr_analyze.architectures.deepseek_ocr_2.reference.deepencoderv2"
