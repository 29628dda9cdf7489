"""Checks of entries in TOML files: the catalogue's and those of profiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dsocr_analyze.errors import DeviceError

if TYPE_CHECKING:
    from dsocr_analyze.toml_table import Table

__all__ = ["is_positive", "refuse_unknown"]


def is_positive(value: object) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e30


def refuse_unknown(table: Table, known: Iterable[str], where: str) -> None:
    """Raises DeviceError, which begins with `where`, for a key of `table` that is not `known`."""
    if unknown := [name for name in table if name not in set(known)]:
        raise DeviceError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(known)}")
