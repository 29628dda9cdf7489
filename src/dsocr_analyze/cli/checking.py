"""What `check` does: the workloads of a budgets file are counted, as in a baseline, and judged."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import typer

from dsocr_analyze.architectures.planning import PageRequest
from dsocr_analyze.cli import options, page_options, time_options
from dsocr_analyze.cli.counting import Engine
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.engine import ENGINES
from dsocr_analyze.errors import AnalyzeError, BaselineError, ConfigError, TrustError
from dsocr_analyze.gate.budgets import (
    NEW_FILE,
    PYPROJECT,
    Budgets,
    Options,
    Workload,
    budgets_in,
)
from dsocr_analyze.gate.document import Baseline, Check, whole_check
from dsocr_analyze.gate.judge import Counted, judge
from dsocr_analyze.gate.revision import Revision
from dsocr_analyze.gate.update import edited, edits_of
from dsocr_analyze.input_files import SETTINGS_BYTES, is_regular, read_text
from dsocr_analyze.names import did_you_mean
from dsocr_analyze.output_files import write_files
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.reading import load_report

__all__ = ["checked"]

_BUDGETS_FILE: Final = "dsocr-budgets.toml"


def checked(
    context: typer.Context,
    budgets: Path | None,
    names: Sequence[str] | None,
    against: str | None,
    *,
    trust_remote_code: bool,
    is_update: bool,
) -> Check:
    """The check of a budgets file.

    Args:
        context: The command's context, which is told when files begin to be written.
        budgets: The file; None for the default one.
        names: The workloads to check; all if none are given.
        against: The baseline; None for none.
        trust_remote_code: Whether a trace may execute a directory's code without a trust record.
        is_update: Whether budgets are set to what is counted.

    Raises:
        AnalyzeError: Something about the budgets, a workload or the baseline is invalid.
    """
    file = _read_budgets(budgets, is_update=is_update)
    asked = _chosen(file.budgets, names, file.path)
    counts = _counts_against(against, file, asked, trust_remote_code)
    counted = {name: _reports(counts, each) for name, each in asked.items()}
    judged = [judge(each, counted[name]) for name, each in asked.items()]
    context.obj.begin_writing()
    if is_update:
        edits = [
            edit
            for each in judged
            for edit in edits_of(asked[each.name], counted[each.name].report, each)
        ]
        is_pyproject = file.path.name == PYPROJECT
        text = edited(file.text, str(file.path), edits, is_pyproject=is_pyproject)
        found = budgets_in(text, str(file.path), is_pyproject=is_pyproject)
        if edits:
            write_files({file.path: text})
        new = sum(edit.index is None for edit in edits)
        complain(f"{file.path}: budgets changed: {len(edits) - new}, new: {new}")
        asked = _chosen(found or {}, list(asked), file.path)
        judged = [judge(each, counted[name]) for name, each in asked.items()]
    return whole_check(
        str(file.path), counts.baseline, judged, counts.warnings, options.options_used(context)
    )


def _chosen(budgets: Budgets, names: Sequence[str] | None, file: Path) -> Budgets:
    """The workloads with these names; all if no names are given."""
    for name in names or ():
        if name not in budgets:
            raise ConfigError(
                f"--workload {name!r} is not in {str(file)!r}; {did_you_mean(name, budgets)}it has"
                f" {', '.join(map(repr, budgets))}"
            )
    return {name: each for name, each in budgets.items() if not names or name in names}


def _reports(counts: _Counts, workload: Workload) -> Counted:
    """The reports of a workload; errors name the workload."""
    try:
        return counts.of(workload)
    except AnalyzeError as error:
        message = f"workload {workload.name!r}: {error}"
        raise type(error)(message, arguments=error.arguments) from error


# --- budgets -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _BudgetsFile:
    """A file of budgets, read once.

    Attributes:
        path: Its path.
        text: Its text.
        budgets: The budgets in it.
        names: The files of its folder that budgets are looked for in, in order.
    """

    path: Path
    text: str
    budgets: Budgets
    names: tuple[str, ...]


def _read_budgets(named: Path | None, *, is_update: bool) -> _BudgetsFile:
    """The budgets from the named file, or from the default file in this folder.

    Args:
        named: The file; None for the default one.
        is_update: Whether budgets are about to be written, so that none need exist.

    Raises:
        ConfigError: There are none, or they are invalid.
    """
    paths = (Path(_BUDGETS_FILE), Path(PYPROJECT)) if named is None else (named,)
    names = tuple(path.name for path in paths)
    for path in paths:
        if is_regular(path) or (path is named and not is_update):
            try:
                text = read_text(path, SETTINGS_BYTES)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                raise ConfigError(f"cannot read budgets {str(path)!r}: {why}") from error
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


@dataclass
class _Counts:
    """Counts workloads, which are compared with a saved report if there is one.

    Attributes:
        file: The budgets file, whose folder their paths are relative to.
        trust_remote_code: Whether a trace may execute a directory's code without a trust record.
        baseline: What they are compared with; None without a baseline.
        saved: The saved report, whose engine counts them.
        warnings: Doubts that apply to all of them.
    """

    file: _BudgetsFile
    trust_remote_code: bool
    baseline: Baseline | None = None
    saved: Report | None = None
    warnings: tuple[str, ...] = ()

    def of(self, workload: Workload) -> Counted:
        """A workload's reports."""
        engine = "analytic" if self.saved is None else self.saved.metadata.engine
        folder = self.file.path.parent
        report = _counted(workload.options, folder, self.trust_remote_code, engine)
        return Counted(report, self.saved, is_compared=self.saved is not None)


