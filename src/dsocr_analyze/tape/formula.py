"""What modules of a forward cost, as formulas and numbers, and how people write these.

A size is a polynomial of symbols that know their values for one workload. What a forward asks of
values is noted: a formula holds where the answers are the same.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from functools import cached_property
from operator import floordiv
from typing import Any, Concatenate, Final, NamedTuple, TypeAlias

from dsocr_analyze.kernels import NO_WORK, Dimensions, Dtype, Kind, Work
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
    size_of,
)
from dsocr_analyze.tape.polynomial import Polynomial, Symbol, quotient_of, text_of, without

# --- sizes with a name and a value -------------------------------------------------------------


class Decision(NamedTuple):
    """What a forward asked of two sizes, and which `relation` holds."""

    left: Size
    relation: str
    right: Size


class Example(Polynomial):
    """A polynomial of sizes that have values.

    Attributes:
        decisions: Where all examples note answers; None for nowhere.
    """

    __slots__ = ("_value",)

    decisions: list[Decision] | None = None

    @classmethod
    def named(cls, name: str, value: int, *, multiple: int = 1) -> Example:
        """A size with a name, and what divides it whatever its value."""
        return cls({(Symbol(name, least=0, multiple=multiple, value=value),): 1})

    @property
    def value(self) -> int:
        """Its value."""
        if not hasattr(self, "_value"):  # comparisons ask for it again and again
            self._value = int(sum(
                coefficient * math.prod(size.value for size in monomial)
                for monomial, coefficient in self.terms.items()
            ))  # fmt: skip
        return self._value

    def __floordiv__(self, divisor: Size) -> Example:
        """The quotient, rounded down: a polynomial, or else a size of its own."""
        quotient = quotient_of(self.terms, divisor)
        if quotient is None and isinstance(divisor, int) and not self.value % divisor:
            self._note(True, "is a multiple of", divisor, "")
            quotient = {monomial: Fraction(each) / divisor for monomial, each in self.terms.items()}
        if quotient is None:
            return _derived("floor({} / {})", floordiv, (self, divisor))
        return Example(quotient)

    def __rfloordiv__(self, dividend: int) -> Example:
        return Example({(): dividend}) // self

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
        if self.decisions is not None and any((self - other).terms):
            self.decisions.append(Decision(self, relation if answer else otherwise, other))
        return answer


def _derived(template: str, function: Callable[..., Size], sizes: tuple[Size, ...]) -> Example:
    """What a function makes of some sizes, as a size of its own."""
    name, value = template.format(*sizes), function(*map(value_of, sizes))
    symbol = Symbol(name, 0, function=function, sizes=sizes, template=template, value=value)
    return Example({(symbol,): 1})


def value_of(size: Size) -> int:
    """The value of a size: an integer is its own."""
    return size.value if isinstance(size, Example) else size


# --- calls -------------------------------------------------------------------------------------


class Child(NamedTuple):
    """Equal calls of a module's children.

    Attributes:
        name: Of the first child.
        times: Calls; None for children that are not called.
        copies: Children that are called.
        call: One of the calls.
    """

    name: str
    times: Size
    copies: Size
    call: ModuleCall


class ModuleCall:
    """What one call of a module costs, with all that it calls. Every figure is an `Example`.

    Attributes:
        own: Work of its own operators, in the order of their first calls.
        own_params: Its own parameters.
        peak_bytes: The most bytes alive during the call beyond those before it.
        cache_bytes: Of keys and values that it returns.
        decisions: What its own forward asked of sizes.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.own: dict[str, Work] = {}
        self.children: list[Child] = []
        self.own_params: dict[str, Size] = {}
        self.peak_bytes: Size = 0
        self.cache_bytes: Size = 0
        self.decisions: list[Decision] = []

    @property
    def called(self) -> list[Child]:
        """Its children that are called."""
        return [each for each in self.children if each.times is not None]

    @cached_property
    def work(self) -> Work:
        """Work of all operators."""
        works = [*self.own.values(), *(each.call.work.times(each.times) for each in self.called)]
        sums: Iterable[Size] = map(Example.sum, zip(*works, strict=True))
        return Work(*sums)

    @cached_property
    def operators(self) -> dict[str, Work]:
        """Work of each operator, with calls below."""
        found = dict(self.own)
        for child in self.called:
            for name, work in child.call.operators.items():
                found[name] = found.get(name, NO_WORK).plus(work.times(child.times))
        return found

    def by_module(self, below: str = "") -> dict[tuple[str, str], Work]:
        """Work by path of a module below and operator."""
        found = {(below, operator): work for operator, work in self.own.items()}
        for child in self.called:
            path = f"{below}.{child.name}".removeprefix(".")
            for key, work in child.call.by_module(path).items():
                found[key] = found.get(key, NO_WORK).plus(work.times(child.times))
        return found

    @cached_property
    def params(self) -> Size:
        """Of the module and those below."""
        below = {each.name: each.copies * each.call.params for each in self.children}
        return Example.sum([*self.own_params.values(), *below.values()])

    @cached_property
    def asked(self) -> tuple[Decision, ...]:
        """What the forward and those below asked of sizes."""
        below = (each for child in self.children for each in child.call.asked)
        return tuple(dict.fromkeys((*self.decisions, *below)))


