"""Sums of kernels, by module and in total.

A count that is the integer 0 is skipped, and arrays are added in place where no one else has them:
an addition is a pass over memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from dsocr_analyze.costs.integers import Count, is_integer, is_nothing
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.kernels import Kernel, Work

__all__ = [
    "ModuleKernels",
    "combined",
    "joined",
    "multiplied",
    "repeated",
    "under",
    "work_of",
    "work_of_modules",
]

ModuleKernels: TypeAlias = dict[str, Kernels]
"""Own kernels (without the children's) of every called module, by path below a parent.

The empty path is the parent itself. Every module listed is called once, including those whose own
forward runs no kernel; containers that are never called are not listed.
"""


def combined(works: Iterable[Work]) -> Work:
    """The sum of several works, count by count."""
    sums: list[Any] = [0, 0, 0, 0, 0]
    is_new = [False] * 5  # whether a sum is an array that only this function has
    for work in works:
        for index, count in enumerate(work):
            if type(count) is int and count == 0:
                continue
            total = sums[index]
            if type(total) is int and total == 0:
                sums[index] = count
            elif is_new[index] and _fits(count, total):
                total += count
                sums[index] = total
            else:
                sums[index] = total + count
                is_new[index] = not is_integer(sums[index])
    return Work(*sums)


def _fits(count: Any, total: Any) -> bool:
    """Whether a count can be added to an array in place."""
    return is_integer(count) or (count.shape == total.shape and count.dtype == total.dtype)


def multiplied(work: Work, factor: Count) -> Work:
    """`factor` times the work, count by count."""
    if is_integer(factor) and factor == 1:
        return work
    return Work(*(count if is_nothing(count) else factor * count for count in work))


def repeated(kernels: Iterable[Kernel], times: Count) -> Kernels:
    """The same kernels with `times` times the calls (an array if that depends on the workload)."""
    if is_integer(times):
        if times == 1:
            return tuple(kernels)
        if times == 0:
            return ()
    return tuple(kernel._replace(calls=times * kernel.calls) for kernel in kernels)


def work_of(kernels: Iterable[Kernel]) -> Work:
    """Work of all calls of some kernels."""
    return combined(multiplied(kernel.work, kernel.calls) for kernel in kernels)


def work_of_modules(modules: Mapping[str, Kernels]) -> Work:
    """Work of a module and all its children."""
    return combined(work_of(kernels) for kernels in modules.values())


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
