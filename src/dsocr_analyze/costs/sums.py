"""Sums of kernels, by module and in total.

A count that is the integer 0 is skipped, and arrays are added in place where no one else has them:
an addition is a pass over memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from dsocr_analyze.costs.integers import Count
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.kernels import Kernel

__all__ = ["ModuleKernels", "joined", "repeated", "under"]

ModuleKernels: TypeAlias = dict[str, Kernels]
"""Own kernels (without the children's) of every called module, by path below a parent.

The empty path is the parent itself. Every module listed is called once, including those whose own
forward runs no kernel; containers that are never called are not listed.
"""


def repeated(kernels: Iterable[Kernel], times: Count) -> Kernels:
    """The same kernels with `times` times the calls (an array if that depends on the workload)."""
    if isinstance(times, int):
        if times == 1:
            return tuple(kernels)
        if times == 0:
            return ()
    return tuple(kernel._replace(calls=times * kernel.calls) for kernel in kernels)


def under(name: str, modules: Mapping[str, Kernels]) -> ModuleKernels:
    """The same modules as children of `name` (the empty path becomes `name` itself)."""
    return {f"{name}.{path}" if path else name: kernels for path, kernels in modules.items()}


def joined(*parts: Mapping[str, Kernels]) -> ModuleKernels:
    """Joins the modules of several parts of one call, in order, concatenating kernels per path."""
    modules: ModuleKernels = {}
    for part in parts:
        for path, kernels in part.items():
            modules[path] = (*modules.get(path, ()), *kernels)
    return modules
