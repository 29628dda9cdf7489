"""Budgets and baselines: whether a model's cost is still within its limits."""

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from dsocr_analyze.analysis import Engine
from dsocr_analyze.architectures import ENGINES
from dsocr_analyze.cli import exits, help_text, options, page_options, printing, streams, words
from dsocr_analyze.errors import (
    AnalyzeError,
    BaselineError,
    ConfigError,
    OutputError,
    StrictError,
    TrustError,
    chosen,
    did_you_mean,
)
from dsocr_analyze.gate.budgets import (
    NEW_FILE,
    PYPROJECT,
    BudgetedWorkload,
    Budgets,
    Options,
    budgets_in,
    edited,
    files_of,
)
from dsocr_analyze.gate.compared import differences
from dsocr_analyze.gate.judge import Baseline, Counted, edits_of, judge, whole_check
from dsocr_analyze.gate.renderers import ReadableCheck
from dsocr_analyze.gate.revision import Revision
from dsocr_analyze.input_files import SETTINGS_BYTES, is_regular, read_bytes
from dsocr_analyze.model.trust import is_trusted_code
from dsocr_analyze.output_files import write_files
from dsocr_analyze.report import document, reading
from dsocr_analyze.report.measured import Measurement

_BUDGETS_FILE: Final = "dsocr-budgets.toml"
_SUMMARY_VARIABLE: Final = "GITHUB_STEP_SUMMARY"

_SUMMARY_LIMIT: Final = 2**20
"""GitHub's limit for a step summary, in bytes."""

_Result = TypeVar("_Result")


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
    profile: options.ProfileOption = None,
    update: Annotated[
        bool,
        options.option(
            None, "Set exceeded budgets to the counted figures, and add missing budgets.",
            "--update", group=help_text.OUTPUT,
        ),
    ] = False,
    json_file: str | None = None,
    junit: Annotated[
        Path | None,
        options.option("FILE", "Also write JUnit XML here.", group=help_text.OUTPUT),
    ] = None,
    markdown: Annotated[
        Path | None,
        options.option(
            "FILE", "Also write Markdown for a pull-request comment here.", group=help_text.OUTPUT
        ),
    ] = None,
    strict: bool = False,
    debug: bool = False,
) -> None:  # fmt: skip
    """Compare counted workloads with budgets and a baseline.

    Exit with 1 if a budget is exceeded, or a figure without one differs from the baseline's.
    """
    readable = _checked(context)
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


def _checked(context: typer.Context) -> ReadableCheck:
    """The check of a budgets file, which an update changes first."""
    given = context.params
    named, against, trusted = given["budgets"], given["against"], given["trust_remote_code"]
    paths = (Path(_BUDGETS_FILE), Path(PYPROJECT)) if named is None else (named,)
    path, text, budgets = _read_budgets(paths, is_named=named is not None, is_new=given["update"])
    is_pyproject = path.name == PYPROJECT
    asked = _chosen(budgets, given["workload"], path)
    saved, revision = (None, None) if against is None else (
        _report_or_revision(against, path.parent, asked)
    )  # fmt: skip
    old, doubts = ({}, []) if revision is None else _budgets_there(revision, paths, budgets)
    counted: dict[str, Counted] = {}
    with streams.announced_steps(is_quiet=given["quiet"]) as announce:
        for name, each in asked.items():
            announce(f"workload {name}", len(counted) / len(asked))
            counted[name] = _within(
                each, _counted, path.parent, trusted, given["profile"], saved, revision,
                old.get(name), announce,
            )  # fmt: skip
    judged = [_within(each, judge, counted[name]) for name, each in asked.items()]
    context.obj.begin_writing()
    if given["update"]:
        found = {each.name: edits_of(asked[each.name], counted[each.name], each) for each in judged}
        edits = {name: each for name, each in found.items() if any(edit.limits for edit in each)}
        text = edited(text, str(path), edits, is_pyproject=is_pyproject)
        written = budgets_in(text, str(path), is_pyproject=is_pyproject)
        new = sum(len(each) - len(asked[name].budgets) for name, each in edits.items())
        changed = sum(bool(edit.limits) for each in edits.values() for edit in each) - new
        if edits:
            write_files({path: text})
        words.note(context, f"{path}: budgets changed: {changed}, new: {new}")
        asked = _chosen(written or {}, list(asked), path)
        judged = [_within(each, judge, counted[name]) for name, each in asked.items()]
    baseline = None if against is None else Baseline(
        kind="report" if revision is None else "revision", name=against,
        commit=None if revision is None else revision.commit,
    )  # fmt: skip
    used = options.options_used(context)
    return ReadableCheck(whole_check(str(path), baseline, judged, tuple(doubts), used))


