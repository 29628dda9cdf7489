"""Budgets and baselines: whether a model's cost is still within its limits."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import many_options, options
from dsocr_analyze.cli.exits import NO
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.cli.used_options import options_used
from dsocr_analyze.cli.warnings import StrictOption
from dsocr_analyze.errors import AnalyzeError, ConfigError, OutputError, StrictError
from dsocr_analyze.escaping import visible

if TYPE_CHECKING:
    from dsocr_analyze.cli.baselines import Counts
    from dsocr_analyze.cli.budgets_file import BudgetsFile
    from dsocr_analyze.gate.budgets import Budgets, Workload
    from dsocr_analyze.gate.document import Check, WorkloadCheck
    from dsocr_analyze.gate.judge import Counted

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
    trust_remote_code: options.TrustOption = False,
    update: UpdateOption = False,
    json_file: options.JsonOption = None,
    junit: JUnitOption = None,
    markdown: MarkdownOption = None,
    quiet: many_options.QuietOption = False,
    strict: StrictOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Check counted workloads against budgets and a baseline; exit with 1 if one is exceeded."""
    from dsocr_analyze.cli.baselines import counts_against
    from dsocr_analyze.cli.budgets_file import read_budgets
    from dsocr_analyze.gate.check import whole_check

    file = read_budgets(budgets, is_update=update)
    asked = _chosen(file.budgets, workload, file.path)
    with counts_against(against, file, asked, trust_remote_code=trust_remote_code) as counts:
        counted = {name: _counted(counts, each) for name, each in asked.workloads.items()}
    judged = _judged(asked, counted)
    context.obj.begin_writing()
    if update:
        asked = _updated(file, asked, counted, judged)
        judged = _judged(asked, counted)
    result = whole_check(
        str(file.path), counts.baseline, judged, counts.warnings, options_used(context)
    )
    _write(result, json_file, junit, markdown)
    _append_summary(result)
    if not quiet or json_file == "-":
        _print(result, json_file)
    _end(result, strict=context.obj.is_strict)


def _counted(counts: Counts, workload: Workload) -> Counted:
    """The reports of a workload; errors name the workload."""
    try:
        return counts.of(workload)
    except AnalyzeError as error:
        message = f"workload {workload.name!r}: {error}"
        raise type(error)(message, arguments=error.arguments) from error


def _judged(asked: Budgets, counted: Mapping[str, Counted]) -> list[WorkloadCheck]:
    from dsocr_analyze.gate.judge import judge

    return [judge(each, counted[name]) for name, each in asked.workloads.items()]


def _updated(
    file: BudgetsFile,
    asked: Budgets,
    counted: Mapping[str, Counted],
    judged: Sequence[WorkloadCheck],
) -> Budgets:
    """Write counted figures into the file; returns the workloads judged by their new budgets."""
    from dsocr_analyze.gate.budgets import budgets_in
    from dsocr_analyze.gate.update import edited, edits_of
    from dsocr_analyze.output_files import write_files

    edits = [
        edit
        for each in judged
        for edit in edits_of(asked.workloads[each.name], counted[each.name].report, each)
    ]
    text = edited(file.text, str(file.path), edits, is_pyproject=file.is_pyproject)
    found = budgets_in(text, str(file.path), is_pyproject=file.is_pyproject)
    assert found is not None, "an edited file keeps its budgets"
    if edits:
        write_files({file.path: text})
    new = sum(edit.index is None for edit in edits)
    complain(f"{file.path}: budgets changed: {len(edits) - new}, new: {new}")
    return _chosen(found, list(asked.workloads), file.path)


def _chosen(budgets: Budgets, names: Sequence[str] | None, file: Path) -> Budgets:
    """The workloads with these names; all if no names are given."""
    from dsocr_analyze.gate.budgets import Budgets
    from dsocr_analyze.names import did_you_mean

    if not names:
        return budgets
    for name in names:
        if name not in budgets.workloads:
            raise ConfigError(
                f"--workload {name!r} is not in {str(file)!r};"
                f" {did_you_mean(name, budgets.workloads)}it has"
                f" {', '.join(map(repr, budgets.workloads))}"
            )
    return Budgets({name: each for name, each in budgets.workloads.items() if name in names})


def _write(result: Check, json_file: str | None, junit: Path | None, markdown: Path | None) -> None:
    from dsocr_analyze.gate.junit import check_junit
    from dsocr_analyze.gate.markdown import check_markdown
    from dsocr_analyze.output_files import write_files
    from dsocr_analyze.report.json_text import dump_json

    texts: dict[Path, str] = {}
    if json_file not in (None, "-"):
        texts[Path(str(json_file))] = dump_json(result)
    if junit is not None:
        texts[junit] = check_junit(result)
    if markdown is not None:
        texts[markdown] = check_markdown(result)
    write_files(texts)


def _append_summary(result: Check) -> None:
    """Append the check to the summary of a GitHub step, if there is one with room left."""
    from dsocr_analyze.gate.markdown import SUMMARY_LIMIT, check_markdown

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


def _print(result: Check, json_file: str | None) -> None:
    if json_file == "-":
        from dsocr_analyze.report.json_text import dump_json

        sys.stdout.write(dump_json(result))
        return
    from dsocr_analyze.cli.printing import terminal_width
    from dsocr_analyze.gate.text import text_lines

    for line in text_lines(result, terminal_width()):
        print(visible(line))


def _end(result: Check, *, strict: bool) -> None:
    if result.outcome == "failed":
        raise typer.Exit(NO)
    if strict and result.outcome == "warned":
        raise StrictError(f"--strict: {result.count('warned')} warnings")
