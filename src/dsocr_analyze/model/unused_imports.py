"""Keeps out of a process what torch and transformers import although no pass uses it.

- torch's Python kernels for `meta` call `torch._dynamo.disable` on first use, which imports the
  compiler, and import sympy for sizes that are symbols.
- transformers 4.46 imports `scipy.optimize` with its base class of models.

This would be a third of the main job and 100 MiB. While a model is built or run, stand-ins answer
for modules that are not imported yet; any other use imports the real one. There are stand-ins, too,
for missing packages that model code imports but no pass calls.
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
from operator import eq, truth
from typing import Any, Final, NoReturn, TypeVar

from dsocr_analyze.forking import undone
from dsocr_analyze.model.process_settings import exclusive, is_running_thread
from dsocr_analyze.model.torch_calls import DispatchMode

__all__ = ["beside_compiler", "is_missing", "missing_packages_stood_in", "without_unused_imports"]


_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

_COMPILER: Final = "torch._dynamo"
_GUARD: Final = "__dynamo_disable"
"""A function's attribute for the version that `torch._compile` guards."""


class _StandIn(types.ModuleType):
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

    def give_way(self) -> types.ModuleType:
        """Imports the real module to replace this."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


def _numbers(values: Iterable[Any]) -> list[Any] | None:
    """Whole numbers, and lists for tuples of them; None if one is a symbol."""
    found = list[Any]()
    for value in values:
        number = value
        if type(value) is not int and type(value) is not bool:
            number = _numbers(value) if isinstance(value, tuple | list) else None
        if number is None:
            return None
        found.append(number)
    return found


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
        self._parts: dict[str, tuple[types.ModuleType, importlib.machinery.ModuleSpec | None]] = {}
        """Submodules that the whole has imported, with their specs."""

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
        # The whole may have imported this part, which Python would run a second time.
        part = sys.modules.pop(fullname, None)
        if part is None:
            return importlib.machinery.PathFinder.find_spec(fullname, real.__path__)
        self._parts[fullname] = part, part.__spec__
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._parts[spec.name][0]

    def exec_module(self, module: types.ModuleType) -> None:
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


@contextlib.contextmanager
def without_unused_imports() -> Iterator[None]:
    """The body imports what no pass uses only if it is used after all."""
    with exclusive():
        finder = _RealParts()
        stand_ins = list[_StandIn]()  # for those that are installed and not imported yet
        for name in _ANSWERS:
            if name not in sys.modules and importlib.util.find_spec(name.partition(".")[0]):
                stand_ins.append(_StandIn(name))

        def give_way() -> None:
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
            for stand_in in stand_ins:
                if sys.modules.get(stand_in.__name__) is stand_in:
                    del sys.modules[stand_in.__name__]
                # Forget the guard: the real compiler can guard these functions later.
                for function in stand_in.unguarded:
                    vars(function).pop(_GUARD, None)

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


def _stand_in(name: str, names: tuple[str, ...]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []
    for attribute in names:
        setattr(module, attribute, partial(_refuse, f"{name}.{attribute}"))
    return module


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    package = name.partition(".")[0]
    raise ImportError(f"{name} was called, but {package} is not installed; pip install {package}")
