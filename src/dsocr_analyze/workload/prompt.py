"""A prompt as the vendor's `infer()` reads it: a placeholder for the page, and text around it."""

from __future__ import annotations

from typing import Final

__all__ = ["IMAGE_TOKEN", "text_parts"]

IMAGE_TOKEN: Final = "<image>"
"""Placeholder for the page in a prompt."""


def text_parts(prompt: str) -> list[str]:
    """The texts to encode, each separately and without special tokens; BOS precedes them.

    Leading and trailing white space is stripped, as in `format_messages`
    (`modeling_deepseekocr.py`).
    """
    return prompt.strip().split(IMAGE_TOKEN)
