"""Groups of options shared by several commands.

A command reads the values of added options from its context: `context.params`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, cast

__all__ = ["Added", "adding"]

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
