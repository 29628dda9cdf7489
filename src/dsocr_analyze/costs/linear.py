"""Linear layers: `y = x W^T + b` (`torch.nn.Linear`)."""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.work import Work

__all__ = ["linear", "linear_params", "product"]


def linear(
    rows: Count, d_in: Count, d_out: Count, element_bytes: int, *, bias: bool = False
) -> Work:
    """`[rows, d_in] -> [rows, d_out]`: rows d_in d_out MACs, and an addition an output for a bias.

    Args:
        rows: Tokens of all items of the batch, B T.
        d_in: Features in.
        d_out: Features out.
        element_bytes: Bytes of an element of input, weight and output.
        bias: Whether there is one.
    """
    outputs = rows * d_out
    weight = d_in * d_out + (d_out if bias else 0)
    return Work(
        macs=rows * (d_in * d_out),
        vector_flops=outputs if bias else 0,
        activations=outputs,
        bytes_read=rows * (element_bytes * d_in) + element_bytes * weight,
        bytes_written=rows * (element_bytes * d_out),
    )


def linear_params(d_in: int, d_out: int, *, bias: bool = False) -> int:
    """Parameters: the weight `[d_out, d_in]` and the bias `[d_out]`."""
    return d_in * d_out + (d_out if bias else 0)


def product(
    rows: Count, d_in: Count, d_out: Count, left: Count, right: Count, element_bytes: int
) -> Work:
    """A matrix product `[.., rows, d_in] x [.., d_in, d_out]` of two activations.

    Args:
        rows: Rows of the output, those of all matrices of the batch together.
        d_in: Products summed into an output.
        d_out: Columns of the output.
        left: Elements of the left factor as they lie in memory.
        right: Elements of the right factor as they lie in memory.
        element_bytes: Bytes of an element of both factors and the output.
    """
    outputs = rows * d_out
    return Work(
        macs=outputs * d_in,
        activations=outputs,
        bytes_read=element_bytes * (left + right),
        bytes_written=element_bytes * outputs,
    )
