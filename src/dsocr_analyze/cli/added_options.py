"""Groups of options that several commands have, added to a command in one place.

A command reads the values of options that are added from its context: `context.params`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, cast

__all__ = ["Added", "adding"]

Added: TypeAlias = Mapping[str, tuple[Any, Any]]
"""Type (as Typer reads it) and default of options, by the names of their parameters."""

_Command = TypeVar("_Command", bound=Callable[..., None])


def adding(options: Added) -> Callable[[_Command], _Command]:
    """Gives a command options besides those in its signature.

    Args:
        options: The options; they stand last in --help.
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
        called.__signature__ = whole  # type: ignore[attr-defined]  # where Typer looks for it
        return cast(_Command, called)

    return decorate
