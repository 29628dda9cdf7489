"""DeepSeek-OCR-2: SAM, a Qwen2 decoder as encoder, a projector, and DeepSeek-OCR's decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dsocr_analyze.architectures.deepseek_ocr_2.config_table import CONFIG_TABLE
from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import OCR2Dimensions
from dsocr_analyze.architectures.deepseek_ocr_2.modes import MODES
from dsocr_analyze.architectures.deepseek_ocr_2.network import NETWORK
from dsocr_analyze.architectures.deepseek_ocr_2.published import PUBLISHED_CODE
from dsocr_analyze.architectures.ocr_family.relative import relative
from dsocr_analyze.architectures.ocr_family.repetition import alike

__all__ = ["DEEPSEEK_OCR_2"]

DEEPSEEK_OCR_2: Final = relative(
    NETWORK,
    name="deepseek-ocr-2",
    title="DeepSeek-OCR-2",
    modes=MODES,
    default_mode="dynamic",
    reference=Path(__file__).parent / "reference",
    model_class="DeepseekOCR2ForCausalLM",
    model_types=("DeepseekOCR2",),
    published_code=PUBLISHED_CODE,
    read_dimensions=OCR2Dimensions.from_config,
    config_table=CONFIG_TABLE,
    repeats=alike,
)
