"""Published accuracy: `published.toml`, read once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

import msgspec

__all__ = [
    "ALL_KINDS",
    "Distances",
    "EditDistances",
    "PrecisionRow",
    "PublishedAccuracy",
    "PublishedDistances",
    "PublishedPrecision",
    "kinds_of_document",
    "published_accuracy",
]


ALL_KINDS: Final = "overall"
"""Name of the figure for all kinds of document together."""


class PrecisionRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published precision of a mode on pages in a range of text tokens.

    Attributes:
        mode: The mode.
        vision_tokens: Tokens from the encoder, without newlines and separators.
        text_tokens: Fewest and most text tokens of the pages.
        precision_percent: Precision as published.
        compression: Text tokens per vision token as published, over all the pages.
        pages: Number of pages.
    """

    mode: str
    vision_tokens: int
    text_tokens: tuple[int, int]
    precision_percent: float
    compression: float
    pages: int


class PublishedPrecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published table of precision.

    Attributes:
        table: The table in the source.
        measures: What was measured.
        limits: Limits of the figures.
        rows: Its figures.
    """

    table: str
    measures: str
    limits: tuple[str, ...]
    rows: tuple[PrecisionRow, ...]

    def at(self, mode: str, text_tokens: int) -> tuple[PrecisionRow | None, str]:
        """The row for a mode and a number of text tokens, or None and why there is none.

        Ranges include their lower bound; the last range also includes its upper bound.
        """
        rows = [row for row in self.rows if row.mode == mode]
        if not rows:
            return None, "none for this mode"
        least = min(row.text_tokens[0] for row in rows)
        most = max(row.text_tokens[1] for row in rows)
        for row in rows:
            low, high = row.text_tokens
            if low <= text_tokens < high or text_tokens == high == most:
                return row, ""
        return None, f"none outside {least:,} to {most:,} text tokens"


class Distances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Edit distances of pages in one language.

    Attributes:
        overall: All parts of a page.
        text: Its text.
        formula: Its formulas.
        table: Its tables.
        order: Its reading order.
    """

    overall: float
    text: float
    formula: float
    table: float
    order: float


class EditDistances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published edit distances of a mode.

    Attributes:
        tokens: Vision tokens per page as published.
        english: English pages.
        chinese: Chinese pages.
        kinds: Overall distance by kind of document, and `overall` for all kinds.
    """

    tokens: str
    english: Distances
    chinese: Distances
    kinds: Mapping[str, float]


class PublishedDistances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published tables of edit distances.

    Attributes:
        tables: The tables in the source.
        measures: What was measured.
        limits: Limits of the figures.
        modes: The figures, by mode.
    """

    tables: str
    measures: str
    limits: tuple[str, ...]
    modes: Mapping[str, EditDistances]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of document with figures, in the order of the source."""
        named = dict.fromkeys(kind for each in self.modes.values() for kind in each.kinds)
        return tuple(kind for kind in named if kind != ALL_KINDS)


class PublishedAccuracy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's accuracy as published by a source.

    Attributes:
        title: The source's title, authors and year.
        source: Where to find it.
        precision: Precision by compression.
        edit_distance: Edit distance by mode.
    """

    title: str
    source: str
    precision: PublishedPrecision
    edit_distance: PublishedDistances


@cache
def _all_published() -> Mapping[str, PublishedAccuracy]:
    text = resources.files(__package__).joinpath("published.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=dict[str, PublishedAccuracy])


def published_accuracy(architecture: str) -> PublishedAccuracy | None:
    """Published accuracy of an architecture; None if no source is known."""
    return _all_published().get(architecture)


def kinds_of_document() -> tuple[str, ...]:
    """Every kind of document with published figures for some architecture."""
    published = _all_published().values()
    return tuple(dict.fromkeys(kind for each in published for kind in each.edit_distance.kinds))
