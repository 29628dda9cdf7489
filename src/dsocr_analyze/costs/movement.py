"""What happens between layers: copies, casts, concatenations, additions.

They compute nothing or one FLOP an element, and move bytes.
"""

from __future__ import annotations

from typing import Final

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.work import NO_WORK, Work

__all__ = ["FP32_BYTES", "INDEX_BYTES", "addition", "cast", "copy", "elementwise", "moved"]

FP32_BYTES: Final = 4
"""What softmax, norms, routing and interpolation compute in."""

INDEX_BYTES: Final = 8
"""Token ids, positions and expert numbers are int64."""


def moved(read: Count, written: Count) -> Work:
    """Work of moving bytes alone.

    Args:
        read: Bytes.
        written: Bytes.
    """
    return Work(bytes_read=read, bytes_written=written)


def copy(elements: Count, element_bytes: int) -> Work:
    """A copy, or a concatenation into `elements`: each is read and written once.

    Args:
        elements: Elements written.
        element_bytes: Bytes of each.
    """
    size = elements * element_bytes
    return Work(bytes_read=size, bytes_written=size)


def cast(elements: Count, from_bytes: int, to_bytes: int) -> Work:
    """A copy into another float type; nothing where the type is the same already.

    Args:
        elements: Elements.
        from_bytes: Bytes of each before.
        to_bytes: Bytes of each after.
    """
    if from_bytes == to_bytes:
        return NO_WORK
    return Work(bytes_read=elements * from_bytes, bytes_written=elements * to_bytes)


def elementwise(elements: Count, element_bytes: int, *, flops: int = 1, inputs: int = 1) -> Work:
    """An operator on tensors of the same size.

    Args:
        elements: Elements of the output.
        element_bytes: Bytes of each, inputs' too.
        flops: FLOPs of each.
        inputs: Tensors of that size that are read.
    """
    size = elements * element_bytes
    return Work(
        vector_flops=flops * elements,
        bytes_read=inputs * size if inputs != 1 else size,
        bytes_written=size,
    )


def addition(elements: Count, element_bytes: int) -> Work:
    """The sum of two tensors: a residual connection.

    Args:
        elements: Elements of each.
        element_bytes: Bytes of each element.
    """
    return elementwise(elements, element_bytes, inputs=2)
