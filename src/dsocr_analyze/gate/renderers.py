"""A check for readers: as text for a terminal, as Markdown, and as JUnit XML.

Names come from the authors of the model, its config and the budgets, who may be strangers opening a
pull request. In Markdown, everything but fixed words and small numbers is put in code spans,
without characters that could end a span or a table cell, so it can't become a link, a mention, an
image or HTML. The action that posts a comment knows these words, and shows any other text as code.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final
from xml.etree import ElementTree as ET

from dsocr_analyze.escaping import as_code_span, visible_lines
from dsocr_analyze.gate.document import (
    Amounts,
    Check,
    InputChange,
    InputKind,
    Move,
    MoveLevel,
    Outcome,
    Verdict,
    WorkloadCheck,
)
from dsocr_analyze.report.table import bytes_text, scaled

__all__ = [
    "SUMMARY_LIMIT",
    "check_junit",
    "check_markdown",
    "equal_text",
    "text_lines",
    "workload_summary",
]

_MOST_INPUTS: Final = 12
"""Most changes of one kind listed before everything else."""

_LONGEST_VALUE: Final = 100
"""Most characters shown of a changed value; the JSON has all of it."""

_MANIFOLD: Final = 10

_WORDS: Final[dict[Outcome, str]] = {
    "passed": "passed",
    "warned": "passed with warnings",
    "failed": "FAILED",
}


# --- wording -----------------------------------------------------------------------------------


def _result(check: Check) -> str:
    """The outcome and the number of errors and warnings: `FAILED (2 errors)`."""
    named = {"error": check.count("failed"), "warning": check.count("warned")}
    counts = [f"{count:,} {_plural(name, count)}" for name, count in named.items() if count]
    return f"{_WORDS[check.outcome]} ({', '.join(counts)})".removesuffix(" ()")


def _plural(name: str, count: int) -> str:
    return name if count == 1 else f"{name}s"


def workload_summary(workload: WorkloadCheck) -> str:
    """One line about a workload's result."""
    kept = sum(each.rule != "baseline" for each in workload.failures("passed"))
    said = []
    if workload.is_compared:
        changed = len(workload.changed) + workload.following
        some = f"{changed:,} of {workload.unchanged + changed:,} figures changed"
        said.append(some if workload.changed else f"all {equal_text(workload)}")
    if kept:
        said.append(f"{kept} {_plural('limit', kept)} kept")
    return f"{workload.name}: {_WORDS[workload.outcome]}" + (f"; {', '.join(said)}" if said else "")


def _is_equal(workload: WorkloadCheck) -> bool:
    return workload.is_compared and not workload.changed


def equal_text(workload: WorkloadCheck) -> str:
    """How many figures equal the baseline's."""
    return f"{workload.unchanged:,} figures equal the baseline's"


def _heads(workload: WorkloadCheck) -> list[str]:
    """What a reader needs first: changed inputs, then the largest moves."""
    largest = (workload.moves(level)[:1] for level in _levels(workload))
    return [
        *_changed("changed", workload, {"config", "code", "workload", "setting"}),
        *(f"moved most, {move.level}: {_named(move)}" for moved in largest for move in moved),
        *_changed("changed", workload, {"report"}),
        *_changed("budget changed", workload, {"budget"}),
    ]


def _changed(label: str, workload: WorkloadCheck, kinds: set[InputKind]) -> list[str]:
    changes = [_input_text(each) for each in workload.inputs if each.kind in kinds]
    left = len(changes) - _MOST_INPUTS
    more = [f"{left} more"] if left > 0 else []
    return [f"{label}: {each}" for each in (*changes[:_MOST_INPUTS], *more)]


def _input_text(change: InputChange) -> str:
    """A changed input: `language_config.num_experts_per_tok: 6 -> 64`."""
    before, after = map(_or_absent, (change.before, change.after))
    where = "" if change.kind in ("config", "budget") else f"{change.kind} "
    return f"{where}{change.key}: {before} -> {after}"


def _or_absent(value: str | None) -> str:
    if not value:
        return "(absent)" if value is None else "''"
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}..."


