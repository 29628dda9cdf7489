"""Forwards that run as in another source, and what a comparison with a trace notices of it."""

import functools
import types
from collections.abc import Iterable
from typing import Any

import pytest
from drawn_passes import Case, drawn
from taped_passes import noted, taped
from traced_passes import traced

from dsocr_analyze.architectures import deepseek_ocr, deepseek_ocr_2
from dsocr_analyze.architectures.ocr_family import (
    attention,
    decoder,
    passes,
    vision,
)
from dsocr_analyze.tape import modules

FORWARDS = (
    passes, deepseek_ocr, deepseek_ocr_2, decoder, attention, vision, modules,
)  # fmt: skip


POOL = (324, 125, 124, 141, 119, 186, 69)
"""Small cases that have between them all that a control asks for."""


@functools.cache
def with_trace(seed: int) -> tuple[Case, Any]:
    case = drawn(seed)
    return case, traced(case)


def noticed(case: Case, theirs: Any) -> set[str]:
    """What differs between tape and trace, in the prefill pass and in decode steps."""
    found = set()
    for number, reference in theirs.items():
        ours = taped(case, number)
        mine = {**noted(ours), "levels": ours.tape.levels}
        expected = {**reference.figures, "levels": reference.levels}
        found |= {name for name in expected if mine[name] != expected[name]}
    return found


def functions_of(names: Iterable[Any]) -> dict[str, types.FunctionType]:
    """A module's own functions and methods, by qualified name."""
    found: dict[str, types.FunctionType] = {}
    for each in names:
        if isinstance(each, types.FunctionType):
            found[each.__qualname__] = each
        elif isinstance(each, type):
            found |= functions_of(vars(each).values())
    return found


def own_functions(module: types.ModuleType, namespace=None) -> dict[str, types.FunctionType]:
    found = functions_of((namespace or vars(module)).values())
    return {name: each for name, each in found.items() if each.__module__ == module.__name__}


def run_as(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType, source: str) -> None:
    """Functions of a module run as in another source, for whoever has imported them."""
    edited = dict(vars(module))
    exec(compile(source, module.__file__ or "", "exec"), edited)
    new = own_functions(module, edited)
    for name, function in own_functions(module).items():
        monkeypatch.setattr(function, "__code__", new[name].__code__)
