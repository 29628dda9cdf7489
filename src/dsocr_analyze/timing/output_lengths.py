"""How many tokens the pages of a job generate: one length for all, or a distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import mul
from typing import Final

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import LARGEST_COUNT

__all__ = ["OutputLengths"]

_SHARES_TOLERANCE: Final = 1e-9
"""How far a million rounded shares may add up from 1."""


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """A distribution of the tokens that a page generates, the prefill pass's included.

    Attributes:
        lengths: Strictly ascending.
        shares: Shares of pages of these lengths, above 0; they add up to 1.

    Raises:
        WorkloadError: They do not, or a length is not a whole number from 1 to `LARGEST_COUNT`.
    """

    lengths: tuple[int, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.lengths or len(self.lengths) != len(self.shares):
            raise WorkloadError(
                f"{len(self.lengths)} lengths have {len(self.shares)} shares; "
                "give one share for each length, and at least one length",
            )
        for before, length in zip((0, *self.lengths), self.lengths, strict=False):
            _check_count("a length of", length)
            if length <= before:
                raise WorkloadError(
                    f"lengths have {length} after {before}; give each once, in ascending order",
                )
        for share in self.shares:
            if not 0 < share <= 1 + _SHARES_TOLERANCE:  # also rejects NaN
                raise WorkloadError(f"a share is {share}; give numbers above 0, up to 1")
        total = math.fsum(self.shares)
        if abs(total - 1) > _SHARES_TOLERANCE:
            raise WorkloadError(f"shares add up to {total}; give shares that add up to 1")

    @classmethod
    def fixed(cls, tokens: int) -> OutputLengths:
        """The same length for every page.

        Raises:
            WorkloadError: It is not a whole number from 1 to `LARGEST_COUNT`.
        """
        return cls((tokens,), (1.0,))

    @classmethod
    def mean_and_limit(cls, mean: float, limit: int, share_at_limit: float) -> OutputLengths:
        """Some pages repeat themselves up to the limit; the others stop on their own.

        The others have the mean length, or the two whole numbers around it in proportion. The mean
        of all pages is `share_at_limit * limit + (1 - share_at_limit) * mean`.

        Raises:
            WorkloadError: The limit is not a whole number from 2 to `LARGEST_COUNT`, the mean is
                not between 1 and the limit less 1, or the share is not at least 0 and below 1.
        """
        _check_count("limit", limit, least=2)
        if not 1 <= mean <= limit - 1:
            raise WorkloadError(
                f"mean {mean} is out of range: pages that do not reach limit {limit} generate "
                f"from 1 to {limit - 1} tokens"
            )
        if not 0 <= share_at_limit < 1:
            raise WorkloadError(
                f"share_at_limit {share_at_limit} is out of range; give a number of at least 0 and"
                " below 1"
            )
        shorter, ending = math.floor(mean), 1 - share_at_limit
        part_longer = mean - shorter
        # If shorter + 1 is the limit, the mean is whole, so overwriting that entry loses nothing.
        parts = {shorter: ending * (1 - part_longer), shorter + 1: ending * part_longer}
        parts[limit] = share_at_limit
        some = {length: share for length, share in parts.items() if share > 0}
        return cls(tuple(some), tuple(some.values()))

    @classmethod
    def of_counts(cls, pages: Mapping[int, int]) -> OutputLengths:
        """The distribution of counted pages, by generated tokens.

        Raises:
            WorkloadError: There is no page, a count is below 0, or a length is not a whole number
                from 1 to `LARGEST_COUNT`.
        """
        for length, count in pages.items():
            if count < 0:
                raise WorkloadError(f"{count} pages of {length} tokens are too few; give 0 or more")
        total = sum(pages.values())
        if not total:
            raise WorkloadError("no page is counted; give at least one")
        some = sorted((length, count) for length, count in pages.items() if count)
        return cls(tuple(length for length, _ in some), tuple(count / total for _, count in some))

    @property
    def mean(self) -> float:
        """Mean generated tokens per page."""
        return math.fsum(map(mul, self.lengths, self.shares))

    @property
    def running(self) -> int:
        """Mean tokens that a running page has generated so far, at least 1.

        A page of n tokens runs n times as long as one of a single token, at n / 2 on average.
        """
        squares = sum(share * n**2 for n, share in zip(self.lengths, self.shares, strict=True))
        return max(1, round(squares / self.mean / 2))

    @property
    def longest(self) -> int:
        """Tokens of the longest output."""
        return self.lengths[-1]

    def expected_longest(self, batch: int) -> float:
        """Expected tokens of the longest output in a batch of n pages, independent draws.

        With the distribution function F and the distinct lengths l_1 < l_2 < ...,

            l_1 + sum over i of (l_(i+1) - l_i) * (1 - F(l_i)^n)

        Raises:
            WorkloadError: `batch` is not a whole number from 1 to `LARGEST_COUNT`.
        """
        _check_count("batch", batch)
        longer = 0.0  # share of pages longer than lengths[i - 1]: 1 - F
        steps = []
        for i in range(len(self.lengths) - 1, 0, -1):
            longer += self.shares[i]
            # 1 - (1 - longer)^n, accurate even if `longer` is too small to change 1.
            exceeded = -math.expm1(batch * math.log1p(-longer)) if longer < 1 else 1.0
            steps.append((self.lengths[i] - self.lengths[i - 1]) * exceeded)
        return self.lengths[0] + math.fsum(steps)


def _check_count(what: str, count: object, *, least: int = 1) -> None:
    """Raise WorkloadError unless a count is a whole number from `least` to LARGEST_COUNT."""
    if not isinstance(count, int) or isinstance(count, bool) or not least <= count <= LARGEST_COUNT:
        raise WorkloadError(
            f"{what} {count!r} is invalid; give a whole number from {least} to {LARGEST_COUNT}"
        )
