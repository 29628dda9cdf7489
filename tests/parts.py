"""Parts of the tests: CI runs one of several per commit, where all take too long."""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

import pytest

__all__ = ["Part"]


class Part(NamedTuple):
    """One of several parts, which share out the tests."""

    number: int
    """From 1."""
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Reads, for instance, `2/3`."""
        found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
        part = cls(*map(int, found.groups())) if found else None
        if part is None or part.number > part.of:
            raise pytest.UsageError(f"--part {text!r}: give a part as K/N, from 1/N to N/N")
        return part

    def holds(self, name: str) -> bool:
        """Whether a test, or a group that stays together, is in this part."""
        return zlib.crc32(name.encode()) % self.of == self.number - 1
