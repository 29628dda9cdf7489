"""Budgets and baselines: whether a model's cost is still within its limits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from dsocr_analyze.cli import exits, options, printing, streams
from dsocr_analyze.errors import OutputError, StrictError

__all__ = ["check"]

_SUMMARY_VARIABLE: Final = "GITHUB_STEP_SUMMARY"

_SUMMARY_LIMIT: Final = 2**20
"""GitHub's limit for a step summary, in bytes."""


def check(
    context: typer.Context,
    budgets: Annotated[
        Path | None,
        options.option(
            "FILE",
            "TOML file with workloads and budgets. Default: dsocr-budgets.toml, else the table"
            " [tool.dsocr-analyze.check] of pyproject.toml.",
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        options.option(
            "NAME", "Check only this workload of the file. May be given several times."
        ),
    ] = None,
    against: Annotated[
        str | None,
        options.option(
            "REPORT|REVISION",
            "Baseline that figures without a budget must equal: a saved static_compute.json, or a"
            " git revision, whose config, model files and budgets are counted by this version.",
        ),
    ] = None,
    trust_remote_code: bool = False,
    update: Annotated[
        bool,
        options.option(
            None, "Set exceeded budgets to the counted figures, and add missing budgets.",
            "--update",
        ),
    ] = False,
    json_file: str | None = None,
    junit: Annotated[Path | None, options.option("FILE", "Also write JUnit XML here.")] = None,
    markdown: Annotated[
        Path | None,
        options.option("FILE", "Also write Markdown for a pull-request comment here."),
    ] = None,
    quiet: bool = False,
    strict: bool = False,
    debug: bool = False,
) -> None:  # fmt: skip
    """Check counted workloads against budgets and a baseline; exit with 1 if one is exceeded."""
    from dsocr_analyze.cli.checking import checked

    readable = checked(
        context, budgets, workload, against,
        trust_remote_code=trust_remote_code, is_update=update,
    )  # fmt: skip
    result, files = readable.check, {junit: "junit", markdown: "markdown"}
    printing.emit(context, result, readable, files=files)
    if os.environ.get(_SUMMARY_VARIABLE):
        _append_summary(os.environ[_SUMMARY_VARIABLE], readable.markdown)
    if result.outcome == "failed":
        raise typer.Exit(exits.NO)
    if "strict" in context.obj.flags and result.outcome == "warned":
        raise StrictError(f"--strict: {result.count('warned')} warnings")


def _append_summary(name: str, markdown: Callable[[int], str]) -> None:
    """Appends Markdown of at most so many bytes to a GitHub step's summary."""
    try:
        with Path(name).open("a", encoding="utf-8", newline="\n") as summary:
            text = markdown(_SUMMARY_LIMIT - os.fstat(summary.fileno()).st_size)
            summary.write(text)
    except OSError as error:
        raise OutputError(
            f"cannot write {name!r}, which ${_SUMMARY_VARIABLE} names: {error.strerror}"
        ) from error
    if not text:
        streams.complain(f"the summary of this step is full: nothing was added to {name!r}")
