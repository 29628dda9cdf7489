"""A tape whose sizes may be polynomials: the same forwards, run once for many workloads.

It keeps sums instead of records, and every level that memory may peak at instead of the highest.
`RecordTape` keeps records but follows no memory, so that sizes need not be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache, partial, wraps
from typing import Concatenate, NamedTuple, TypeAlias, TypeVar, cast

from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.kernels import Dimensions, Kernel, Kind, Work
from dsocr_analyze.tape.polynomial import Polynomial, Symbol, Values, worth_comparing
from dsocr_analyze.tape.tape import (
    Description,
    Given,
    Inputs,
    Operand,
    Output,
    Size,
    Tape,
    View,
    described,
    key_of,
    made,
    minimum,
)

__all__ = ["LevelSpans", "RecordTape", "SymbolicTape", "for_arrays"]


class _Span(NamedTuple):
    """What one call did: its work, the levels of memory above those before it, its outputs."""

    work: Work
    levels: tuple[Size, ...]
    output: Description


LevelSpans: TypeAlias = dict[Hashable, _Span]
"""What calls did, by forward, sizes and options."""


class SymbolicTape(Tape):
    """A tape of sizes that may be polynomials; it declares no weights.

    Args:
        dtype: Type of weights and features.
        stages: Name of the stage that begins at a module's path.
        levels: Whether to follow memory.
        spans: What calls have done on other tapes of this type, for this one to use and add to.
    """

    def __init__(
        self,
        dtype: Dtype,
        stages: Mapping[str, str] | None = None,
        *,
        levels: bool = True,
        spans: LevelSpans | None = None,
    ) -> None:
        super().__init__(dtype, stages)
        self._works: dict[str, list[Work]] = {}
        self._levels: dict[str, list[Size]] = {}
        self._has_grown = False
        self._follows_levels = levels
        self._known: LevelSpans = {} if spans is None else spans
        self._derived: dict[tuple[str, tuple[Size, ...]], Polynomial] = {}

    def work(self, *stages: str) -> Work:
        """The work of stages."""
        works = [each for stage in stages for each in self._works.get(stage, ())]

        def total(count: str) -> Size:
            return Polynomial.sum(getattr(each, count) for each in works)

        return Work(*map(total, Work._fields))

    def levels(self, stage: str) -> tuple[Size, ...]:
        """Bytes alive in a stage: those that may be the most for some sizes."""
        return _highest_of(self._levels.get(stage, []))

    # --- modules and repetition

    def call(
        self,
        name: str,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> Output:
        """Calls a child; like `torch.nn.Module`, holds its inputs until it returns."""
        path, stage = self.path, self.stage
        self._enter(name)
        if self.stage != stage:
            self._note_level(stage)
        output = forward(self, *inputs, **options)
        if self.stage != stage:
            self._note_level(self.stage)
        self.path, self.stage = path, stage
        return output

    def _span_of(  # type: ignore[override]  # of another kind
        self,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> _Span:
        """What a call does, run apart from all others unless it has been run before."""
        key = key_of(forward, inputs, options)
        span = self._known.get(key)
        if span is None:
            self._note_level(self.stage)
            outer = self.alive, self._works, self._levels, self._times
            self.alive, self._works, self._levels, self._times = 0, {}, {}, 1
            output = described(forward(self, *inputs, **options))
            self._note_level(self.stage)
            self.check_nothing_is_left()
            span = _Span(self.work(self.stage), self.levels(self.stage), output)
            self._known[key] = span
            self.alive, self._works, self._levels, self._times = outer
        return span

    def _copy(self, span: _Span) -> None:  # type: ignore[override]  # as above
        """Adds what a call does to the module that is running."""
        self._add(span.work, self._times)
        self._reach(span.levels)

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
        """Calls equal children, `name.start` to below `name.stop`; returns all their outputs.

        The last of them meets the outputs of the others. If there may be none, neither do its
        levels of memory count then.
        """
        count = stop - start
        if isinstance(count, int):
            if not count:
                return []
            least = count
        work, levels, (n, dtype) = self._span_of(forward, *inputs)
        self._add(work, self._times * count)
        output = n * dtype.nbytes
        if least:
            self._reach((count - 1) * output + level for level in levels)
        else:
            number = self.derived(f"number of {name}", _same, count, most=most)
            self._reach(
                self.derived(f"level of {name}", _level_of_last, number, output, level)
                for level in levels
            )
        outputs = [made(self, (count * n, dtype))]
        self._has_grown = False  # to no level above those of the calls
        return outputs

    def idle_each(
        self,
        name: str,
        start: Size,
        stop: Size,
        forward: Callable[[Tape, *Given], Operand],
        *inputs: *Given,
    ) -> None:
        """Equal children that exist but are not called cost nothing."""

    def idle(self, name: str, forward: Callable[[Tape, *Given], Output], *inputs: *Given) -> None:
        """A child that exists but is not called costs nothing."""

    def weight(self, n: Size, name: str = "weight") -> View:
        """A parameter, which is not declared."""
        return View(n, self.dtype)

    # --- sizes, memory and work

    def derived(
        self,
        name: str,
        function: Callable[..., Size],
        *sizes: Size,
        least: int = 0,
        most: Size | None = None,
    ) -> Size:
        """A new size; `name` says which in formulas.

        Without `most`, the function grows with each of its sizes.
        """
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
        """Notes that a tensor of `nbytes` is alive."""
        self.alive += nbytes
        self._has_grown = True

    def freed(self, nbytes: Size) -> None:
        """Notes that a tensor of `nbytes` is gone."""
        self._note_level(self.stage)
        self.alive -= nbytes

    def _note_level(self, stage: str) -> None:
        """Notes the bytes alive before any is freed; no level on the way there is higher."""
        if self._has_grown and self._follows_levels:
            self._levels.setdefault(stage, []).append(self.alive)
        self._has_grown = False

    def _reach(self, levels: Iterable[Size]) -> None:
        if self._follows_levels:
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
        """Adds the work of one operator to the stage that is running."""
        self._add(work, self._times)


def _same(size: Size) -> Size:
    return size


def _level_of_last(count: Size, output: Size, level: Size) -> Size:
    """What the last of equal calls adds to memory, with the outputs of the others; 0 for none."""
    return minimum(count, 1) * ((count - 1) * output + level)


def _highest_of(levels: list[Size]) -> tuple[Size, ...]:
    if all(isinstance(level, int) for level in levels):
        return (max(levels, default=0),)
    return worth_comparing(levels)


_Records = TypeVar("_Records", bound=Callable[..., tuple[Kernel, ...]])


class RecordTape(Tape):
    """A tape for sizes that are integers or polynomials, which follows no memory."""

    def turns(self, count: Size) -> Iterator[Size]:
        """Equal turns, noted once for all; none for 0."""
        times = self._times
        if count:
            self._times = times * count
            yield 0
        self._times = times

    def derived(
        self, name: str, function: Callable[..., Size], *sizes: Size, **limits: Size
    ) -> Size:
        """A size that is no polynomial of others: a new symbol, unless they are integers."""
        if all(isinstance(size, int) for size in sizes):
            return function(*sizes)
        return Polynomial({(Symbol(name, function=function, sizes=sizes),): 1})

    def allocated(self, nbytes: Size) -> None:
        """Nothing."""

    def freed(self, nbytes: Size) -> None:
        """Nothing."""


def for_arrays(*names: str) -> Callable[[_Records], _Records]:
    """Lets a function from sizes to records take arrays: it runs once, on symbols of these names.

    Records for arrays `[n]`, or for arrays that broadcast, share what is equal, computed once.
    """

    def decorated(records: _Records) -> _Records:
        on_symbols = lru_cache(maxsize=64)(partial(records, *map(Polynomial.size, names)))

        @wraps(records)
        def evaluated(*arguments: Size) -> tuple[Kernel, ...]:
            sizes, rest = arguments[: len(names)], arguments[len(names) :]
            if all(isinstance(size, int) for size in sizes):
                return records(*arguments)
            values = Values(dict(zip(names, sizes, strict=True)))
            of = lru_cache(maxsize=None, typed=True)(values.of)
            return tuple(
                each._replace(
                    dimensions=type(each.dimensions)(*map(of, each.dimensions)),
                    work=Work(*map(of, each.work)),
                )
                for each in on_symbols(*rest)
            )

        return cast("_Records", evaluated)

    return decorated