def _levels(workload: WorkloadCheck) -> tuple[MoveLevel, ...]:
    """The levels to show; kinds of operators if bytes changed but no operator's FLOPs did."""
    return ("stage", "module", "operator" if workload.moves("operator") else "kind")


def _named(move: Move) -> str:
    """What moved most, and by how much."""
    amounts = {
        "FLOPs": _signed(move.flops),
        "moved": _signed(move.bytes, is_bytes=True),
        "parameters": _signed(move.params),
    }
    texts = [f"{text} {what}" for what, text in amounts.items() if text]
    return f"{_name(move)}: {', '.join(texts)}"


def _name(move: Move) -> str:
    """What moved: `prefill`, or `model.layers.*.mlp of prefill (12 modules)`."""
    if move.level == "stage":
        return move.name
    several = f" ({move.modules:,} modules)" if move.modules > 1 else ""
    return f"{move.name or 'the model itself'} of {move.stage}{several}"


def _cells(move: Move, *, with_part: bool) -> tuple[str, str, str]:
    """FLOPs, bytes and share of what moved."""
    flops = _signed(move.flops, with_part=with_part)
    nbytes = _signed(move.bytes, is_bytes=True, with_part=with_part)
    return flops or "-", nbytes or "-", f"{100 * move.share:.3g} %"


def _signed(amounts: Amounts | None, *, is_bytes: bool = False, with_part: bool = True) -> str:
    """The change in an amount, signed; empty if there is none."""
    if amounts is None or not amounts.difference:
        return ""
    difference = amounts.difference
    text = bytes_text(abs(difference)) if is_bytes else scaled(abs(difference))
    part = f" ({_part_text(difference, amounts.before)})" if with_part else ""
    return f"{'-' if difference < 0 else '+'}{text}{part}"


def _part_text(difference: int | float, before: int | float) -> str:
    """A difference relative to the value before: `+2.5 %`, or `12.5 x` from ten times on."""
    if not before:
        return "new"
    part = difference / before
    return f"{1 + part:,.1f} x" if part >= _MANIFOLD else f"{100 * part:+.3g} %"


def _warnings(warnings: Iterable[str]) -> list[str]:
    return [f"warning: {each}" for each in warnings]


def _exceeded(workload: WorkloadCheck) -> list[str]:
    """Budgets' limits that are exceeded, errors first."""
    words = {"failed": "error", "warned": "warning"}
    return [
        f"{words[each.outcome]}: {each.message}"
        for each in workload.verdicts
        if each.outcome != "passed" and each.rule != "baseline"
    ]


def _unbudgeted(workload: WorkloadCheck) -> list[tuple[str, str, str, str]]:
    """Key, before, after and change of figures that differ without a budget that allows it.

    The largest relative change comes first.
    """
    found = [each for each in workload.failures("failed") if each.rule == "baseline"]
    return [_change_cells(each) for each in sorted(found, key=lambda each: -_part(each))]


def _part(verdict: Verdict) -> float:
    before, after = verdict.baseline, verdict.value
    return float("inf") if not before or after is None else abs(after - before) / before


def _change_cells(verdict: Verdict) -> tuple[str, str, str, str]:
    before, after = verdict.baseline, verdict.value
    if before is None or after is None:
        change = "gone" if after is None else "new"
    else:
        change = _part_text(after - before, before)
    old, new = ("-" if each is None else f"{each:,}" for each in (before, after))
    return verdict.key, old, new, change


# --- text --------------------------------------------------------------------------------------

_MOST_MOVES: Final = 6
_MOST_LINES: Final = 20
_MOVES: Final = ("FLOPs", "bytes", "of batch", "what moved, largest first")
_FIGURES: Final = ("before", "after", "change", "figure")
_AMOUNT: Final = re.compile(r"(?<=\d) (?=[kMGTPEZYx%]|B\b)")
_KEPT_SPACE: Final = "\u00a0"


