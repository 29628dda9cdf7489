"""The help of a command: its options in groups, the usual ones or all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import typer

_Row: TypeAlias = tuple[str, str]


class Seldom(str):
    """The title of a group, for an option of it that `--help-all` alone shows."""

    __slots__ = ()


_ARGUMENTS: Final = "Arguments"
OWN: Final = "Options"
"""The group of options that only one command has."""
MODEL: Final = "Model"
PAGE: Final = "Page"
PREDICTION: Final = "Prediction"
OUTPUT: Final = "Output"
HELP: Final = "Help"
_GROUPS: Final = (_ARGUMENTS, OWN, MODEL, PAGE, PREDICTION, OUTPUT, HELP)

_FEW: Final = 15
"""A command with so many parameters shows all of them under `--help` too."""

_WIDEST_NAME: Final = 24
"""Columns of a name beside its text; the text of a wider one begins on the next line."""


def all_help(context: typer.Context) -> str:
    """The help of a command with all its options."""
    context.meta["help_all"] = True
    return context.get_help()


def write_options(command: Any, context: typer.Context, formatter: Any) -> None:
    """Writes arguments and options in groups: the usual ones, or all under `--help-all`.

    The usual ones have the first sentence of their help alone, and their default.
    """
    parameters = command.get_params(context)
    is_whole = "help_all" in context.meta or len(parameters) <= _FEW
    groups: dict[str, list[_Row]] = {title: [] for title in _GROUPS}
    for each in parameters:
        is_argument = each.param_type_name == "argument"
        # Typer's own have no group; how to complete is asked once.
        group = each.rich_help_panel or (HELP if "--help" in each.opts else Seldom(HELP))
        title = _ARGUMENTS if is_argument else group
        row = each.get_help_record(context)
        if is_argument:  # Typer's name has a type of Python
            groups[title].append((each.metavar, row[1]))
        elif row is not None and (is_whole or not isinstance(title, Seldom)):
            groups[title].append(row if is_whole else _short(row))
    write_groups(groups, formatter)


def _short(row: _Row) -> _Row:
    name, text = row
    said, bracket, default = text.partition("  [")
    sentence = said.partition(". ")[0].rstrip(".")
    return name, f"{sentence}.{bracket}{default}"


def write_groups(groups: Mapping[str, Sequence[_Row]], formatter: Any) -> None:
    """Writes titles and rows of names and texts, all texts in one column."""
    names = [name for rows in groups.values() for name, _ in rows]
    column = max(len(name) for name in names if len(name) <= _WIDEST_NAME)
    formatter.write_paragraph()
    for title, rows in groups.items():
        if rows:
            formatter.write_heading(title)
            with formatter.indentation():
                formatter.write_dl([(name.ljust(column), text) for name, text in rows], column)
