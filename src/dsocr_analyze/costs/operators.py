"""Single operators: constructors of the kernel records from which layer families are composed.

Every constructor returns a tuple of kernels, empty if nothing runs, so families concatenate them
with `+`. Operators have their PyTorch names.
"""

from __future__ import annotations

from typing import TypeAlias

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.dtypes import FLOAT16, FLOAT32, INT64, Dtype
from dsocr_analyze.kernels import (
    Attention,
    Elements,
    Gemm,
    Kernel,
    Kind,
    Rows,
    Work,
)

__all__ = [
    "Kernels",
    "addition",
    "attention",
    "cast",
    "copy",
    "elementwise",
    "filled",
    "moved",
    "product",
    "reduction",
    "softmax",
    "top",
    "transferred",
]

Kernels: TypeAlias = tuple[Kernel, ...]
"""Kernels of one call of a module or a part of it."""


def product(
    operator: str,
    batch: Count,
    m: Count,
    n: Count,
    k: Count,
    dtype: Dtype,
    *,
    left: Count | None = None,
    right: Count | None = None,
) -> Kernels:
    """`batch` matrix products `[m, k] x [k, n]` of two activations.

    Args:
        operator: `matmul`, `einsum`, `bmm` or `mm`.
        batch: Number of products.
        m: Rows of each output.
        n: Columns of each output.
        k: Products summed into one output element.
        dtype: Type of both factors and the output.
        left: Elements of the left factor in memory; default `batch m k`.
        right: Elements of the right factor in memory; default `batch k n`.
    """
    outputs = batch * m * n
    read = (batch * m * k if left is None else left) + (batch * k * n if right is None else right)
    work = Work(
        macs=outputs * k,
        activations=outputs,
        bytes_read=dtype.nbytes * read,
        bytes_written=dtype.nbytes * outputs,
    )
    return (Kernel("gemm", operator, Gemm(batch, m, n, k), dtype.name, dtype.name, work),)


def attention(
    operator: str, shape: Attention, dtype: Dtype, *, mask: Count | None = None
) -> Kernels:
    """Fused attention: two products and 6 FLOPs per score (scale, softmax of five), 7 with a mask.

    The scores stay inside the kernel.

    Args:
        operator: `scaled_dot_product_attention` or `flash_attention`.
        shape: Dimensions.
        dtype: Type of queries, keys, values, mask and output.
        mask: Elements of the mask, if there is one; default one per score.
    """
    queries = shape.batch * shape.heads * shape.queries
    scores = queries * shape.keys
    kept = shape.batch * shape.kv_heads * shape.keys
    features = shape.head_dim + shape.value_dim
    read = queries * shape.head_dim + kept * features
    outputs = queries * shape.value_dim
    masks = scores if mask is None else mask
    work = Work(
        macs=scores * features,
        vector_flops=scores * (7 if shape.masked else 6),
        activations=outputs,
        bytes_read=dtype.nbytes * (read + masks if shape.masked else read),
        bytes_written=dtype.nbytes * outputs,
    )
    return (Kernel("attention", operator, shape, dtype.name, dtype.name, work),)


def elementwise(
    operator: str,
    elements: Count,
    dtype: Dtype,
    *,
    flops: int = 1,
    inputs: int = 1,
    read: Count | None = None,
    output: Dtype | None = None,
    kind: Kind = "elementwise",
) -> Kernels:
    """An operator that computes every output element independently.

    Args:
        operator: Its name.
        elements: Output elements.
        dtype: Type of the first input.
        flops: FLOPs per output element.
        inputs: Tensors of that size and type that are read.
        read: Bytes read, if inputs differ in size or type.
        output: Type of the output; default: that of the input.
        kind: `elementwise` or `activation`.
    """
    written = output or dtype
    work = Work(
        vector_flops=flops * elements if flops != 1 else elements,
        bytes_read=elements * (inputs * dtype.nbytes) if read is None else read,
        bytes_written=elements * written.nbytes,
    )
    return (Kernel(kind, operator, Elements(elements), dtype.name, written.name, work),)