def _chosen(budgets: Budgets, names: Sequence[str] | None, file: Path) -> Budgets:
    for name in names or ():
        if name not in budgets:
            raise ConfigError(
                f"--workload {name!r} is not in {str(file)!r}; {did_you_mean(name, budgets)}it has"
                f" {', '.join(map(repr, budgets))}"
            )
    return {name: each for name, each in budgets.items() if not names or name in names}


def _within(
    workload: BudgetedWorkload, function: Callable[..., _Result], *arguments: object
) -> _Result:
    """What a function returns; its errors name the workload."""
    try:
        return function(workload, *arguments)
    except AnalyzeError as error:
        raise type(error)(
            f"workload {workload.name!r}: {error}", arguments=error.arguments
        ) from error


# --- budgets -----------------------------------------------------------------------------------


def _read_budgets(
    paths: Sequence[Path], *, is_named: bool, is_new: bool
) -> tuple[Path, str, Budgets]:
    """The first file with budgets, its text and these; new ones where an update finds none."""
    for path in paths:
        if is_regular(path) or (is_named and not is_new):
            try:
                text = read_bytes(path, SETTINGS_BYTES).decode()
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"cannot read budgets {str(path)!r}: {getattr(error, 'strerror', error)}"
                ) from error
            budgets = budgets_in(text, str(path), is_pyproject=path.name == PYPROJECT)
            if budgets is not None:
                return path, text, budgets
            if is_named:
                raise ConfigError(
                    f"{str(path)!r} has no table [tool.dsocr-analyze.check]; add one, such as"
                    ' [tool.dsocr-analyze.check.workloads.gundam] with mode = "gundam"'
                )
    if not is_new:
        raise ConfigError(
            f"no budgets here: neither {_BUDGETS_FILE} nor [tool.dsocr-analyze.check] in"
            f" {PYPROJECT}; --update creates a file, --budgets FILE names another"
        )
    if is_named and paths[0].name == PYPROJECT:
        raise ConfigError(f"{str(paths[0])!r} does not exist; new budgets go in {_BUDGETS_FILE}")
    return paths[0], NEW_FILE, budgets_in(NEW_FILE, "new budgets", is_pyproject=False) or {}


# --- baselines ---------------------------------------------------------------------------------


def _report_or_revision(
    name: str, folder: Path, asked: Budgets
) -> tuple[document.Report | None, Revision | None]:
    """The baseline: a saved report if its name ends in `.json` or is no revision."""
    path = Path(name)
    try:
        if path.suffix != ".json":
            return None, Revision.named(name, folder)
    except BaselineError:
        if not is_regular(path):
            raise
    if len(asked) > 1:
        raise BaselineError(
            f"{name!r} is the report of one workload, and the budgets have {len(asked)}"
            f" ({', '.join(asked)}); name the matching one: --workload NAME"
        )
    return reading.load_report(path), None


def _budgets_there(
    revision: Revision, paths: Sequence[Path], budgets: Budgets
) -> tuple[Budgets, list[str]]:
    """Workloads of the revision's first file with budgets, and doubts.

    It need not be the file that has them here.
    """
    for file in paths:
        path = _in_repository(revision, file.parent, file.name)
        text = revision.text(path)
        try:
            found = None if text is None else budgets_in(
                text, f"{revision.name}:{path}", is_pyproject=file.name == PYPROJECT
            )  # fmt: skip
        except AnalyzeError as error:
            return {}, [f"the baseline's budgets cannot be read: {error}"]
        if found is not None:
            return found, [
                f"workload {each!r} of {revision.name} is gone, so its cost is not checked"
                for each in found
                if each not in budgets
            ]
    return {}, [
        f"{revision.name} has no budgets in {' or '.join(file.name for file in paths)}, so its"
        " workloads and limits are unknown"
    ]


