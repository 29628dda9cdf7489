"""Checks a page before it is written: formula, closed form and trace must agree, exactly."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dsocr_analyze.errors import KnowledgeError
from dsocr_analyze.knowledge.notation import evaluate
from dsocr_analyze.knowledge.page import Case, Page
from dsocr_analyze.trace.alone import FunctionModule, trace_alone, work_of_trace
from dsocr_analyze.work import Work

__all__ = ["CheckedCase", "all_values", "check"]


@dataclass(frozen=True)
class CheckedCase:
    """A case whose figures were found three ways and agree.

    Attributes:
        case: The case.
        values: Values of all symbols, derived ones included.
        work: Its work.
        params: Elements of the module's parameters.
        peak_bytes: Most bytes of tensors alive at once, besides weights and inputs.
        cache_bytes: Bytes of the KV cache afterwards; 0 without one.
        operators: Operators that ran, in order of their first call.
        closed_form: Whether a closed form was among the three.
    """

    case: Case
    values: Mapping[str, int]
    work: Work
    params: int
    peak_bytes: int
    cache_bytes: int
    operators: tuple[str, ...]
    closed_form: bool


def check(page: Page) -> tuple[CheckedCase, ...]:
    """Traces every case of a page and compares.

    Raises:
        KnowledgeError: A formula or a closed form says something else than the trace, a stated
            shape is not the one that ran, or a constructor's parameter is not described.
    """
    _check_parameters(page)
    return tuple(_checked(page, case) for case in page.cases)


def _checked(page: Page, case: Case) -> CheckedCase:
    where = f"{page.name} ({case.label})"
    values = all_values(page, case)
    device = torch.device(case.device)
    built = case.build()
    module = built if isinstance(built, torch.nn.Module) else FunctionModule(built)
    arguments, keywords = case.arguments(), dict(case.keywords())
    _check_inputs(page, where, built, arguments, keywords, values)
    trace, output = trace_alone(module, device, *arguments, **keywords)
    _check_output(page, where, output, values)
    unknown = {entry.operator for entry in trace.entries if entry.status == "unknown"}
    if unknown:
        raise KnowledgeError(f"{where}: operators without a rule: {', '.join(sorted(unknown))}")
    work = work_of_trace(trace)
    params = sum(parameter.numel() for parameter in module.parameters())
    cache_bytes = _cache_bytes(keywords, output)
    _compare(page, where, values, work, params, cache_bytes)
    if case.closed_form is not None:
        closed = case.closed_form()
        if closed != work:
            raise KnowledgeError(f"{where}: the closed form says {closed}, the trace {work}")
    counted = [entry.operator for entry in trace.entries if entry.status == "counted"]
    return CheckedCase(
        case,
        values,
        work,
        params,
        trace.peak_bytes,
        cache_bytes,
        tuple(dict.fromkeys(counted)),
        case.closed_form is not None,
    )


def all_values(page: Page, case: Case) -> dict[str, int]:
    """Values of all symbols of a page in one case, derived ones included."""
    values = dict(case.values)
    for name, symbol in page.symbols.items():
        if symbol.formula is not None:
            values[name] = evaluate(symbol.formula, values)
        elif name not in values:
            raise KnowledgeError(f"{page.name} ({case.label}): {name!r} has no value")
    return values


def _compare(
    page: Page, where: str, values: Mapping[str, int], work: Work, params: int, cache_bytes: int
) -> None:
    if page.formulas is None:
        raise KnowledgeError(f"{where}: a case without formulas")
    measured = {
        "macs": work.macs,
        "vector_flops": work.vector_flops,
        "activations": work.activations,
        "params": params,
        "cache_bytes": cache_bytes,
    }
    wrong = []
    for name, value in measured.items():
        formula = getattr(page.formulas, name)
        stated = 0 if formula is None else evaluate(formula, values)
        if stated != value:
            wrong.append(f"{name}: {formula} is {stated:,}, traced {value:,} ({value - stated:+,})")
    if wrong:
        raise KnowledgeError(f"{where}: " + "; ".join(wrong))


def _check_parameters(page: Page) -> None:
    """Every parameter of the constructor (of a function: of the function) is described."""
    if inspect.isclass(page.subject):
        constructor = page.subject.__init__
        if constructor is object.__init__:
            return
        expected = list(inspect.signature(constructor).parameters.values())[1:]
    else:
        expected = list(inspect.signature(page.subject).parameters.values())
    for parameter in expected:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name not in page.parameters:
            raise KnowledgeError(f"{page.name}: parameter {parameter.name!r} is not described")


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
            raise KnowledgeError(f"{where}: {name!r} was not given")


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
    """Bytes of the cache that a call was given, or else that it returned."""
    cache = keywords.get("past_key_value", keywords.get("past_key_values"))
    if cache is None:
        cache = getattr(output, "past_key_values", None)
    if cache is None:
        return 0
    return sum(t.numel() * t.element_size() for pair in cache for t in pair)
