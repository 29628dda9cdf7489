"""DeepSeek-OCR: SAM and CLIP encoders, a projector, and a mixture-of-experts decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dsocr_analyze.architectures.deepseek_ocr.config_table import CONFIG_TABLE
from dsocr_analyze.architectures.deepseek_ocr.modes import MODES
from dsocr_analyze.architectures.deepseek_ocr.published import PUBLISHED_CODE
from dsocr_analyze.architectures.ocr_family.clip_network import ClipNetwork
from dsocr_analyze.architectures.ocr_family.crop_grid import CropRule
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.ocr_family.relative import relative
from dsocr_analyze.architectures.ocr_family.repetition import alike

__all__ = ["DEEPSEEK_OCR", "NETWORK"]


class _DeepSeekOCR(ClipNetwork):
    crop = CropRule(tile=640, most=9)
    base_size, image_size = 1024, 640
    text_tokens = 10
    r"""BOS and the text of `<image>\n<|grounding|>Convert the document to markdown.`"""


NETWORK: Final = _DeepSeekOCR()

DEEPSEEK_OCR: Final = relative(
    NETWORK,
    name="deepseek-ocr",
    title="DeepSeek-OCR",
    modes=MODES,
    default_mode="gundam",
    reference=Path(__file__).parent / "reference",
    model_class="DeepseekOCRForCausalLM",
    model_types=("DeepseekOCR", "deepseek_vl_v2"),
    published_code=PUBLISHED_CODE,
    read_dimensions=ModelDimensions.from_config,
    config_table=CONFIG_TABLE,
    repeats=alike,
)
