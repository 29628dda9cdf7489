"""Sizes that have both a name and a value: a polynomial that knows what it is for one workload.

A forward that runs on them is decided by the values, as for that workload, and yields formulas
besides numbers. What it asks of its sizes is noted: a formula holds where the answers are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from operator import floordiv
from typing import NamedTuple

from dsocr_analyze.tape.polynomial import Monomial, Polynomial, Size, Symbol, Terms

__all__ = ["Decision", "Derived", "Example", "value_of"]


class Decision(NamedTuple):
    """What a forward asked of two sizes: `relation` is `>`, `<=`, `=` or `!=`, whichever holds."""

    left: Size
    relation: str
    right: Size


class Derived(Symbol):
    """A size that is computed from others, named after what it is of them.

    Attributes:
        template: Its name with `{}` in place of the other sizes.
    """

    __slots__ = ("template",)

    template: str

    @classmethod
    def of(cls, template: str, function: Callable[..., Size], sizes: tuple[Size, ...]) -> Derived:
        """What a function makes of some sizes."""
        symbol = cls(template.format(*sizes), 0, function=function, sizes=sizes)
        symbol.template = template
        return symbol


class Example(Polynomial):
    """A polynomial with a value.

    Args:
        terms: Nonzero coefficients, by monomial.
        value: Its value.

    Attributes:
        decisions: Where answers are noted, by all examples alike; None for nowhere.
    """

    __slots__ = ("value",)

    decisions: list[Decision] | None = None

    def __init__(self, terms: Terms, value: int) -> None:
        super().__init__(terms)
        self.value = value

    @classmethod
    def named(cls, name: str, value: int, *, multiple: int = 1) -> Example:
        """A size with a name, and what divides it whatever its value."""
        return cls({(Symbol(name, least=0, multiple=multiple),): 1}, value)

    def __add__(self, other: Size) -> Example:
        return Example(super().__add__(other).terms, self.value + value_of(other))

    __radd__ = __add__

    def __mul__(self, other: Size) -> Example:
        return Example(super().__mul__(other).terms, self.value * value_of(other))

    __rmul__ = __mul__

    def __floordiv__(self, divisor: Size) -> Example:
        """The quotient, rounded down: a polynomial if it can be one, else a size of its own."""
        value, rest = divmod(self.value, value_of(divisor))
        quotient = _exact(self.terms, divisor)
        if quotient is None and not rest and isinstance(divisor, int):
            self._note(True, "is a multiple of", divisor, "")
            quotient = {monomial: Fraction(each) / divisor for monomial, each in self.terms.items()}
        if quotient is None:
            quotient = {(Derived.of("floor({} / {})", floordiv, (self, divisor)),): 1}
        return Example(quotient, value)

    def __rfloordiv__(self, dividend: int) -> Example:
        return Example({(): dividend}, dividend) // self

    def __pow__(self, power: int) -> Example:
        return self if power == 1 else self * self ** (power - 1)

    def __gt__(self, other: Size) -> bool:
        return self._note(self.value > value_of(other), ">", other, "<=")

    def __lt__(self, other: Size) -> bool:
        return not self._note(self.value >= value_of(other), ">=", other, "<")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Polynomial | int):
            return NotImplemented
        if self.terms == Polynomial.of(other).terms:
            return True
        return self._note(self.value == value_of(other), "=", other, "!=")

    def __hash__(self) -> int:
        return super().__hash__()

    def __bool__(self) -> bool:
        return self.value != 0

    def __index__(self) -> int:
        return self.value

    def _note(self, answer: bool, relation: str, other: Size, otherwise: str) -> bool:
        depends = any((self - other).terms)
        if self.decisions is not None and depends:
            self.decisions.append(Decision(self, relation if answer else otherwise, other))
        return answer


def value_of(size: Size) -> int:
    """The value of a size: an integer is its own."""
    return size.value if isinstance(size, Example) else size


def _exact(terms: Terms, divisor: Size) -> Terms | None:
    """Terms divided, a number alone rounded down; None if some quotient may not be whole."""
    found = {}
    for monomial, each in terms.items():
        divided = _divided(monomial, each, divisor)
        if divided is None:
            return None
        left, number = divided
        if not left:
            number = Fraction(number.numerator // number.denominator)
        elif (number * math.prod(size.multiple for size in left)).denominator != 1:
            return None
        if number:
            found[left] = number if number.denominator != 1 else number.numerator
    return found


def _divided(
    monomial: Monomial, coefficient: int | Fraction, divisor: Size
) -> tuple[Monomial, Fraction] | None:
    """A term divided by a number or by another term; None if that is not among its factors."""
    if len(Polynomial.of(divisor).terms) != 1:
        return None
    ((sizes, number),) = Polynomial.of(divisor).terms.items()
    left = list(monomial)
    for size in sizes:
        if size not in left:
            return None
        left.remove(size)
    return tuple(left), Fraction(coefficient) / number
