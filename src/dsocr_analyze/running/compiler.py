"""Keeps torch's compiler out of a process that compiles nothing.

torch's Python kernels for `meta` wrap themselves in `torch._dynamo.disable` on first use, which
imports the whole compiler: half a second and 40 MiB, a fifth of the main job. torch has no switch
against that: `TORCH_COMPILE_DISABLE` is read by the code being imported. If the compiler is not
imported yet, a temporary stand-in provides `disable`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from dsocr_analyze.running.exclusive import exclusive, is_running_thread

__all__ = ["without_compiler"]

_COMPILER = "torch._dynamo"
_GUARD = "__dynamo_disable"
"""Attribute of a function in which `torch._compile` stores its guarded version."""


class _NoCompiler(types.ModuleType):
    """Stands in for `torch._dynamo`: `disable` does nothing; any other use imports the real one."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(_COMPILER)
        self.__path__ = path
        self.__dict__["unguarded"] = []

    def disable(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not is_running_thread():
            return self.give_way().disable(fn, *args, **kwargs)
        self.__dict__["unguarded"].append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.give_way(), name)

    def give_way(self) -> types.ModuleType:
        """Imports the real compiler to replace this."""
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
        return importlib.import_module(_COMPILER)


class _PartsOfTheCompiler(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the real compiler when one of its submodules is imported."""

    def __init__(self, stand_in: _NoCompiler) -> None:
        self._stand_in = stand_in

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(_COMPILER + "."):
            return None
        if sys.modules.get(_COMPILER) is not self._stand_in:
            return None
        self._stand_in.give_way()
        if fullname not in sys.modules:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        # Importing the compiler has already imported this module; exec_module restores its spec.
        spec.loader_state = sys.modules[spec.name].__spec__
        return sys.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """While the body runs, guarding a kernel against the compiler does not import it."""
    with exclusive():
        spec = None if _COMPILER in sys.modules else importlib.util.find_spec(_COMPILER)
        if spec is None:
            yield
            return
        stand_in = _NoCompiler(list(spec.submodule_search_locations or ()))
        finder = _PartsOfTheCompiler(stand_in)
        sys.modules[_COMPILER] = stand_in
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            if sys.modules.get(_COMPILER) is stand_in:
                del sys.modules[_COMPILER]
            # Forget the guard, so that the real compiler can guard these functions later.
            for function in stand_in.__dict__["unguarded"]:
                vars(function).pop(_GUARD, None)