def _counts_against(
    name: str | None, file: _BudgetsFile, asked: Budgets, trust_remote_code: bool
) -> _Counts:
    """How to count workloads of a budgets file.

    A name ending in `.json` is a saved report. Any other name is a revision if there is one with
    that name, even if there is also such a file; otherwise it is a report.

    Args:
        name: The baseline; None for none.
        file: The budgets file.
        asked: The workloads to count.
        trust_remote_code: Whether a trace may execute a directory's code without a trust record.

    Raises:
        BaselineError: There is no baseline with that name.
    """
    if name is None:
        return _Counts(file, trust_remote_code)
    revision = None
    try:
        if Path(name).suffix != ".json":
            revision = Revision.named(name, file.path.parent)
    except BaselineError:
        if not is_regular(Path(name)):
            raise
    if revision is not None:
        return _OfRevision(file, trust_remote_code, revision)
    if len(asked) > 1:
        raise BaselineError(
            f"{name!r} is the report of one workload, and the budgets have {len(asked)}"
            f" ({', '.join(asked)}); name the matching one: --workload NAME"
        )
    baseline = Baseline(kind="report", name=name, commit=None)
    return _Counts(file, trust_remote_code, baseline, load_report(Path(name)))


class _OfRevision(_Counts):
    """Compares workloads with another revision.

    That revision's budgets define its workloads; one missing there is counted with its current
    options.
    """

    def __init__(self, file: _BudgetsFile, trust_remote_code: bool, revision: Revision) -> None:
        baseline = Baseline(kind="revision", name=revision.name, commit=revision.commit)
        super().__init__(file, trust_remote_code, baseline)
        self.revision = revision
        self.workloads, doubts = self._budgets_there()
        gone = (
            f"workload {name!r} of {revision.name} is gone, so its cost is not checked"
            for name in self.workloads
            if name not in file.budgets
        )
        self.warnings = (*doubts, *gone)

    def of(self, workload: Workload) -> Counted:
        """The workload's reports here and in the revision."""
        report = super().of(workload).report
        before = self.workloads.get(workload.name)
        asked = (before or workload).options
        paths = [self._in_repository(path) for path in asked.paths()]
        missing = [path for path in paths if not self.revision.has(path)]
        if missing:
            why = f"no baseline: {self.revision.name} has no {' and no '.join(map(repr, missing))}"
            return Counted(report, None, is_compared=True, before=before, warnings=(why,))
        with tempfile.TemporaryDirectory(prefix="dsocr-check-") as folder:
            for path in paths:
                self.revision.copy(path, Path(folder))
            here = Path(folder, self._in_repository("."))
            # `..` in a path needs the folder that it leaves.
            here.mkdir(parents=True, exist_ok=True)
            old = _counted(asked, here, self.trust_remote_code, revision=self.revision.name)
        return Counted(report, old, is_compared=True, before=before)

    def _in_repository(self, path: str) -> str:
        """A path from the budgets file, relative to the root of the repository."""
        root = self.revision.root
        found = Path(os.path.normpath(self.file.path.parent.resolve() / path))
        if not found.is_relative_to(root):
            raise BaselineError(
                f"{path!r} is outside the repository {str(root)!r}, so no revision has it;"
                " compare with a saved report, or keep it in the repository"
            )
        return found.relative_to(root).as_posix()

    def _budgets_there(self) -> tuple[Budgets, list[str]]:
        """Workloads of the first of these files that has budgets in the revision, and doubts.

        A change may have moved its budgets to a file that comes first, so the one that has them
        here says nothing about the revision.
        """
        name = self.revision.name
        for file in self.file.names:
            path = self._in_repository(file)
            text = self.revision.text(path)
            try:
                found = None if text is None else budgets_in(
                    text, f"{name}:{path}", is_pyproject=file == PYPROJECT
                )  # fmt: skip
            except AnalyzeError as error:
                return {}, [f"the baseline's budgets cannot be read: {error}"]
            if found is not None:
                return found, []
        named = " or ".join(self.file.names)
        return {}, [f"{name} has no budgets in {named}, so its workloads and limits are unknown"]


