"""Formulas of a forward as text: what its operators cost in terms of sizes that have names."""

from __future__ import annotations

from typing import Any, NamedTuple

from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.kernels import NO_WORK, Dimensions, Kind, Work
from dsocr_analyze.tape.polynomial import Polynomial, Size
from dsocr_analyze.tape.symbolic import SymbolicTape
from dsocr_analyze.tape.tape import Forward
from dsocr_analyze.tape.tensor import Operand, View

__all__ = ["Formula", "FormulaTape"]


class Formula(NamedTuple):
    """What all calls of an operator in one module cost.

    Attributes:
        path: The module, below the one whose forward is run; empty for that one.
        operator: The operator.
        work: Its work, in terms of the sizes.
    """

    path: str
    operator: str
    work: Work


class FormulaTape(SymbolicTape):
    """A tape of named sizes: it keeps the work of every operator of every module, and parameters.

    Attributes:
        params: Parameters of all modules.
    """

    def __init__(self, dtype: Dtype) -> None:
        super().__init__(dtype)
        self.params: Size = 0
        self._rows: dict[tuple[str, str], Work] = {}

    @property
    def formulas(self) -> list[Formula]:
        """One row for each operator of each module, in the order in which they first run."""
        return [Formula(path, name, work) for (path, name), work in self._rows.items()]

    @property
    def highest_levels(self) -> tuple[Polynomial, ...]:
        """Bytes alive: those of which one is the most, besides what the forward was given."""
        return tuple(map(Polynomial.of, self.levels("")))

    again = SymbolicTape.call  # every module has rows of its own

    def each(
        self, name: str, start: Size, stop: Size, forward: Forward, *inputs: Any, **limits: Any
    ) -> list[Operand]:
        """Calls equal children, which have their rows in common."""
        outer, params, self._rows, self.params = self._rows, self.params, {}, 0
        made = super().each(name, start, stop, forward, *inputs, **limits)
        one, self._rows, count = self._rows, outer, stop - start
        self.params = params + count * self.params
        for (path, operator), work in one.items():
            place = ".".join(filter(None, (self.path, name, path[len(self.path) :].strip("."))))
            self._note(place, operator, work.times(count))
        return made

    def idle(self, name: str, forward: Forward, *inputs: Any) -> None:
        """Adds the parameters of a child that is not called."""
        self.idle_each(name, 0, 1, forward, *inputs)

    def idle_each(self, name: str, start: Size, stop: Size, forward: Forward, *inputs: Any) -> None:
        """Adds the parameters of equal children that are not called."""
        t = FormulaTape(self.dtype)
        forward(t, *inputs)
        self.params += (stop - start) * t.params

    def weight(self, n: Size, name: str = "weight") -> View:
        """A parameter of the module that is running."""
        self.params += n * self._times
        return super().weight(n, name)

    def record(
        self, kind: Kind, operator: str, shape: Dimensions, dtype: Dtype, output: Dtype, work: Work
    ) -> None:
        """Adds the work of one operator to the module that is running."""
        self._note(self.path, operator, work.times(self._times))
        super().record(kind, operator, shape, dtype, output, work)

    def _note(self, path: str, operator: str, work: Work) -> None:
        self._rows[path, operator] = self._rows.get((path, operator), NO_WORK).plus(work)
