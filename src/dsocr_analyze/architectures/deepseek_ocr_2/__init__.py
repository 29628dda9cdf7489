"""DeepSeek-OCR-2: SAM, a Qwen2 decoder as encoder, a projector, and DeepSeek-OCR's decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dsocr_analyze.architectures.config_rules import Used
from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import OCR2Dimensions
from dsocr_analyze.architectures.deepseek_ocr_2.network import NETWORK
from dsocr_analyze.architectures.deepseek_ocr_2.published import PUBLISHED_CODE, PUBLISHED_SECTIONS
from dsocr_analyze.architectures.ocr_family.config_table import (
    PROJECTOR_KEYS,
    SAM_KEYS,
    Rules,
    key_table,
)
from dsocr_analyze.architectures.ocr_family.relative import relative
from dsocr_analyze.workload import Mode

__all__ = ["CONFIG_TABLE", "DEEPSEEK_OCR_2"]

_MODES: Final[dict[str, Mode]] = {
    mode.name: mode
    for mode in (
        Mode("dynamic", 1024, 768, crop_mode=True),
        Mode("small", 768, 768, crop_mode=False),
        Mode("base", 1024, 1024, crop_mode=False),
    )
}
"""The `infer()` call of its README, and each view size alone."""

_ENCODER_KEYS: Final[Rules] = {
    f"vision_config.width.qwen2-0-5b.{key}": Used()
    for key in ("dim", "layers", "heads", "key_value_heads", "intermediate_size", "view_sizes")
}

CONFIG_TABLE: Final = key_table(SAM_KEYS | _ENCODER_KEYS | PROJECTOR_KEYS, PUBLISHED_SECTIONS)
"""Every key of a `config.json`, and what it does to the figures."""

DEEPSEEK_OCR_2: Final = relative(
    NETWORK,
    name="deepseek-ocr-2",
    title="DeepSeek-OCR-2",
    modes=_MODES,
    default_mode="dynamic",
    reference=Path(__file__).parent / "reference",
    model_class="DeepseekOCR2ForCausalLM",
    model_types=("DeepseekOCR2",),
    published_code=PUBLISHED_CODE,
    read_dimensions=OCR2Dimensions.from_config,
    config_table=CONFIG_TABLE,
)
