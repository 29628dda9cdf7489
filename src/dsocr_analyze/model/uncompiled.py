"""Keeps torch's compiler out of a process that compiles nothing.

torch's Python kernels for `meta` guard themselves with `torch._dynamo.disable` when they first run,
which imports the whole compiler: a third of the time and memory of a short analysis. Where it is
not imported yet, a stand-in answers that one question and is gone afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["without_compiler"]

_COMPILER = "torch._dynamo"
_GUARD = "__dynamo_disable"
"""Where `torch._compile` keeps a guarded function, on the function itself."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _NoCompiler(types.ModuleType):
    """Stands in for `torch._dynamo`: guards by doing nothing; any other use brings the real one."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(_COMPILER)
        self.__path__ = path
        self.__dict__["unguarded"] = []

    def disable(self, fn: _Function, *_: Any, **__: Any) -> _Function:
        self.__dict__["unguarded"].append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
        return getattr(importlib.import_module(_COMPILER), name)


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """While the body runs, guarding a kernel against the compiler does not import the compiler."""
    spec = None if _COMPILER in sys.modules else importlib.util.find_spec(_COMPILER)
    if spec is None:
        yield
        return
    stand_in = _NoCompiler(list(spec.submodule_search_locations or ()))
    sys.modules[_COMPILER] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(_COMPILER) is stand_in:
            del sys.modules[_COMPILER]
        # A function that the real compiler should guard later must ask again.
        for function in stand_in.__dict__["unguarded"]:
            vars(function).pop(_GUARD, None)
