"""What `check` does: counts and judges the workloads of a budgets file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import typer

from dsocr_analyze.analysis import ENGINES, Engine
from dsocr_analyze.cli import options, page_options, streams
from dsocr_analyze.errors import AnalyzeError, BaselineError, ConfigError, TrustError
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
from dsocr_analyze.gate.judge import Baseline, Counted, edits_of, judge, whole_check
from dsocr_analyze.gate.renderers import ReadableCheck
from dsocr_analyze.gate.revision import Revision
from dsocr_analyze.input_files import SETTINGS_BYTES, is_regular, read_bytes
from dsocr_analyze.model.trust import is_trusted_code
from dsocr_analyze.names import did_you_mean
from dsocr_analyze.output_files import write_files
from dsocr_analyze.report import document, reading

__all__ = ["checked"]

_BUDGETS_FILE: Final = "dsocr-budgets.toml"

_Result = TypeVar("_Result")


def checked(
    context: typer.Context,
    budgets: Path | None,
    names: Sequence[str] | None,
    against: str | None,
    *,
    trust_remote_code: bool,
    is_update: bool,
) -> ReadableCheck:
    """The check of a budgets file, by default this folder's; raises AnalyzeError.

    Args:
        context: The command's.
        budgets: The file.
        names: The workloads, by default all.
        against: The baseline, a report or a revision.
        trust_remote_code: Whether to execute code without a trust record.
        is_update: Whether to set budgets to what is counted.
    """
    file = _read_budgets(budgets, is_update=is_update)
    asked = _chosen(file.budgets, names, file.path)
    counts = _counts_against(against, file, asked, trust_remote_code)
    counted = {name: _within(each, counts.of) for name, each in asked.items()}
    judged = [_within(each, judge, counted[name]) for name, each in asked.items()]
    context.obj.begin_writing()
    if is_update:
        found = {
            each.name: edits_of(asked[each.name], counted[each.name].report, each)
            for each in judged
        }
        edits = {name: each for name, each in found.items() if any(edit.limits for edit in each)}
        is_pyproject = file.path.name == PYPROJECT
        text = edited(file.text, str(file.path), edits, is_pyproject=is_pyproject)
        written = budgets_in(text, str(file.path), is_pyproject=is_pyproject)
        new = sum(len(each) - len(asked[name].budgets) for name, each in edits.items())
        changed = sum(bool(edit.limits) for each in edits.values() for edit in each) - new
        if edits:
            write_files({file.path: text})
        streams.complain(f"{file.path}: budgets changed: {changed}, new: {new}")
        asked = _chosen(written or {}, list(asked), file.path)
        judged = [_within(each, judge, counted[name]) for name, each in asked.items()]
    return ReadableCheck(
        whole_check(
            str(file.path), counts.baseline, judged, counts.warnings, options.options_used(context)
        )
    )


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


@dataclass(frozen=True)
class _BudgetsFile:
    """A file of budgets, and the names that are looked for in its folder."""

    path: Path
    text: str
    budgets: Budgets
    names: tuple[str, ...]


def _read_budgets(named: Path | None, *, is_update: bool) -> _BudgetsFile:
    """The named budgets, or this folder's; new ones for an update."""
    paths = (Path(_BUDGETS_FILE), Path(PYPROJECT)) if named is None else (named,)
    names = tuple(path.name for path in paths)
    for path in paths:
        if is_regular(path) or (path is named and not is_update):
            try:
                text = read_bytes(path, SETTINGS_BYTES).decode()
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"cannot read budgets {str(path)!r}: {getattr(error, 'strerror', error)}"
                ) from error
            budgets = budgets_in(text, str(path), is_pyproject=path.name == PYPROJECT)
            if budgets is not None:
                return _BudgetsFile(path, text, budgets, names)
            if path is named:
                raise ConfigError(
                    f"{str(path)!r} has no table [tool.dsocr-analyze.check]; add one, such as"
                    ' [tool.dsocr-analyze.check.workloads.gundam] with mode = "gundam"'
                )
    if not is_update:
        raise ConfigError(
            f"no budgets here: neither {_BUDGETS_FILE} nor [tool.dsocr-analyze.check] in"
            f" {PYPROJECT}; --update creates a file, --budgets FILE names another"
        )
    if named is not None and named.name == PYPROJECT:
        raise ConfigError(f"{str(named)!r} does not exist; new budgets go in {_BUDGETS_FILE}")
    new = budgets_in(NEW_FILE, "new budgets", is_pyproject=False)
    return _BudgetsFile(paths[0], NEW_FILE, new or {}, names)


