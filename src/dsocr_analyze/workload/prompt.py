"""A prompt as the vendor's `infer()` reads it: a place for the page, and text around it."""

from __future__ import annotations

from typing import Final

__all__ = ["IMAGE_TOKEN", "text_parts"]

IMAGE_TOKEN: Final = "<image>"
"""What stands for the page in a prompt."""


def text_parts(prompt: str) -> list[str]:
    """The texts that are encoded, each by itself and without special tokens; BOS comes before them.

    White space around the prompt is no part of it: `format_messages` (`modeling_deepseekocr.py`)
    strips it.
    """
    return prompt.strip().split(IMAGE_TOKEN)
