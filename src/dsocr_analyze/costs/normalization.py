"""Normalisation: LayerNorm, its fp32 and channel-first variants, RMSNorm.

d is the normalised width, rows are all other dimensions together.
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.movement import FP32_BYTES, cast
from dsocr_analyze.costs.sums import combined
from dsocr_analyze.work import Work

__all__ = [
    "layer_norm",
    "layer_norm_2d",
    "layer_norm_fp32",
    "layer_norm_params",
    "rms_norm",
    "rms_norm_params",
]


def layer_norm(rows: Count, d: int, element_bytes: int) -> Work:
    """`(x - mean) / sqrt(var + eps) w + b` in one kernel: 5 FLOPs an element.

    Source: Ba et al. 2016, eq. 4; `torch.nn.LayerNorm`.

    Args:
        rows: Tokens.
        d: Width.
        element_bytes: Bytes of an element.
    """
    return _layer_norm(rows, d, element_bytes, element_bytes)


def _layer_norm(rows: Count, d: int, element_bytes: int, weight_bytes: int) -> Work:
    size = rows * (d * element_bytes)
    return Work(
        vector_flops=rows * (5 * d),
        bytes_read=size + 2 * d * weight_bytes,
        bytes_written=size,
    )


def layer_norm_fp32(rows: Count, d: int, element_bytes: int) -> Work:
    """LayerNorm between two casts (`LayerNormfp32`, `deepencoder.py`).

    Args:
        rows: Tokens.
        d: Width.
        element_bytes: Bytes of an element of input, weight and output.
    """
    elements = rows * d
    return combined(
        (
            cast(elements, element_bytes, FP32_BYTES),
            _layer_norm(rows, d, FP32_BYTES, element_bytes),
            cast(elements, FP32_BYTES, element_bytes),
        )
    )


def layer_norm_params(d: int) -> int:
    """Parameters: weight and bias `[d]`."""
    return 2 * d


def layer_norm_2d(N: Count, channels: int, pixels: Count, element_bytes: int) -> Work:
    """LayerNorm over the channels of `[N, C, h, w]`, operator by operator.

    With n elements and m = N pixels means: mean (n), centre (n), square (n), mean (n), centre (n),
    eps (m), root (m), quotient (n), weight (n), bias (n): 8 n + 2 m FLOPs.

    Source: `LayerNorm2d` (`deepencoder.py`), from ConvNeXt.

    Args:
        N: Images.
        channels: C.
        pixels: h w.
        element_bytes: Bytes of an element.
    """
    m = N * pixels
    n = m * channels
    return Work(
        vector_flops=8 * n + 2 * m,
        bytes_read=element_bytes * (8 * n + 5 * m + 2 * channels),
        bytes_written=element_bytes * (6 * n + 4 * m),
    )


def rms_norm(rows: Count, d: int, element_bytes: int) -> Work:
    """`x / sqrt(mean(x^2) + eps) w` in fp32, operator by operator: 4 an element, 2 a row.

    A cast to fp32 before and one back, none where the model is fp32; square, mean, eps, reciprocal
    root, product; then the weight in the model's own type.

    Source: Zhang and Sennrich 2019, eq. 4; `DeepseekV2RMSNorm` (`modeling_deepseekv2.py`).

    Args:
        rows: Tokens.
        d: Width.
        element_bytes: Bytes of an element of input, weight and output.
    """
    wide = rows * (FP32_BYTES * (3 * d + 3))
    weighted = rows * (d * element_bytes)
    casts = 0 if element_bytes == FP32_BYTES else rows * (d * (element_bytes + FP32_BYTES))
    return Work(
        vector_flops=rows * (4 * d + 2),
        bytes_read=wide + weighted + d * element_bytes + casts,
        bytes_written=rows * (FP32_BYTES * (2 * d + 3)) + weighted + casts,
    )


def rms_norm_params(d: int) -> int:
    """Parameters: the weight `[d]`."""
    return d
