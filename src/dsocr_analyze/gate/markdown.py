"""A check as Markdown for a pull request or a job's summary.

Names come from the authors of the model, its config and the budgets, who may be strangers opening a
pull request. Everything but fixed words and small numbers is put in code spans, without characters
that could end a span or a table cell, so it can't become a link, a mention, an image or HTML. The
action that posts a comment knows these words, and shows any other text as code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dsocr_analyze.escaping import as_code_span
from dsocr_analyze.gate.document import Check, Move, WorkloadCheck
from dsocr_analyze.gate.wording import (
    WORDS,
    change_cells,
    counts_text,
    equal_text,
    heads,
    levels_of,
    move_name,
    shown_verdicts,
    signed,
    unbudgeted,
)

__all__ = ["SUMMARY_LIMIT", "check_markdown"]

_COMMENT_LIMIT: Final = 65_536
"""GitHub's limit for a comment, in characters; applied here to bytes, which is stricter."""

SUMMARY_LIMIT: Final = 2**20
"""GitHub's limit for a step summary, in bytes."""

_TITLES: Final = {
    "stage": "Stages",
    "module": "Modules (their own work)",
    "operator": "Operators",
    "kind": "Kinds of operators",
}
_MOST_ROWS: Final = 10
_MOST_FIGURES: Final = 50
_LEFT_OUT: Final = "\nThe rest is left out here; the check's JSON has all of it.\n"


def check_markdown(check: Check, limit: int = _COMMENT_LIMIT) -> str:
    """The check in fewer than `limit` bytes, with a note if something had to be left out.

    Empty if not even the note fits.
    """
    text = ""
    room = limit - len(_LEFT_OUT) - 1
    if room < 0:
        return text
    for block in _blocks(check):
        size = len(block.encode()) + 1
        if size > room:
            return text + _LEFT_OUT
        room -= size
        text += block + "\n"
    return text


def _blocks(check: Check) -> Iterator[str]:
    """Paragraphs and tables, each of them short."""
    yield f"## Cost check: {WORDS[check.outcome]}{counts_text(check)}\n"
    if check.baseline is not None:
        yield f"Against {as_code_span(check.baseline.title)}.\n"
    yield from (f"- warning: {as_code_span(each)}" for each in check.warnings)
    for workload in check.workloads:
        yield from _workload(workload)
    yield f"\nCounted by dsocr-analyze {as_code_span(check.tool)}."


def _workload(workload: WorkloadCheck) -> Iterator[str]:
    yield f"\n### {as_code_span(workload.name)}: {WORDS[workload.outcome]}\n"
    yield f"{as_code_span(workload.title)}\n"
    if workload.is_compared and not workload.changed:
        yield f"All {equal_text(workload)}.\n"
    for line in heads(workload):
        what, _, names = line.partition(": ")
        yield f"- {what}: {as_code_span(names)}"
    for warning in workload.warnings[:_MOST_FIGURES]:
        yield f"- warning: {as_code_span(warning)}"
    for verdict in shown_verdicts(workload)[:_MOST_FIGURES]:
        word = "error" if verdict.outcome == "failed" else "warning"
        yield f"- {word}: {as_code_span(verdict.message)}"
    yield from _more(len(shown_verdicts(workload)), _MOST_FIGURES)
    yield from _moves(workload)
    changed = unbudgeted(workload)
    if changed:
        yield "\nFigures that changed without a budget:\n"
        cells = [change_cells(each) for each in changed[:_MOST_FIGURES]]
        yield _table(("figure", "before", "after", "change"), cells)
        yield from _more(len(changed), _MOST_FIGURES)


def _moves(workload: WorkloadCheck) -> Iterator[str]:
    for level in levels_of(workload):
        moved = workload.moves(level)
        if moved:
            yield f"\n{_TITLES[level]} that moved, largest first:\n"
            rows = [_row(move) for move in moved[:_MOST_ROWS]]
            yield _table(("what moved", "FLOPs", "bytes", "of the batch"), rows)
            yield from _more(len(moved), _MOST_ROWS)


def _row(move: Move) -> tuple[str, ...]:
    nbytes = "" if move.bytes is None else signed(move.bytes, is_bytes=True)
    return (
        move_name(move), signed(move.flops) or "-", nbytes or "-", f"{100 * move.share:.3g} %",
    )  # fmt: skip


def _more(found: int, shown: int) -> Iterator[str]:
    if found > shown:
        yield f"\nAnd {found - shown:,} more.\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    cells = [[as_code_span(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *cells))
