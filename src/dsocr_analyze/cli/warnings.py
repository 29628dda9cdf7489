"""Warnings on stderr, and the option `--strict`."""

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

__all__ = ["StrictOption", "print_config_findings", "warn", "warn_of_modes", "warn_of_sizes"]

_SIZES: Final = ("base_size", "image_size")
"""Arguments in warnings whose names can't mean anything else."""


def _be_strict(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.obj.is_strict = True


StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit with 3 if there is a warning; still write.",
        expose_value=False,
        callback=_be_strict,
    ),
]


def warn(
    context: typer.Context, warnings: Iterable[str], arguments: Sequence[str] = _SIZES
) -> None:
    """Print each warning on stderr once; with `--strict` they make the command exit with 3.

    Args:
        context: The command's context.
        warnings: The warnings, naming arguments as the library does.
        arguments: Arguments for which the command has options.
    """
    for warning in warnings:
        line = in_options(warning, arguments)
        if line not in context.obj.warnings:
            context.obj.warnings.append(line)
            complain(f"warning: {line}")


def print_config_findings(
    context: typer.Context,
    directory: ModelDirectory,
    *,
    by_closed_forms: bool,
    name: str | None = None,
) -> None:
    """Print which config keys have no effect, and what closed forms assume about the code.

    For commands that cannot put this into their results; `name` identifies the model.
    """
    of = "" if name is None else f"{name}: "
    warn(context, (f"{of}{warning}" for warning in directory.config_findings.warnings))
    if by_closed_forms and directory.recognized is not None:
        for note in directory.dimensions().notes:
            complain(f"note: {of}{note}")
        for assumption in directory.assumptions:
            complain(f"assumed: {of}{assumption}")


def warn_of_sizes(context: typer.Context, directory: ModelDirectory, workload: AnyWorkload) -> None:
    """Warn about view sizes that work but are probably unintended."""
    warn(context, directory.architecture.warnings_of(workload))


def warn_of_modes(
    context: typer.Context, architecture: Architecture, modes: Iterable[Mode]
) -> None:
    """Warn about view sizes in a list of modes, for which there are no separate options."""
    from dsocr_analyze.columns.setting import warnings_of_modes

    warn(context, warnings_of_modes(architecture, modes), arguments=())
