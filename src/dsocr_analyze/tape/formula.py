"""What each module of a forward costs, as formulas as well as numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from typing import Any, Concatenate, NamedTuple

from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.kernels import NO_WORK, Dimensions, Kind, Work
from dsocr_analyze.tape.example import Decision, Derived, Example, value_of
from dsocr_analyze.tape.polynomial import Polynomial, Size
from dsocr_analyze.tape.tape import (
    Description,
    Given,
    Inputs,
    Operand,
    Output,
    Tape,
    Tensor,
    View,
    described,
    made,
)

__all__ = ["FormulaTape", "ModuleCall"]


class Child(NamedTuple):
    """Equal calls of a module's children.

    Attributes:
        name: Name of the child, or of the first of several.
        times: How many calls.
        copies: How many children they belong to.
        call: One of the calls.
    """

    name: str
    times: Size
    copies: Size
    call: ModuleCall


class ModuleCall:
    """What one call of a module costs, with all that it calls. Every figure is an `Example`.

    Attributes:
        path: Path of the module.
        own: Work of its own operators, by operator, in the order of their first calls.
        children: What it calls.
        own_params: Its own parameters, by name.
        peak_bytes: The most bytes alive during the call, beyond those alive before it.
        cache_bytes: Bytes of keys and values that it returns besides its features.
        decisions: What its own forward asked of its sizes.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.own: dict[str, Work] = {}
        self.children: list[Child] = []
        self.own_params: dict[str, Size] = {}
        self.peak_bytes: Size = 0
        self.cache_bytes: Size = 0
        self.decisions: list[Decision] = []

    @cached_property
    def work(self) -> Work:
        """Work of all operators."""
        works = [*self.own.values(), *(each.call.work.times(each.times) for each in self.children)]
        return Work(*(_sum(counts) for counts in zip(*works, strict=True))) if works else NO_WORK

    @cached_property
    def operators(self) -> dict[str, Work]:
        """Work of all calls of each operator, with those below."""
        found = dict(self.own)
        for child in self.children:
            for name, work in child.call.operators.items():
                found[name] = found.get(name, NO_WORK).plus(work.times(child.times))
        return found

    def by_module(self, below: str = "") -> dict[tuple[str, str], Work]:
        """Work by path of a module below it and operator."""
        found = {(below, operator): work for operator, work in self.own.items()}
        for child in self.children:
            path = f"{below}.{child.name}".removeprefix(".")
            for key, work in child.call.by_module(path).items():
                found[key] = found.get(key, NO_WORK).plus(work.times(child.times))
        return found

    @cached_property
    def params(self) -> Size:
        """Parameters of the module and of all modules below it."""
        below = {each.name: each.copies * each.call.params for each in self.children}
        return _sum([*self.own_params.values(), *below.values()])

    @cached_property
    def asked(self) -> tuple[Decision, ...]:
        """What the forward and those below it asked of their sizes."""
        below = (each for child in self.children for each in child.call.asked)
        return tuple(dict.fromkeys((*self.decisions, *below)))


