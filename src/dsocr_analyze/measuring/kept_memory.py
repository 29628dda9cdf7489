"""While the CPU is timed, memory that a pass frees stays with the process.

By glibc's defaults every large tensor is given back to the system and comes back page by page,
zeroed; what that takes depends on what the machine did before, and is up to half of a pass. An
allocator made for inference (jemalloc, tcmalloc, CUDA's caching allocator) keeps it.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator
from typing import Final

import torch

__all__ = ["can_keep_memory", "kept_memory"]

_TRIM_THRESHOLD: Final = -1
_MOST_MAPPINGS: Final = -4
"""Parameters of mallopt(3)."""
_DEFAULT_TRIM_BYTES: Final = 128 * 1024
_DEFAULT_MAPPINGS: Final = 65536


def can_keep_memory(device: torch.device) -> bool:
    """Whether the C library can be told so: glibc; a GPU's allocator keeps memory by itself."""
    return device.type != "cpu" or platform.libc_ver()[0] == "glibc"


@contextlib.contextmanager
def kept_memory(device: torch.device) -> Iterator[None]:
    """While it lasts, freed memory stays with the process; afterwards the system has it back.

    Args:
        device: Where tensors are.
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
