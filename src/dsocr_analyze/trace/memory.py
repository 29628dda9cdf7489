"""The memory of a pass: tensors made and not yet freed, and on a CPU which are the host's.

Every report's convention is CUDA's. Where the CPU is both host and device, what the model's code
asks for tells their tensors apart:

* on the host is a tensor made without a device or for `"cpu"` by that name, what `.cpu()` or
  `.to("cpu")` return, and what is computed from tensors of the host alone;
* a move between the two is a transfer, into a tensor of its own;
* all other tensors are on the device, such as one for `torch.device("cpu")`, which may be the
  model's own device, and one shared with numpy.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Self

import torch
from torch.utils._device import _device_constructors

from dsocr_analyze.model.process_settings import (
    Arguments,
    Function,
    FunctionMode,
    Keywords,
    Operator,
    Value,
    beside_compiler,
    tensors_in,
    uncounted,
)


class Look(NamedTuple):
    """What makes a tensor on `meta` like another."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    nbytes: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """How a tensor looks."""
        offset, nbytes = int(tensor.storage_offset()), tensor.untyped_storage().nbytes()
        return cls(tuple(tensor.shape), tensor.stride(), offset, tensor.dtype, nbytes)

    def make(self) -> torch.Tensor:
        """A new tensor that looks like this."""
        made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")
        if not self.offset and made.untyped_storage().nbytes() == self.nbytes:
            return made
        whole = torch.empty(self.nbytes // made.element_size(), dtype=self.dtype, device="meta")
        return whole.as_strided(self.shape, self.strides, self.offset)


class _Storage(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a storage, the `birth`th, whose address `key` may be reused once freed.

    Only one made during the pass, on the device, has bytes that count.
    """

    __slots__ = ("birth", "is_on_host", "key", "nbytes")
    key: int
    nbytes: int
    birth: int
    is_on_host: bool