def _in_repository(revision: Revision, folder: Path, path: str) -> str:
    found = Path(os.path.normpath(folder.resolve() / path))
    if not found.is_relative_to(revision.root):
        raise BaselineError(
            f"{path!r} is outside the repository {str(revision.root)!r}, so no revision has it;"
            " compare with a saved report, or keep it in the repository"
        )
    return found.relative_to(revision.root).as_posix()


# --- counting ----------------------------------------------------------------------------------


def _counted(
    workload: BudgetedWorkload,
    folder: Path,
    trust_remote_code: bool,
    profiles: Sequence[Path] | None,
    saved: document.Report | None,
    revision: Revision | None,
    before: BudgetedWorkload | None,
    announce: streams.Announce,
) -> Counted:
    """A workload's reports, here and in the baseline.

    A saved report's engine counts it; a revision without it is counted with its current options.
    """
    engine = "analytic" if saved is None else saved.metadata.engine
    report = _report(workload.options, folder, trust_remote_code, profiles, announce, engine)
    measured = _measured(workload, folder, report)
    if revision is None:
        return Counted(report, saved, is_compared=saved is not None, measured=measured)
    asked = (before or workload).options
    paths = [_in_repository(revision, folder, path) for path in files_of(asked) if path]
    if missing := [path for path in paths if not revision.has(path)]:
        why = f"no baseline: {revision.name} has no {' and no '.join(map(repr, missing))}"
        return Counted(report, is_compared=True, before=before, warnings=(why,), measured=measured)
    with tempfile.TemporaryDirectory(prefix="dsocr-check-") as copied:
        for path in paths:
            revision.copy(path, Path(copied))
        here = Path(copied, _in_repository(revision, folder, "."))
        here.mkdir(parents=True, exist_ok=True)  # `..` in a path needs the folder that it leaves
        old = _report(asked, here, trust_remote_code, profiles, announce, revision=revision.name)
    return Counted(report, old, is_compared=True, before=before, measured=measured)


def _measured(
    workload: BudgetedWorkload, folder: Path, report: document.Report
) -> Measurement | None:
    """The workload's measurement, if it names one; ConfigError if that is of something else."""
    name, device = (workload.options[each] for each in ("measurement", "measured_on"))
    if name is None:
        return None
    found = reading.load_measurement(folder / name)
    if other := [*differences(found, report, device)]:
        raise ConfigError(
            f"measurement {name!r} is not of this workload: {'; '.join(other)}; measure it anew"
            " with dsocr-analyze measure --json, or correct the budgets"
        )
    return found


def _report(
    asked: Options,
    folder: Path,
    trust_remote_code: bool,
    profiles: Sequence[Path] | None,
    announce: Callable[[str], None],
    engine: str = "analytic",
    revision: str | None = None,
) -> document.Report:
    """The report of a workload, whose paths are relative to `folder`.

    Code of a revision is executed only if identical files are trusted anywhere.
    """
    config, stages, hf_config, model = (
        None if path is None else folder / path for path in files_of(asked)
    )
    name = chosen("engine", asked["engine"] or (engine if stages is None else "trace"), ENGINES)
    directory = page_options.model_directory_from(
        # Never a directory that happens to be in `models`: a check must be the same on every
        # machine.
        str(model) if model else "reference" if stages is None else None,
        asked["arch"], config, trust_remote_code=True,
        sliding_window=None if asked["sliding_window"] is None else int(asked["sliding_window"]),
        stages=stages, hf_config=hf_config,
    )  # fmt: skip
    if revision is not None and name == "trace" and not trust_remote_code:
        if directory.has_code and not is_trusted_code(directory):
            raise TrustError(
                f"{str(asked['model'])!r} of {revision} contains Python code that would be"
                f" executed ({', '.join(directory.sources)}) and is not trusted; read it in a"
                f" work tree (`git worktree add ../baseline {revision}`) and run `dsocr-analyze"
                " trust` on it there, or count without executing it: engine ="
                ' "analytic" in the budgets'
            )
        trust_remote_code = True
    page = page_options.page_request(asked, directory, engine=name)
    request = None
    if asked["gpu"]:
        from dsocr_analyze.cli.time_requests import time_request

        # No corrections: they are kept per machine, and a check must be the same on every machine.
        given = {**asked, "corrections": 0, "profile": profiles}
        request = time_request(asked["gpu"], given)
    return Engine(
        directory, trust_remote_code=trust_remote_code, time=request,
        announced=lambda: nullcontext(announce),
    ).report(page)  # fmt: skip