class FormulaTape(Tape):
    """A tape of examples: what module calls cost, by path; the first of equal ones."""

    def __init__(self, dtype: Dtype) -> None:
        super().__init__(dtype)
        self.modules: dict[str, list[ModuleCall]] = {}
        self.root = ModuleCall("")
        self._module = self.root
        self._most_bytes: Size = 0
        self._copies: Size = 1
        self._equal: dict[Hashable, tuple[ModuleCall, Description]] = {}

    def run(self, forward: Callable[[Tape, *Given], Output], *inputs: *Given) -> ModuleCall:
        """What a forward costs that is called as a module without a path."""
        self.call("", forward, *inputs)
        return self.modules[""][-1]

    def call(
        self,
        name: str,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> Output:
        """Calls a child with figures of its own."""
        path = f"{self.path}.{name}".strip(".")
        outer, times, alive, most = self._module, self._times, self.alive, self._most_bytes
        self._module = module = ModuleCall(path)
        copies, self._copies, self._most_bytes = self._copies, 1, alive
        self._times = 1 if times else 0
        decisions, Example.decisions = Example.decisions, module.decisions
        output = super().call(name, forward, *inputs, **options)
        Example.decisions = decisions
        module.peak_bytes, module.cache_bytes = self._most_bytes - alive, _cached(output)
        reached, self._most_bytes = self._most_bytes, most
        self._module, self._times, self._copies = outer, times, copies
        self._reached(reached)
        self._add(name, module)
        self.modules.setdefault(path, []).append(module)
        return output

    def again(
        self,
        name: str,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> Output:
        """Like `call`, but adds what a call with the same forward, sizes and options cost."""
        key = (forward, *map(size_of, inputs), *options.items())
        if key not in self._equal:
            output = self.call(name, forward, *inputs, **options)
            self._equal[key] = self._module.children[-1].call, described(output)
            return output
        module, outputs = self._equal[key]
        self._add(name, module)
        self._reached(self.alive + module.peak_bytes)
        equal: Output = made(self, outputs)
        return equal

    def _add(self, name: str, module: ModuleCall) -> None:
        if self._times:
            self._module.children.append(Child(name, self._times, self._copies, module))

    def each(
        self,
        name: str,
        start: Size,
        stop: Size,
        forward: Callable[[Tape, *Given], Operand],
        *inputs: *Given,
        **limits: Size,
    ) -> list[Operand]:
        """Calls the first and the last of equal children for all."""
        count, child = stop - start, f"{name}.{value_of(start)}"
        if not value_of(count):  # here; formulas have the term all the same
            call, output = self._apart(child, forward, *inputs)
            self._module.children.append(Child(child, self._times * count, count, call))
            return [self.empty(count * output.n, output.dtype)]
        outputs: list[Operand] = []
        self._copies = count
        for skipped in self.turns(count):
            if outputs:
                outputs.append(self.empty(skipped * outputs[0].n, self.dtype))
            outputs.append(self.call(child, forward, *inputs))
        self._copies = 1
        if len(outputs) == 1:  # of several that formulas have
            outputs.append(self.empty((count - 1) * outputs[0].n, self.dtype))
        return outputs

    def _apart(
        self, name: str, forward: Callable[[Tape, *Given], Output], *inputs: *Given
    ) -> tuple[ModuleCall, Output]:
        """What a call costs on a tape of its own, and its output."""
        t = FormulaTape(self.dtype)
        output = t.call(f"{self.path}.{name}".strip("."), forward, *inputs)
        return t.root.children[0].call, output

    def idle(
        self,
        name: str,
        forward: Callable[[Tape, *Given], Output],
        *inputs: *Given,
        indices: tuple[Size, Size] | None = None,
    ) -> None:
        """Adds the parameters of a child that is not called, or of equal ones."""
        if self._times:
            start, stop = indices or (0, 1)
            name += f".{value_of(start)}" if indices else ""
            call, _ = self._apart(name, forward, *inputs)
            self._module.children.append(Child(name, None, stop - start, call))

    def derived(
        self,
        name: str,
        function: Callable[..., Size],
        *sizes: Size,
        least: int = 0,
        most: Size | None = None,
    ) -> Size:
        """A size with a name that says what it is."""
        if all(isinstance(size, int) for size in sizes):
            return function(*sizes)
        return _derived(name, function, sizes)

    def weight(self, n: Size, name: str = "weight") -> Operand:
        """A parameter of the running module."""
        if self._times:
            self._module.own_params[name] = n
        return Operand(n, self.dtype)

    def record(
        self, kind: Kind, operator: str, shape: Dimensions, dtype: Dtype, output: Dtype, work: Work
    ) -> None:
        """Adds the work of one operator to the running module."""
        if self._times:
            own = self._module.own
            own[operator] = own.get(operator, NO_WORK).plus(work.times(self._times))

    def allocated(self, nbytes: Size) -> None:
        """Notes that a tensor of `nbytes` is alive."""
        self.alive += nbytes
        self._reached(self.alive)

    def _reached(self, nbytes: Size) -> None:
        if value_of(nbytes) > value_of(self._most_bytes):
            self._most_bytes = nbytes


def _cached(output: Any) -> Size:
    """Bytes of the keys and values that a module returns: a list of layers', or a pair."""
    match output:
        case list(kept) | (_, list(kept)):
            return sum(_bytes_of(each) for each in kept)
        case (Operand(), tuple(kept), *_):
            return _bytes_of(kept)
        case _:
            return 0


def _bytes_of(kept: Any) -> Size:
    return kept.nbytes if isinstance(kept, Operand) else sum(each.nbytes for each in kept[:2])


# --- notation ----------------------------------------------------------------------------------

Relations: TypeAlias = tuple[tuple[tuple[str, ...], Polynomial], ...]
"""Products of names, and what is written instead: `d` for `H D`."""

_ORDER: Final = {
    name: place
    for place, name in enumerate(
        "B N T q n g R K L_0 E k l w H H_kv G d d_in d_out d_q d_c"
        " D D_n D_r D_v f m V C c c_0 c_1 c_2 p s t".split()
    )
}
"""The factors of a term stand in this order."""
_LINE: Final = 88


def written(size: Size, relations: Relations = ()) -> str:
    """A formula as people write it: `3 B T k d f`, highest degree first; `0` for none."""

    def name(symbol: Symbol) -> str:
        """A size's name; one that is derived from others says how."""
        return symbol.template.format(*(written(each, relations) for each in symbol.sizes))

    return text_of(
        _rewritten(Polynomial.of(size), relations).terms,
        lambda symbol: (_ORDER.get(symbol, len(_ORDER)), symbol),
        name,
    )


def _rewritten(size: Polynomial, relations: Relations) -> Polynomial:
    """The polynomial with products of names replaced."""
    for product, instead in relations:
        found, factors = list[Polynomial](), tuple(map(Symbol, product))
        for monomial, coefficient in size.terms.items():
            term, left = Polynomial({(): coefficient}), monomial
            while (rest := without(left, factors)) is not None:
                term, left = term * instead, rest
            found.append(term * Polynomial({left: 1}))
        size = Polynomial.sum(found)
    return size


def conditions(asked: Iterable[Decision], relations: Relations = ()) -> list[str]:
    """What must hold for formulas of a forward that asked this of its sizes.

    Whether a size is one decides about copies alone, and is left out.
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