# --- counting ----------------------------------------------------------------------------------


def _counted(
    asked: Options,
    folder: Path,
    trust_remote_code: bool,
    engine: str = "analytic",
    revision: str | None = None,
) -> Report:
    """The report of a workload.

    Args:
        asked: What is counted.
        folder: The folder its paths are relative to.
        trust_remote_code: Whether a trace may execute a directory's code without a trust record.
        engine: The engine if the workload does not name one.
        revision: The revision the files are from; None for the work tree. Its code is executed
            only if identical files are trusted anywhere.

    Raises:
        AnalyzeError: Something about the workload is invalid; the subclass says what.
    """

    def below(path: str | None) -> Path | None:
        return None if path is None else folder / path

    name = asked.engine or ("trace" if asked.stages is not None else engine)
    name = options.chosen("engine", name, ENGINES)
    # Never a directory that happens to be in `models`: a check must be the same on every machine.
    model = str(below(asked.directory) or "reference")
    directory = page_options.model_directory_from(
        None if asked.directory is None and asked.stages is not None else model, asked.arch,
        below(asked.config), trust_remote_code=True,
        sliding_window=None if asked.sliding_window is None else int(asked.sliding_window),
        stages=below(asked.stages), hf_config=below(asked.hf_config),
    )  # fmt: skip
    if revision is not None and name == "trace" and not trust_remote_code:
        from dsocr_analyze.model.trust import is_trusted_code

        if directory.has_code and not is_trusted_code(directory):
            raise TrustError(
                f"{str(asked.directory)!r} of {revision} contains Python code that would be"
                f" executed ({', '.join(directory.sources)}) and is not trusted; read it in a"
                f" work tree (`git worktree add ../baseline {revision}`) and run `dsocr-analyze"
                " trust` on it there, or count without executing it: engine ="
                ' "analytic" in the budgets'
            )
        trust_remote_code = True
    page = {each.name: getattr(asked, each.name, None) for each in fields(PageRequest)}
    workload = PageRequest(**page).workload(directory.architecture)
    request = None
    if asked.gpu:
        # No corrections: they are kept per machine, and a check must be the same on every machine.
        request = time_options.time_request(
            asked.gpu, profile=None, runtime=asked.runtime, server=asked.server,
            concurrency=asked.concurrency, preprocess_ms=asked.preprocess_ms,
            workers=asked.workers, price=asked.price, weights_dtype=asked.weights_dtype,
            kv_dtype=asked.kv_dtype, corrections=0,
        )  # fmt: skip
    return Engine(
        name, directory, asked.dtype, asked.use_flash_attn, trust_remote_code=trust_remote_code,
        time=request,
    ).report(workload)  # fmt: skip
