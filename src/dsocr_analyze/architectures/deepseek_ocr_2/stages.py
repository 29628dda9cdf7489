"""The stages of DeepSeek-OCR-2 that differ from DeepSeek-OCR's."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.architectures.architecture import Stage

__all__ = ["ENCODER"]

ENCODER: Final = Stage(
    "encoder",
    ("model.qwen2_model",),
    "vision",
    (
        "a Qwen2 decoder: image tokens see one another, queries also the queries before them;"
        " all T x T products are multiplied",
        "it fills a KV cache that nothing reads",
    ),
)
