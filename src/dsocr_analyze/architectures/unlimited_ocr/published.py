"""Unlimited-OCR's published code: its files, which build DeepSeek-OCR's encoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["PUBLISHED_CODE"]

PUBLISHED_CODE: Final[Mapping[str, str]] = {
    "configuration_deepseek_v2.py": (
        "b8470dd616ba8745fce6e27b093aef73a098863cc891b2477dcf9326a36000f7"
    ),
    "conversation.py": ("ec7b6ce89bcda643de1f43269ffa66a7b2e65dc3ed30e427958f776546b4ba03"),
    "deepencoder.py": ("0ae2fb6d1e5ae8cf100fc32f854830acd08c821a0a1f23a94a76588c222ddcf2"),
    "modeling_deepseekv2.py": ("74e36e6bd0ba7bc565ef76464a99baa8e6bccb710ae9c1007b54ac30b855fa4c"),
    "modeling_unlimitedocr.py": (
        "268bdcbe12cf37bf5a2debb53faf542e56570958a5d9f3314aab3cab2cf6cb48"
    ),
}
"""SHA-256 of the published model's Python files."""
