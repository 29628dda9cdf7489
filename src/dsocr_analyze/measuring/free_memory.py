"""Memory that this process may still take: of the machine, its control groups and its limits.

Known without torch, so that a command can refuse before it takes any.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dsocr_analyze.input_files import MEBIBYTE, read_text

__all__ = ["free_memory_bytes"]

_LIMITS: Final = (
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ("", "memory.max", "memory.current", "inactive_file"),
)
"""Of versions 1 and 2 of control groups: folder, limit, use, and cached files within that use."""


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated before the machine or any limit of this process ends it.

    Args:
        root: The folder that holds `proc` and `sys`.
    """
    return min([_of_machine(root), *_of_control_groups(root), *_of_process(root)])


def _of_machine(root: Path) -> int:
    """What programs can take without swapping; all memory on a system that does not say."""
    available = _entry(root / "proc/meminfo", "MemAvailable:")
    if available is not None:
        return 1024 * available
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _of_control_groups(root: Path) -> Iterator[int]:
    """What is left in each group that limits this process; a group's parents limit it too."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        own = Path(path.lstrip("/"))
        for folder, limit, used, cached in _LIMITS:
            if folder not in controllers.split(","):
                continue
            for group in (own, *own.parents):
                files = root / "sys/fs/cgroup" / folder / group
                most, now = _number(files / limit), _number(files / used)
                if most is not None and now is not None:
                    yield max(0, most - now + (_entry(files / "memory.stat", cached) or 0))


def _of_process(root: Path) -> Iterator[int]:
    """What is left of the address space and of the data that this process may map."""
    for kind, name in ((resource.RLIMIT_AS, "VmSize:"), (resource.RLIMIT_DATA, "VmData:")):
        most, _ = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            yield max(0, most - 1024 * (_entry(root / "proc/self/status", name) or 0))


def _entry(file: Path, name: str) -> int | None:
    """The number that follows a name at the start of a line; None if there is none."""
    for line in _lines(file):
        words = line.split()
        if words[:1] == [name]:
            return int(words[1])
    return None


def _number(file: Path) -> int | None:
    """The number in a file; None if it says `max`, or is not there."""
    words = " ".join(_lines(file)).split()
    return int(words[0]) if words and words[0].isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return read_text(file, MEBIBYTE).splitlines()
    except (OSError, UnicodeDecodeError):  # another system, or a group with a strange name
        return []
