"""Square 2-D convolutions (`torch.nn.Conv2d`)."""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.work import Work

__all__ = ["conv2d", "conv2d_params", "conv2d_side"]


def conv2d_side(side: Count, kernel: int, stride: int = 1, padding: int = 0) -> Count:
    """Pixels a side of the output: `(side + 2 padding - kernel) // stride + 1`."""
    return (side + (2 * padding - kernel)) // stride + 1


def conv2d(
    N: Count,
    side: Count,
    channels_in: int,
    channels_out: int,
    kernel: int,
    element_bytes: int,
    *,
    stride: int = 1,
    padding: int = 0,
    bias: bool = False,
) -> Work:
    """`[N, C_in, s, s] -> [N, C_out, s', s']`: C_in kernel^2 MACs an output.

    Padding counts as computed, as everywhere.

    Args:
        N: Images.
        side: Pixels s a side of the input.
        channels_in: C_in.
        channels_out: C_out.
        kernel: Pixels a side of the kernel.
        element_bytes: Bytes of an element of input, weight and output.
        stride: Pixels from one output to the next.
        padding: Pixels of zeros at each edge.
        bias: Whether there is one.
    """
    out_side = conv2d_side(side, kernel, stride, padding)
    outputs = N * out_side * out_side * channels_out
    weight = channels_in * channels_out * kernel * kernel + (channels_out if bias else 0)
    return Work(
        macs=outputs * (channels_in * kernel * kernel),
        vector_flops=outputs if bias else 0,
        activations=outputs,
        bytes_read=element_bytes * (N * side * side * channels_in + weight),
        bytes_written=element_bytes * outputs,
    )


def conv2d_params(channels_in: int, channels_out: int, kernel: int, *, bias: bool = False) -> int:
    """Parameters: `[C_out, C_in, kernel, kernel]` and the bias `[C_out]`."""
    return channels_in * channels_out * kernel * kernel + (channels_out if bias else 0)
