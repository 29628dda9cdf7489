"""Writes counted figures into a file of budgets, leaving everything else in it unchanged."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.gate.budgets import PYPROJECT_TABLE, Budget, Workload
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
    if not workload.budgets:
        for key in _FIRST_KEYS:
            [figure] = keys.figures(key)
            if figure.value is not None:
                yield Edit(workload.name, None, key, {"max": figure.value})
    begun = set() if workload.budgets else set(_FIRST_KEYS)
    for verdict in check.failures("failed"):
        if verdict.rule == "baseline" and verdict.value is not None and verdict.key not in begun:
            exactly = {"max": verdict.value, "min": verdict.value}
            yield Edit(workload.name, None, verdict.key, exactly)


def _exceeded(budget: Budget, keys: ReportKeys) -> Iterator[tuple[str, int | float]]:
    """The absolute limits that are exceeded, with their new values."""
    values = [each.value for each in keys.figures(budget.key) if each.value is not None]
    if values and budget.max is not None and max(values) > budget.max:
        yield "max", max(values)
    if values and budget.min is not None and min(values) < budget.min:
        yield "min", min(values)


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
    where = PYPROJECT_TABLE if is_pyproject else ()
    try:
        document = tomlkit.parse(lines)
        table: Any = document
        for name in where:
            table = table[name]
        begun = {name for name, each in table["workloads"].items() if "budgets" not in each}
        for edit in edits:
            workload = table["workloads"][edit.workload]
            _apply(workload, edit, is_begun=edit.workload in begun)
        written = tomlkit.dumps(document)
        is_right = tomllib.loads(written) == _expected(lines, where, edits)
    except (TOMLKitError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise _refusal(file, edits) from error
    if not is_right:
        raise _refusal(file, edits)
    return written.replace("\n", "\r\n") if has_returns else written


def _apply(workload: Any, edit: Edit, *, is_begun: bool) -> None:
    if edit.index is not None:
        budget = workload["budgets"][edit.index]
        for name, value in edit.limits.items():
            budget[name] = value
        return
    is_inline = isinstance(workload, InlineTable)
    if "budgets" not in workload:
        workload["budgets"] = tomlkit.array() if is_inline else tomlkit.aot()
    budgets = workload["budgets"]
    is_array = not isinstance(budgets, tomlkit.items.AoT)
    added: Any = tomlkit.inline_table() if is_array else tomlkit.table()
    added.update({"key": edit.key, **edit.limits})
    if not is_array and not budgets:
        workload.add(tomlkit.nl())
    elif not is_array and not is_begun:  # tomlkit separates tables itself in lists it created
        budgets[-1].add(tomlkit.nl())
    budgets.append(added)


def _expected(text: str, where: tuple[str, ...], edits: list[Edit]) -> dict[str, Any]:
    """The file's expected content, computed independently of the library that writes it."""
    values = tomllib.loads(text)
    table = values
    for name in where:
        table = table[name]
    for edit in edits:
        budgets = table["workloads"][edit.workload].setdefault("budgets", [])
        if edit.index is None:
            budgets.append({"key": edit.key, **edit.limits})
        else:
            budgets[edit.index].update(edit.limits)
    return values


def _refusal(file: str, edits: list[Edit]) -> ConfigError:
    lines = (
        f"{edit.workload}: {edit.key} {', '.join(f'{k} = {v}' for k, v in edit.limits.items())}"
        for edit in edits
    )
    return ConfigError(
        f"{file!r} cannot be edited as it is written; edit by hand: {'; '.join(lines)}"
    )
