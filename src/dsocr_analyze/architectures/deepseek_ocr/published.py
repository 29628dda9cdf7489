"""DeepSeek-OCR's published code: its files, and what they build regardless of the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["PUBLISHED_CODE", "PUBLISHED_SECTIONS"]

PUBLISHED_CODE: Final[Mapping[str, str]] = {
    "configuration_deepseek_v2.py": (
        "6ab21f29a4722e26fa28c8e0d4277591689a598df17cf6c712330e8f62b3fc7c"
    ),
    "conversation.py": "cf105fe9170bc797043e6d09dd7a2ac08565f66b5ef54f2cd4a123a1c044c9cf",
    "deepencoder.py": "0ae2fb6d1e5ae8cf100fc32f854830acd08c821a0a1f23a94a76588c222ddcf2",
    "modeling_deepseekocr.py": "f103ad93ade318a8b878c7af8fc06d223951a293accca44e1fd7cb23d4d30751",
    "modeling_deepseekv2.py": "69184a0493d1fdac21c360f9f9eabc5b5af3188e0265df44cfaeafc44f9095e3",
}
"""SHA-256 of the published model's Python files."""

PUBLISHED_SECTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
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
