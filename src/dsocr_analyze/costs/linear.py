"""Linear layers: `y = x W^T + b` (`torch.nn.Linear`)."""

from __future__ import annotations

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.kernels import Gemm, Kernel, Work

__all__ = ["linear"]


def linear(rows: Count, d_in: Count, d_out: Count, dtype: Dtype, *, bias: bool = False) -> Kernels:
    """`[rows, d_in] -> [rows, d_out]`: rows d_in d_out MACs, one addition per output for a bias.

    Args:
        rows: Tokens of the whole batch, B T.
        d_in: Features in.
        d_out: Features out.
        dtype: Type of input, weight and output.
        bias: Whether there is a bias.
    """
    outputs = rows * d_out
    weight = d_in * d_out + (d_out if bias else 0)
    work = Work(
        macs=rows * (d_in * d_out),
        vector_flops=outputs if bias else 0,
        activations=outputs,
        bytes_read=rows * (dtype.nbytes * d_in) + dtype.nbytes * weight,
        bytes_written=rows * (dtype.nbytes * d_out),
    )
    return (Kernel("gemm", "linear", Gemm(1, rows, d_out, d_in), dtype.name, dtype.name, work),)
