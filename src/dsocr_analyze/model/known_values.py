"""Values on the `meta` device: the few numbers that model code asks of its own tensors.

A tensor on `meta` has no values, yet a model's control flow asks for some: "is there an image?",
"how many tokens went to each expert?", "do the positions increase?". `KnownValues` follows the
tensors whose values are known all the same (ranges, constants, blank or filled pixels, and whatever
is computed from known values alone), lazily, and answers such a question by computing it on the
CPU. MoE routing, whose values do not exist, is taken as uniform: the choices go round the experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from dsocr_analyze.errors import ModelCodeError

__all__ = ["KnownValues", "declare_known"]

_ATTRIBUTE = "_dsocr_known_value"

_Compute = Callable[[], Any]

_RANGES_AND_CONSTANTS = frozenset(
    {torch.arange, torch.zeros, torch.ones, torch.full, torch.tensor, torch.Tensor.new_zeros}
)
_QUESTIONS = frozenset(
    {
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.numpy,
        torch.Tensor.__bool__,
        torch.Tensor.__int__,
        torch.Tensor.__float__,
        torch.Tensor.__index__,
        torch.Tensor.__contains__,
        torch.equal,
        torch.allclose,
    }
)
_TOP_K = frozenset({torch.topk, torch.Tensor.topk})


def declare_known(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """Says that every element of `tensor` (any shape, on `meta`) has this `value`."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    setattr(tensor, _ATTRIBUTE, _once(lambda: torch.full((), value, dtype=dtype).expand(shape)))
    return tensor


def _once(compute: _Compute) -> _Compute:
    results: list[Any] = []

    def value() -> Any:
        if not results:
            results.append(compute())
        return results[0]

    return value


@contextmanager
def _unseen() -> Iterator[None]:
    """Computes outside every hook and mode: an answer is not an operator of the model."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class KnownValues(TorchFunctionMode):
    """Answers what a model asks of `meta` tensors; does nothing to tensors that have values."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            if func in _QUESTIONS:
                return self._answer(func, args, kwargs)
            if func is torch.Tensor.cpu:
                known = getattr(args[0], _ATTRIBUTE, None)
                return args[0] if known is None else self._compute(known)
            if func is torch.Tensor.cuda:
                return args[0]
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            if result.is_meta:
                self._follow(func, args, kwargs, result)
        elif isinstance(result, tuple | list):
            self._follow_each(func, args, kwargs, result)
        elif func is torch.Tensor.__setitem__ and hasattr(args[0], _ATTRIBUTE):
            delattr(args[0], _ATTRIBUTE)
        return result

    @staticmethod
    def _compute(known: _Compute) -> Any:
        with _unseen():
            return known()

    def _answer(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        computed = self._deferred(func, args, kwargs)
        if computed is None:
            raise ModelCodeError(
                f"the model's code asks for a value with Tensor.{func.__name__}() of a tensor of"
                f" shape {tuple(args[0].shape)} that has none on meta;"
                " run it with --device cpu or --device cuda:0"
            )
        return self._compute(computed)

    def _follow(self, func: Any, args: Any, kwargs: dict[str, Any], result: torch.Tensor) -> None:
        in_place = bool(args) and result is args[0] or "out" in kwargs
        computed = self._deferred(func, args, kwargs, copy_first=in_place)
        if in_place and result._is_view():
            # A write through a view changes its base, whose value is then no longer known.
            computed = None
            if result._base is not None and hasattr(result._base, _ATTRIBUTE):
                delattr(result._base, _ATTRIBUTE)
        if computed is not None:
            setattr(result, _ATTRIBUTE, computed)
        elif in_place and hasattr(result, _ATTRIBUTE):
            delattr(result, _ATTRIBUTE)

    def _follow_each(
        self, func: Any, args: Any, kwargs: dict[str, Any], results: tuple[Any, ...] | list[Any]
    ) -> None:
        if func in _TOP_K and results[1].is_meta and not hasattr(args[0], _ATTRIBUTE):
            candidates = args[0].shape[kwargs.get("dim", args[2] if len(args) > 2 else -1)]
            shape, count = tuple(results[1].shape), results[1].numel()
            setattr(
                results[1],
                _ATTRIBUTE,
                _once(lambda: (torch.arange(count) % candidates).view(shape)),
            )
            return
        computed: _Compute | None = None
        for index, result in enumerate(results):
            if isinstance(result, torch.Tensor) and result.is_meta:
                if computed is None:
                    computed = self._deferred(func, args, kwargs)
                    if computed is None:
                        return
                setattr(result, _ATTRIBUTE, _pick(computed, index))

    @staticmethod
    def _deferred(
        func: Any, args: Any, kwargs: dict[str, Any], *, copy_first: bool = False
    ) -> _Compute | None:
        """The computation of `func` on known values, or None where one of them is unknown."""
        seen_tensor = False
        arguments: list[Any] = []
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, torch.Tensor):
                seen_tensor = True
                known = getattr(argument, _ATTRIBUTE, None)
                if known is None:
                    if argument.is_meta and func is not torch.Tensor.new_zeros:
                        return None
                    value = argument
                    known = lambda value=value: value  # noqa: E731 - binds this iteration's tensor
                    if argument.is_meta:
                        known = lambda dtype=argument.dtype: torch.empty(0, dtype=dtype)  # noqa: E731
                arguments.append(known)
            elif isinstance(argument, torch.device):
                arguments.append(lambda: torch.device("cpu"))
            elif isinstance(argument, str) and argument == "meta":
                arguments.append(lambda: "cpu")
            elif isinstance(argument, tuple | list) and any(
                isinstance(item, torch.Tensor) for item in argument
            ):
                known_items = [getattr(item, _ATTRIBUTE, None) for item in argument]
                if any(
                    known is None and isinstance(item, torch.Tensor)
                    for known, item in zip(known_items, argument, strict=True)
                ):
                    return None
                seen_tensor = True
                kind, pairs = type(argument), list(zip(known_items, argument, strict=True))
                arguments.append(
                    lambda kind=kind, pairs=pairs: kind(
                        item if known is None else known() for known, item in pairs
                    )
                )
            else:
                arguments.append(lambda argument=argument: argument)
        if not seen_tensor and func not in _RANGES_AND_CONSTANTS:
            return None
        # The computation must not hold the meta tensors themselves: they have lives to be measured.
        names, positional_count = list(kwargs), len(args)

        def compute() -> Any:
            values = [argument() for argument in arguments]
            if copy_first:
                values[0] = values[0].clone()
            positional, named = values[:positional_count], values[positional_count:]
            options = dict(zip(names, named, strict=True))
            if func in _RANGES_AND_CONSTANTS:
                options["device"] = "cpu"
            return func(*positional, **options)

        return _once(compute)


def _pick(computed: _Compute, index: int) -> _Compute:
    return lambda: computed()[index]
