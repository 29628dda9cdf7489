"""Sizes of closed forms: integers."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Count", "is_one_token", "several"]

Count: TypeAlias = int
"""An integer."""


def is_one_token(T: Count) -> bool:
    """Whether this is a decode step's single new token, not a prompt."""
    return T == 1


def several(count: Count) -> Count:
    """1 if there is more than one, otherwise 0."""
    return 1 if count > 1 else 0
