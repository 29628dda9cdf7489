"""Keeps out of a process what torch and transformers import although no pass uses it.

- torch's Python kernels for `meta` wrap themselves in `torch._dynamo.disable` on first use, which
  imports the whole compiler; `TORCH_COMPILE_DISABLE` is read by the code being imported.
- Before they compare sizes, these kernels import sympy, in case a size is a symbol.
- transformers 4.46 imports `scipy.optimize` with its base class of models, for the loss of object
  detection.

Together this is a third of the main job and 100 MiB, and there is no switch against it. While a
model is built or run, temporary stand-ins answer what is asked of a module that is not imported
yet; any other use imports the real one. Likewise for packages that are missing, which model code
imports but no pass calls.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, TypeVar

from dsocr_analyze.forking import undone
from dsocr_analyze.running.process_settings import exclusive, is_running_thread

if TYPE_CHECKING:
    import torch

__all__ = ["is_missing", "missing_packages_stood_in", "uses_compiler", "without_unused_imports"]


_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])
_Truth: TypeAlias = "bool | torch.SymBool"
_Size: TypeAlias = "int | float | torch.SymInt | torch.SymFloat | _Truth | Sequence[_Size]"

_COMPILER: Final = "torch._dynamo"
_GUARD: Final = "__dynamo_disable"
"""Attribute of a function in which `torch._compile` stores its guarded version."""


class _StandIn(types.ModuleType):
    """Stands in for a module; names that it lacks come from the real one, which is imported."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self.__path__ = self.__spec__.submodule_search_locations or []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.give_way(), name)

    def give_way(self) -> types.ModuleType:
        """Imports the real module to replace this."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


class _NoCompiler(_StandIn):
    """The compiler, without which `disable` has nothing to do."""

    def __init__(self) -> None:
        super().__init__(_COMPILER)
        self.unguarded: list[Callable[..., Any]] = []

    def disable(
        self, fn: _Decorated, recursive: bool = True, **options: bool | str | None
    ) -> _Decorated:
        if not is_running_thread():
            disabled: _Decorated = self.give_way().disable(fn, recursive, **options)
            return disabled
        self.unguarded.append(fn)
        return fn


class _NoSympy(_StandIn):
    """sympy, without which nothing is an expression."""

    def __init__(self) -> None:
        super().__init__("sympy")
        self.Basic = type("Basic", (), {})


class _NoSymbols(_StandIn):
    """torch's questions about sizes that may be symbols, answered for numbers.

    What is asked of symbols, or is not answered here, the real functions answer.
    """

    _ANSWERS: Final[dict[str, Callable[..., bool] | None]] = {
        "is_nested_int": lambda _: False,
        "sym_eq": lambda one, other: _listed(one) == _listed(other),
        "sym_and": lambda *values: all(values),
        "sym_or": lambda *values: any(values),
        "has_guarding_hint": None,  # imported with the others, and not called for numbers
        "guarding_hint_or_throw": None,
    }

    def __init__(self) -> None:
        super().__init__("torch.fx.experimental.symbolic_shapes")
        for name in "expect_true guard_or_false guard_or_true guard_size_oblivious".split():
            setattr(self, name, self._truth(name))
        self.statically_known_true = self._truth("statically_known_true")
        for name, answer in self._ANSWERS.items():
            setattr(self, name, self._function(name, answer))

    def _truth(self, name: str) -> Callable[[_Truth], bool]:
        """A function of a truth value, which it returns."""

        def truth(value: _Truth) -> bool:
            if type(value) is bool:
                return value
            real: Callable[[_Truth], bool] = getattr(self.give_way(), name)
            return real(value)

        return truth

    def _function(self, name: str, answer: Callable[..., bool] | None) -> Callable[..., _Size]:
        def answered(*values: _Size) -> _Size:
            if answer is not None and _are_numbers(values):
                return answer(*values)
            real: Callable[..., _Size] = getattr(self.give_way(), name)
            return real(*values)

        return answered


def _are_numbers(values: Iterable[_Size]) -> bool:
    """Whether values are whole numbers, not symbols, in tuples and lists too."""
    for value in values:
        if isinstance(value, tuple | list):
            if not _are_numbers(value):
                return False
        elif type(value) is not int and type(value) is not bool:
            return False
    return True


def _listed(size: _Size) -> _Size:
    """A size, or sizes as a list: torch compares tuples with lists."""
    return list(map(_listed, size)) if isinstance(size, tuple | list) else size


def _of_one_function(module: str, function: str) -> _StandIn:
    """Stands in for a module of which one function is imported, and not called for any pass."""
    stand_in = _StandIn(module)

    def real(*args: Any, **kwargs: Any) -> Any:
        return getattr(stand_in.give_way(), function)(*args, **kwargs)

    vars(stand_in)[function] = real
    return stand_in


_STAND_INS: Final[tuple[Callable[[], _StandIn], ...]] = (
    _NoCompiler,
    _NoSympy,
    _NoSymbols,
    partial(_of_one_function, "torch.utils._sympy.functions", "Max"),
    partial(_of_one_function, "scipy.optimize", "linear_sum_assignment"),
)


class _RealParts(importlib.abc.MetaPathFinder):
    """Imports a real module when one of its submodules is imported."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        stand_in = sys.modules.get(fullname.rpartition(".")[0])
        if not isinstance(stand_in, _StandIn):
            return None
        real = stand_in.give_way()
        # Importing the whole may import this part, which Python would then run a second time.
        part = sys.modules.pop(fullname, None)
        if part is None:
            return importlib.machinery.PathFinder.find_spec(fullname, real.__path__)
        return importlib.machinery.ModuleSpec(fullname, _Imported(part))