class FormulaTape(Tape):
    """A tape of examples: it keeps what every module call costs.

    Attributes:
        modules: The calls that ran, by path; of equal calls, only the first.
    """

    def __init__(self, dtype: Dtype) -> None:
        super().__init__(dtype)
        self.modules: dict[str, list[ModuleCall]] = {}
        self.root = ModuleCall("")
        self._module = self.root
        self._most_bytes: Size = 0
        self._copies: Size = 1
        self._equal: dict[Hashable, tuple[ModuleCall, Description]] = {}

    def run(self, forward: Callable[[Tape, *Given], Output], *inputs: *Given) -> ModuleCall:
        """Calls a forward as a module without a path, and returns what it costs."""
        self.call("", forward, *inputs)
        return self.modules[""][-1]

    def call(
        self,
        name: str,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> Output:
        """Calls a child; like `torch.nn.Module`, holds its inputs until it returns."""
        path = f"{self.path}.{name}" if self.path and name else self.path or name
        outer, times, alive, most = self._module, self._times, self.alive, self._most_bytes
        self._module = module = ModuleCall(path)
        copies, self._times, self._copies, self._most_bytes = self._copies, 1, 1, alive
        decisions, Example.decisions = Example.decisions, module.decisions
        output = super().call(name, forward, *inputs, **options)
        Example.decisions = decisions
        module.peak_bytes, module.cache_bytes = self._most_bytes - alive, _cached(output)
        reached, self._most_bytes = self._most_bytes, most
        self._module, self._times, self._copies = outer, times, copies
        self._reached(reached, "")
        self._add(name, module)
        if not self._is_idle:
            self.modules.setdefault(path, []).append(module)
        return output

    def again(
        self,
        name: str,
        forward: Callable[Concatenate[Tape, Inputs], Output],
        *inputs: Inputs.args,
        **options: Inputs.kwargs,
    ) -> Output:
        """Like `call`, but adds what an equal call cost: same forward, sizes and options."""
        sizes = tuple((x.n, x.dtype) if isinstance(x, Tensor | View) else x for x in inputs)
        key = (forward, sizes, tuple(options.items()), self._is_idle)
        if key not in self._equal:
            output = self.call(name, forward, *inputs, **options)
            self._equal[key] = self._module.children[-1].call, described(output)
            return output
        module, outputs = self._equal[key]
        self._add(name, module)
        self._reached(self.alive + module.peak_bytes, "")
        equal: Output = made(self, outputs)
        return equal

    def _add(self, name: str, module: ModuleCall) -> None:
        if not self._follows_memory_alone:
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
        """Calls equal children: the first for all, the last beside the outputs of the others."""
        count, child = stop - start, f"{name}.{value_of(start)}"
        if not value_of(count):  # here; formulas have the term all the same
            t = FormulaTape(self.dtype)
            output = t.call(child, forward, *inputs)
            call = t.root.children[0].call
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

    def idle_each(
        self,
        name: str,
        start: Size,
        stop: Size,
        forward: Callable[[Tape, *Given], Operand],
        *inputs: *Given,
    ) -> None:
        """Adds the parameters of equal children that are not called."""
        self._copies = stop - start
        self.idle(f"{name}.{value_of(start)}", forward, *inputs)
        self._copies = 1

    def derived(
        self,
        name: str,
        function: Callable[..., Size],
        *sizes: Size,
        least: int = 0,
        most: Size | None = None,
    ) -> Size:
        """A size with a name of its own, which says what it is."""
        value = function(*map(value_of, sizes))
        if all(isinstance(size, int) for size in sizes):
            return value
        return Example({(Derived.of(name, function, sizes),): 1}, value)

    def weight(self, n: Size, name: str = "weight") -> View:
        """A parameter of the module that is running."""
        if not self._follows_memory_alone:
            self._module.own_params[name] = n
        return View(n, self.dtype)

    def record(
        self, kind: Kind, operator: str, shape: Dimensions, dtype: Dtype, output: Dtype, work: Work
    ) -> None:
        """Adds the work of one operator to the module that is running."""
        if self._is_noted:
            own = self._module.own
            own[operator] = own.get(operator, NO_WORK).plus(work.times(self._times))

    def _reached(self, nbytes: Size, path: str) -> None:
        if value_of(nbytes) > value_of(self._most_bytes):
            self._most_bytes = nbytes


def _sum(sizes: Iterable[Size]) -> Size:
    sizes = list(sizes)
    return Example(Polynomial.sum(sizes).terms, sum(map(value_of, sizes)))


def _cached(output: Any) -> Size:
    """Bytes of the keys and values that a module returns: a list of all layers', or a pair."""
    match output:
        case list(kept) | (_, list(kept)):
            return sum(_bytes_of(each) for each in kept)
        case (_, *kept) if len(kept) > 1:
            return _bytes_of(kept)
        case _:
            return 0


def _bytes_of(kept: Any) -> Size:
    """Bytes of keys and values; what a layer keeps besides is no part of the cache."""
    return kept.nbytes if isinstance(kept, Tensor | View) else sum(each.nbytes for each in kept[:2])
