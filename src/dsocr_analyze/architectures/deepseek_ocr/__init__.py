"""DeepSeek-OCR: SAM and CLIP encoders, a projector, and a mixture-of-experts decoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dsocr_analyze.architectures.config_file import Config
from dsocr_analyze.architectures.ocr_family.config_table import (
    CLIP_KEYS,
    PROJECTOR_KEYS,
    SAM_KEYS,
    key_table,
)
from dsocr_analyze.architectures.ocr_family.family_member import FamilyMember
from dsocr_analyze.architectures.ocr_family.ocr_model import ClipModel
from dsocr_analyze.architectures.views import CropRule
from dsocr_analyze.workload import Mode

__all__ = ["CONFIG_TABLE", "DEEPSEEK_OCR", "MODES", "PUBLISHED_SECTIONS"]

_PUBLISHED_CODE: Final[Mapping[str, str]] = {
    "configuration_deepseek_v2.py": (
        "6ab21f29a4722e26fa28c8e0d4277591689a598df17cf6c712330e8f62b3fc7c"
    ),
    "conversation.py": "cf105fe9170bc797043e6d09dd7a2ac08565f66b5ef54f2cd4a123a1c044c9cf",
    "deepencoder.py": "0ae2fb6d1e5ae8cf100fc32f854830acd08c821a0a1f23a94a76588c222ddcf2",
    "modeling_deepseekocr.py": "f103ad93ade318a8b878c7af8fc06d223951a293accca44e1fd7cb23d4d30751",
    "modeling_deepseekv2.py": "69184a0493d1fdac21c360f9f9eabc5b5af3188e0265df44cfaeafc44f9095e3",
}
"""SHA-256 of the published model's Python files."""

PUBLISHED_SECTIONS: Final[Mapping[str, Config]] = {
    "vision_config": {
        "image_size": 1024,
        "width": {
            "clip-l-14-224": {
                "heads": 16,
                "image_size": 224,
                "layers": 24,
                "patch_size": 14,
                "width": 1024,
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
        "input_dim": 2048,
        "n_embed": 1280,
        "token_pooling": False,
        "conv_fusion_high_low_features": False,
    },
}
"""What the published code builds, regardless of these sections, which it does not read.

Sources: `_build_sam`, `build_sam_vit_b`, `vit_model_cfg` (`deepencoder.py`) and
`DeepseekOCRModel.__init__` (`modeling_deepseekocr.py`).
"""

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


class _DeepSeekOCR(ClipModel, FamilyMember):
    name, title = "deepseek-ocr", "DeepSeek-OCR"
    vendor_class = "DeepseekOCRForCausalLM"
    model_types = ("DeepseekOCR", "deepseek_vl_v2")
    built_in = Path(__file__).parent / "reference"
    published_code = _PUBLISHED_CODE
    config_table = CONFIG_TABLE
    modes, default_mode = MODES, "gundam"
    crop = CropRule(tile=640, most=9)
    base_size, image_size = 1024, 640
    text_tokens = 10
    r"""BOS and the text of `<image>\n<|grounding|>Convert the document to markdown.`"""


DEEPSEEK_OCR: Final = _DeepSeekOCR()
