"""How a model directory is recognised as DeepSeek-OCR, and as its published code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["PUBLISHED_CODE", "recognizes"]

_MODEL_TYPES: Final = ("DeepseekOCR", "deepseek_vl_v2")
_MODEL_CLASS: Final = "DeepseekOCRForCausalLM"

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


def recognizes(config: Mapping[str, Any]) -> bool:
    """Whether a parsed `config.json` names the model's class in `auto_map`, or its model type."""
    auto_map = config.get("auto_map")
    named = auto_map.get("AutoModel") if isinstance(auto_map, Mapping) else None
    if isinstance(named, str):
        return named.rpartition(".")[2] == _MODEL_CLASS
    return config.get("model_type") in _MODEL_TYPES
