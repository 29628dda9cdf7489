"""A network's forward, written once, from which all that it costs follows.

What a forward is written with is here; what runs it on other sizes is in modules of its own.
"""

from dsocr_analyze.tape.modules import (
    ACTIVATIONS,
    activation,
    bicubic,
    conv2d,
    conv2d_side,
    embedding,
    fused_attention,
    layer_norm,
    linear,
    linear1d,
    quick_gelu,
    rms_norm,
)
from dsocr_analyze.tape.tape import Operand, Size, Tape, View

__all__ = [
    "ACTIVATIONS",
    "Operand",
    "Size",
    "Tape",
    "View",
    "activation",
    "bicubic",
    "conv2d",
    "conv2d_side",
    "embedding",
    "fused_attention",
    "layer_norm",
    "linear",
    "linear1d",
    "quick_gelu",
    "rms_norm",
]
