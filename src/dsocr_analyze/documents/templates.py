"""Expressions and templates of documents (Jinja, sandboxed), and how they show figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from jinja2 import StrictUndefined, Template, TemplateError, Undefined
from jinja2.sandbox import SandboxedEnvironment

from dsocr_analyze.errors import DocumentError
from dsocr_analyze.report.quantities import bytes_text, flops_text
from dsocr_analyze.report.time_tables import seconds_text

__all__ = ["evaluated", "rendered", "rows_of", "shown"]


def shown(value: Any) -> str:
    """A value as text: whole numbers with separators of thousands."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "bytes": bytes_text,
    "flops": flops_text,
    "seconds": seconds_text,
    "plain": str,
    "ceil": lambda a, b: -(-a // b),
    "len": len,
    "max": max,
    "min": min,
    "sum": sum,
}
_JINJA: Final = SandboxedEnvironment(
    undefined=StrictUndefined, finalize=shown, trim_blocks=True, lstrip_blocks=True
)
_JINJA.globals.update(_FUNCTIONS)
_JINJA.filters["cell"] = lambda value: str(value).replace("|", "&#124;")


def evaluated(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression.

    Raises:
        DocumentError: It is none, or has a name that there is not.
    """
    try:
        value = _compiled(expression)(names)
    except (TemplateError, LookupError, TypeError, ZeroDivisionError) as error:
        raise DocumentError(f"{expression!r} has no value: {error}") from error
    if isinstance(value, Undefined):
        raise DocumentError(f"{expression!r} has no value")
    return value


@cache
def _compiled(expression: str) -> Callable[..., Any]:
    return _JINJA.compile_expression(expression, undefined_to_none=False)


def rendered(template: str, names: Mapping[str, Any]) -> str:
    """A template with its values, without blank lines around it.

    Raises:
        DocumentError: It has an expression without a value.
    """
    try:
        return _template(template).render(names).strip()
    except (TemplateError, LookupError, TypeError) as error:
        raise DocumentError(str(error)) from error


@cache
def _template(text: str) -> Template:
    return _JINJA.from_string(text)


def rows_of(body: str) -> list[list[str]]:
    """The cells of a table's rows, without its header."""
    rows = re.findall(r"^\|(.*)\|$", body, re.M)
    return [[cell.strip().replace("&#124;", "|") for cell in row.split("|")] for row in rows[2:]]
