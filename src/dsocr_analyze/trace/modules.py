"""Follows module calls: the path of the module whose own forward is running.

Each module's `forward` is wrapped, for direct calls too. Hooks of other code on a module work for
it, so such modules get hooks of ours around those. What other threads call meanwhile runs as is.
"""

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.hooks import RemovableHandle

from dsocr_analyze.forking import undone
from dsocr_analyze.kernels import ancestors, grouped
from dsocr_analyze.model.process_settings import Arguments, Function, Keywords, Value

Run = Callable[[torch.nn.Module, str, Function, Arguments, Keywords], Value]


@dataclass(slots=True, eq=False)
class _Frame:
    module: torch.nn.Module
    path: str
    running: bool = False


def paths_of(model: torch.nn.Module) -> dict[torch.nn.Module, list[str]]:
    """All paths of each module at or below a model, which comes first."""
    return grouped((module, path) for path, module in model.named_modules(remove_duplicate=False))


class RunningModules:
    """The stack of modules whose forward is running, of those with `paths`, the model first."""

    def __init__(self, paths: Mapping[torch.nn.Module, list[str]]) -> None:
        self.paths = paths
        self._followed: list[_Followed] = []
        self._hooks: list[RemovableHandle] = []
        self.stack: list[_Frame] = []
        """The modules whose forward is running; empty in code around the model."""
        self._stays = 0
        """How many of them run to the end of the pass."""
        self.calls: list[str] = []
        """Paths of the modules called so far."""
        self.customized: set[str] = set()
        """Paths at or above modules with other code's hooks or forward."""
        self.thread = 0
        """Whose calls are followed."""

    def begin(self, calls: list[str], *, is_call: bool = False) -> None:
        """Starts another pass, whose calls are appended to `calls`; maybe one of the model."""
        self.stack.clear()
        self.calls = calls
        self._stays = int(is_call)
        if is_call:
            self._push(next(iter(self.paths)))

    @contextlib.contextmanager
    def attached(self, run: Run) -> Iterator[None]:
        """Follows calls while the body runs, and then restores the modules, even on errors.

        `run` is called with a module, its path, its forward and its arguments in place of that
        forward. It is not kept: a method of this object's owner would keep the model alive.
        """
        self.customized.clear()
        self.thread = threading.get_ident()
        hooks_all = _has_any_global_hook()
        with undone(self._detach):
            for module, paths in self.paths.items():
                kind, own = type(module), vars(module)
                is_customized = bool(
                    "forward" in own
                    or module._forward_hooks
                    or module._forward_pre_hooks
                    or module._backward_hooks
                    or module._backward_pre_hooks
                )
                if isinstance(module, torch.jit.ScriptModule):
                    # Its operators are recorded, but its forward is not followed. It only refuses
                    # hooks that are registered by name; its __call__ runs them.
                    kind, is_customized = torch.nn.Module, True
                else:
                    followed = _Followed(self, run, module, module.forward, "forward" in own)
                    self._followed.append(followed)
                    own["forward"] = followed
                if is_customized:
                    self.customized.update(*map(ancestors, paths))
                if is_customized or hooks_all:
                    enter, leave = kind.register_forward_pre_hook, kind.register_forward_hook
                    self._hooks.append(enter(module, self._on_enter, prepend=True))
                    self._hooks.append(leave(module, self._on_leave, always_call=True))
            yield

    def _detach(self) -> None:
        """Removes and forgets all hooks and wrappers."""
        for followed in self._followed:
            own = vars(followed.module)
            if followed.is_own:
                own["forward"] = followed.__wrapped__
            else:
                own.pop("forward", None)
        for handle in self._hooks:
            handle.remove()
        self._followed.clear()
        self._hooks.clear()
        self.stack.clear()

    def __deepcopy__(self, _: Any) -> Self:
        return self  # of a copied module's hooks, too

    # the stack

    @property
    def path(self) -> str:
        """Path of the innermost module that runs; empty for the model itself, or around it."""
        return self.stack[-1].path if self.stack else ""

    def _on_enter(self, module: torch.nn.Module, _: Arguments) -> None:
        if threading.get_ident() == self.thread and not self._is_entered(module):
            self._push(module)

    def _on_leave(self, module: torch.nn.Module, _: Arguments, __: Value) -> None:
        if threading.get_ident() != self.thread:
            return
        # A failing hook of other code may have kept us from entering this module or leaving others.
        for index in range(len(self.stack) - 1, self._stays - 1, -1):
            if self.stack[index].module is module:
                del self.stack[index:]
                return

    def _is_entered(self, module: torch.nn.Module) -> bool:
        """Whether a module is being called, and its forward has not begun."""
        return bool(self.stack) and self.stack[-1].module is module and not self.stack[-1].running

    def _push(self, module: torch.nn.Module) -> _Frame:
        # One created during the pass is counted as its caller.
        paths = self.paths.get(module, [self.path])
        frame = _Frame(module, paths[0] if len(paths) == 1 else self._path_among(paths))
        self.calls.append(frame.path)
        self.stack.append(frame)
        return frame

    def _path_among(self, paths: list[str]) -> str:
        """Of the paths of a shared module, the one below its caller."""
        for frame in reversed(self.stack):
            prefix = frame.path + "." if frame.path else ""
            for path in paths:
                if path.startswith(prefix) and path != frame.path:
                    return path
        return paths[0]

    def called(self, followed: "_Followed", args: Arguments, kwargs: Keywords) -> Value:
        """Runs a module's forward, which is on the stack meanwhile."""
        module = followed.module
        called_directly = not self._is_entered(module)
        frame = self._push(module) if called_directly else self.stack[-1]
        frame.running = True
        try:
            return followed.run(module, frame.path, followed.__wrapped__, args, kwargs)
        finally:
            frame.running = False
            if called_directly and frame in self.stack:
                del self.stack[self.stack.index(frame) :]


@dataclass(slots=True, eq=False)
class _Followed:
    """What stands in for a module's forward: made in half the time of a closure."""

    modules: RunningModules
    run: Run
    module: torch.nn.Module
    __wrapped__: Function
    """The forward, whose signature `generate` reads."""
    is_own: bool
    """Whether the module has it, and not its class."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        """The copied module's own forward, as of a module that is made during the pass."""
        return copy.deepcopy(self.__wrapped__, memo)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Value:
        if threading.get_ident() != self.modules.thread:
            return self.__wrapped__(*args, **kwargs)
        return self.modules.called(self, args, kwargs)
