"""Writes counted figures into a file of budgets, leaving everything else in it unchanged."""

from __future__ import annotations

import operator
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, InlineTable

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.gate.budgets import PYPROJECT_TABLE, Allowance, Budget, Workload
from dsocr_analyze.gate.document import WorkloadCheck
from dsocr_analyze.gate.report_keys import ReportKeys
from dsocr_analyze.report.document import Report

__all__ = ["Edit", "edited", "edits_of"]

_FIRST_KEYS: Final = (
    "workload.seq_len", "total.params", "total.flops", "total.batch.flops",
    "total.batch.bytes_read", "total.batch.bytes_written", "memory.weights_bytes",
    "memory.kv_cache_bytes", "memory.peak_activation_bytes",
)  # fmt: skip
"""Keys of the budgets that a workload without any gets."""


@dataclass(frozen=True)
class Edit:
    """One budget to write.

    Attributes:
        workload: Name of its workload.
        index: Index among the workload's budgets; None for a new one.
        key: Its report key.
        limits: New values of `max` and `min`, if they change.
    """

    workload: str
    index: int | None
    key: str
    limits: Mapping[str, int | float]


def edits_of(workload: Workload, report: Report, check: WorkloadCheck) -> Iterator[Edit]:
    """The edits with which the check passes.

    Limits that are kept stay, and so do relative ones, which limit changes rather than values. A
    workload without budgets gets some, and every figure that changed without a budget gets
    one at exactly its value now.

    Args:
        workload: The workload.
        report: Its report.
        check: The result of the check.
    """
    keys = ReportKeys(report)
    for index, budget in enumerate(workload.budgets):
        limits = dict(_exceeded(budget, keys))
        if limits:
            yield Edit(workload.name, index, budget.key, limits)
    first = [keys.figures(key)[0] for key in ([] if workload.budgets else _FIRST_KEYS)]
    new = {key: {"max": value} for key, value in first if value is not None}
    for verdict in check.failures("failed"):
        if verdict.rule == "baseline" and verdict.value is not None:
            new.setdefault(verdict.key, {"max": verdict.value, "min": verdict.value})
    for key, exactly in new.items():
        yield Edit(workload.name, None, key, exactly)


def _exceeded(budget: Budget, keys: ReportKeys) -> Iterator[tuple[str, int | float]]:
    """The absolute limits that are exceeded, with their new values."""
    values = [each.value for each in keys.figures(budget.key) if each.value is not None]
    for limit in budget.limits():
        if values and not isinstance(limit.amount, Allowance):
            furthest = max(values) if limit.is_upper else min(values)
            if not limit.keeps(furthest, limit.amount):
                yield limit.name, furthest


def edited(text: str, file: str, edits: list[Edit], *, is_pyproject: bool) -> str:
    """The file's text with the edits applied.

    Args:
        text: The file's text.
        file: Its name, for messages.
        edits: The edits.
        is_pyproject: Whether budgets are in `[tool.dsocr-analyze.check]` rather than at the top.

    Raises:
        ConfigError: The file is written in a way that cannot be edited; it is left unchanged.
    """
    has_returns = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    lines = text.replace("\r\n", "\n") if has_returns else text
    lines += "" if lines.endswith("\n") else "\n"
    path = (*(PYPROJECT_TABLE if is_pyproject else ()), "workloads")
    try:
        document, expected = tomlkit.parse(lines), tomllib.loads(lines)
        workloads = reduce(operator.getitem, path, document)
        begun = {name for name, each in workloads.items() if "budgets" not in each}
        for edit in edits:
            workload, plain = (
                reduce(operator.getitem, (*path, edit.workload), each)
                for each in (document, expected)
            )
            _apply(workload, edit, is_begun=edit.workload in begun)
            _expect(plain, edit)
        written = tomlkit.dumps(document)
        if tomllib.loads(written) != expected:
            raise ValueError("something else was written")
    except (TOMLKitError, ValueError, KeyError, TypeError) as error:
        said = (
            f"{each.workload}: {each.key} {', '.join(f'{k} = {v}' for k, v in each.limits.items())}"
            for each in edits
        )
        raise ConfigError(
            f"{file!r} cannot be edited as it is written; edit by hand: {'; '.join(said)}"
        ) from error
    return written.replace("\n", "\r\n") if has_returns else written


def _apply(workload: Any, edit: Edit, *, is_begun: bool) -> None:
    """Apply an edit to a workload of the library that keeps a file's layout."""
    if edit.index is not None:
        workload["budgets"][edit.index].update(edit.limits)
        return
    if "budgets" not in workload:
        is_inline = isinstance(workload, InlineTable)
        workload["budgets"] = tomlkit.array() if is_inline else tomlkit.aot()
    budgets = workload["budgets"]
    is_array = not isinstance(budgets, AoT)
    added: Any = tomlkit.inline_table() if is_array else tomlkit.table()
    added.update({"key": edit.key, **edit.limits})
    if not is_array and not budgets:
        workload.add(tomlkit.nl())
    elif not is_array and not is_begun:  # tomlkit separates tables itself in lists it created
        budgets[-1].add(tomlkit.nl())
    budgets.append(added)


def _expect(workload: dict[str, Any], edit: Edit) -> None:
    """Apply an edit to a workload's plain values, independently of the library that writes."""
    budgets = workload.setdefault("budgets", [])
    if edit.index is None:
        budgets.append({"key": edit.key, **edit.limits})
    else:
        budgets[edit.index].update(edit.limits)