# --- baselines ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Counts:
    """How workloads are counted, and with what they are compared.

    Attributes:
        saved: The saved report, whose engine counts them.
        before: The revision's workloads; others are counted with their current options.
        warnings: Doubts about all of them.
    """

    file: _BudgetsFile
    trust_remote_code: bool
    baseline: Baseline | None = None
    saved: document.Report | None = None
    revision: Revision | None = None
    before: Budgets = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def of(self, workload: BudgetedWorkload) -> Counted:
        """A workload's reports, here and in the baseline."""
        trusted, folder, revision = self.trust_remote_code, self.file.path.parent, self.revision
        engine = "analytic" if self.saved is None else self.saved.metadata.engine
        report = _counted(workload.options, folder, trusted, engine)
        if revision is None:
            return Counted(report, self.saved, is_compared=self.saved is not None)
        before = self.before.get(workload.name)
        asked = (before or workload).options
        paths = [_in_repository(revision, folder, path) for path in files_of(asked) if path]
        missing = [path for path in paths if not revision.has(path)]
        if missing:
            why = f"no baseline: {revision.name} has no {' and no '.join(map(repr, missing))}"
            return Counted(report, None, is_compared=True, before=before, warnings=(why,))
        with tempfile.TemporaryDirectory(prefix="dsocr-check-") as copied:
            for path in paths:
                revision.copy(path, Path(copied))
            here = Path(copied, _in_repository(revision, folder, "."))
            # `..` in a path needs the folder that it leaves.
            here.mkdir(parents=True, exist_ok=True)
            old = _counted(asked, here, trusted, revision=revision.name)
        return Counted(report, old, is_compared=True, before=before)


def _counts_against(
    name: str | None, file: _BudgetsFile, asked: Budgets, trust_remote_code: bool
) -> _Counts:
    """How to count workloads; `name` is the baseline.

    It is a saved report if it ends in `.json` or is no revision.
    """
    if name is None:
        return _Counts(file, trust_remote_code)
    revision, path = None, Path(name)
    try:
        if path.suffix != ".json":
            revision = Revision.named(name, file.path.parent)
    except BaselineError:
        if not is_regular(path):
            raise
    if revision is not None:
        before, doubts = _budgets_there(revision, file)
        gone = (
            f"workload {each!r} of {name} is gone, so its cost is not checked"
            for each in before
            if each not in file.budgets
        )
        return _Counts(
            file, trust_remote_code, Baseline(kind="revision", name=name, commit=revision.commit),
            revision=revision, before=before, warnings=(*doubts, *gone),
        )  # fmt: skip
    if len(asked) > 1:
        raise BaselineError(
            f"{name!r} is the report of one workload, and the budgets have {len(asked)}"
            f" ({', '.join(asked)}); name the matching one: --workload NAME"
        )
    baseline = Baseline(kind="report", name=name, commit=None)
    return _Counts(file, trust_remote_code, baseline, reading.load_report(path))


def _budgets_there(revision: Revision, file: _BudgetsFile) -> tuple[Budgets, Sequence[str]]:
    """Workloads of the first file that has budgets in the revision, and doubts.

    It need not be the file that has them here.
    """
    for name in file.names:
        path = _in_repository(revision, file.path.parent, name)
        text = revision.text(path)
        try:
            found = None if text is None else budgets_in(
                text, f"{revision.name}:{path}", is_pyproject=name == PYPROJECT
            )  # fmt: skip
        except AnalyzeError as error:
            return {}, [f"the baseline's budgets cannot be read: {error}"]
        if found is not None:
            return found, []
    return {}, [
        f"{revision.name} has no budgets in {' or '.join(file.names)}, so its workloads and limits"
        " are unknown"
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
    asked: Options,
    folder: Path,
    trust_remote_code: bool,
    engine: str = "analytic",
    revision: str | None = None,
) -> document.Report:
    """The report of a workload, whose paths are relative to `folder`.

    Code of a revision is executed only if identical files are trusted anywhere.
    """
    config, stages, hf_config, model = (
        None if path is None else folder / path for path in files_of(asked)
    )
    name = options.chosen(
        "engine", asked["engine"] or (engine if stages is None else "trace"), ENGINES
    )
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
        request = time_request(asked["gpu"], {**asked, "corrections": 0})
    return Engine(
        directory, trust_remote_code=trust_remote_code, time=request,
        announced=streams.announced_steps,
    ).report(page)  # fmt: skip
