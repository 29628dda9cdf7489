"""Formulas written once: the same text is evaluated to an integer and typeset as LaTeX.

A formula is a Python expression in named symbols with `+ - * / **`, comparisons (1 where they hold,
0 elsewhere), `ceil(a / b)`, `ceil_log2(a)`, `max(a, b)` and `min(a, b)`. Arithmetic is exact:
`7 / 2 * T` is a fraction until the end, and the value of a formula must be whole.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

from dsocr_analyze.errors import KnowledgeError

__all__ = ["evaluate", "names_in", "typeset"]

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
    """Symbols of a formula in the order in which they appear."""
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


_SUM, _PRODUCT, _ATOM = 1, 2, 3


def typeset(formula: str, symbols: Mapping[str, str]) -> str:
    """The formula as LaTeX.

    Args:
        formula: The formula.
        symbols: LaTeX of each symbol; one that is missing is set as it is spelled.
    """
    return _latex(_parsed(formula), symbols)[0]


def _latex(node: ast.expr, symbols: Mapping[str, str]) -> tuple[str, int]:
    """LaTeX of a node, and how tightly it holds together."""
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
    """LaTeX of a node, in brackets where it holds together less than what it stands in."""
    text, own = _latex(node, symbols)
    return text if own >= tightness else rf"\left({text}\right)"
