"""Formulas as people write them: `3 B T k d f + 6 B T d f`."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Final, TypeAlias

from dsocr_analyze.tape.example import Decision, Derived
from dsocr_analyze.tape.polynomial import Polynomial, Size, Symbol

__all__ = ["Relations", "conditions", "wrapped", "written"]

Relations: TypeAlias = tuple[tuple[tuple[str, ...], Polynomial], ...]
"""Products of names, each with what is written in its place: `H D` is `d`."""

_ORDER: Final = (
    *"B N T q n g R K L_0 E k l w H H_kv G d d_in d_out d_q d_c".split(),
    *"D D_n D_r D_v f m V C c c_0 c_1 c_2 p s t".split(),
)
"""The factors of a term stand in this order."""
_LINE: Final = 88


def written(size: Size, relations: Relations = ()) -> str:
    """A formula as people write it: `3 B T k d f`, highest degree first; `0` for none.

    Args:
        size: The formula.
        relations: Products of names, and what is written in their place.
    """
    terms = _rewritten(Polynomial.of(size), relations).terms
    ordered = sorted(terms.items(), key=lambda term: (-len(term[0]), list(map(_rank, term[0]))))
    text = "".join(_term(monomial, coefficient, relations) for monomial, coefficient in ordered)
    return text.removeprefix(" + ").replace(" - ", "-", text.startswith(" - ")) or "0"


def _rewritten(size: Polynomial, relations: Relations) -> Polynomial:
    """The polynomial with each product of names replaced by what it is."""
    for product, instead in relations:
        found = Polynomial({})
        for monomial, coefficient in size.terms.items():
            term = Polynomial({(): coefficient})
            left = list(monomial)
            while not Counter(product) - Counter(left):
                for each in product:
                    left.remove(Symbol(each))
                term = term * instead
            found = found + term * Polynomial({tuple(left): 1})
        size = found
    return size


def _rank(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER)), name


def _term(monomial: tuple[Symbol, ...], coefficient: Fraction | int, relations: Relations) -> str:
    powers = Counter(sorted(monomial, key=_rank))
    names = [_name_of(name, relations) + (f"^{n}" if n > 1 else "") for name, n in powers.items()]
    amount = abs(coefficient)
    number = f"{amount:,}" if isinstance(amount, int) else str(amount)
    if amount != 1 or not names:
        names.insert(0, number)
    return f" {'-' if coefficient < 0 else '+'} {' '.join(names)}"


def _name_of(size: Symbol, relations: Relations) -> str:
    """A size's name; one that is derived from others says how."""
    if not isinstance(size, Derived):
        return str(size)
    return size.template.format(*(written(each, relations) for each in size.sizes))


def conditions(asked: Iterable[Decision], relations: Relations = ()) -> list[str]:
    """What must hold for formulas of a forward that asked this of its sizes.

    Whether there is one view, head or sequence is left out: it decides about copies alone.
    """
    held = {
        _compared(each, relations)
        for each in asked
        if not (isinstance(each.right, int) and each.right == 1)
    }
    return sorted(held)


def _compared(decision: Decision, relations: Relations) -> str:
    """A decision without what is on both sides."""
    if decision.relation == "is a multiple of":
        return f"{written(decision.left, relations)} {decision.relation} {decision.right}"
    terms = Polynomial.sum([decision.left, -decision.right]).terms
    divisor = math.gcd(*terms.values())
    sides = ({m: a * s // divisor for m, a in terms.items() if a * s > 0} for s in (1, -1))
    left, right = (written(Polynomial(side), relations) for side in sides)
    return f"{left} {decision.relation} {right}"


def wrapped(name: str, formula: str) -> str:
    """`name = formula`, on as many lines as it takes."""
    indent = " " * (len(name) + 3)
    held = formula.replace(" + ", "\0+\1").replace(" - ", "\0-\1").replace(" ", "\1")
    lines = textwrap.wrap(f"{name}\1=\1" + held.replace("\0", " "), _LINE, subsequent_indent=indent,
                          break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return "\n".join(lines).replace("\1", " ")