def text_lines(check: Check, width: int) -> list[str]:
    """The lines of a check, at most `width` columns wide unless a single name is wider.

    Changed inputs and the largest moves come first; numbers are never broken.
    """
    against = "" if check.baseline is None else f" against {check.baseline.title}"
    count = len(check.workloads)
    counted = f"check: {count} {_plural('workload', count)}{against}: {_result(check)}"
    warnings = _wrapped(_warnings(check.warnings), width, "  ")
    workloads = (_text_of(workload, width) for workload in check.workloads)
    return [*_wrapped([counted], width), *warnings, *chain.from_iterable(workloads)]


def _text_of(workload: WorkloadCheck, width: int) -> list[str]:
    exceeded, changed = _exceeded(workload), _unbudgeted(workload)
    moves = [workload.moves(level) for level in _levels(workload)]
    moved = [
        (*_cells(move, with_part=False), f"{move.level} {_name(move)}")
        for level in moves
        for move in level[:_MOST_MOVES]
    ]
    figures = [(*numbers, key) for key, *numbers in changed[:_MOST_LINES]]
    return [
        *_wrapped([workload_summary(workload)], width),
        *_wrapped([*_heads(workload), *_warnings(workload.warnings)], width, "  "),
        *_section(_aligned(_MOVES, moved, width), sum(map(len, moves)) - len(moved)),
        *_section(_wrapped(exceeded[:_MOST_LINES], width, "  "), len(exceeded) - _MOST_LINES),
        *_section(
            _aligned(_FIGURES, figures, width),
            len(changed) - _MOST_LINES,
            "  figures that changed without a budget:",
        ),
    ]


def _section(lines: Sequence[str], left: int, *title: str) -> list[str]:
    """Lines below an empty one, and how many are left out; nothing if there are none."""
    more = [f"  and {left} more; the JSON has them all"] if left > 0 else []
    return ["", *title, *lines, *more] if lines else []


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows of right-aligned numbers, then a name that wraps within its column."""
    lines = []
    *columns, _ = (max(map(len, cells)) for cells in zip(header, *rows, strict=True))
    for *numbers, name in (header, *rows) if rows else ():
        cells = map(str.rjust, numbers, columns)
        start = f"  {'  '.join(cells)}  "
        first, *rest = _pieces(name, max(width - len(start), 20))
        lines += [f"{start}{first}", *(f"{' ' * len(start)}{each}" for each in rest)]
    return lines


def _pieces(name: str, room: int) -> Iterator[str]:
    """A name in pieces of at most `room` characters, broken at spaces and before dots."""
    while len(name) > room:
        cut = max(name.rfind(".", 1, room + 1), name.rfind(" ", 1, room + 1))
        cut = cut if cut > 0 else room
        yield name[:cut].rstrip()
        name = name[cut:].lstrip(" ")
    yield name


def _wrapped(lines: Iterable[str], width: int, start: str = "") -> list[str]:
    """Lines that begin alike, wrapped; names are not broken, numbers stay with their units."""
    found: list[str] = []
    for line in (f"{start}{each}" for each in lines):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        found += textwrap.wrap(
            _AMOUNT.sub(_KEPT_SPACE, line), width, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return [each.replace(_KEPT_SPACE, " ") for each in found]


# --- Markdown ----------------------------------------------------------------------------------

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
_MOVED: Final = ("what moved", "FLOPs", "bytes", "of the batch")
_CHANGED: Final = ("figure", "before", "after", "change")
_MOST_ROWS: Final = 10
_MOST_FIGURES: Final = 50
_LEFT_OUT: Final = "\nThe rest is left out here; the check's JSON has all of it.\n"


def check_markdown(check: Check, limit: int = _COMMENT_LIMIT) -> str:
    """The check for a pull request or a job's summary, in fewer than `limit` bytes.

    If something had to be left out, a note says so; empty if not even the note fits.
    """
    text = ""
    room = limit - len(_LEFT_OUT) - 1
    for block in _blocks(check) if room >= 0 else ():
        room -= len(block.encode()) + 1
        if room < 0:
            return text + _LEFT_OUT
        text += block + "\n"
    return text


def _blocks(check: Check) -> list[str]:
    """Paragraphs and tables, each of them short."""
    title = None if check.baseline is None else as_code_span(check.baseline.title)
    return [
        f"## Cost check: {_result(check)}\n",
        *([] if title is None else [f"Against {title}.\n"]),
        *map(_bullet, _warnings(check.warnings)),
        *chain.from_iterable(map(_markdown_of, check.workloads)),
        f"\nCounted by dsocr-analyze {as_code_span(check.tool)}.",
    ]


def _markdown_of(workload: WorkloadCheck) -> list[str]:
    exceeded, changed = _exceeded(workload), _unbudgeted(workload)
    tables = [
        (
            f"{_TITLES[level]} that moved, largest first",
            _MOVED,
            _MOST_ROWS,
            [(_name(each), *_cells(each, with_part=True)) for each in workload.moves(level)],
        )
        for level in _levels(workload)
    ]
    return [
        f"\n### {as_code_span(workload.name)}: {_WORDS[workload.outcome]}\n",
        f"{as_code_span(workload.title)}\n",
        *([f"All {equal_text(workload)}.\n"] if _is_equal(workload) else []),
        *map(_bullet, _heads(workload)),
        *map(_bullet, _warnings(workload.warnings[:_MOST_FIGURES])),
        *map(_bullet, exceeded[:_MOST_FIGURES]),
        *_more(len(exceeded) - _MOST_FIGURES),
        *chain.from_iterable(_table(*each) for each in tables),
        *_table("Figures that changed without a budget", _CHANGED, _MOST_FIGURES, changed),
    ]


def _bullet(line: str) -> str:
    what, _, names = line.partition(": ")
    return f"- {what}: {as_code_span(names)}"


def _more(left: int) -> list[str]:
    return [f"\nAnd {left:,} more.\n"] if left > 0 else []


def _table(
    title: str, header: Sequence[str], most: int, rows: Sequence[Sequence[str]]
) -> list[str]:
    """A title, the first rows of a table and how many are left out; nothing if there are none."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = [header, rule, *(map(as_code_span, row) for row in rows[:most])]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return [f"\n{title}:\n", table, *_more(len(rows) - most)] if rows else []