class LiveTensors:
    """Memory of the tensors made during a pass, each storage once, until it is freed.

    A C function lists freed storages: in a Python callback, a signal handler's exception would be
    dropped. If all tensors `existing` before are on one device, only its memory counts.
    """

    def __init__(self, existing: Iterable[torch.Tensor]) -> None:
        self._existing = [*map(torch.Tensor.untyped_storage, existing)]
        """Held, so that nothing made later gets an address of theirs."""
        self._known: dict[int, _Storage | None] = {each._cdata: None for each in self._existing}
        self._freed: list[_Storage] = []
        self._nbytes = 0
        self.births = 0
        """Storages made so far."""
        self.hosts = 0
        """Those of them that were put on the host."""
        devices = {each.device for each in self._existing}
        self.device = devices.pop() if len(devices) == 1 else None
        """The device whose memory counts; None for every device."""

    def clear(self) -> None:
        """Starts over: tensors alive now don't count from here on."""
        for living in self._known.values():
            if living is not None:
                living.nbytes = 0
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes alive."""
        self._book_freed()
        return self._nbytes

    def add(self, tensor: torch.Tensor) -> bool:
        """Counts a tensor's memory until it is freed; whether it is new, and on the device."""
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if self._knows(storage) or not nbytes or self.device not in (None, storage.device):
            return False
        self.watch(storage, nbytes)
        return True

    def _knows(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is one made during the pass, or existed before."""
        self._book_freed()
        return storage._cdata in self._known

    def _of(self, storage: torch.UntypedStorage) -> _Storage | None:
        """What is known of a storage made during the pass."""
        self._book_freed()
        return self._known.get(storage._cdata)

    def replace(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Counts a tensor in place of another, in whose memory it would be."""
        self._book_freed()
        living = self._known.pop(old.untyped_storage()._cdata, None)
        if living is not None:
            self._nbytes -= living.nbytes
        self.add(new)

    def put_on_host(self, result: Value) -> None:
        """Leaves out a result's tensors on the CPU that would be on the host beside a GPU.

        Those that already count are on the device.
        """
        for tensor in tensors_in([result]):
            has_memory = not tensor.is_nested and tensor.layout is torch.strided  # of its own
            if has_memory and not self._knows(tensor.untyped_storage()):
                self.hosts += 1
                self.watch(tensor.untyped_storage(), 0, is_on_host=True)

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was put on the host; one without memory of its own never is."""
        if tensor.is_nested or tensor.layout is not torch.strided:
            return False
        living = self._of(tensor.untyped_storage())
        return living is not None and living.is_on_host

    def grow(self, storage: torch.UntypedStorage, before: int) -> int:
        """Counts a storage's growth from `before` bytes; returns the bytes while both are alive."""
        living = self._of(storage)
        if self.device not in (None, storage.device) or (living is not None and living.is_on_host):
            return self._nbytes
        while_growing = self._nbytes + storage.nbytes()
        grown = storage.nbytes() - before
        if living is None:
            self.watch(storage, grown)
        else:
            living.nbytes += grown
            self._nbytes += grown
        return while_growing

    def watch(
        self, storage: torch.UntypedStorage, nbytes: int, *, is_on_host: bool = False
    ) -> None:
        """Counts so many bytes of a storage that is new until it is freed."""
        self.births += 1
        living = _Storage(storage, self._freed.append)
        living.key, living.nbytes, living.birth = storage._cdata, nbytes, self.births
        living.is_on_host = is_on_host
        self._known[living.key] = living
        self._nbytes += nbytes

    def made_among(
        self, tensors: Iterable[torch.Tensor], births: int, before: int
    ) -> tuple[tuple[tuple[int, int], ...], bool]:
        """What a call made of the tensors that it returned.

        Of each storage made after the first `births`, its first tensor's position and bytes; and
        whether nothing else is alive beyond the bytes `before`.
        """
        made = dict[int, tuple[int, int]]()
        for index, tensor in enumerate(tensors):
            living = self._of(tensor.untyped_storage())
            if living is not None and living.birth > births and living.nbytes:
                made.setdefault(living.key, (index, living.nbytes))
        is_all = self.nbytes == before + sum(nbytes for _, nbytes in made.values())
        return tuple(made.values()), is_all

    def _book_freed(self) -> None:
        freed = self._freed
        while freed:
            storage = freed.pop()
            if self._known.get(storage.key) is storage:
                del self._known[storage.key]
                self._nbytes -= storage.nbytes


# --- host and device on a CPU ----------------------------------------------------------------

Record = Callable[[str, Arguments, Keywords, Callable[[], torch.Tensor]], torch.Tensor]
"""Records an operator as a whole, by its name and arguments and what runs it."""


@contextlib.contextmanager
def cpu_as_cuda(memory: LiveTensors, record: Record) -> Iterator[None]:
    """Runs the body's operators on the CPU as on CUDA; belongs below modes that record them.

    `memory` learns which tensors are the host's, and `record` records moves.
    """
    places = _Places(memory, record)
    with beside_compiler()(places.finish), FunctionMode(places.call):
        yield


class _Places:
    """Where tensors are, by what calls ask for and operators compute."""

    def __init__(self, memory: LiveTensors, record: Record) -> None:
        self._memory, self._record = memory, record
        self._on_host: list[bool] = []
        """Where results of the running calls belong, the innermost last."""

    def call(self, func: Function, args: Arguments, kwargs: Keywords) -> Value:
        """Makes a call, whose results may belong somewhere, with CUDA's moves."""
        if torch._C._are_functorch_transforms_active():
            return func(*args, **kwargs)
        if func in _MOVES:
            to_host = self._moves_to_host(func, args, kwargs)
            if to_host is None or to_host == self._is_on_host(args[0]):
                return func(*args, **kwargs)
            move = functools.partial(self._moved, to_host, func, args, kwargs)
            return self._record("transfer", [args[0]], {}, move)
        if func is torch.Tensor.__setitem__ and type(args[2]) in (bool, int, float, complex):
            target, key, number = args
            if not self._is_on_host(target):  # where a number is written as a tensor
                layout = {"dtype": target.dtype, "device": target.device}
                made: Any = self._placed(False, torch.scalar_tensor, (number,), layout)
                with uncounted():  # the CPU would fill with a tensor without dimensions
                    number = made.view(1)
            return func(target, key, number)
        device = kwargs.get("device")
        if device is not None:
            is_on_host = _names_host(device)
        elif func in _device_constructors() and not [*tensors_in((*args, *kwargs.values()))]:
            is_on_host = True
        else:
            return func(*args, **kwargs)
        result = self._placed(is_on_host, func, args, kwargs)
        if is_on_host:  # `torch.tensor` makes it where no operator is seen
            with torch._C.DisableTorchFunction():
                self._memory.put_on_host(result)
        return result

    def finish(self, func: Operator, args: Arguments, kwargs: Keywords) -> Value:
        """Runs an operator, places its results, and gives them CUDA's form."""
        output = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            if func in _NORMS and isinstance(output, tuple):
                output = (output[0], *(_statistic(args[0], each) for each in output[1:]))
            given = [*tensors_in([*args, *kwargs.values()])]
            is_on_host = bool(given) and all(map(self._memory.is_on_host, given))
            if self._on_host[-1] if self._on_host else is_on_host:
                self._memory.put_on_host(output)
        return output

    def _moves_to_host(self, func: Function, args: Arguments, kwargs: Keywords) -> bool | None:
        """Whether a call such as `.to` moves to the host; None if it names no device."""
        if func in (torch.Tensor.cpu, torch.Tensor.cuda):
            return func is torch.Tensor.cpu
        for argument in (*args[1:], *kwargs.values()):
            if isinstance(argument, torch.Tensor):
                return self._is_on_host(argument)
            if isinstance(argument, str | torch.device):
                return _names_host(argument)
        return None

    def _moved(self, to_host: bool, func: Function, args: Arguments, kwargs: Keywords) -> Any:
        result: Any = self._placed(to_host, func, args, kwargs)
        with torch._C.DisableTorchFunction():
            if result.untyped_storage()._cdata == args[0].untyped_storage()._cdata:
                return self._placed(to_host, torch.clone, (result,), {})
        return result

    def _is_on_host(self, tensor: torch.Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            return self._memory.is_on_host(tensor)

    def _placed(self, on_host: bool, func: Function, args: Arguments, kwargs: Keywords) -> Value:
        """Makes a call whose results are on the host, or on the device."""
        self._on_host.append(on_host)
        try:
            return func(*args, **kwargs)
        finally:
            self._on_host.pop()


def _names_host(device: Value) -> bool:
    return isinstance(device, str) and device.startswith("cpu")


def _statistic(x: torch.Tensor, statistic: torch.Tensor) -> torch.Tensor:
    """A norm's means or deviations, fp32 or wider, even if a batch norm only applies them."""
    wide = statistic.to(torch.promote_types(statistic.dtype, torch.float32))
    return wide.new_zeros(x.shape[1]) if wide.shape == (0,) else wide


_MOVES: Final = frozenset(
    {torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.to, torch.Tensor.type_as}
)
_NORMS: Final = (
    torch.ops.aten.native_layer_norm.default,
    torch.ops.aten.native_batch_norm.default,
)
"""Operators whose statistics have another form on CUDA."""
