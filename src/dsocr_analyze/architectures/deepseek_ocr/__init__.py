"""DeepSeek-OCR: SAM and CLIP encoders, a projector, and a mixture-of-experts decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dsocr_analyze.architectures.crop_grid import CropRule
from dsocr_analyze.architectures.deepseek_ocr.published import PUBLISHED_CODE, PUBLISHED_SECTIONS
from dsocr_analyze.architectures.ocr_family.config_table import (
    CLIP_KEYS,
    PROJECTOR_KEYS,
    SAM_KEYS,
    key_table,
)
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.ocr_family.network import ClipNetwork
from dsocr_analyze.architectures.ocr_family.relative import relative
from dsocr_analyze.workload import Mode

__all__ = ["CONFIG_TABLE", "DEEPSEEK_OCR", "MODES", "NETWORK"]

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
"""The modes of the paper."""

CONFIG_TABLE: Final = key_table(SAM_KEYS | CLIP_KEYS | PROJECTOR_KEYS, PUBLISHED_SECTIONS)
"""Every key of a `config.json`, and what it does to the figures."""


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
)
