"""Tensors of a tape: a number of elements and a type, alive as long as something refers to them."""

from __future__ import annotations

import platform
from typing import Any, Protocol, TypeAlias

from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.tape.polynomial import Size

__all__ = ["Description", "Operand", "Tensor", "View", "described", "made"]

if platform.python_implementation() != "CPython":
    raise ImportError("a tape needs CPython, which frees a tensor with its last reference")


class Memory(Protocol):
    """What follows the bytes alive."""

    def allocated(self, nbytes: Size) -> None:
        """Notes that a tensor of `nbytes` is alive."""

    def freed(self, nbytes: Size) -> None:
        """Notes that a tensor of `nbytes` is gone."""


class Tensor:
    """A tensor that owns its memory, which is alive as long as this object.

    Attributes:
        n: Number of elements.
        dtype: Type of an element.
        nbytes: Bytes in memory.
    """

    __slots__ = ("dtype", "memory", "n", "nbytes")

    def __init__(self, memory: Memory, n: Size, dtype: Dtype) -> None:
        self.memory, self.n, self.dtype, self.nbytes = memory, n, dtype, n * dtype.nbytes
        memory.allocated(self.nbytes)

    def __del__(self) -> None:
        self.memory.freed(self.nbytes)


class View:
    """Elements in the memory of another tensor, a weight, an input or the host.

    Attributes:
        n: Number of elements.
        dtype: Type of an element.
        nbytes: Bytes of these elements.
        base: The tensor that owns the memory; None if the tape does not count it.
    """

    __slots__ = ("base", "dtype", "n", "nbytes")

    def __init__(self, n: Size, dtype: Dtype, base: Tensor | None = None) -> None:
        self.n, self.dtype, self.nbytes, self.base = n, dtype, n * dtype.nbytes, base


Operand: TypeAlias = "Tensor | View"

Description: TypeAlias = tuple[Any, ...]
"""Elements, type and, for a view, its base of a tensor; or of several, in tuples."""


def described(output: Any) -> Description:
    """What `made` needs to make tensors like these."""
    if isinstance(output, tuple):
        return tuple(map(described, output))
    if isinstance(output, View):
        return output.n, output.dtype, output.base and described(output.base)
    return output.n, output.dtype


def made(memory: Memory, description: Description) -> Any:
    """New tensors like those described."""
    if isinstance(description[0], tuple):
        return tuple(made(memory, each) for each in description)
    n, dtype, *base = description
    if not base:
        return Tensor(memory, n, dtype)
    return View(n, dtype, base[0] and made(memory, base[0]))
