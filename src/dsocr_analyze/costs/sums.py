"""Sums of work, by module and in all.

A count that is the integer 0 is skipped, not added: over arrays an addition is a pass over memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from dsocr_analyze.costs.integers import Count, is_integer, is_nothing
from dsocr_analyze.work import NO_WORK, Work

__all__ = ["ModuleWork", "added", "combined", "joined", "scaled", "total", "under"]

ModuleWork: TypeAlias = dict[str, Work]
"""Work that each module does itself (its children's not included), by path relative to a parent.

The empty path is the parent's own work.
"""


def added(a: Count, b: Count) -> Count:
    """`a + b`, skipping an integer 0."""
    if is_nothing(a):
        return b
    if is_nothing(b):
        return a
    return a + b


def combined(works: Iterable[Work]) -> Work:
    """The sum, count by count."""
    macs: Count = 0
    vector_flops: Count = 0
    activations: Count = 0
    bytes_read: Count = 0
    bytes_written: Count = 0
    for work in works:
        macs = added(macs, work.macs)
        vector_flops = added(vector_flops, work.vector_flops)
        activations = added(activations, work.activations)
        bytes_read = added(bytes_read, work.bytes_read)
        bytes_written = added(bytes_written, work.bytes_written)
    return Work(macs, vector_flops, activations, bytes_read, bytes_written)


def scaled(work: Work, factor: Count) -> Work:
    """`factor` times the work, count by count."""
    if is_integer(factor) and factor == 1:
        return work
    return Work(*(count if is_nothing(count) else factor * count for count in work))


def total(modules: Mapping[str, Work]) -> Work:
    """Work of a module and all its children."""
    return combined(modules.values())


def under(name: str, modules: Mapping[str, Work]) -> ModuleWork:
    """The same modules as children (or, for the empty path, as the module) called `name`."""
    return {f"{name}.{path}" if path else name: work for path, work in modules.items()}


def joined(*parts: Mapping[str, Work]) -> ModuleWork:
    """Modules of several parts in order; work of a path that several name is summed."""
    modules: ModuleWork = {}
    for part in parts:
        for path, work in part.items():
            before = modules.get(path, NO_WORK)
            modules[path] = work if before is NO_WORK else combined((before, work))
    return modules
