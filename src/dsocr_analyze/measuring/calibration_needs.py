"""The seconds and the memory that a calibration takes, known without torch."""

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.input_files import MEBIBYTE, read_bytes

_LIMITS: Final = (
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ("", "memory.max", "memory.current", "inactive_file"),
)
"""Of control groups 1 and 2: folder, limit, use, and the cached files in that."""


def free_memory_bytes(root: Path = Path("/")) -> int:
    """That this process can still allocate; `root` has `proc` and `sys`."""
    return min([_of_machine(root), *_of_control_groups(root), *_of_process(root)])


def _of_machine(root: Path) -> int:
    """Without swapping; all memory on a system that does not say."""
    available = _number(root / "proc/meminfo", "MemAvailable:")
    if available is not None:
        return 1024 * available
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _of_control_groups(root: Path) -> Iterator[int]:
    """What is left in every group that limits this process."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own = Path(path.lstrip("/"))
        for folder, limit, used, cached in _LIMITS:
            if folder not in controllers.split(","):
                continue
            for group in (own, *own.parents):
                files = root / "sys/fs/cgroup" / folder / group
                most, now = _number(files / limit), _number(files / used)
                if most is not None and now is not None:
                    yield max(0, most - now + (_number(files / "memory.stat", cached) or 0))


def _of_process(root: Path) -> Iterator[int]:
    """What is left of the address space and of the data segment."""
    for kind, name in ((resource.RLIMIT_AS, "VmSize:"), (resource.RLIMIT_DATA, "VmData:")):
        most, _ = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            yield max(0, most - 1024 * (_number(root / "proc/self/status", name) or 0))


def _number(file: Path, name: str = "") -> int | None:
    """The number that starts a line, or follows a name there."""
    found = re.search(rf"^{name}\s*(\d+)(?!\S)", _text(file), re.MULTILINE)
    return int(found[1]) if found else None


def _text(file: Path) -> str:
    try:
        return read_bytes(file, MEBIBYTE).decode()
    except (OSError, UnicodeDecodeError):  # another system, or a group with a strange name
        return ""


LEAST_SECONDS: Final = 20.0
MOST_SECONDS: Final = 3600.0
_SECONDS_WITH_PASSES: Final = 90.0
"""A shorter one measures kernels alone: a pass may take many seconds."""
_ALONE_BYTES: Final = 1_100_000_000
_WITH_PASSES_BYTES: Final = 3_200_000_000


def has_passes(seconds: float) -> bool:
    """Whether a calibration measures kernels in passes too."""
    return seconds >= _SECONDS_WITH_PASSES


def checked_memory(seconds: float) -> str:
    """The most memory that a calibration takes, in words.

    Raises:
        DeviceError: There is less.
    """
    need = _WITH_PASSES_BYTES if has_passes(seconds) else _ALONE_BYTES
    free = free_memory_bytes()
    if need <= free:
        return f"{need / 1e9:.1f} GB of memory"
    advice = "free some, or raise the limit of this process"
    if free >= _ALONE_BYTES:
        advice += f"; less than {_SECONDS_WITH_PASSES:g} s need {_ALONE_BYTES / 1e9:.1f} GB only"
    raise DeviceError(
        f"calibration takes up to {need / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free;"
        f" {advice}"
    )
