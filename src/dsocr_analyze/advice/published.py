"""What has been published of accuracy: `published.toml`, read once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import msgspec

__all__ = [
    "Distances",
    "EditDistances",
    "PrecisionRow",
    "PublishedAccuracy",
    "PublishedDistances",
    "PublishedPrecision",
    "published_accuracy",
]


class PrecisionRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published precision of a mode on pages of so many text tokens.

    Attributes:
        mode: The mode.
        vision_tokens: Tokens that the encoder yields, without newlines and separators.
        text_tokens: Least and most text tokens of the pages.
        precision_percent: Precision as published.
        compression: Text tokens per vision token as published, over all the pages.
        pages: How many there were.
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
        table: Where it stands.
        measures: What was measured.
        limits: What it does not say.
        rows: Its figures.
    """

    table: str
    measures: str
    limits: tuple[str, ...]
    rows: tuple[PrecisionRow, ...]

    def at(self, mode: str, text_tokens: int) -> PrecisionRow | None:
        """The row of a mode and a number of text tokens; a bound is of the range that it begins.

        None where nothing was measured; the largest bound belongs to the last range.
        """
        rows = [row for row in self.rows if row.mode == mode]
        most = max((row.text_tokens[1] for row in rows), default=0)
        for row in rows:
            low, high = row.text_tokens
            if low <= text_tokens < high or text_tokens == high == most:
                return row
        return None

    def lack(self, mode: str) -> str:
        """Why there is no figure, where `at` has none."""
        ranges = [row.text_tokens for row in self.rows if row.mode == mode]
        if not ranges:
            return "none for this mode"
        least, most = min(low for low, _ in ranges), max(high for _, high in ranges)
        return f"none but for {least:,} to {most:,} text tokens"


class Distances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Edit distances of pages in one language.

    Attributes:
        overall: Of all parts of a page.
        text: Of its text.
        formula: Of its formulas.
        table: Of its tables.
        order: Of the order in which it is read.
    """

    overall: float
    text: float
    formula: float
    table: float
    order: float


class EditDistances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published edit distances of a mode.

    Attributes:
        tokens: Vision tokens of a page as published.
        english: Of English pages.
        chinese: Of Chinese pages.
        kinds: Overall, by kind of document.
    """

    tokens: str
    english: Distances
    chinese: Distances
    kinds: Mapping[str, float]


class PublishedDistances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published tables of edit distances.

    Attributes:
        tables: Where they stand.
        measures: What was measured.
        limits: What they do not say.
        modes: The figures, by mode.
    """

    tables: str
    measures: str
    limits: tuple[str, ...]
    modes: Mapping[str, EditDistances]


class PublishedAccuracy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a source states of a model's accuracy.

    Attributes:
        title: The source's title, authors and year.
        source: Where it is found.
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
    """What has been published of an architecture; None where nothing is known to be."""
    return _all_published().get(architecture)
