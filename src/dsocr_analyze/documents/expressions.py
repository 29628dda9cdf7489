"""Expressions in documents: `4 * d`, `config.hidden_size`, `flops(cases[0].work.flops)`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from dsocr_analyze.errors import DocumentError
from dsocr_analyze.report.quantities import bytes_text, flops_text
from dsocr_analyze.tape.integers import ceil_div

__all__ = ["evaluated", "shown"]

_OPERATORS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: Fraction(a) / b,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "bytes": bytes_text,
    "flops": flops_text,
    "plain": str,
    "ceil": ceil_div,
    "min": min,
    "max": max,
    "sum": sum,
    "len": len,
}


def evaluated(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression of names, their attributes and items, and arithmetic.

    Raises:
        DocumentError: It has more than that, or a name that there is not.
    """
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, names)
    except (SyntaxError, LookupError, AttributeError, TypeError, ZeroDivisionError) as error:
        raise DocumentError(f"{expression!r} has no value: {error}") from error


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Attribute(value=value, attr=attribute) if not attribute.startswith("_"):
            found = _value(value, names)
            return found[attribute] if isinstance(found, dict) else getattr(found, attribute)
        case ast.List(elts=elements):
            return tuple(_value(each, names) for each in elements)
        case ast.Subscript(value=value, slice=index):
            return _value(value, names)[_value(index, names)]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            function = names[name] if name in names else _FUNCTIONS[name]
            return function(*(_value(each, names) for each in arguments))
        case _:
            raise TypeError(f"{ast.unparse(node)!r} is not allowed in documents")


def shown(value: Any) -> str:
    """A value as text: whole numbers with separators of thousands."""
    if isinstance(value, Fraction) and value.denominator == 1:
        value = value.numerator
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
