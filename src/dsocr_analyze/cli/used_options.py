"""The options that a command ran with, for its JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import typer

    from dsocr_analyze.report.opening import OptionValue

__all__ = ["options_used"]

_ABOUT_THE_OUTPUT: Final = frozenset(
    {
        "output",
        "format",
        "json",
        "quiet",
        "yes",
        "plot",
        "x",
        "quantity",
        "forget",
        "keep",
        "html",
        "full",
        "junit",
        "markdown",
        "update",
    }
)
"""Options about where and how results are written, not about their content."""


def options_used(context: typer.Context) -> dict[str, OptionValue]:
    """The value of every option and argument, defaults included, by name with _ for -.

    An argument and an option with the same meaning share one entry with the values of both.
    """
    used: dict[str, OptionValue] = {}
    for parameter in context.command.params:
        if parameter.name not in context.params:
            continue
        is_option = parameter.param_type_name == "option"
        name = parameter.opts[0].lstrip("-").replace("-", "_") if is_option else parameter.name
        if name in _ABOUT_THE_OUTPUT:
            continue
        value = _plain(context.params[parameter.name])
        earlier = used.get(name)
        if isinstance(earlier, tuple) and isinstance(value, tuple):
            value = (*earlier, *value)
        used[name] = earlier if value is None else value
    return used


def _plain(value: Any) -> OptionValue:
    """A value for JSON: paths as given, several values as a list."""
    if isinstance(value, list | tuple):
        return tuple(str(each) for each in value)
    return str(value) if isinstance(value, Path) else value
