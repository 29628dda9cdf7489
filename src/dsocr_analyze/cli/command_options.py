"""The options of a command: groups shared with others, and what it ran with.

A command reads the values of added options from its context: `context.params`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    import typer

    from dsocr_analyze.report.document import OptionValue

__all__ = ["Added", "adding", "options_used"]

Added: TypeAlias = Mapping[str, tuple[Any, Any]]
"""Type (for Typer) and default of options, by parameter name."""

_Command = TypeVar("_Command", bound=Callable[..., None])


def adding(options: Added, *, after: str | None = None) -> Callable[[_Command], _Command]:
    """Add options to a command's signature.

    Args:
        options: The options.
        after: The parameter that they follow in --help; by default, they come last.
    """

    def decorate(command: _Command) -> _Command:
        signature = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def called(*arguments: Any, **given: Any) -> None:
            command(*arguments, **{name: given[name] for name in given.keys() - options.keys()})

        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind)
            for name, (kind, value) in options.items()
        ]
        own = list(signature.parameters.values())
        place = len(own) if after is None else 1 + list(signature.parameters).index(after)
        by_keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own[place:]]
        whole = signature.replace(parameters=[*own[:place], *parameters, *by_keyword])
        called.__signature__ = whole  # type: ignore[attr-defined]  # Typer reads it here
        return cast(_Command, called)

    return decorate


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
