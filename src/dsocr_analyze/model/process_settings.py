"""torch's modes, and temporary changes of the process: settings, modules.

These are undone even on errors and in forked processes. Most are only for the running thread. The
default dtype changes for all threads, so only one model is built or run at a time.
"""

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import eq, truth
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn, ParamSpec, TextIO, TypeAlias, TypeVar

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.utils import logging as transformers_logging

from dsocr_analyze.forking import is_forked, undone
from dsocr_analyze.interruption import held

# --- what torch calls and returns, and its modes ---------------------------------------------


Value: TypeAlias = (
    "torch.Tensor | bool | int | float | complex | str | torch.dtype | torch.device | torch.layout"
    " | torch.memory_format | slice | Sequence[Value] | Mapping[str, Value] | None"
)
"""What operators and most modules take and return."""

Function: TypeAlias = "Callable[..., Value]"
"""A function of torch or a module's forward."""

Operator: TypeAlias = "OpOverload[..., Value]"
"""An operator below Python."""

Arguments: TypeAlias = Sequence[Any]
"""A call's positional arguments."""

Values: TypeAlias = Iterable[Any]
"""Arguments or results of a call, however collected."""

Keywords: TypeAlias = dict[str, Any]
"""A call's keyword arguments."""

Result = TypeVar("Result")
"""What a function returns."""

Key: TypeAlias = tuple[Any, ...]
"""What identifies a call."""

Shapes: TypeAlias = "tuple[int, ...] | list[Shapes] | None"
"""Shapes of nested tensors; None for other values."""


SEQUENCES: Final = tuple | list
_NUMBERS: Final = frozenset({int, float, bool, type(None)})


def tensors_in(values: Values) -> Iterator[torch.Tensor]:
    """The tensors among values, or in tuples, lists and slices among them."""
    for value in values:
        if type(value) in _NUMBERS:
            continue
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, SEQUENCES):
            yield from tensors_in(value)
        elif isinstance(value, slice):
            yield from tensors_in((value.start, value.stop, value.step))


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Runs the body outside every mode, so its operators are not counted."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


class FunctionMode(TorchFunctionMode):
    """Has `answer` answer every call of a function of torch."""

    def __init__(self, answer: Callable[[Function, Arguments, Keywords], Any]) -> None:
        super().__init__()
        self._answer = answer

    def __torch_function__(
        self,
        func: Function,
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Any:
        return self._answer(func, args, kwargs or {})


class DispatchMode(TorchDispatchMode):
    """The same for operators below Python; those that take functions raise by default."""

    def __init__(
        self,
        answer: Callable[[Any, Arguments, Keywords], Any],
        *,
        takes_functions: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
        self.answer = answer
        self.supports_higher_order_operators = takes_functions

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Any:
        return self.answer(func, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Guarding against torch.compile would import torch._dynamo.
        return False


# --- one thread at a time, and its settings ---------------------------------------------------


_LOCK = threading.RLock()
_running_thread: int | None = None


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Only one thread at a time runs the body, which builds or runs a model; others wait.

    Reentrant. In the body, interruptions wait for a safe point.
    """
    global _running_thread  # one for the whole process, like the settings
    with _LOCK, held():
        before, _running_thread = _running_thread, threading.get_ident()
        try:
            with contextlib.nullcontext() if before else _as_torch_starts():
                yield
        finally:
            _running_thread = before


@contextlib.contextmanager
def _as_torch_starts() -> Iterator[None]:
    """The body has torch's own default type and no modes, but those of other code that watch."""
    fake = torch._C._unset_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))  # its tensors have no versions
            for device in ("cpu", "cuda"):
                stack.callback(
                    torch.set_autocast_enabled, device, torch.is_autocast_enabled(device)
                )
                torch.set_autocast_enabled(device, False)
            stack.enter_context(default_dtype(torch.float32))
            if is_forked():  # torch would wait forever for the threads of the parent process
                stack.enter_context(undone(partial(torch.set_num_threads, torch.get_num_threads())))
                torch.set_num_threads(1)
            yield
    finally:
        if fake is not None:
            torch._C._set_dispatch_mode(fake)


def is_running_thread() -> bool:
    """Whether the current thread is the one that builds or runs a model."""
    return _running_thread == threading.get_ident()


def _start_afresh() -> None:
    """A forked process lacks the thread whose turn it was."""
    global _LOCK, _running_thread
    if not is_running_thread():  # else its turn goes on here, too
        _LOCK, _running_thread = threading.RLock(), None


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_start_afresh)


_Inputs = ParamSpec("_Inputs")

Owner: TypeAlias = ModuleType | type | torch.nn.Module
"""What has functions as attributes."""


@contextlib.contextmanager
def replaced(owner: Owner, name: str, value: Any) -> Iterator[None]:
    """Sets `owner.name` to `value` meanwhile; an inherited attribute is inherited again later."""
    own = vars(owner)
    is_own = name in own
    put_back = partial(setattr, owner, name, own[name]) if is_own else partial(_forget, owner, name)
    with undone(put_back):
        setattr(owner, name, value)
        yield


