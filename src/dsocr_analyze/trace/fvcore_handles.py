"""Wraps fvcore's handles, written for `torch.jit` graphs, as this project's counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from dsocr_analyze.trace.call import Call, Count

with warnings.catch_warnings():
    # fvcore scripts its loss functions when it is imported; nothing here calls them.
    warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
    from fvcore.nn import jit_handles

__all__ = ["activations", "fvcore_count", "jit_handles"]


class _Value:
    """A traced value as fvcore's handles see it: a `torch._C.Value` with a shape or a constant.

    Args:
        value: A tensor or a constant.
        flat: Present a tensor's shape as [1, elements].
    """

    __slots__ = ("_flat", "_value")

    def __init__(self, value: Any, *, flat: bool = False) -> None:
        self._value = value
        self._flat = flat

    def isCompleteTensor(self) -> bool:  # noqa: N802 - fvcore's name
        return isinstance(self._value, torch.Tensor)

    def type(self) -> _Value:
        return self

    def sizes(self) -> list[int]:
        return [1, self._value.numel()] if self._flat else list(self._value.shape)

    def toIValue(self) -> Any:  # noqa: N802 - fvcore's name
        return self._value


def fvcore_count(
    handle: Callable[..., float | dict[str, float]],
    *,
    inputs: int | None = None,
    flat: bool = False,
) -> Count:
    """The count of an fvcore handle; an fvcore flop is a MAC of a matrix operator.

    Args:
        handle: One of `fvcore.nn.jit_handles`.
        inputs: Number of arguments the handle expects (`aten::bmm` has one more); None for all.
        flat: Present shapes as [1, elements], for handles that reject some numbers of dimensions.
    """

    def count(call: Call) -> int:
        arguments = [_Value(argument, flat=flat) for argument in call.args[:inputs]]
        counted = handle(arguments, [_Value(output) for output in call.outputs])
        return int(sum(counted.values()) if isinstance(counted, dict) else counted)

    return count


activations = fvcore_count(jit_handles.generic_activation_jit())
"""Output elements of a matrix operator."""
