"""Square 2-D convolutions (`torch.nn.Conv2d`)."""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.kernels import Convolution, Kernel, Work

__all__ = ["conv2d", "conv2d_side"]


def conv2d_side(side: Count, kernel: int, stride: int = 1, padding: int = 0) -> Count:
    """Pixels per side of the output: `(side + 2 padding - kernel) // stride + 1`."""
    return (side + (2 * padding - kernel)) // stride + 1


def conv2d(
    N: Count,
    side: Count,
    channels_in: int,
    channels_out: int,
    kernel: int,
    dtype: Dtype,
    *,
    stride: int = 1,
    padding: int = 0,
    bias: bool = False,
) -> Kernels:
    """`[N, C_in, s, s] -> [N, C_out, s', s']`: C_in kernel^2 MACs per output.

    A bias is one addition per output. Products with padding count, as everywhere.

    Args:
        N: Images.
        side: Pixels s per side of the input.
        channels_in: C_in.
        channels_out: C_out.
        kernel: Pixels per side of the kernel.
        dtype: Type of input, weight and output.
        stride: Input pixels between adjacent outputs.
        padding: Pixels of zeros at each edge.
        bias: Whether there is a bias.
    """
    out_side = conv2d_side(side, kernel, stride, padding)
    positions, taps = out_side * out_side, kernel * kernel
    outputs = N * positions * channels_out
    weight = conv2d_params(channels_in, channels_out, kernel, bias=bias)
    work = Work(
        macs=outputs * (channels_in * taps),
        vector_flops=outputs if bias else 0,
        activations=outputs,
        bytes_read=dtype.nbytes * (N * side * side * channels_in + weight),
        bytes_written=dtype.nbytes * outputs,
    )
    shape = Convolution(N, positions, channels_in, channels_out, taps)
    return (Kernel("convolution", "conv2d", shape, dtype.name, dtype.name, work),)


def conv2d_params(channels_in: int, channels_out: int, kernel: int, *, bias: bool = False) -> int:
    """Parameters: `[C_out, C_in, kernel, kernel]` and the bias `[C_out]`."""
    return channels_in * channels_out * kernel * kernel + (channels_out if bias else 0)
