"""Composite operators, counted as called: PyTorch decomposes them differently on each device.

linear, matmul, einsum, attention, softmax and RMS norm reach the device as different operators on
`meta`, CPU and CUDA. A function mode intercepts them earlier, so that each counts as one operator,
identically on every device. Copies made on the way (for a softmax in another type, or for operands
whose layout the kernel does not take) are operators of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from dsocr_analyze.running.process_settings import replaced
from dsocr_analyze.running.torch_calls import Arguments, Function, Keywords, Value
from dsocr_analyze.trace.autocast import Autocast
from dsocr_analyze.trace.matrix_rules import is_contraction

__all__ = ["Composites"]

_Arguments = tuple[Arguments, Keywords]


def _parameters(*names: str) -> Callable[[Arguments, Keywords], _Arguments]:
    """Moves a call's arguments into positional order; any others stay keyword arguments."""

    def arrange(args: Arguments, kwargs: Keywords) -> _Arguments:
        ordered = list(args)
        if not kwargs:
            return ordered, kwargs
        rest = dict(kwargs)
        for name in names[len(args) :]:
            if name not in rest:
                break
            ordered.append(rest.pop(name))
        return ordered, rest

    return arrange


def _einsum_arguments(args: Arguments, kwargs: Keywords) -> _Arguments:
    operands = args[1:]
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    return [args[0], list(operands)], kwargs


def _swapped(args: Arguments, kwargs: Keywords) -> _Arguments:
    return [args[1], args[0]], kwargs


_COMPOSITES: Final[dict[Function, tuple[str, Callable[..., _Arguments]]]] = {
    F.linear: ("linear", _parameters("input", "weight", "bias")),
    torch.matmul: ("matmul", _parameters("input", "other")),
    torch.Tensor.matmul: ("matmul", _parameters("self", "other")),
    torch.linalg.matmul: ("matmul", _parameters("input", "other")),
    torch.Tensor.__matmul__: ("matmul", _parameters("self", "other")),
    torch.Tensor.__rmatmul__: ("matmul", _swapped),
    torch.einsum: ("einsum", _einsum_arguments),
    F.scaled_dot_product_attention: (
        "scaled_dot_product_attention",
        _parameters("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
    ),
    torch.softmax: ("softmax", _parameters("input", "dim")),
    torch.Tensor.softmax: ("softmax", _parameters("self", "dim")),
    F.softmax: ("softmax", _parameters("input", "dim")),
    torch.special.softmax: ("softmax", _parameters("input", "dim")),
    torch.log_softmax: ("log_softmax", _parameters("input", "dim")),
    torch.Tensor.log_softmax: ("log_softmax", _parameters("self", "dim")),
    torch.special.log_softmax: ("log_softmax", _parameters("input", "dim")),
    F.log_softmax: ("log_softmax", _parameters("input", "dim")),
    torch.rms_norm: ("rms_norm", _parameters("input", "normalized_shape", "weight")),
    F.rms_norm: ("rms_norm", _parameters("input", "normalized_shape", "weight")),
}

_MOVES: Final = (torch.Tensor.cpu, torch.Tensor.to)

_SOFTMAXES: Final = ("softmax", "log_softmax")


Record = Callable[[str, Arguments, Keywords, Callable[[], Value], bool], Value]


class Composites(TorchFunctionMode):
    """Passes each composite to `record` as one operator, as called.

    Args:
        record: Receives the operator's name, its arguments in schema order, its remaining keyword
            arguments, a function that runs it, and whether it is a single kernel on the device,
            without intermediate results; returns the output.
    """

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record
        self._autocast = Autocast()

    def __torch_function__(
        self,
        func: Function,
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Value:
        kwargs = kwargs or {}
        composite = _COMPOSITES.get(func)
        if self._autocast.is_active():
            args, kwargs = self._autocast.arguments(
                func, args, kwargs, is_recorded_whole=composite is not None
            )
        if composite is None:
            if func in _MOVES and _leaves_for_the_host(args, kwargs, func):
                # On `meta` the tensor's known value is used; on a device this is a copy.
                return self._record("transfer", [args[0]], {}, lambda: func(*args, **kwargs), True)
            if func is F.multi_head_attention_forward:
                return self._opened(func, args, kwargs)
            return func(*args, **kwargs)
        name, arrange = composite
        ordered, rest = arrange(args, kwargs)
        if name == "einsum" and not _is_one_product(*ordered):
            return func(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            return self._record(
                name, ordered, rest, lambda: _as_cuda_lays_it_out(func(*args, **kwargs)), True
            )
        if name in _SOFTMAXES:
            return self._softmax(name, func, ordered, rest)
        is_fused = name == "rms_norm"
        return self._record(name, ordered, rest, lambda: func(*args, **kwargs), is_fused)

    def _softmax(self, name: str, func: Function, args: Arguments, kwargs: Keywords) -> Value:
        """A softmax, after the copy that torch makes first if another type is requested.

        CUDA's kernel reads fp16 and writes fp32 directly (`half_to_float`); bf16 is copied.
        """
        scores, dims = args[0], args[1:2] or [kwargs.get("dim")]
        given = (argument for argument in (*args[2:], *kwargs.values()))
        dtype = next((argument for argument in given if isinstance(argument, torch.dtype)), None)
        if dtype in (None, scores.dtype):
            return self._record(name, args, kwargs, lambda: func(*args, **kwargs), False)
        if (scores.dtype, dtype) == (torch.float16, torch.float32):
            return self._record(name, args, kwargs, lambda: func(*args, **kwargs), True)
        wide = scores.to(dtype)
        return self._record(name, [wide, *dims], {}, lambda: func(wide, *dims), False)

    def _opened(self, func: Function, args: Arguments, kwargs: Keywords) -> Value:
        """Runs a Python function that torch passes to a mode as a whole, and records what it calls.

        The function asks `has_torch_function` whether to pass itself to the mode; in this thread,
        the answer is now no.
        """
        asks, here = vars(F)["has_torch_function"], threading.get_ident()

        def passes_on(args: Arguments) -> bool:
            return threading.get_ident() != here and asks(args)

        with replaced(F, "has_torch_function", passes_on), self:
            return func(*args, **kwargs)


def _leaves_for_the_host(args: Arguments, kwargs: Keywords, func: Function) -> bool:
    """Whether the call moves a tensor on `meta`, which represents a GPU, to the host."""
    if not (isinstance(args[0], torch.Tensor) and args[0].is_meta):
        return False
    if func is torch.Tensor.cpu:
        return True
    named = (*args[1:], *kwargs.values())
    return any(
        torch.device(device).type == "cpu"
        for device in named
        if isinstance(device, str | torch.device)
    )


def _is_one_product(equation: Value, operands: list[torch.Tensor]) -> bool:
    """Whether an einsum is counted as one product; any other is counted as torch decomposes it."""
    with torch._C.DisableTorchFunction():
        shapes = [operand.shape for operand in operands]
    return isinstance(equation, str) and is_contraction(equation, shapes)


def _as_cuda_lays_it_out(output: Any) -> Any:
    """Lays attention's output [B, H, T, D] out as [B, T, H, D] in memory.

    CUDA's fused kernels do that, so merging heads is a view; `meta` puts heads first, and the CPU's
    kernel uses the layout of its queries, which would make it a copy.
    """
    if output.is_cuda or output.dim() != 4 or output.transpose(1, 2).is_contiguous():
        return output
    return output.transpose(1, 2).contiguous().transpose(1, 2)
