"""What a command says on stderr besides its results, and what `--strict` makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.cli.streams import complain
from dsocr_analyze.cli.words import in_options

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.workload import AnyWorkload, Mode

__all__ = ["StrictOption", "say_of_config", "say_of_modes", "say_of_sizes", "warn"]

_SIZES: Final = ("base_size", "image_size")
"""Arguments that warnings name, of which nothing else has the names."""


def _be_strict(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.obj.is_strict = True


StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit with 3 where there is a warning; still write.",
        expose_value=False,
        callback=_be_strict,
    ),
]


def warn(
    context: typer.Context, warnings: Iterable[str], arguments: Sequence[str] = _SIZES
) -> None:
    """Prints each warning on stderr once; under `--strict` the command ends with 3 for them.

    Args:
        context: Of the command.
        warnings: In words of the library.
        arguments: Which of its words the command has options for.
    """
    for warning in warnings:
        line = in_options(warning, arguments)
        if line not in context.obj.warnings:
            context.obj.warnings.append(line)
            complain(f"warning: {line}")


def say_of_config(
    context: typer.Context,
    directory: ModelDirectory,
    *,
    by_closed_forms: bool,
    name: str | None = None,
) -> None:
    """Says which keys of the config do nothing, and what closed forms assume of the code.

    For commands whose results have no place for it; `name` tells the model from others.
    """
    of = "" if name is None else f"{name}: "
    warn(context, (f"{of}{warning}" for warning in directory.config_findings.warnings))
    if by_closed_forms and directory.recognized is not None:
        for note in directory.dimensions().notes:
            complain(f"note: {of}{note}")
        for assumption in directory.assumptions:
            complain(f"assumed: {of}{assumption}")


def say_of_sizes(context: typer.Context, directory: ModelDirectory, workload: AnyWorkload) -> None:
    """Warns of sizes of views that run, but that nobody is likely to have meant."""
    warn(context, directory.architecture.warnings_of(workload))


def say_of_modes(context: typer.Context, architecture: Architecture, modes: Iterable[Mode]) -> None:
    """The same of a list of modes, whose sizes have no options of their own."""
    from dsocr_analyze.columns.setting import warnings_of_modes

    warn(context, warnings_of_modes(architecture, modes), arguments=())
