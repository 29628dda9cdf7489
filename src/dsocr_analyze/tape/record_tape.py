"""A tape that keeps records but follows no memory, so that sizes need not be compared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import lru_cache, partial, wraps
from typing import Any, Concatenate, TypeVar, cast

from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.kernels import Kernel, Work
from dsocr_analyze.tape.polynomial import Polynomial, Size, Symbol, Values
from dsocr_analyze.tape.tape import Inputs, Output, Tape
from dsocr_analyze.tape.tensor import Tensor, View, described, made

__all__ = ["RecordTape", "for_arrays"]

_Records = TypeVar("_Records", bound=Callable[..., tuple[Kernel, ...]])


class RecordTape(Tape):
    """A tape for sizes that are integers or polynomials.

    Equal calls of `again` in one module are noted once, at the first of them.

    Args:
        dtype: Type of weights and features.
        stages: Name of the stage that begins at a module's path.
        stage: Name of the stage of everything else.
    """

    def __init__(
        self, dtype: Dtype, stages: Mapping[str, str] | None = None, stage: str = ""
    ) -> None:
        super().__init__(dtype, stages, stage)
        self._equal: dict[Hashable, list[Any]] | None = None

    def call(
        self,
        name: str,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> Output:
        """Calls a child."""
        outer, self._equal = self._equal, {}
        output = super().call(name, forward, *inputs, **options)
        for places, _, calls in self._equal.values():
            for place in places if calls > 1 else ():
                kernel = self.kernels[place]
                self.kernels[place] = kernel._replace(calls=kernel.calls * calls)
        self._equal = outer
        return output

    def again(
        self,
        name: str,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> Output:
        """Like `call`; the records of an equal call before stand for this one as well."""
        if self._equal is None:  # no module is running
            return self.call(name, forward, *inputs, **options)
        sizes = tuple((x.n, x.dtype) if isinstance(x, Tensor | View) else x for x in inputs)
        key = (forward, sizes, tuple(options.items()), self._times)
        if equal := self._equal.get(key):
            equal[-1] += 1
            alike: Output = made(self, equal[1])
            return alike
        first = len(self.kernels)
        output = self.call(name, forward, *inputs, **options)
        self._equal[key] = [range(first, len(self.kernels)), described(output), 1]
        return output

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
