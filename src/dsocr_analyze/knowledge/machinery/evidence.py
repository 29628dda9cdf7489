"""Checks a page before it is written: formula, closed form and trace must agree exactly."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import torch

from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.errors import KnowledgeError
from dsocr_analyze.kernels import Kernel, Kind, Work, merged, total_work
from dsocr_analyze.knowledge.machinery.notation import evaluate
from dsocr_analyze.knowledge.machinery.page import Case, Page
from dsocr_analyze.knowledge.references import REFERENCES
from dsocr_analyze.trace.single_module import FunctionModule, trace_module

__all__ = ["CheckedCase", "all_values", "check"]


@dataclass(frozen=True)
class CheckedCase:
    """A case whose figures, found three ways, agree.

    Attributes:
        case: The case.
        values: Values of all symbols, including derived ones.
        kernels: Kernels that ran; equal records of different parts of the module are merged.
        params: Elements of the module's parameters.
        peak_bytes: Most bytes of tensors alive at once, excluding weights and inputs.
        cache_bytes: Bytes of the KV cache afterwards; 0 without one.
        closed_form: Whether a closed form was among the three.
    """

    case: Case
    values: Mapping[str, int]
    kernels: Kernels
    params: int
    peak_bytes: int
    cache_bytes: int
    closed_form: bool

    @cached_property
    def work(self) -> Work:
        """Total work of the kernels."""
        return total_work(kernel.total for kernel in self.kernels)

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators that ran, in order of their first call."""
        return tuple(dict.fromkeys(kernel.operator for kernel in self.kernels))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Their kinds, in the same order."""
        return tuple(dict.fromkeys(kernel.kind for kernel in self.kernels))


def check(page: Page) -> tuple[CheckedCase, ...]:
    """Traces every case of a page and compares.

    Raises:
        KnowledgeError: A formula or a closed form differs from the trace, a stated
            shape is not the one that ran, a constructor's parameter is not described, or a
            reference is unknown.
    """
    _check_parameters(page)
    if unknown := [key for key in page.references if key not in REFERENCES]:
        raise KnowledgeError(f"{page.name}: no {', '.join(unknown)} in references.py")
    return tuple(_checked(page, case) for case in page.cases)


def _checked(page: Page, case: Case) -> CheckedCase:
    where = f"{page.name} ({case.label})"
    values = all_values(page, case)
    device = torch.device(case.device)
    built = case.build()
    module = built if isinstance(built, torch.nn.Module) else FunctionModule(built)
    arguments, keywords = case.arguments(), dict(case.keywords())
    _check_inputs(page, where, built, arguments, keywords, values)
    trace, output = trace_module(module, device, *arguments, repeats=case.alike, **keywords)
    _check_output(page, where, output, values)
    if trace.unknown:
        names = ", ".join(sorted(trace.unknown))
        raise KnowledgeError(f"{where}: operators without a rule: {names}")
    checked = CheckedCase(
        case,
        values,
        _wherever_they_run(trace.kernels),
        sum(parameter.numel() for parameter in module.parameters()),
        trace.peak.nbytes,
        _cache_bytes(keywords, output),
        case.closed_form is not None,
    )
    _compare_formulas(page, where, checked)
    if case.closed_form is not None:
        _compare_kernels(where, case.closed_form(), checked.kernels)
    return checked


def all_values(page: Page, case: Case) -> dict[str, int]:
    """Values of all symbols of a page in one case, including derived ones."""
    values = dict(case.values)
    for name, symbol in page.symbols.items():
        if symbol.formula is not None:
            values[name] = evaluate(symbol.formula, values)
        elif name not in values:
            raise KnowledgeError(f"{page.name} ({case.label}): {name!r} has no value")
    return values


def _compare_formulas(page: Page, where: str, checked: CheckedCase) -> None:
    if page.formulas is None:
        raise KnowledgeError(f"{where}: a case without formulas")
    measured = {
        "macs": checked.work.macs,
        "vector_flops": checked.work.vector_flops,
        "activations": checked.work.activations,
        "params": checked.params,
        "cache_bytes": checked.cache_bytes,
    }
    wrong = []
    for name, value in measured.items():
        formula = getattr(page.formulas, name)
        stated = 0 if formula is None else evaluate(formula, checked.values)
        if stated != value:
            wrong.append(f"{name}: {formula} is {stated:,}, traced {value:,} ({value - stated:+,})")
    if wrong:
        raise KnowledgeError(f"{where}: " + "; ".join(wrong))


def _wherever_they_run(kernels: Iterable[Kernel]) -> Kernels:
    """Kernels with equal records merged across modules."""
    return merged(kernel._replace(path="", stage="") for kernel in kernels)


def _compare_kernels(where: str, closed_form: Kernels | ModuleKernels, traced: Kernels) -> None:
    """Raise unless every kernel has the same number of calls in both."""
    if isinstance(closed_form, dict):
        closed_form = tuple(chain.from_iterable(closed_form.values()))
    stated, ran = _calls(_wherever_they_run(closed_form)), _calls(traced)
    for kernel in ran | stated:
        if stated[kernel] != ran[kernel]:
            raise KnowledgeError(
                f"{where}: the closed form says {stated[kernel]} times {kernel},"
                f" the trace {ran[kernel]}"
            )


def _calls(kernels: Kernels) -> Counter[Kernel]:
    return Counter({kernel._replace(calls=1): kernel.calls for kernel in kernels})


def _check_parameters(page: Page) -> None:
    """Raise unless the page describes the parameters of the constructor or function, in order."""
    if inspect.isclass(page.subject):
        constructor = page.subject.__init__
        if constructor is object.__init__:
            return
        expected = list(inspect.signature(constructor).parameters.values())[1:]
    else:
        expected = list(inspect.signature(page.subject).parameters.values())
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [parameter.name for parameter in expected if parameter.kind not in variable]
    described = [name for name in page.parameters if "." not in name]
    if described != names:
        raise KnowledgeError(f"{page.name}: describes {described}; right: {names}")


def _check_inputs(
    page: Page,
    where: str,
    built: Any,
    arguments: Any,
    keywords: Mapping[str, Any],
    values: Mapping[str, int],
) -> None:
    called = built.forward if isinstance(built, torch.nn.Module) else built
    bound = inspect.signature(called).bind(*arguments, **keywords).arguments
    for name, shape in page.inputs.items():
        given = bound.get(name)
        if isinstance(given, torch.Tensor):
            _compare_shape(where, name, shape, given, values)
        elif name not in bound:
            raise KnowledgeError(f"{where}: {name!r} was not given, but {', '.join(bound)}")


def _check_output(page: Page, where: str, output: Any, values: Mapping[str, int]) -> None:
    first = _first_tensor(output)
    if not page.output:
        return
    if first is None:
        raise KnowledgeError(f"{where}: returned no tensor, {page.output!r} was stated")
    _compare_shape(where, "the output", page.output, first, values)


def _compare_shape(
    where: str, name: str, shape: str, tensor: torch.Tensor, values: Mapping[str, int]
) -> None:
    stated = tuple(evaluate(size, values) for size in shape.split(",")) if shape else ()
    if stated != tuple(tensor.shape):
        raise KnowledgeError(
            f"{where}: {name} is stated as [{shape}] = {list(stated)}, it is {list(tensor.shape)}"
        )


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            found = _first_tensor(item)
            if found is not None:
                return found
    return None


def _cache_bytes(keywords: Mapping[str, Any], output: Any) -> int:
    """Bytes of the cache passed to a call, or else of the cache that it returned."""
    cache = keywords.get("past_key_value", keywords.get("past_key_values"))
    if cache is None:
        cache = getattr(output, "past_key_values", None)
    if cache is None:
        return 0
    return sum(t.numel() * t.element_size() for pair in cache for t in pair)
