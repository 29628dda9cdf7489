"""Budgets and baselines: whether a model's cost is still within its limits."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli.exits import NO
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.errors import OutputError, StrictError
from dsocr_analyze.escaping import visible

if TYPE_CHECKING:
    from dsocr_analyze.gate.document import Check

__all__ = ["check"]

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"

BudgetsOption = Annotated[
    Path | None,
    typer.Option(
        "--budgets",
        metavar="FILE",
        help="TOML file with workloads and budgets. Default: dsocr-budgets.toml, else the table"
        " [tool.dsocr-analyze.check] of pyproject.toml.",
    ),
]
WorkloadsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        metavar="NAME",
        help="Check only this workload of the file. May be given several times.",
    ),
]
AgainstOption = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="REPORT|REVISION",
        help="Baseline that figures without a budget must equal: a saved static_compute.json, or a"
        " git revision, whose config, model files and budgets are counted by this version.",
    ),
]
UpdateOption = Annotated[
    bool,
    typer.Option(
        "--update", help="Set exceeded budgets to the counted figures, and add missing budgets."
    ),
]
JUnitOption = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML here.")
]
MarkdownOption = Annotated[
    Path | None,
    typer.Option(
        "--markdown", metavar="FILE", help="Also write Markdown for a pull-request comment here."
    ),
]


def check(
    context: typer.Context,
    budgets: BudgetsOption = None,
    workload: WorkloadsOption = None,
    against: AgainstOption = None,
    trust_remote_code: bool = False,
    update: UpdateOption = False,
    json_file: str | None = None,
    junit: JUnitOption = None,
    markdown: MarkdownOption = None,
    quiet: bool = False,
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Check counted workloads against budgets and a baseline; exit with 1 if one is exceeded."""
    from dsocr_analyze.cli.checking import checked

    result = checked(
        context, budgets, workload, against,
        trust_remote_code=trust_remote_code, is_update=update,
    )  # fmt: skip
    _write(result, json_file, junit, markdown, is_quiet=quiet)
    if result.outcome == "failed":
        raise typer.Exit(NO)
    if context.obj.is_strict and result.outcome == "warned":
        raise StrictError(f"--strict: {result.count('warned')} warnings")


def _write(
    result: Check, json: str | None, junit: Path | None, markdown: Path | None, *, is_quiet: bool
) -> None:
    """Write the files, then the summary of a GitHub step, and print what is to be printed."""
    from dsocr_analyze.cli.printing import terminal_width
    from dsocr_analyze.gate.renderers import check_junit, check_markdown, text_lines
    from dsocr_analyze.output_files import write_files
    from dsocr_analyze.report.json_text import dump_json

    is_printed = json == "-"
    texts = ((None if is_printed else json, dump_json), (junit, check_junit))
    files = {Path(file): text_of(result) for file, text_of in texts if file is not None}
    if markdown is not None:
        files[markdown] = check_markdown(result)
    write_files(files)
    _append_summary(result)
    if is_printed:
        sys.stdout.write(dump_json(result))
    elif not is_quiet:
        for line in text_lines(result, terminal_width()):
            print(visible(line))


def _append_summary(result: Check) -> None:
    """Append the check to the summary of a GitHub step, if there is one with room left."""
    from dsocr_analyze.gate.renderers import SUMMARY_LIMIT, check_markdown

    name = os.environ.get(SUMMARY_VARIABLE)
    if not name:
        return
    file = Path(name)
    try:
        written = file.stat().st_size if file.exists() else 0
        text = check_markdown(result, SUMMARY_LIMIT - written)
        with file.open("a", encoding="utf-8", newline="\n") as summary:
            summary.write(text)
    except OSError as error:
        raise OutputError(
            f"cannot write {name!r}, which ${SUMMARY_VARIABLE} names: {error.strerror}"
        ) from error
    if not text:
        complain(f"the summary of this step is full: nothing was added to {name!r}")
