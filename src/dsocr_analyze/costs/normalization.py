"""Normalisation: LayerNorm, its fp32 and channel-first variants, RMSNorm.

d is the normalised width; rows are all other dimensions together.
"""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import Kernels, cast, copy, elementwise, reduction
from dsocr_analyze.dtypes import FLOAT32, Dtype
from dsocr_analyze.kernels import Kernel, Rows, Work

__all__ = ["layer_norm", "layer_norm_2d", "layer_norm_fp32", "rms_norm"]


def layer_norm(rows: Count, d: int, dtype: Dtype, *, channels_first: bool = False) -> Kernels:
    """`(x - mean) / sqrt(var + eps) w + b` in one kernel: 5 FLOPs per element.

    Source: Ba et al. 2016, eq. 4; `torch.nn.LayerNorm`.

    Args:
        rows: Tokens.
        d: Width.
        dtype: Type of input, weight and output.
        channels_first: Whether features are stored channel by channel; the kernel copies them.
    """
    copied = copy("clone", rows * d, dtype) if channels_first else ()
    return copied + _layer_norm(rows, d, dtype, dtype)


def _layer_norm(rows: Count, d: int, dtype: Dtype, weight: Dtype) -> Kernels:
    size = rows * (d * dtype.nbytes)
    work = Work(
        vector_flops=rows * (5 * d),
        bytes_read=size + 2 * d * weight.nbytes,
        bytes_written=size,
    )
    shape = Rows(rows, d)
    return (Kernel("normalization", "native_layer_norm", shape, dtype.name, dtype.name, work),)


def layer_norm_fp32(rows: Count, d: int, dtype: Dtype) -> Kernels:
    """LayerNorm between two casts (`LayerNormfp32`, `deepencoder.py`).

    Args:
        rows: Tokens.
        d: Width.
        dtype: Type of input, weight and output.
    """
    elements = rows * d
    return (
        *cast(elements, dtype, FLOAT32),
        *_layer_norm(rows, d, FLOAT32, dtype),
        *cast(elements, FLOAT32, dtype),
    )


def layer_norm_2d(N: Count, channels: int, pixels: Count, dtype: Dtype) -> Kernels:
    """LayerNorm over the channels of `[N, C, h, w]`, operator by operator.

    With n elements and m = N pixels means: mean (n), centre (n), square (n), mean (n), centre (n),
    eps (m), root (m), quotient (n), weight (n), bias (n): 8 n + 2 m FLOPs.

    Source: `LayerNorm2d` (`deepencoder.py`), from ConvNeXt.

    Args:
        N: Images.
        channels: C.
        pixels: h w.
        dtype: Type of input, weight and output.
    """
    m = N * pixels
    n = m * channels
    mean = reduction("mean", m, channels, dtype)
    with_means = dtype.nbytes * (n + m)
    with_weights = dtype.nbytes * (n + channels)
    centre = elementwise("sub", n, dtype, read=with_means)
    return (
        *mean,
        *centre,
        *elementwise("pow", n, dtype),
        *mean,
        *centre,
        *elementwise("add", m, dtype),
        *elementwise("sqrt", m, dtype),
        *elementwise("div", n, dtype, read=with_means),
        *elementwise("mul", n, dtype, read=with_weights),
        *elementwise("add", n, dtype, read=with_weights),
    )


def rms_norm(rows: Count, d: int, dtype: Dtype) -> Kernels:
    """`x / sqrt(mean(x^2) + eps) w` in fp32, operator by operator: 4 per element, 2 per row.

    Casts to fp32 and back unless the model is fp32; in between square, mean, eps, reciprocal root,
    product; finally the weight in the model's own type.

    Source: Zhang and Sennrich 2019, eq. 4; `DeepseekV2RMSNorm` (`modeling_deepseekv2.py`).

    Args:
        rows: Tokens.
        d: Width.
        dtype: Type of input, weight and output.
    """
    elements = rows * d
    return (
        *cast(elements, dtype, FLOAT32),
        *elementwise("pow", elements, FLOAT32),
        *reduction("mean", rows, d, FLOAT32),
        *elementwise("add", rows, FLOAT32),
        *elementwise("rsqrt", rows, FLOAT32),
        *elementwise("mul", elements, FLOAT32, read=FLOAT32.nbytes * (elements + rows)),
        *cast(elements, FLOAT32, dtype),
        *elementwise("mul", elements, dtype, read=dtype.nbytes * (elements + d)),
    )
