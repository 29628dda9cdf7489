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


def adding(options: Added) -> Callable[[_Command], _Command]:
    """Add options to a command's signature.

    Args:
        options: The options; they come last in --help.
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
        whole = signature.replace(parameters=[*signature.parameters.values(), *parameters])
        called.__signature__ = whole  # type: ignore[attr-defined]  # Typer reads it here
        return cast(_Command, called)

    return decorate
