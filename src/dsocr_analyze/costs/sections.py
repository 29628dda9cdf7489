"""Equal modules, folded: the work of one, and the paths where they occur.

A total multiplies (twelve layers cost one evaluation), an expansion repeats. Both use the same
sections, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.kernels import Kernel

__all__ = ["Expansion", "Section"]


class Section(NamedTuple):
    """Equal modules."""

    paths: tuple[str, ...]
    """Paths where they occur, relative to the whole model."""
    modules: ModuleKernels
    """What one of them, with its children, runs in one call."""
    calls: Count = 1
    """Calls of each."""


@dataclass
class Expansion:
    """Lists every module of some sections by its full path (no arrays).

    Attributes:
        module_calls: Calls of every module, in section order.
        kernels: Own kernels of every module, with its path.
    """

    module_calls: dict[str, int] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)

    def add(self, sections: Iterable[Section], *, times: int = 1, stage: str = "") -> None:
        """Adds sections to `stage`, with their calls multiplied by `times`."""
        for section in sections:
            calls = section.calls * times
            for root in section.paths:
                for name, kernels in section.modules.items():
                    path = f"{root}.{name}" if root and name else root or name
                    self.module_calls[path] = self.module_calls.get(path, 0) + calls
                    self.kernels += [
                        Kernel(*kernel[:6], kernel.calls * calls, path, stage) for kernel in kernels
                    ]
