"""The record of one forward pass."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from dsocr_analyze.figures import Peak
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.model.torch_calls import Shapes


class TracedCall(NamedTuple):
    """What one call of a module did, with all that it calls.

    Attributes:
        peak_bytes: The most bytes alive beyond those alive before.
        cache_bytes: Keys and values in its cache, or in its own layer of it.
        shapes: Of the tensors given, by parameter, and of the first `returned`.
    """

    kernels: tuple[Kernel, ...]
    peak_bytes: int
    cache_bytes: int
    shapes: dict[str, tuple[int, ...]]


@dataclass
class Trace:
    """The record of one forward pass, or of a call within it.

    Attributes:
        kernels: Counted operators in order, each under the module whose own forward called it.
        free: Calls of operators that neither compute nor move anything, by name.
        unknown: Calls of operators without a rule, by name.
        calls: Paths of called modules, one item per call.
        shapes: Input and output shapes of each module's first call, by path.
        peak: The most bytes of tensors alive at once beyond those alive before.
        modules: If asked for, the calls of every module, by path.
    """

    kernels: list[Kernel] = field(default_factory=list)
    free: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    calls: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[Shapes, Shapes]] = field(default_factory=dict)
    peak: Peak = field(default_factory=functools.partial(Peak, 0, ""))
    modules: dict[str, list[TracedCall]] = field(default_factory=dict)

    def add(self, call: Trace, alive: int, old: str, new: str) -> None:
        """Adds a call of the module `old`, with `alive` bytes before it, as one of `new`."""
        here: Callable[[str], str] = str
        if new == old:
            self.kernels += call.kernels
        else:
            here = functools.cache(functools.partial(_moved, old, new))
            paths = map(here, map(attrgetter("path"), call.kernels))
            self.kernels += map(Kernel.at, call.kernels, paths)
        self.calls += map(here, call.calls)
        self.free.update(call.free)
        self.unknown.update(call.unknown)
        for path, shapes in call.shapes.items():
            self.shapes.setdefault(here(path), shapes)
        if alive + call.peak.nbytes > self.peak.nbytes:
            self.peak = Peak(alive + call.peak.nbytes, here(call.peak.path))


def _moved(old: str, new: str, path: str) -> str:
    """Moves a path at or below `old` to `new`; others stay."""
    if path == old:
        return new
    below = old + "." if old else ""
    if not path.startswith(below):
        return path
    return f"{new}.{path[len(below) :]}" if new else path[len(below) :]
