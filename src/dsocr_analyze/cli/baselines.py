"""The baseline of `check --against`: a saved report, or a revision of the repository."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from dsocr_analyze.cli.budgets_file import BudgetsFile, counted_by
from dsocr_analyze.errors import AnalyzeError, BaselineError
from dsocr_analyze.gate.budgets import PYPROJECT, Budgets, Options, Workload, budgets_in
from dsocr_analyze.gate.document import Baseline
from dsocr_analyze.gate.judge import Counted
from dsocr_analyze.gate.revision import Repository, Revision
from dsocr_analyze.input_files import is_regular
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.reading import load_report

__all__ = ["Counts", "counts_against"]


class Counts(Protocol):
    """Counts workloads here, and in a baseline if there is one."""

    @property
    def baseline(self) -> Baseline | None:
        """The baseline; None if there is none."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Doubts that apply to all workloads."""

    def of(self, workload: Workload) -> Counted:
        """A workload's reports."""


@contextmanager
def counts_against(
    name: str | None, file: BudgetsFile, asked: Budgets, *, trust_remote_code: bool
) -> Iterator[Counts]:
    """How to count workloads of a budgets file.

    A name ending in `.json` is a saved report. Any other name is a revision if there is one with
    that name, even if there is also such a file; otherwise it is a report.

    Args:
        name: The baseline; None for none.
        file: The budgets file, whose folder their paths are relative to.
        asked: The workloads to count.
        trust_remote_code: Whether a trace may execute a directory's code without a trust record.

    Raises:
        BaselineError: There is no baseline with that name.
    """
    here = _Here(file.path.parent, trust_remote_code)
    if name is None:
        yield here
    elif Path(name).suffix == ".json":
        yield _OfReport(here, name, asked)
    else:
        try:
            revision = Repository.around(file.path.parent).revision(name)
        except BaselineError:
            if not is_regular(Path(name)):
                raise
            yield _OfReport(here, name, asked)
            return
        with tempfile.TemporaryDirectory(prefix="dsocr-check-") as folder:
            yield _OfRevision(here, revision, file, Path(folder))


class _Here:
    """Counts workloads without a baseline.

    Args:
        folder: The folder their paths are relative to.
        trust_remote_code: Whether a trace may execute a directory's code without a trust record.
    """

    def __init__(self, folder: Path, trust_remote_code: bool) -> None:
        self.baseline: Baseline | None = None
        self.warnings: tuple[str, ...] = ()
        self.folder = folder
        self.trust_remote_code = trust_remote_code

    def report(self, options: Options, engine: str = "analytic") -> Report:
        """The report of a workload here, by its own engine or else by `engine`."""
        return counted_by(
            options, self.folder, trust_remote_code=self.trust_remote_code, engine=engine
        )

    def of(self, workload: Workload) -> Counted:
        """The report of a workload."""
        return Counted(self.report(workload.options))


class _OfReport:
    """Compares one workload with a saved report, using the engine of that report."""

    def __init__(self, here: _Here, name: str, budgets: Budgets) -> None:
        if len(budgets.workloads) > 1:
            raise BaselineError(
                f"{name!r} is the report of one workload, and the budgets have"
                f" {len(budgets.workloads)} ({', '.join(budgets.workloads)}); name the matching"
                " one: --workload NAME"
            )
        self.baseline = Baseline(kind="report", name=name, commit=None)
        self.warnings: tuple[str, ...] = ()
        self._here = here
        self._report = load_report(Path(name))

    def of(self, workload: Workload) -> Counted:
        """The report of the workload, and the saved one."""
        report = self._here.report(workload.options, engine=self._report.metadata.engine)
        return Counted(report, self._report, is_compared=True)


class _OfRevision:
    """Compares workloads with another revision.

    That revision's budgets define its workloads; one missing there is counted with its current
    options.
    """

    def __init__(self, here: _Here, revision: Revision, file: BudgetsFile, folder: Path) -> None:
        self.baseline = Baseline(kind="revision", name=revision.name, commit=revision.commit)
        self._here = here
        self._revision = revision
        self._root = revision.repository.root
        self._files = folder
        self._folder = file.path.parent.resolve()
        warnings: list[str] = []
        self._workloads = self._budgets_there(file.names, warnings)
        warnings += [
            f"workload {name!r} of {revision.name} is gone, so its cost is not checked"
            for name in self._workloads
            if name not in file.budgets.workloads
        ]
        self.warnings = tuple(warnings)

    def of(self, workload: Workload) -> Counted:
        """The workload's reports here and in the revision."""
        report = self._here.report(workload.options)
        before = self._workloads.get(workload.name)
        options = (before or workload).options
        paths = [self._in_repository(path) for path in options.paths()]
        missing = [path for path in paths if not self._revision.has(path)]
        if missing:
            why = f"no baseline: {self._revision.name} has no {' and no '.join(map(repr, missing))}"
            return Counted(report, None, is_compared=True, before=before, warnings=(why,))
        for path in paths:
            self._revision.copy(path, self._files)
        old = counted_by(
            options, self._files / self._in_repository("."),
            trust_remote_code=self._here.trust_remote_code, revision=self._revision.name,
        )  # fmt: skip
        return Counted(report, old, is_compared=True, before=before)

    def _in_repository(self, path: str) -> str:
        """A path from the budgets file, relative to the root of the repository."""
        found = Path(os.path.normpath(self._folder / path))
        if not found.is_relative_to(self._root):
            raise BaselineError(
                f"{path!r} is outside the repository {str(self._root)!r}, so no revision has it;"
                " compare with a saved report, or keep it in the repository"
            )
        return found.relative_to(self._root).as_posix()

    def _budgets_there(self, names: Sequence[str], warnings: list[str]) -> Mapping[str, Workload]:
        """Workloads of the first of these files that has budgets in the revision; none if none has.

        A change may have moved its budgets to a file that comes first, so the one that has them
        here says nothing about the revision.
        """
        for name in names:
            text = self._revision.text(self._in_repository(name))
            if text is None:
                continue
            called = f"{self._revision.name}:{self._in_repository(name)}"
            try:
                found = budgets_in(text, called, is_pyproject=name == PYPROJECT)
            except AnalyzeError as error:
                warnings.append(f"the baseline's budgets cannot be read: {error}")
                return {}
            if found is not None:
                return found.workloads
        warnings.append(
            f"{self._revision.name} has no budgets in {' or '.join(names)}, so its workloads and"
            " limits are unknown"
        )
        return {}