def _forget(owner: Owner, name: str) -> None:
    if name in vars(owner):
        delattr(owner, name)


@contextlib.contextmanager
def answered(owner: Owner, name: str, answer: Callable[_Inputs, Result]) -> Iterator[None]:
    """Redirects the running thread's calls of `owner.name`, if there is one, to `answer`.

    It takes the class first if that is a class method.
    """
    own: Any = vars(owner).get(name)
    is_class_method = isinstance(own, classmethod)
    original: Callable[_Inputs, Result] | None
    original = own.__func__ if is_class_method else getattr(owner, name, None)

    def either(*args: _Inputs.args, **kwargs: _Inputs.kwargs) -> Result:
        if is_running_thread():
            return answer(*args, **kwargs)
        if original is None:
            raise NameError(f"name {name!r} is not defined")
        result: Result = original(*args, **kwargs)
        return result

    if original is not None:
        functools.update_wrapper(either, original)
    stand_in: Any = either
    with replaced(owner, name, classmethod(stand_in) if is_class_method else stand_in):
        yield


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Sets the default dtype of new tensors to `dtype`, in every thread."""
    with undone(partial(torch.set_default_dtype, torch.get_default_dtype())):
        torch.set_default_dtype(dtype)
        yield


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silences transformers' warnings, which affect no count."""
    transformers_logging.get_verbosity()  # creates its handler if nothing has yet
    logger: logging.Logger | None = transformers_logging.get_logger()
    with contextlib.ExitStack() as stack:
        while logger is not None:  # every one that its messages reach
            for handler in logger.handlers:
                stack.enter_context(undone(partial(handler.removeFilter, _is_passed_on)))
                handler.addFilter(_is_passed_on)
            logger = logger.parent if logger.propagate else None
        yield


def _is_passed_on(record: logging.LogRecord) -> bool:
    """Whether a message is an error, not transformers', or another thread's."""
    is_theirs = record.name.partition(".")[0] == "transformers"
    return record.levelno >= logging.ERROR or not is_theirs or not is_running_thread()


@dataclass(eq=False)
class _Stdout:
    """Drops the running thread's output; other threads keep the original stream."""

    stream: TextIO | None
    nowhere: TextIO

    def __getattr__(self, name: str) -> Any:
        is_heard = self.stream is not None and not is_running_thread()
        return getattr(self.stream if is_heard else self.nowhere, name)


@contextlib.contextmanager
def discarding_stdout() -> Iterator[None]:
    """Drops what the running thread writes to stdout."""
    streams = vars(sys)
    original = streams["stdout"]
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        stand_in = _Stdout(original, nowhere)

        def put_back() -> None:
            if streams["stdout"] is stand_in:  # otherwise another thread has replaced it by now
                streams["stdout"] = original

        with undone(put_back):
            streams["stdout"] = stand_in
            yield


# --- modules that torch and transformers import although no pass uses them -------------------

# torch's Python kernels for `meta` call `torch._dynamo.disable` on first use, which imports the
# compiler, and import sympy for sizes that are symbols; transformers 4.46 imports `scipy.optimize`
# with its base class of models. This would be a third of the main job and 100 MiB. While a model is
# built or run, stand-ins answer for modules that are not imported yet; any other use imports the
# real one. There are stand-ins, too, for missing packages that model code imports but never calls.

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

_COMPILER: Final = "torch._dynamo"
_GUARD: Final = "__dynamo_disable"
"""A function's attribute for the version that `torch._compile` guards."""


class _StandIn(ModuleType):
    """Stands in for a module, which is imported for symbols, and for names missing here."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self.__path__ = self.__spec__.submodule_search_locations or []
        self.unguarded: list[Callable[..., Any]] = []
        """Functions that the compiler would guard."""
        if name == _COMPILER:
            self.disable = self._left_unguarded
        for each, answer in _ANSWERS[name].items():
            is_class = isinstance(answer, type)
            setattr(self, each, answer if is_class else partial(self._answered, each, answer))

    def _answered(
        self, name: str, answer: Callable[..., Any] | None, *values: Any, **options: Any
    ) -> Any:
        if len(values) == 1 and type(values[0]) in (int, bool) and answer and not options:
            return answer(values[0])  # most questions, by far
        numbers = None if answer is None or options else _numbers(values)
        if answer is not None and numbers is not None:
            return answer(*numbers)
        return getattr(self.give_way(), name)(*values, **options)

    def _left_unguarded(
        self, fn: _Decorated, recursive: bool = True, **options: bool | str | None
    ) -> _Decorated:
        """`disable` of the compiler, without which there is nothing to disable."""
        if not is_running_thread():
            disabled: _Decorated = self.give_way().disable(fn, recursive, **options)
            return disabled
        self.unguarded.append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.give_way(), name)

    def give_way(self) -> ModuleType:
        """Imports the real module to replace this."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


