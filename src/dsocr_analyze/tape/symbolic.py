"""A tape of polynomials: a forward is run once for many workloads.

It keeps sums instead of records, and every level that may be memory's peak.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Concatenate, NamedTuple, TypeAlias

from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.kernels import Dimensions, Kind, Work
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
    minimum,
    size_of,
)
from dsocr_analyze.tape.polynomial import Polynomial, Symbol, worth_comparing

__all__ = ["LevelSpans", "SymbolicTape"]


class _Span(NamedTuple):
    """What one call did; its levels of memory are above what was alive before it."""

    work: Work
    levels: tuple[Size, ...]
    output: Description


LevelSpans: TypeAlias = dict[Hashable, _Span]
"""What calls did."""


class SymbolicTape(Tape):
    """A tape of integers and polynomials, with `levels` or not; it declares no weights."""

    def __init__(
        self,
        dtype: Dtype,
        stages: Mapping[str, str] | None = None,
        *,
        levels: bool = True,
        spans: LevelSpans | None = None,
    ) -> None:
        super().__init__(dtype, stages, weights=False)
        self._works: dict[str, list[Work]] = {}
        self._levels: dict[str, list[Size]] = {}
        self._follows_levels = levels
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
            self._reach(
                self.derived(f"level of {name}", _level_of_last, number, output, level)
                for level in levels
            )
        outputs = [self.empty(count * n, dtype)]
        if self._follows_levels:
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
        if self._follows_levels:
            levels = self._levels.setdefault(self.stage, [])
            if levels and levels[-1] is before:
                levels.pop()
            levels.append(self.alive)

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
        """Adds the work of one operator to the running stage."""
        self._add(work, self._times)


def _level_of_last(count: Size, output: Size, level: Size) -> Size:
    """What the last of equal calls adds to memory beside the outputs of the others."""
    return minimum(count, 1) * ((count - 1) * output + level)
