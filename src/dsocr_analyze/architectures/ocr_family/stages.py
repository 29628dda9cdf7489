"""The map from module prefixes to stages, which exists only here."""

from __future__ import annotations

import re
from typing import Final

from dsocr_analyze.architectures.architecture import Stage

__all__ = ["CLIP", "DECODE", "PREFILL", "PROJECTOR", "ROUTED_EXPERT", "SAM"]

SAM: Final = Stage("sam", ("model.sam_model",), "vision")
CLIP: Final = Stage(
    "clip",
    ("model.vision_model",),
    "vision",
    ("SAM's features replace the patch embedding, whose convolution never runs",),
)
PROJECTOR: Final = Stage("projector", ("model.projector",), "vision")
PREFILL: Final = Stage(
    "prefill",
    ("model.embed_tokens", "model.layers", "model.norm"),
    "prefill",
    ("lm_head runs over all positions; its parameters are decode's",),
)
DECODE: Final = Stage(
    "decode",
    ("lm_head",),
    "decode",
    ("one step over a cache of seq_len tokens, with all of the decoder's work",),
)

ROUTED_EXPERT: Final = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<index>\d+)(?P<below>\..*)?")
"""Paths of a routed expert and everything in it; what runs there depends on the routing."""
