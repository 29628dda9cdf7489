"""Brings a pass on the CPU to the convention of every report: kernels and memory are CUDA's.

Results of kernels that differ get the form of CUDA's. Where the CPU is both host and device, what
the model's code asks for tells their tensors apart:

* on the host is a tensor made without a device or for `"cpu"` by that name, what `.cpu()` or
  `.to("cpu")` return, and what is computed from tensors of the host alone;
* a move between the two is a transfer, into a tensor of its own;
* all other tensors are on the device, such as one for `torch.device("cpu")`, which may be the
  model's own device, and one shared with numpy.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch.utils._device import _device_constructors

from dsocr_analyze.model.torch_calls import FunctionMode, tensors_in
from dsocr_analyze.model.unused_imports import beside_compiler

if TYPE_CHECKING:
    from dsocr_analyze.model.torch_calls import Arguments, Function, Keywords, Operator, Value
    from dsocr_analyze.trace.memory import LiveTensors

__all__ = ["cpu_as_cuda"]

Place = Literal["host", "device"]
Record = Callable[["str", "Arguments", "Keywords", Callable[[], torch.Tensor]], torch.Tensor]
"""Records an operator as a whole, by its name and arguments and what runs it."""


@contextlib.contextmanager
def cpu_as_cuda(memory: LiveTensors, record: Record) -> Iterator[None]:
    """Runs the body's operators on the CPU as on CUDA; belongs below modes that record them.

    Args:
        memory: The tensors alive, which learns those of the host.
        record: Records moves between host and device.
    """
    places = _Places(memory, record)
    with beside_compiler()(places.finish), FunctionMode(places.call):
        yield


class _Places:
    """Where tensors are, by what calls ask for and operators compute."""

    def __init__(self, memory: LiveTensors, record: Record) -> None:
        self._memory, self._record = memory, record
        self._named: list[Place] = []
        """Where results of the running calls belong, the innermost last."""

    def call(self, func: Function, args: Arguments, kwargs: Keywords) -> Value:
        """Makes a call, which may say where its results belong, with CUDA's moves."""
        if torch._C._are_functorch_transforms_active():
            return func(*args, **kwargs)
        if func in _MOVES:
            destination = self._destination(func, args, kwargs)
            if destination is None or destination == self._place_of(args[0]):
                return func(*args, **kwargs)
            move = functools.partial(self._moved, destination, func, args, kwargs)
            return self._record("transfer", [args[0]], {}, move)
        if func is torch.Tensor.__setitem__ and type(args[2]) in _NUMBERS:
            target, key, number = args
            if self._place_of(target) == "device":  # where a number is written as a tensor
                with self._at("device"):
                    number = torch.scalar_tensor(number, dtype=target.dtype, device=target.device)
            return func(target, key, number)
        device = kwargs.get("device")
        if device is not None:
            place = _place_named(device)
        elif func in _device_constructors() and not [*tensors_in((*args, *kwargs.values()))]:
            place = "host"
        else:
            return func(*args, **kwargs)
        with self._at(place):
            result = func(*args, **kwargs)
        if place == "host":  # `torch.tensor` makes it where no operator is seen
            with torch._C.DisableTorchFunction():
                for tensor in tensors_in([result]):
                    self._memory.put_on_host(tensor)
        return result

    def finish(self, func: Operator, args: Arguments, kwargs: Keywords) -> Value:
        """Runs an operator, places its results, and gives them CUDA's form."""
        output = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            statistics = _STATISTICS.get(func)
            if statistics is not None and isinstance(output, tuple):
                output = (output[0], *(statistics(args[0], each) for each in output[1:]))
            given = [*tensors_in([*args, *kwargs.values()])]
            if self._named:
                is_on_host = self._named[-1] == "host"
            else:
                is_on_host = bool(given) and all(map(self._memory.is_on_host, given))
            if is_on_host:
                for tensor in tensors_in([output]):
                    self._memory.put_on_host(tensor)
        return output

    def _destination(self, func: Function, args: Arguments, kwargs: Keywords) -> Place | None:
        """Where a call such as `.to` moves its tensor; None if it names no device."""
        if func in (torch.Tensor.cpu, torch.Tensor.cuda):
            return "host" if func is torch.Tensor.cpu else "device"
        for argument in (*args[1:], kwargs.get("device"), kwargs.get("other")):
            if isinstance(argument, torch.Tensor):
                return self._place_of(argument)
            if isinstance(argument, str | torch.device):
                return _place_named(argument)
        return None

    def _moved(
        self, place: Place, func: Callable[..., Any], args: Arguments, kwargs: Keywords
    ) -> torch.Tensor:
        with self._at(place):
            result = func(*args, **kwargs)
            with torch._C.DisableTorchFunction():
                is_same = result.untyped_storage()._cdata == args[0].untyped_storage()._cdata
                moved: torch.Tensor = result.clone() if is_same else result
                return moved

    def _place_of(self, tensor: torch.Tensor) -> Place:
        with torch._C.DisableTorchFunction():
            return "host" if self._memory.is_on_host(tensor) else "device"

    @contextlib.contextmanager
    def _at(self, place: Place) -> Iterator[None]:
        self._named.append(place)
        try:
            yield
        finally:
            self._named.pop()


def _place_named(device: Value) -> Place:
    return "host" if isinstance(device, str) and device.startswith("cpu") else "device"


def _by_row(_: torch.Tensor, statistic: torch.Tensor) -> torch.Tensor:
    """A layer norm's means or deviations: fp32 or wider."""
    return statistic.to(torch.promote_types(statistic.dtype, torch.float32))


def _by_channel(x: torch.Tensor, statistic: torch.Tensor) -> torch.Tensor:
    """A batch norm's: likewise, and even if it only applies statistics."""
    wide = _by_row(x, statistic)
    return wide if wide.numel() else wide.new_zeros(x.shape[1])


_MOVES: Final = frozenset(
    {torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.to, torch.Tensor.type_as}
)
_NUMBERS: Final = (bool, int, float, complex)
_STATISTICS: Final = {
    torch.ops.aten.native_layer_norm.default: _by_row,
    torch.ops.aten.native_batch_norm.default: _by_channel,
}
"""Operators whose statistics have another form on CUDA."""