# --- JUnit XML ---------------------------------------------------------------------------------


def check_junit(check: Check) -> str:
    """The check as CI systems show tests.

    One suite per workload, with one case per limit and one for all figures without a limit.
    """
    root = ET.Element("testsuites", name="dsocr-analyze check")
    for workload in check.workloads:
        cases = [_case(workload, each) for each in workload.verdicts]
        if _is_equal(workload):
            name = f"all {equal_text(workload)}"
            cases.append(_element("testcase", classname=workload.name, name=name))
        said = [*_heads(workload), *_warnings(workload.warnings)]
        root.append(_suite(workload.name, cases, said))
    if check.warnings:
        root.append(_suite("all workloads", [], _warnings(check.warnings)))
    for name, tag in (("tests", "testcase"), ("failures", "failure")):
        root.set(name, str(sum(1 for _ in root.iter(tag))))
    root.set("errors", "0")
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _suite(name: str, cases: Sequence[ET.Element], said: Sequence[str]) -> ET.Element:
    failures = sum(case.find("failure") is not None for case in cases)
    suite = _element(
        "testsuite", name=name, tests=str(len(cases)), failures=str(failures), errors="0"
    )
    suite.extend(cases)
    if said:
        ET.SubElement(suite, "system-out").text = visible_lines("\n".join(said))
    return suite


def _case(workload: WorkloadCheck, verdict: Verdict) -> ET.Element:
    case = _element("testcase", classname=workload.name, name=f"{verdict.key}: {verdict.rule}")
    if verdict.outcome == "failed":
        failure = ET.SubElement(case, "failure", message=visible_lines(verdict.message))
        failure.text = visible_lines(verdict.message)
    elif verdict.outcome == "warned":
        ET.SubElement(case, "system-out").text = visible_lines(f"warning: {verdict.message}")
    return case


def _element(tag: str, **attributes: str) -> ET.Element:
    return ET.Element(tag, {name: visible_lines(value) for name, value in attributes.items()})
