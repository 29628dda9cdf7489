"""The content of one module's page, before it is checked and written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.costs.sums import ModuleKernels

__all__ = ["NO_DEFAULT", "Case", "Formulas", "Page", "Parameter", "Symbol", "pick"]

NO_DEFAULT: Final = inspect.Parameter.empty
"""Default of a required parameter."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol in a page's formulas.

    Attributes:
        latex: Its LaTeX.
        meaning: What it stands for.
        formula: Formula of a derived symbol; None if the cases give its value.
    """

    latex: str
    meaning: str
    formula: str | None = None


def pick(names: str, alphabet: Mapping[str, Symbol]) -> dict[str, Symbol]:
    """The symbols of an alphabet with the given names, in order; spaces separate the names."""
    return {name: alphabet[name] for name in names.split()}


@dataclass(frozen=True, slots=True)
class Formulas:
    """Cost of a module, in the notation of `dsocr_analyze.knowledge.machinery.notation`.

    Attributes:
        macs: Multiply-accumulates of matrix operators.
        vector_flops: FLOPs of everything else.
        params: Elements of parameters.
        activations: Output elements of matrix operators.
        cache_bytes: Bytes that the KV cache holds afterwards; None for a module without one.
    """

    macs: str = "0"
    vector_flops: str = "0"
    params: str = "0"
    activations: str = "0"
    cache_bytes: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One stated workload of a module: shapes, and functions to trace it.

    Attributes:
        label: Its name in tables.
        values: Values of the symbols that are not derived.
        build: Returns the module or function on its own.
        arguments: Returns the positional arguments of its call.
        keywords: Returns the keyword arguments.
        closed_form: Returns its kernels from the closed forms, or the kernels of its parts by path;
            None without closed forms.
        device: Device of the trace; `cpu` only if pixels are needed.
        alike: For a large module, groups its identical parts: equal calls of these are recorded
            once, as in the main command.
    """

    label: str
    values: Mapping[str, int]
    build: Callable[[], Any]
    arguments: Callable[[], Sequence[Any]] = tuple
    keywords: Callable[[], Mapping[str, Any]] = dict
    closed_form: Callable[[], Kernels | ModuleKernels] | None = None
    device: str = "meta"
    alike: Callable[[str], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A constructor's parameter, or a config key that it reads.

    Attributes:
        meaning: What it does.
        value: Its value in the documented model.
        default: The code's default for a key missing from the settings, if it has one; a
            constructor's own defaults are read from its signature.
    """

    meaning: str
    value: Any
    default: Any = NO_DEFAULT


@dataclass(frozen=True, kw_only=True)
class Page:
    """One module's page.

    Attributes:
        group: Heading under which the index lists it.
        subject: The class or function.
        what: Description, in a paragraph or two.
        blocks: Stages and blocks of the catalogue that it represents.
        layer: Module of its closed form, or why there is none.
        inputs: Shapes of arguments, by name, in symbols: `"B, T, d"`.
        output: Shape of the first tensor returned; empty for none.
        parameters: Constructor parameters and config keys.
        diagram: Mermaid source.
        pseudo_code: Key steps.
        mathematics: LaTeX of the formulation.
        symbols: Symbols of the formulas.
        formulas: Its cost; None if it does not compute on tensors.
        cases: Stated workloads, the published one first.
        flops_notes: Notes on the count.
        memory_notes: Notes on memory.
        related: Names of other pages.
        usage: A runnable snippet.
        own_name: Name of the page, if another page has that of the subject; else empty.
        runs_given_config: Whether the snippet uses the given config; else the published one.
        references: Keys of `dsocr_analyze.knowledge.references`.
        notes: One line for the catalogue.
        also: Further functions or classes whose signatures are on the page.
    """

    group: str
    subject: Any
    what: str
    blocks: tuple[tuple[str, str], ...]
    layer: str
    parameters: Mapping[str, Parameter]
    diagram: str
    pseudo_code: str
    mathematics: str
    related: tuple[str, ...]
    usage: str
    notes: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    output: str = ""
    symbols: Mapping[str, Symbol] = field(default_factory=dict)
    formulas: Formulas | None = None
    cases: tuple[Case, ...] = ()
    flops_notes: tuple[str, ...] = ()
    memory_notes: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    also: tuple[Any, ...] = ()
    own_name: str = ""
    runs_given_config: bool = True

    @property
    def name(self) -> str:
        """Name of the page, and of its file in `pages`: that of the subject, if it is free."""
        return self.own_name or str(self.subject.__name__)

    @property
    def file_name(self) -> str:
        """Name of the page's file."""
        return f"op-{self.name}.md"
