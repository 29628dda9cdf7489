"""Equal modules, folded: what one of them does, and the paths at which they stand.

A total multiplies (twelve layers cost one evaluation), an expansion repeats. Both come from the
same sections, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from dsocr_analyze.costs.integers import Count, is_integer
from dsocr_analyze.costs.sums import ModuleKernels, combined, scaled, work_of_modules
from dsocr_analyze.kernels import Kernel, Work

__all__ = ["Expansion", "Section", "sections_work"]


class Section(NamedTuple):
    """Equal modules."""

    paths: tuple[str, ...]
    """Where they stand, relative to the whole model."""
    modules: ModuleKernels
    """What one of them and its children run in one call."""
    calls: Count = 1
    """How often each is called."""


def sections_work(sections: Iterable[Section]) -> Work:
    """Work of all sections."""
    return combined(
        scaled(_repeated(work_of_modules(section.modules), section.calls), len(section.paths))
        for section in sections
        if section.paths
    )


def _repeated(work: Work, calls: Count) -> Work:
    return work if is_integer(calls) and calls == 1 else scaled(work, calls)


@dataclass
class Expansion:
    """Every module of some sections by its full path (no arrays).

    Attributes:
        module_calls: Calls of every module, in the order in which sections name them.
        kernels: Own kernels of every module, with its path.
    """

    module_calls: dict[str, int] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)

    def add(self, sections: Iterable[Section], *, times: int = 1, stage: str = "") -> None:
        """Adds sections, each `times` as often, as part of `stage`."""
        for section in sections:
            calls = section.calls * times
            for root in section.paths:
                for name, kernels in section.modules.items():
                    path = f"{root}.{name}" if root and name else root or name
                    self.module_calls[path] = self.module_calls.get(path, 0) + calls
                    self.kernels += [
                        kernel._replace(calls=kernel.calls * calls, path=path, stage=stage)
                        for kernel in kernels
                    ]