_stand_in_for: Final = functools.cache(_StandIn)
"""One for each module: they refer to themselves, and would be garbage after every run."""


def _numbers(value: Any) -> Any:
    """A whole number, or a list for a tuple or list of them; None if one is a symbol."""
    if isinstance(value, tuple | list):
        found = [*map(_numbers, value)]
        return None if None in found else found
    return value if type(value) in (int, bool) else None


_ANSWERS: Final[dict[str, dict[str, Callable[..., Any] | None]]] = {
    _COMPILER: {},  # see `_left_unguarded`
    "sympy": {"Basic": type("Basic", (), {})},  # without which nothing is an expression
    # torch's questions about sizes that may be symbols, answered for numbers
    "torch.fx.experimental.symbolic_shapes": {
        "expect_true": truth,
        "guard_or_false": truth,
        "guard_or_true": truth,
        "guard_size_oblivious": truth,
        "statically_known_true": truth,
        "is_nested_int": lambda _: False,
        "sym_eq": eq,
        "sym_and": lambda *values: all(values),
        "sym_or": lambda *values: any(values),
        "has_guarding_hint": None,
        "guarding_hint_or_throw": None,
    },
    "torch.utils._sympy.functions": {"Max": None},
    "scipy.optimize": {"linear_sum_assignment": None},
}
"""By module, the names that are imported: a class, or what answers calls with numbers.

No pass calls those without an answer.
"""


class _RealParts(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a real module when one of its submodules is imported."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[ModuleType, importlib.machinery.ModuleSpec | None]] = {}
        """Submodules that the whole has imported, with their specs."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        stand_in = sys.modules.get(fullname.rpartition(".")[0])
        if not isinstance(stand_in, _StandIn):
            return None
        real = stand_in.give_way()
        # The whole may have imported this part, which Python would run a second time.
        part = sys.modules.pop(fullname, None)
        if part is None:
            return importlib.machinery.PathFinder.find_spec(fullname, real.__path__)
        self._parts[fullname] = part, part.__spec__
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._parts[spec.name][0]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._parts.pop(module.__name__)[1]


def beside_compiler() -> type[DispatchMode]:
    """The dispatch mode, which torch's compiler, if in use, must not compile."""
    if isinstance(sys.modules.get(_COMPILER), _StandIn | None):
        return DispatchMode
    # torch guards the functions that a class has when it is made.
    own = {
        "_should_skip_dynamo": classmethod(lambda _: True),
        "__torch_dispatch__": DispatchMode.__torch_dispatch__,
    }
    return type("DispatchMode", (DispatchMode,), own)


@functools.cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@contextlib.contextmanager
def without_unused_imports() -> Iterator[None]:
    """The body imports what no pass uses only if it is used after all."""
    with exclusive():
        finder = _RealParts()
        stand_ins = [  # for those that are installed and not imported yet
            _stand_in_for(name)
            for name in _ANSWERS
            if name not in sys.modules and _is_installed(name.partition(".")[0])
        ]

        def give_way() -> None:
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
            for stand_in in stand_ins:
                if sys.modules.get(stand_in.__name__) is stand_in:
                    del sys.modules[stand_in.__name__]
                # Forget the guard: the real compiler can guard these functions later.
                while stand_in.unguarded:
                    vars(stand_in.unguarded.pop()).pop(_GUARD, None)

        with undone(give_way):
            for stand_in in stand_ins:
                sys.modules[stand_in.__name__] = stand_in
            sys.meta_path.insert(0, finder)
            yield


_MODULES: Final[dict[str, tuple[str, ...]]] = {
    "torchvision": (),
    "torchvision.transforms": ("Compose", "ToTensor", "Normalize"),
    "torchvision.transforms.functional": ("InterpolationMode",),
}
"""Modules and the names in them that published models import for preprocessing."""


@contextlib.contextmanager
def missing_packages_stood_in() -> Iterator[None]:
    """Stand-ins for packages that model code imports but does not run."""
    added = [] if _torchvision_works() else list(_MODULES)

    def remove() -> None:
        for name in added:
            sys.modules.pop(name, None)

    with undone(remove):
        for name in added:
            sys.modules[name] = _stand_in(name, _MODULES[name])
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[name])
        yield


def is_missing(found: object) -> bool:
    """Whether an object imported by model code is only a stand-in."""
    return isinstance(found, partial) and found.func is _refuse


def _torchvision_works() -> bool:
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        # A torchvision built for another torch fails to register operators with a RuntimeError.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return False
    return True


def _stand_in(name: str, names: tuple[str, ...]) -> ModuleType:
    spec = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    module = importlib.util.module_from_spec(spec)
    vars(module).update({each: partial(_refuse, f"{name}.{each}") for each in names})
    return module


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    package = name.partition(".")[0]
    raise ImportError(f"{name} was called, but {package} is not installed; pip install {package}")
