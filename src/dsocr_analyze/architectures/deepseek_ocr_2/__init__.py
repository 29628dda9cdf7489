"""DeepSeek-OCR-2: SAM, a Qwen2 decoder as encoder, a projector, and DeepSeek-OCR's decoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dsocr_analyze.architectures.config_keys import Config
from dsocr_analyze.architectures.config_rules import Used
from dsocr_analyze.architectures.deepseek_ocr_2.encoder_dimensions import OCR2Dimensions
from dsocr_analyze.architectures.deepseek_ocr_2.network import NETWORK
from dsocr_analyze.architectures.ocr_family.config_table import (
    PROJECTOR_KEYS,
    SAM_KEYS,
    Rules,
    key_table,
)
from dsocr_analyze.architectures.ocr_family.relative import relative
from dsocr_analyze.workload import Mode

__all__ = ["CONFIG_TABLE", "DEEPSEEK_OCR_2"]

_PUBLISHED_CODE: Final[Mapping[str, str]] = {
    "configuration_deepseek_v2.py": (
        "6ab21f29a4722e26fa28c8e0d4277591689a598df17cf6c712330e8f62b3fc7c"
    ),
    "conversation.py": ("ec7b6ce89bcda643de1f43269ffa66a7b2e65dc3ed30e427958f776546b4ba03"),
    "deepencoderv2.py": ("798b45ae9929d68823f9eccac8d99cf198759b8b22ec4e4e2ebdda1b18a88df3"),
    "modeling_deepseekocr2.py": (
        "eb221cb3b386b627784d971feaa3876e21a460b2c202d7cc4d386b4afc103bff"
    ),
    "modeling_deepseekv2.py": ("69184a0493d1fdac21c360f9f9eabc5b5af3188e0265df44cfaeafc44f9095e3"),
}
"""SHA-256 of the Python files of a public copy, whose additions are off by default."""

_PUBLISHED_SECTIONS: Final[Mapping[str, Config]] = {
    "vision_config": {
        "image_size": 1024,
        "width": {
            "qwen2-0-5b": {
                "dim": 896,
                "heads": 14,
                "intermediate_size": 4864,
                "key_value_heads": 2,
                "layers": 24,
                "view_sizes": [768, 1024],
            },
            "sam_vit_b": {
                "downsample_channels": [512, 1024],
                "global_attn_indexes": [2, 5, 8, 11],
                "heads": 12,
                "layers": 12,
                "width": 768,
            },
        },
    },
    "projector_config": {
        "projector_type": "linear",
        "input_dim": 896,
        "n_embed": 1280,
        "token_pooling": False,
        "conv_fusion_high_low_features": False,
    },
}
"""What the published code builds, regardless of these sections, which it does not read.

It replaces the last of `downsample_channels` by the encoder's width, 896.

Sources: `_build_sam`, `build_sam_vit_b`, `build_qwen2_decoder_as_encoder` (`deepencoderv2.py`) and
`DeepseekOCR2Model.__init__` (`modeling_deepseekocr2.py`).
"""

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

CONFIG_TABLE: Final = key_table(SAM_KEYS | _ENCODER_KEYS | PROJECTOR_KEYS, _PUBLISHED_SECTIONS)
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
    published_code=_PUBLISHED_CODE,
    read_dimensions=OCR2Dimensions.from_config,
    config_table=CONFIG_TABLE,
)
