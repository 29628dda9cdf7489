"""Polynomials in the sizes of a workload, and a tape on which a forward is run once for many.

A forward uses `+ - *` on sizes and asks whether one exceeds a number, so it runs on these as well.
The tape keeps sums instead of records, and every level that may be memory's peak.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Concatenate, NamedTuple, Self, TypeAlias

from dsocr_analyze.kernels import Dimensions, Dtype, Kind, Work
from dsocr_analyze.tape import (
    Description,
    Given,
    Inputs,
    Operand,
    Output,
    Size,
    Tape,
    described,
    made,
    maximum,
    minimum,
    size_of,
)


class Symbol(str):
    """The name of a size, with what is known of it.

    Attributes:
        most: Its largest value, or a polynomial that it never exceeds; None for no limit.
        function: Computes it from other `sizes`, if it is derived.
        multiple: Divides it.
        template: Its name, with `{}` in place of the other sizes.
        value: What it is in an example; 0 for none.
    """

    __slots__ = ("function", "least", "most", "multiple", "sizes", "template", "value")

    def __new__(cls, name: str, *_: Any, **__: Any) -> Self:
        """A name, whose attributes follow."""
        return super().__new__(cls, name)

    def __init__(
        self,
        name: str,
        least: int = 1,
        most: Size | None = None,
        function: Callable[..., Size] | None = None,
        sizes: tuple[Size, ...] = (),
        multiple: int = 1,
        template: str = "",
        value: int = 0,
    ) -> None:
        self.least, self.most, self.function, self.sizes = least, most, function, sizes
        self.multiple, self.template, self.value = multiple, template or name, value


Monomial: TypeAlias = tuple[Symbol, ...]
"""The sizes multiplied, in order; empty for the constant."""


Terms: TypeAlias = Mapping[Monomial, Any]
"""Coefficients by monomial: integers, or fractions that their sizes make whole."""


class Polynomial:
    """A polynomial: coefficients that are not zero, by monomial."""

    __slots__ = ("terms",)

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    @classmethod
    def size(
        cls, name: str, *, least: int = 1, most: Size | None = None, multiple: int = 1
    ) -> Polynomial:
        """A size of which only its limits and a divisor are known."""
        return cls({(Symbol(name, least, most, multiple=multiple),): 1})

    @classmethod
    def of(cls, value: Size) -> Polynomial:
        """An integer as a polynomial; a polynomial unchanged."""
        if isinstance(value, Polynomial):
            return value
        return cls({(): value} if value else {})

    @classmethod
    def sum(cls, sizes: Iterable[Size]) -> Self:
        """The sum of many sizes."""
        terms: dict[Monomial, int] = {}
        for size in sizes:
            added = size.terms if isinstance(size, Polynomial) else {(): size}
            for monomial, coefficient in added.items():
                terms[monomial] = terms.get(monomial, 0) + coefficient
        return cls({monomial: each for monomial, each in terms.items() if each})

    @property
    def least(self) -> int | None:
        """A value that it never falls below, if there is one."""
        most = (-self).most
        return None if most is None else -most

    @property
    def most(self) -> int | None:
        """A value that it never exceeds, if there is one."""
        total = 0
        for monomial, coefficient in self.terms.items():
            if coefficient < 0:
                total += coefficient * math.prod(size.least for size in monomial)
                continue
            for size in monomial:
                most = size.most.most if isinstance(size.most, Polynomial) else size.most
                if most is None:
                    return None
                coefficient *= most
            total += coefficient
        return total

    def __add__(self, other: Polynomial | int) -> Self:
        if not isinstance(other, Polynomial) and other == 0:
            return self
        terms = dict(self.terms)
        added = other.terms if isinstance(other, Polynomial) else {(): other}
        for monomial, coefficient in added.items():
            total = terms.get(monomial, 0) + coefficient
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return type(self)(terms)

    __radd__ = __add__

    def __mul__(self, other: Polynomial | int) -> Self:
        if not isinstance(other, Polynomial):
            if other == 1:
                return self
            return type(self)({m: a * other for m, a in self.terms.items()} if other else {})
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = tuple(sorted(left + right)) if left and right else left or right
                terms[monomial] = terms.get(monomial, 0) + a * b
        return type(self)({monomial: each for monomial, each in terms.items() if each})

    __rmul__ = __mul__

    def __neg__(self) -> Self:
        return self * -1

    def __sub__(self, other: Polynomial | int) -> Self:
        return self + -other

    def __rsub__(self, other: int) -> Self:
        return -self + other

    def __floordiv__(self, divisor: Size) -> Polynomial:
        """The quotient, rounded down; ArithmeticError if it is no polynomial for every size."""
        quotient = quotient_of(self.terms, divisor)
        if quotient is None:
            raise ArithmeticError(f"{self} is not a multiple of {divisor} for every size")
        return Polynomial(quotient)

    def __gt__(self, other: Size) -> bool:
        """Whether a size is above another; raises ArithmeticError if their limits don't decide."""
        difference = Polynomial.of(self - other)
        least, most = difference.least, difference.most
        if least is not None and least > 0:
            return True
        if most is not None and most <= 0:
            return False
        raise ArithmeticError(f"whether {self} is above {other} depends on the sizes")

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same polynomial; raises ArithmeticError if the sizes decide."""
        if not isinstance(other, Polynomial | int):
            return NotImplemented
        if self.terms == Polynomial.of(other).terms:
            return True
        if isinstance(other, Polynomial):
            return False
        least, most = self.least, self.most
        if (least is None or least <= other) and (most is None or most >= other):
            raise ArithmeticError(f"whether {self} is {other} depends on the sizes")
        return False

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __str__(self) -> str:
        """As a reader writes it: highest degree first, `2 B T d - 3 T + 1`."""
        return text_of(self.terms)

    __repr__ = __str__


def quotient_of(terms: Terms, divisor: Size) -> Terms | None:
    """Terms divided by a number or a term, a number rounded down; None if one may not be whole.

    A coefficient is a fraction if the sizes that it multiplies are known to make up for it.
    """
    if len(Polynomial.of(divisor).terms) != 1:
        return None
    [(sizes, number)] = Polynomial.of(divisor).terms.items()
    found = {}
    for monomial, coefficient in terms.items():
        left, quotient = without(monomial, sizes), Fraction(coefficient) / number
        if left is None:
            return None
        if not left:
            quotient = Fraction(math.floor(quotient))
        elif (quotient * math.prod(size.multiple for size in left)).denominator != 1:
            return None
        if quotient:
            found[left] = quotient if quotient.denominator != 1 else quotient.numerator
    return found


def text_of(
    terms: Terms,
    rank: Callable[[Symbol], Any] = str,
    name: Callable[[Symbol], str] = str,
) -> str:
    """A polynomial as text, highest degree first; factors have a rank and a name."""
    text = ""
    for monomial in sorted(terms, key=lambda each: (-len(each), list(map(rank, each)))):
        powers = Counter(sorted(monomial, key=rank))
        names = [name(size) + (f"^{n}" if n > 1 else "") for size, n in powers.items()]
        amount = abs(terms[monomial])
        if amount != 1 or not names:
            names.insert(0, f"{amount:,}" if isinstance(amount, int) else str(amount))
        text += f" {'-' if terms[monomial] < 0 else '+'} {' '.join(names)}"
    return text.removeprefix(" + ").replace(" - ", "-", text.startswith(" - ")) or "0"


def worth_comparing(sizes: Iterable[Size]) -> tuple[Polynomial, ...]:
    """Those that may be the largest for some values."""
    found: list[Polynomial] = []
    for size in dict.fromkeys(map(Polynomial.of, sizes)):
        if not any(_is_covered(size, by) for by in found):
            found = [each for each in found if not _is_covered(each, size)]
            found.append(size)
    return tuple(found)


def _is_covered(size: Polynomial, by: Polynomial) -> bool:
    """Whether each term that `by` lacks divides more of its terms, the rest at least 1."""
    difference = Polynomial.sum([by, -size])
    lacking = [_within(m, a) for m, a in difference.terms.items() if a < 0]
    if not lacking:
        return True
    more = {m: a for m, a in difference.terms.items() if a > 0}
    difference = Polynomial.sum([Polynomial(more), *lacking])
    # In units of the sizes' least values, every size that can't be 0 is at least 1.
    terms = {
        monomial: coefficient * math.prod(max(1, each.least) for each in monomial)
        for monomial, coefficient in difference.terms.items()
    }
    more = {monomial: each for monomial, each in terms.items() if each > 0}
    for monomial, each in terms.items():
        if each > 0:
            continue
        lacked = -each
        for larger in more:
            left = without(larger, monomial)
            if left is not None and all(size.least > 0 for size in left):
                taken = min(lacked, more[larger])
                more[larger] -= taken
                lacked -= taken
        if lacked:
            return False
    return True


def _within(monomial: Monomial, coefficient: int) -> Polynomial:
    """A negative term with a size in it replaced by what that never exceeds."""
    term = Polynomial({monomial: coefficient})
    for place, size in enumerate(monomial):
        if isinstance(size.most, Polynomial):
            rest = Polynomial({monomial[:place] + monomial[place + 1 :]: coefficient})
            return rest * size.most
    return term


def without(larger: Monomial, monomial: Monomial) -> Monomial | None:
    """The sizes of one product that are left without those of another; None if it lacks one."""
    left = list(larger)
    for size in monomial:
        if size not in left:
            return None
        left.remove(size)
    return tuple(left)


class Values:
    """Values of sizes and their products, integers or arrays, each computed once."""

    def __init__(self, sizes: Mapping[str, Size]) -> None:
        self._values: dict[tuple[str, ...], Size] = {
            (name,): value for name, value in sizes.items()
        }

    def of(self, size: Size) -> Size:
        """Evaluates a size to an integer or an array `[n]`."""
        if not isinstance(size, Polynomial):
            return size
        number: int | Fraction = 0
        array = None
        for monomial, coefficient in size.terms.items():
            term = coefficient * self._product(monomial)
            if type(term) in (int, Fraction):
                number += term
            elif array is None:
                array = term
            elif array.shape == term.shape:
                array += term
            else:
                array = array + term
        if array is None:
            return number
        if number:
            array += number
        return array

    def _product(self, monomial: Monomial) -> Size:
        if not monomial:
            return 1
        if monomial not in self._values:
            if len(monomial) == 1:
                self._values[monomial] = self._derived(monomial[0])
            else:
                rest, last = self._product(monomial[:-1]), self._product(monomial[-1:])
                self._values[monomial] = rest * last
        return self._values[monomial]

    def _derived(self, size: Symbol) -> Size:
        if size.function is None:
            raise KeyError(f"no value for {size}")
        return size.function(*map(self.of, size.sizes))


def highest(sizes: Sequence[Polynomial], values: Values) -> Size:
    """The largest of several polynomials: an integer, or an array `[n]`."""
    return functools.reduce(maximum, map(values.of, sizes))


# --- the tape --------------------------------------------------------------------------------


class _Span(NamedTuple):
    """What one call did; its levels of memory are above what was alive before it."""

    work: Work
    levels: tuple[Size, ...]
    output: Description


LevelSpans: TypeAlias = dict[Hashable, _Span]
"""What calls did."""


class SymbolicTape(Tape):
    """A tape of integers and polynomials, which declares no weights."""

    def __init__(
        self,
        dtype: Dtype,
        stages: Mapping[str, str] | None = None,
        *,
        spans: LevelSpans | None = None,
    ) -> None:
        super().__init__(dtype, stages, weights=False)
        self._works: dict[str, list[Work]] = {}
        self._levels: dict[str, list[Size]] = {}
        self._known: LevelSpans = {} if spans is None else spans
        self._derived: dict[tuple[str, tuple[Size, ...]], Polynomial] = {}

    def work(self, *stages: str) -> Work:
        """The work of stages."""
        works = [each for stage in stages for each in self._works.get(stage, ())]
        counts: Iterable[Size] = map(Polynomial.sum, zip(*works, strict=True))
        return Work(*counts)

    def levels(self, stage: str) -> tuple[Size, ...]:
        """Bytes alive in a stage that may be the most for some sizes."""
        levels = self._levels.get(stage, [0])
        if all(isinstance(level, int) for level in levels):
            return (max(levels),)
        return worth_comparing(levels)

    # --- modules and repetition

    def again(
        self,
        name: str,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> Output:
        """Like `call`, but adds what a call with the same forward, sizes and options did."""

        def noted(_: Tape, /, *inputs: Inputs.args, **options: Inputs.kwargs) -> Output:
            work, levels, description = self._span_of(forward, *inputs, **options)
            self._add(work, self._times)
            self._reach(levels)
            output: Output = made(self, description)
            return output

        return self.call(name, noted, *inputs, **options)

    def _span_of(
        self,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> _Span:
        """What a call does, run apart unless it has been run before."""
        key = (forward, *map(size_of, inputs), *options.items())
        span = self._known.get(key)
        if span is None:
            outer = self.alive, self._works, self._levels, self._times
            self.alive, self._works, self._levels, self._times = 0, {}, {}, 1
            output = described(forward(self, *inputs, **options))
            self.check_nothing_is_left()
            span = _Span(self.work(self.stage), self.levels(self.stage), output)
            self._known[key] = span
            self.alive, self._works, self._levels, self._times = outer
        return span

    def each(
        self,
        name: str,
        start: Size,
        stop: Size,
        forward: Callable[[Tape, *Given], Operand],
        *inputs: *Given,
        least: int = 0,
        most: Size | None = None,
    ) -> list[Operand]:
        """The outputs of equal children, of which the last meets those of the others.

        Levels of children count only where they exist.
        """
        count = stop - start
        if isinstance(count, int):
            if not count:
                return []
            least = count
        work, levels, (n, dtype, *_) = self._span_of(forward, *inputs)
        self._add(work, self._times * count)
        output = n * dtype.nbytes
        if least:
            self._reach((count - 1) * output + level for level in levels)
        else:
            number = self.derived(f"number of {name}", lambda size: size, count, most=most)
            # The last of them meets the outputs of the others.
            self._reach(
                self.derived(
                    f"level of {name}",
                    lambda count, output, level: minimum(count, 1) * ((count - 1) * output + level),
                    number, output, level,
                )
                for level in levels
            )  # fmt: skip
        outputs = [self.empty(count * n, dtype)]
        self._levels[self.stage].pop()  # no level above those of the calls
        return outputs

    # --- sizes, memory and work

    def derived(
        self,
        name: str,
        function: Callable[..., Size],
        *sizes: Size,
        least: int = 0,
        most: Size | None = None,
    ) -> Size:
        """A new size called `name`; without `most`, the function grows with each of its sizes."""
        if all(isinstance(size, int) for size in sizes):
            return function(*sizes)
        key = (name, sizes)
        if key not in self._derived:
            taken = {each for each, _ in self._derived}
            own = name
            while own in taken:
                own += "'"
            symbol = Symbol(own, least, most, function, sizes)
            self._derived[key] = Polynomial({(symbol,): 1})
        return self._derived[key]

    def allocated(self, nbytes: Size) -> None:
        """Notes that a tensor of `nbytes` is alive; of rising levels, the last is kept."""
        before = self.alive
        self.alive += nbytes
        levels = self._levels.setdefault(self.stage, [])
        if levels and levels[-1] is before:
            levels.pop()
        levels.append(self.alive)

    def _reach(self, levels: Iterable[Size]) -> None:
        self._levels.setdefault(self.stage, []).extend(self.alive + each for each in levels)

    def _add(self, work: Work, times: Size) -> None:
        if not isinstance(times, int) or times:
            works = self._works.setdefault(self.stage, [])
            works.append(work if isinstance(times, int) and times == 1 else work.times(times))

    def record(
        self,
        kind: Kind,
        operator: str,
        shape: Dimensions,
        dtype: Dtype,
        output: Dtype,
        work: Work,
    ) -> None:
        """Adds the work of one operator to the running stage."""
        self._add(work, self._times)