class _Imported(importlib.abc.Loader):
    """Loads a module that has been imported: as it is, with the spec that it has."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec


def uses_compiler() -> bool:
    """Whether this process has imported torch's compiler."""
    return not isinstance(sys.modules.get(_COMPILER), _NoCompiler | None)


@contextlib.contextmanager
def without_unused_imports() -> Iterator[None]:
    """While the body runs, what no pass uses is imported only if it is used after all."""
    with exclusive():
        stand_ins = [stand_in for stand_in in (make() for make in _STAND_INS) if _is_idle(stand_in)]
        finder = _RealParts()

        def give_way() -> None:
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
            for stand_in in stand_ins:
                if sys.modules.get(stand_in.__name__) is stand_in:
                    del sys.modules[stand_in.__name__]
                if isinstance(stand_in, _NoCompiler):
                    # Forget the guard: the real compiler can guard these functions later.
                    for function in stand_in.unguarded:
                        vars(function).pop(_GUARD, None)

        with undone(give_way):
            sys.modules.update({stand_in.__name__: stand_in for stand_in in stand_ins})
            sys.meta_path.insert(0, finder)
            yield


def _is_idle(stand_in: _StandIn) -> bool:
    """Whether a module is installed and not imported yet."""
    name = stand_in.__name__
    return name not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is not None


_MODULES: Final[dict[str, tuple[str, ...]]] = {
    "torchvision": (),
    "torchvision.transforms": ("Compose", "ToTensor", "Normalize"),
    "torchvision.transforms.functional": ("InterpolationMode",),
}
"""Modules and the names that published models import from them, only for preprocessing."""


@contextlib.contextmanager
def missing_packages_stood_in() -> Iterator[None]:
    """Provides stand-ins for packages that model code imports but does not need to run."""
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
    return isinstance(found, _Missing)


def _torchvision_works() -> bool:
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        # A torchvision built for another torch fails to register operators with a RuntimeError.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return False
    return True


def _stand_in(name: str, names: tuple[str, ...]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []
    for attribute in names:
        setattr(module, attribute, _Missing(f"{name}.{attribute}"))
    return module


class _Missing:
    """Stands in for a name of a missing package; calling it raises an error."""

    def __init__(self, qualified_name: str) -> None:
        self._qualified_name = qualified_name

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        package = self._qualified_name.partition(".")[0]
        raise ImportError(
            f"{self._qualified_name} was called, but {package} is not installed;"
            f" pip install {package}"
        )
