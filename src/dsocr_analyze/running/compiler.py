"""Keeps torch's compiler out of a process that compiles nothing.

torch's Python kernels for `meta` guard themselves with `torch._dynamo.disable` when they first run,
which imports the whole compiler: half a second and 40 MiB, a fifth of the main job. No switch of
torch's prevents it: `TORCH_COMPILE_DISABLE` is read by what is imported. Where it is not imported
yet, a stand-in answers that one question and is gone afterwards.
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
"""Where `torch._compile` keeps a guarded function, on the function itself."""


class _NoCompiler(types.ModuleType):
    """Stands in for `torch._dynamo`: guards by doing nothing; any other use brings the real one."""

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
        """Imports the real compiler in place of this."""
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
        return importlib.import_module(_COMPILER)


class _PartsOfTheCompiler(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the real compiler when somebody asks for a module inside it."""

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
        # The compiler has imported it on the way; its own spec is put back in exec_module.
        spec.loader_state = sys.modules[spec.name].__spec__
        return sys.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """While the body runs, guarding a kernel against the compiler does not import the compiler."""
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
            # A function that the real compiler should guard later must ask again.
            for function in stand_in.__dict__["unguarded"]:
                vars(function).pop(_GUARD, None)