def addition(elements: Count, dtype: Dtype) -> Kernels:
    """The sum of two tensors: a residual connection.

    Args:
        elements: Elements of each.
        dtype: Their type.
    """
    return elementwise("add", elements, dtype, inputs=2)


def reduction(
    operator: str, rows: Count, width: Count, dtype: Dtype, *, output: Dtype | None = None
) -> Kernels:
    """Rows of elements reduced to one element each: one FLOP per input element.

    Args:
        operator: Its name: `sum`, `mean`, `max`, ...
        rows: Output elements.
        width: Input elements per output element.
        dtype: Type of the input.
        output: Type of the output; default: that of the input.
    """
    written = output or dtype
    work = Work(
        vector_flops=rows * width,
        bytes_read=rows * width * dtype.nbytes,
        bytes_written=rows * written.nbytes,
    )
    return (Kernel("reduction", operator, Rows(rows, width), dtype.name, written.name, work),)


def softmax(rows: Count, width: Count, dtype: Dtype) -> Kernels:
    """Normalises rows of scores in fp32: maximum, difference, exponential, sum, quotient.

    Scores of another type are cast first; CUDA's kernel reads fp16 directly.

    Args:
        rows: Rows.
        width: Scores per row.
        dtype: Type of the scores read; the output is fp32.
    """
    if dtype not in (FLOAT16, FLOAT32):
        return cast(rows * width, dtype, FLOAT32) + softmax(rows, width, FLOAT32)
    scores = rows * width
    work = Work(
        vector_flops=5 * scores,
        bytes_read=scores * dtype.nbytes,
        bytes_written=scores * FLOAT32.nbytes,
    )
    return (Kernel("softmax", "softmax", Rows(rows, width), dtype.name, FLOAT32.name, work),)


def top(rows: Count, width: Count, chosen: Count) -> Kernels:
    """The `chosen` largest of each row of fp32 scores: one comparison per candidate.

    Args:
        rows: Rows.
        width: Candidates per row.
        chosen: Scores and indices written per row.
    """
    work = Work(
        vector_flops=rows * width,
        bytes_read=FLOAT32.nbytes * rows * width,
        bytes_written=(FLOAT32.nbytes + INT64.nbytes) * rows * chosen,
    )
    name = FLOAT32.name
    return (Kernel("routing", "topk", Rows(rows, width), name, name, work),)


def moved(
    operator: str,
    elements: Count,
    read: Count,
    written: Count,
    dtype: Dtype,
    *,
    output: Dtype | None = None,
) -> Kernels:
    """An operator that only moves bytes.

    Args:
        operator: Its name.
        elements: Output elements.
        read: Bytes read.
        written: Bytes written.
        dtype: Type of the first input.
        output: Type of the output; default: that of the input.
    """
    work = Work(bytes_read=read, bytes_written=written)
    written_as = (output or dtype).name
    return (Kernel("movement", operator, Elements(elements), dtype.name, written_as, work),)


def copy(operator: str, elements: Count, dtype: Dtype) -> Kernels:
    """A copy (`clone`) or a concatenation (`cat`): each element is read and written once.

    Args:
        operator: Its name.
        elements: Elements written.
        dtype: Their type.
    """
    size = elements * dtype.nbytes
    return moved(operator, elements, size, size, dtype)


def cast(elements: Count, dtype: Dtype, output: Dtype) -> Kernels:
    """A copy into another type; nothing if the types are the same.

    Args:
        elements: Number of elements.
        dtype: Type before.
        output: Type after.
    """
    if dtype == output:
        return ()
    read, written = elements * dtype.nbytes, elements * output.nbytes
    return moved("_to_copy", elements, read, written, dtype, output=output)


def transferred(elements: Count, dtype: Dtype) -> Kernels:
    """A tensor moved between host and device.

    Args:
        elements: Number of elements.
        dtype: Their type.
    """
    size = elements * dtype.nbytes
    return moved("transfer", elements, size, size, dtype)


def filled(operator: str, elements: Count, dtype: Dtype) -> Kernels:
    """A range or a constant (`arange`, `zeros`, `full`, ...): only written.

    Args:
        operator: Its name.
        elements: Elements written.
        dtype: Their type.
    """
    return moved(operator, elements, 0, elements * dtype.nbytes, dtype)
