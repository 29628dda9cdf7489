"""Names in forwards that keep memory: each is marked by `hold`, and giving it away is noticed.

Whoever writes an expression in the place of such a name frees what it refers to earlier than the
vendor's code does, and so does a linter that removes a name without another use.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest
from edited_forwards import FORWARDS, POOL, noticed, run_as, with_trace
from sampling import named, sampled


class Name(NamedTuple):
    """A local name of a forward."""

    module: types.ModuleType
    function: str
    name: str


def is_hold(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "hold"
    )


def names_in(node: ast.AST, *, held: bool) -> set[str]:
    """Names in a statement, without those that `hold` names, or these alone."""
    if is_hold(node):
        return (
            {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            if held
            else set()
        )  # type: ignore[attr-defined]
    found = {node.id} if isinstance(node, ast.Name) and not held else set()
    return found.union(*(names_in(child, held=held) for child in ast.iter_child_nodes(node)))


def definitions(tree: ast.AST, prefix: str = "") -> dict[str, ast.FunctionDef]:
    """Functions and methods, by qualified name."""
    found: dict[str, ast.FunctionDef] = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            found[prefix + node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= definitions(node, f"{node.name}.")
    return found


def is_forward(function: ast.FunctionDef) -> bool:
    return "t" in [argument.arg for argument in function.args.args]


@functools.cache
def parsed(module: types.ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def local_names() -> Iterable[Name]:
    """Every name in a forward, but the tape's."""
    for module in FORWARDS:
        for function, node in definitions(parsed(module)).items():
            if is_forward(node):
                assigned = {
                    each.id
                    for each in ast.walk(node)
                    if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
                }
                arguments = {each.arg for each in node.args.args}
                for name in sorted(assigned | arguments - {"self", "t"}):
                    yield Name(module, function, name)


def is_held(name: Name) -> bool:
    return name.name in names_in(definitions(parsed(name.module))[name.function], held=True)


_REPEATED = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.Lambda, ast.FunctionDef)
"""Nodes whose parts may run more than once, or later."""


class _LastUse(ast.NodeTransformer):
    """Makes a name's last use give it away: `x` becomes `(x, x := None)[0]`."""

    def __init__(self, last: ast.Name) -> None:
        self._last = last

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node is not self._last:
            return node
        return ast.parse(f"({node.id}, {node.id} := None)[0]", mode="eval").body


def uses_of(name: str, node: ast.AST, is_repeated: bool = False) -> Iterator[tuple[ast.Name, bool]]:
    """Every use of a name, in order, and whether it may run again; not those that `hold` names."""
    if is_hold(node):
        return
    if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
        yield node, is_repeated
    is_repeated = is_repeated or isinstance(node, _REPEATED)
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Assign):  # a value is computed before its targets
        children = [node.value, *node.targets]
    for child in children:
        yield from uses_of(name, child, is_repeated)


def freed_early(name: Name) -> str | None:
    """The source of a module in which a name gives away what it refers to at its last use.

    So does whoever writes the expression in the place of the name. Where the last use may run again
    the name is freed after the statement; None if it is never used, or by a function of its own.
    """
    tree = ast.parse(inspect.getsource(name.module))
    function = definitions(tree)[name.function]
    uses = [use for each in function.body for use in uses_of(name.name, each)]
    if not uses:
        return None
    last, is_repeated = uses[-1]
    if not is_repeated:
        _LastUse(last).visit(function)
    else:
        [place] = (i for i, each in enumerate(function.body) if last in ast.walk(each))
        if isinstance(function.body[place], ast.Return | ast.FunctionDef):
            return None
        function.body.insert(place + 1, ast.parse(f"{name.name} = None").body[0])
    for node in ast.walk(function):  # what is held need not be there any more
        for part in ("body", "orelse"):
            block = getattr(node, part, None)
            if isinstance(block, list):
                block[:] = [each for each in block if not is_hold(each)] or [ast.Pass()]
    return ast.unparse(ast.fix_missing_locations(tree))


NAMES = [
    pytest.param(each, id=f"{each.module.__name__.rpartition('.')[2]}-{each.function}-{each.name}")
    for each in local_names()
]


@sampled("name", NAMES, named("modules-rms_norm-variance", "sam-_attention-rows"))
def test_a_name_that_keeps_memory_is_held(name, monkeypatch):
    source = freed_early(name)
    if source is None or is_held(name):
        return
    cases = list(map(with_trace, POOL))
    run_as(monkeypatch, name.module, source)
    assert not any(noticed(*each) for each in cases)


# Held as the vendor's code holds them, though no operator follows for which it matters.
HELD_TO_THE_LAST = {
    *("_additive_mask-causal", "rotary_tables-sin", "_block-shortcut", "_attention-fused"),
    *("_relative_positions-table", "clip-hidden_states", "absolute_positions-patches"),
    *("qwen2_encoder-x_combined", "_attention-key", "_attention-value"),
    "_laplace-x",
}


def test_names_held_to_the_last_exist():
    found = {f"{name.values[0].function}-{name.values[0].name}" for name in NAMES}
    assert not HELD_TO_THE_LAST - found


def held_names():
    for name in NAMES:
        each = name.values[0]
        is_last = f"{each.function}-{each.name}" in HELD_TO_THE_LAST
        if is_held(each) and not is_last and freed_early(each) is not None:
            yield name


@sampled("name", held_names(), named("modules-rms_norm-variance", "sam-_attention-rows"))
def test_freeing_what_a_name_holds_is_noticed(name, monkeypatch):
    source = freed_early(name)
    assert source is not None
    traces = map(with_trace, POOL)
    first = next(traces)
    run_as(monkeypatch, name.module, source)
    assert noticed(*first) or any(noticed(*each) for each in traces)
