"""Keep freed memory in the process while the CPU is timed.

By default glibc returns every large tensor to the system and gets it back page by page, zeroed; the
cost depends on what the machine did before and is up to half of a pass. Allocators made for
inference (jemalloc, tcmalloc, CUDA's caching allocator) keep the memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator
from typing import Final

import torch

__all__ = ["can_keep_memory", "give_back_memory", "kept_memory"]

_TRIM_THRESHOLD: Final = -1
_MOST_MAPPINGS: Final = -4
"""Parameters of mallopt(3)."""
_DEFAULT_TRIM_BYTES: Final = 128 * 1024
_DEFAULT_MAPPINGS: Final = 65536


def can_keep_memory(device: torch.device) -> bool:
    """Whether freed memory can be kept: on the CPU with glibc; a GPU's allocator always does."""
    return device.type != "cpu" or platform.libc_ver()[0] == "glibc"


@contextlib.contextmanager
def kept_memory(device: torch.device) -> Iterator[None]:
    """Context in which freed memory stays in the process; it is returned to the system on exit.

    Args:
        device: The device that holds the tensors.
    """
    if device.type != "cpu" or not can_keep_memory(device):
        yield
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MOST_MAPPINGS, 0)
    library.mallopt(_TRIM_THRESHOLD, ctypes.c_int(2**31 - 1))
    try:
        yield
    finally:
        library.mallopt(_MOST_MAPPINGS, _DEFAULT_MAPPINGS)
        library.mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM_BYTES)
        library.malloc_trim(0)


def give_back_memory() -> None:
    """Return what is kept and not in use, so that what follows does not come on top of it."""
    if can_keep_memory(torch.device("cpu")):
        ctypes.CDLL(None).malloc_trim(0)
