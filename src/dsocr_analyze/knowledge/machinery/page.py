"""What one page of the documentation says about one module, before it is checked and written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.costs.sums import ModuleKernels

__all__ = ["NO_DEFAULT", "Case", "Formulas", "Page", "Parameter", "Symbol", "pick"]

NO_DEFAULT: Final = inspect.Parameter.empty
"""Default of what must be given."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A letter of a page's formulas.

    Attributes:
        latex: How it is set.
        meaning: What it stands for.
        formula: A derived symbol's own formula; None for one whose value a case states.
    """

    latex: str
    meaning: str
    formula: str | None = None


def pick(names: str, alphabet: Mapping[str, Symbol]) -> dict[str, Symbol]:
    """Some symbols of an alphabet, in the order of their names, which spaces separate."""
    return {name: alphabet[name] for name in names.split()}


@dataclass(frozen=True, slots=True)
class Formulas:
    """What a module costs, in the notation of `dsocr_analyze.knowledge.machinery.notation`.

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
    """One stated workload of a module: shapes and the means to trace it.

    Attributes:
        label: Its name in tables.
        values: Values of the symbols that are not derived.
        build: Makes the module, or the function, alone.
        arguments: Makes the positional arguments of its call.
        keywords: Makes those by keyword.
        closed_form: Its kernels by the closed forms, or own kernels by path of the module's parts;
            None without closed forms.
        device: Where it is traced; only what needs pixels needs `cpu`.
        alike: Which of its modules are alike, where it is large: equal calls of these are recorded
            once, as in the main job.
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
    """A constructor's parameter, or a key of the config that it reads.

    Attributes:
        meaning: What it does.
        value: Its value in the model that is documented.
        default: What is taken for a key that the settings lack, where the code says so; a
            constructor's own defaults are read from it.
    """

    meaning: str
    value: Any
    default: Any = NO_DEFAULT


@dataclass(frozen=True, kw_only=True)
class Page:
    """One module's page.

    Attributes:
        name: The module's name; the page is `op-<name>.md`.
        group: Heading under which the index lists it.
        subject: The class or the function.
        what: What it is, in a paragraph or two.
        blocks: Stages and blocks of the catalogue that it stands for.
        layer: Analytic layer of the closed forms, or why there is none.
        inputs: Shapes of arguments, by name, in symbols: `"B, T, d"`.
        output: Shape of the first tensor that comes back; empty for none.
        parameters: Constructor parameters and config keys.
        diagram: Mermaid source.
        pseudo_code: Key steps.
        mathematics: LaTeX of the formulation.
        symbols: Letters of the formulas.
        formulas: What it costs; None for what is no computation on tensors.
        cases: Stated workloads, the published one first.
        flops_notes: What to know about the count.
        memory_notes: What to know about memory.
        related: Names of other pages.
        usage: Code that runs.
        runs_given_config: Whether the code is about the given config; else the published one.
        references: Keys of `dsocr_analyze.knowledge.references`.
        notes: One line for the catalogue.
        also: Further functions or classes whose signatures stand on the page.
    """

    name: str
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
    runs_given_config: bool = True

    @property
    def file_name(self) -> str:
        """Name of the page's file."""
        return f"op-{self.name}.md"
