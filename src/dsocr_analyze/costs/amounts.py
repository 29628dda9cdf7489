"""Amounts that are not numbers yet: polynomials in workload sizes, with integer coefficients.

A formula written for integers with `+ - *` runs on them unchanged, and yields how its result
depends on the sizes instead of a value.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from dsocr_analyze.costs.integers import maximum

__all__ = ["Amount", "Sizes", "highest", "worth_comparing"]

_Monomial: TypeAlias = tuple[str, ...]
"""The sizes multiplied, in order; empty for the constant."""


class Amount:
    """A polynomial.

    Args:
        terms: Nonzero coefficients, by monomial.
        least: The least value, if it is a single size.
        most: The largest value, if it is a single size; None for no limit.
    """

    __slots__ = ("least", "most", "terms")

    def __init__(
        self, terms: Mapping[_Monomial, int], *, least: int | None = None, most: int | None = None
    ) -> None:
        self.terms = dict(terms)
        self.least = least
        self.most = most

    @classmethod
    def size(cls, name: str, *, least: int = 1, most: int | None = None) -> Amount:
        """A workload size of which only the limits are known."""
        return cls({(name,): 1}, least=least, most=most)

    @classmethod
    def of(cls, value: Amount | int) -> Amount:
        """An integer as an amount; an amount unchanged."""
        if isinstance(value, Amount):
            return value
        return cls({(): value} if value else {})

    def __add__(self, other: Amount | int) -> Amount:
        terms = dict(self.terms)
        for monomial, coefficient in Amount.of(other).terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return Amount({monomial: each for monomial, each in terms.items() if each})

    __radd__ = __add__

    def __mul__(self, other: Amount | int) -> Amount:
        terms: dict[_Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in Amount.of(other).terms.items():
                monomial = tuple(sorted((*left, *right)))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return Amount({monomial: each for monomial, each in terms.items() if each})

    __rmul__ = __mul__

    def __neg__(self) -> Amount:
        return self * -1

    def __sub__(self, other: Amount | int) -> Amount:
        return self + -Amount.of(other)

    def __rsub__(self, other: int) -> Amount:
        return -self + other

    def __floordiv__(self, divisor: int) -> Amount:
        """The quotient; raises ArithmeticError unless the division is exact for every size."""
        if any(each % divisor for each in self.terms.values()):
            raise ArithmeticError(f"{self!r} is not a multiple of {divisor} for every size")
        return Amount({monomial: each // divisor for monomial, each in self.terms.items()})

    def __gt__(self, other: int) -> bool:
        """Whether a size is above a number; raises ArithmeticError if its limits don't decide."""
        if self.least is not None and self.least > other:
            return True
        if self.most is not None and self.most <= other:
            return False
        raise ArithmeticError(f"whether {self!r} is above {other} depends on the sizes")

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amount | int) and self.terms == Amount.of(other).terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __repr__(self) -> str:
        terms = (f"{each} {' '.join(monomial)}".strip() for monomial, each in self.terms.items())
        return " + ".join(terms) or "0"


def worth_comparing(
    amounts: Iterable[Amount], least: Mapping[str, int], within: Mapping[str, Amount]
) -> tuple[Amount, ...]:
    """The amounts that may be the largest for some sizes; drops those another always covers.

    Args:
        amounts: The amounts.
        least: The least value of each size; 1 for those not named.
        within: Amounts that a size never exceeds.
    """
    found: list[Amount] = []
    for amount in dict.fromkeys(amounts):
        if not any(_is_covered(amount, by, least, within) for by in found):
            found = [each for each in found if not _is_covered(each, amount, least, within)]
            found.append(amount)
    return tuple(found)


def _is_covered(
    amount: Amount, by: Amount, least: Mapping[str, int], within: Mapping[str, Amount]
) -> bool:
    """Whether every term is covered by a term whose monomial is a multiple of its own."""
    difference = by - amount
    for name, most in within.items():
        lacking = difference.terms.get((name,), 0)
        if lacking < 0:
            difference += lacking * (most - Amount.size(name))
    # In units of the sizes' least values, every size is at least 1.
    terms = {
        monomial: coefficient * math.prod(least.get(name, 1) for name in monomial)
        for monomial, coefficient in difference.terms.items()
    }
    more = {monomial: each for monomial, each in terms.items() if each > 0}
    for monomial, each in terms.items():
        lacking = max(0, -each)
        for larger in more:
            if not Counter(monomial) - Counter(larger):
                taken = min(lacking, more[larger])
                more[larger] -= taken
                lacking -= taken
        if lacking:
            return False
    return True


class Sizes:
    """Values of sizes and their products, each computed once.

    Args:
        sizes: Integers, or integer arrays `[n]`, by name.
    """

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        self._values: dict[_Monomial, Any] = {(name,): value for name, value in sizes.items()}

    def value(self, amount: Amount) -> Any:
        """Evaluates an amount to an integer or an array `[n]`."""
        terms = [
            each * self._product(monomial) if monomial else each
            for monomial, each in amount.terms.items()
        ]
        return functools.reduce(operator.add, terms) if terms else 0

    def _product(self, monomial: _Monomial) -> Any:
        if monomial not in self._values:
            self._values[monomial] = self._product(monomial[:-1]) * self._product(monomial[-1:])
        return self._values[monomial]


def highest(amounts: Sequence[Amount], sizes: Sizes) -> Any:
    """The largest of several amounts.

    Args:
        amounts: At least one amount.
        sizes: Values of their sizes.

    Returns:
        An integer, or an array `[n]`.
    """
    # Terms common to all amounts are evaluated once.
    shared = Amount({
        monomial: min(amount.terms[monomial] for amount in amounts)
        for monomial in amounts[0].terms
        if all(monomial in amount.terms for amount in amounts)
    })  # fmt: skip
    rests = [sizes.value(each - shared) for each in amounts]
    return sizes.value(shared) + functools.reduce(maximum, rests)
