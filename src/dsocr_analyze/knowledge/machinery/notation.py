"""Formulas written once: the same text is evaluated to an integer and typeset as LaTeX.

A formula is a Python expression in named symbols with `+ - * / **`, comparisons (1 where they hold,
0 elsewhere), `ceil(a / b)`, `ceil_log2(a)`, `max(a, b)` and `min(a, b)`. Arithmetic is exact:
`7 / 2 * T` is a fraction until the end, and the value of a formula must be whole.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

from dsocr_analyze.errors import KnowledgeError

__all__ = ["collected", "equation", "evaluate", "names_in", "typeset"]

_Number = Fraction

_ARITHMETIC: Final[dict[type[ast.operator], Callable[[_Number, _Number], _Number]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: Fraction(a ** int(b)),
}
_TESTS: Final[dict[type[ast.cmpop], tuple[Callable[[_Number, _Number], bool], str]]] = {
    ast.NotEq: (lambda a, b: a != b, r"\neq"),
    ast.Eq: (lambda a, b: a == b, "="),
    ast.Gt: (lambda a, b: a > b, ">"),
    ast.Lt: (lambda a, b: a < b, "<"),
}
_FUNCTIONS: Final[dict[str, tuple[Callable[..., _Number], str]]] = {
    "ceil": (lambda a: Fraction(math.ceil(a)), r"\left\lceil {} \right\rceil"),
    "ceil_log2": (
        lambda a: Fraction((int(a) - 1).bit_length()),
        r"\left\lceil \log_2 {} \right\rceil",
    ),
    "max": (lambda *a: max(a), r"\max\left({}\right)"),
    "min": (lambda *a: min(a), r"\min\left({}\right)"),
}


def _parsed(formula: str) -> ast.expr:
    return ast.parse(formula.strip(), mode="eval").body


def names_in(formula: str) -> list[str]:
    """Symbols of a formula, in order of appearance."""
    found: dict[str, None] = {}
    nodes = [node for node in ast.walk(_parsed(formula)) if isinstance(node, ast.Name)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if node.id not in _FUNCTIONS:
            found[node.id] = None
    return list(found)


def evaluate(formula: str, values: Mapping[str, int]) -> int:
    """The formula's value.

    Raises:
        KnowledgeError: A symbol has no value, or the result is not a whole number.
    """
    result = _value(_parsed(formula), values, formula)
    if result.denominator != 1:
        raise KnowledgeError(f"formula {formula!r} is {result}, not a whole number")
    return int(result)


def _value(node: ast.expr, values: Mapping[str, int], formula: str) -> _Number:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.Name(id=name):
            if name not in values:
                raise KnowledgeError(f"formula {formula!r} has no value for {name!r}")
            return Fraction(values[name])
        case ast.BinOp(left=left, op=operator, right=right):
            return _ARITHMETIC[type(operator)](
                _value(left, values, formula), _value(right, values, formula)
            )
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            test = _TESTS[type(operator)][0]
            return Fraction(test(_value(left, values, formula), _value(right, values, formula)))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name][0](*(_value(item, values, formula) for item in arguments))
        case _:
            raise KnowledgeError(f"formula {formula!r} has more than arithmetic in it")


def collected(formula: str) -> str:
    """The same formula with like terms collected: `a + 2 * a` becomes `3 * a`.

    Only terms of the outermost sum; brackets are not opened.
    """
    return ast.unparse(_collected(_parsed(formula)))


def _collected(node: ast.expr) -> ast.expr:
    numbers: dict[tuple[str, ...], list[tuple[int, ast.expr]]] = {}
    for sign, summand in _summands(node):
        number, factors = _factors(summand)
        alike = tuple(sorted(ast.unparse(factor) for factor in factors))
        numbers.setdefault(alike, []).append((sign * number, summand))
    parts = [_added_up(alike) for alike in numbers.values()]
    (first, total), *others = [part for part in parts if part[0]] or [(0, node)]
    if first <= 0:
        return node  # the notation has no sign before the first summand
    for number, part in others:
        total = ast.BinOp(total, ast.Add() if number > 0 else ast.Sub(), part)
    return total


def _summands(node: ast.expr, sign: int = 1) -> list[tuple[int, ast.expr]]:
    """Terms of the outermost sum, each with its sign."""
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _summands(left, sign) + _summands(right, sign)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _summands(left, sign) + _summands(right, -sign)
        case _:
            return [(sign, node)]


def _factors(node: ast.expr) -> tuple[int, list[ast.expr]]:
    """The integer coefficient of a product, and its other factors in order."""
    match node:
        case ast.Constant(value=int(number)):
            return number, []
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, first = _factors(left)
            other, second = _factors(right)
            return one * other, first + second
        case _:
            return 1, [node]


def _added_up(alike: list[tuple[int, ast.expr]]) -> tuple[int, ast.expr]:
    """The sum of like terms: its coefficient with the sign, and the term without the sign."""
    number, (_, first) = sum(each for each, _ in alike), alike[0]
    if len(alike) == 1:
        return number, first
    factors = _factors(first)[1]
    if abs(number) != 1 or not factors:
        factors = [ast.Constant(abs(number)), *factors]
    product = factors[0]
    for factor in factors[1:]:
        product = ast.BinOp(product, ast.Mult(), factor)
    return number, product


_SUM, _PRODUCT, _ATOM = 1, 2, 3
_LINE = 56
"""Longest line of a formula, in characters."""


def equation(name: str, formula: str, symbols: Mapping[str, str]) -> str:
    """`name = formula` as LaTeX; a long sum is wrapped into aligned lines.

    Args:
        name: LaTeX of the left-hand side.
        formula: The formula; like terms are collected.
        symbols: As in `typeset`.
    """
    parts = [
        f"{'+' if sign > 0 else '-'} {_latex(summand, symbols)[0]}"
        for sign, summand in _summands(_collected(_parsed(formula)))
    ]
    first, *others = _lines([parts[0].removeprefix("+ "), *parts[1:]])
    if not others:
        return f"{name} = {first}"
    rows = [f"{name} ={{}}& {first}", *(rf"& {{}}{line}" for line in others)]
    return "\n".join((r"\begin{aligned}", " \\\\\n".join(rows), r"\end{aligned}"))


def _lines(parts: list[str]) -> list[str]:
    """Parts of a formula on as few lines as possible, of similar length."""
    widths = [_width(part) for part in parts]
    each = sum(widths) / math.ceil(sum(widths) / _LINE)
    lines: dict[int, list[str]] = {}
    for part, width, end in zip(parts, widths, itertools.accumulate(widths), strict=True):
        lines.setdefault(int((end - width / 2) / each), []).append(part)
    return [" ".join(line) for line in lines.values()]


def _width(latex: str) -> int:
    """Approximate width of a formula in characters; a fraction counts both its parts."""
    tokens = re.findall(r"\\[a-zA-Z]+|\\.|[^\s{}^_]", latex)
    return sum(token not in {r"\left", r"\right", r"\,", r"\frac", r"\mathrm"} for token in tokens)


def typeset(formula: str, symbols: Mapping[str, str]) -> str:
    """The formula as LaTeX.

    Args:
        formula: The formula.
        symbols: LaTeX of each symbol; a missing one is written as is.
    """
    return _latex(_parsed(formula), symbols)[0]


def _latex(node: ast.expr, symbols: Mapping[str, str]) -> tuple[str, int]:
    """LaTeX of a node, and its precedence."""
    match node:
        case ast.Constant(value=number):
            return str(number), _ATOM
        case ast.Name(id=name):
            return symbols.get(name, name), _ATOM
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return rf"\frac{{{_latex(left, symbols)[0]}}}{{{_latex(right, symbols)[0]}}}", _ATOM
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return f"{_held(left, symbols, _ATOM)}^{{{_latex(right, symbols)[0]}}}", _ATOM
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, other = _held(left, symbols, _PRODUCT), _held(right, symbols, _PRODUCT)
            between = r" \cdot " if other[0].isdigit() else r"\,"
            return f"{one}{between}{other}", _PRODUCT
        case ast.BinOp(left=left, op=operator, right=right):
            sign = "+" if isinstance(operator, ast.Add) else "-"
            tightness = _SUM if sign == "+" else _PRODUCT
            return f"{_latex(left, symbols)[0]} {sign} {_held(right, symbols, tightness)}", _SUM
        case ast.Compare(left=left, ops=[test], comparators=[right]):
            relation = _TESTS[type(test)][1]
            return f"[{_latex(left, symbols)[0]} {relation} {_latex(right, symbols)[0]}]", _ATOM
        case ast.Call(func=ast.Name(id=name), args=arguments):
            inside = ", ".join(_latex(item, symbols)[0] for item in arguments)
            return _FUNCTIONS[name][1].replace("{}", inside), _ATOM
        case _:
            raise KnowledgeError(f"{ast.unparse(node)!r} has more than arithmetic in it")


def _held(node: ast.expr, symbols: Mapping[str, str], tightness: int) -> str:
    """LaTeX of a node, in brackets if its precedence is lower than that of its context."""
    text, own = _latex(node, symbols)
    return text if own >= tightness else rf"\left({text}\right)"
