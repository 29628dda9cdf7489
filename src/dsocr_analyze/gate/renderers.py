"""A check as text for a terminal, as Markdown, and as JUnit XML.

Names may be strangers': Markdown has all but fixed words and small numbers in code spans, so that
nothing becomes a link, a mention or HTML.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

from dsocr_analyze.escaping import as_code_span, visible, visible_lines
from dsocr_analyze.gate.compared import Amounts, InputChange, InputKind, Move, MoveLevel
from dsocr_analyze.gate.judge import Check, Outcome, Verdict, WorkloadCheck
from dsocr_analyze.report.table import Line, bytes_text, counted, scaled

_LEFT_OUT: Final = "\nThe rest is left out here; the check's JSON has all of it.\n"


class ReadableCheck(NamedTuple):
    """A check for readers."""

    check: Check

    def lines(self, width: int) -> Iterator[Line]:
        """Lines for a terminal, changed inputs and the largest moves first."""
        check = self.check
        against = "" if check.baseline is None else f" against {check.baseline.title}"
        workloads = counted(len(check.workloads), "workload")
        lines = [
            *_wrapped([f"{_result(check)}: check of {workloads}{against}"], width),
            *_wrapped(_warnings(check.warnings), width, "  "),
            *(line for each in check.workloads for line in _text_of(each, width)),
        ]
        yield from map(Line, map(visible, lines))

    def markdown(self, limit: int = 65_536) -> str:
        """Markdown in fewer than `limit` bytes, with a note if it isn't all.

        GitHub's comments have at most as many characters as the default.
        """
        blocks = [
            f"## Cost check: {_result(self.check)}\n",
            *([f"Against {as_code_span(self.check.baseline.title)}.\n"]
              if self.check.baseline else []),
            *map(_bullet, _warnings(self.check.warnings)),
            *(block for each in self.check.workloads for block in _markdown_of(each)),
            f"\nCounted by dsocr-analyze {as_code_span(self.check.tool)}.",
        ]  # fmt: skip
        text, room = "", limit - len(_LEFT_OUT) - 1
        for block in blocks if room >= 0 else ():
            room -= len(block.encode()) + 1
            if room < 0:
                return text + _LEFT_OUT
            text += block + "\n"
        return text

    def junit(self) -> str:
        """JUnit XML: a suite per workload, a case per limit."""
        suites = map(_suite_of, self.check.workloads)
        root = _element("testsuites", "", suites, name="dsocr-analyze check")
        if self.check.warnings:
            root.append(_suite("all workloads", [], _warnings(self.check.warnings)))
        for each in (root, *root):
            for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
                each.set(name, str(len(each.findall(f".//{tag}"))))
        ET.indent(root)
        body = ET.tostring(root, encoding="unicode")
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


_MOST_INPUTS: Final = 12
"""Most changes of one kind listed first."""

_LONGEST_VALUE: Final = 100
"""Most characters shown of a changed value."""

_MANIFOLD: Final = 10

_WORDS: Final[dict[Outcome, str]] = {
    "passed": "passed",
    "warned": "passed with warnings",
    "failed": "FAILED",
}


# --- wording -----------------------------------------------------------------------------------


def _result(check: Check) -> str:
    """`FAILED (2 errors)`."""
    counts = [
        counted(count, name)
        for name, count in (("error", check.count("failed")), ("warning", check.count("warned")))
        if count
    ]
    return f"{_WORDS[check.outcome]} ({', '.join(counts)})".removesuffix(" ()")


def workload_summary(workload: WorkloadCheck) -> str:
    """A workload's result in one line."""
    limits = [each.limit for each in workload.failures("passed") if each.rule != "baseline"]
    unknown = limits.count(None)  # a change without a baseline
    equal, changed = _equal_text(workload), len(workload.changed) + workload.following
    some = f"{changed:,} of {workload.unchanged + changed:,} figures changed"
    said = [
        f"all {equal}" if equal else some if workload.changed else "",
        f"{counted(kept, 'limit')} kept" if (kept := len(limits) - unknown) else "",
        f"{counted(unknown, 'limit')} unchecked without a baseline" if unknown else "",
    ]
    opening = f"{workload.name}: {_WORDS[workload.outcome]}; "
    return (opening + ", ".join(filter(None, said))).removesuffix("; ")


def _equal_text(workload: WorkloadCheck) -> str:
    """How many figures equal the baseline's; empty unless all do."""
    is_equal = workload.is_compared and not workload.changed
    return f"{workload.unchanged:,} figures equal the baseline's" if is_equal else ""


def _heads(workload: WorkloadCheck) -> list[str]:
    """Changed inputs, then the largest moves."""
    largest = [move for level in _levels(workload) for move in workload.moves(level)[:1]]
    return [
        *_changed("changed", workload, {"config", "code", "workload", "setting"}),
        *(f"moved most, {move.level}: {_named(move)}" for move in largest),
        *_changed("changed", workload, {"report"}),
        *_changed("budget changed", workload, {"budget"}),
    ]


def _changed(label: str, workload: WorkloadCheck, kinds: set[InputKind]) -> list[str]:
    changes = [_input_text(each) for each in workload.inputs if each.kind in kinds]
    more = [f"{len(changes) - _MOST_INPUTS} more"] if len(changes) > _MOST_INPUTS else []
    return [f"{label}: {each}" for each in (*changes[:_MOST_INPUTS], *more)]


def _input_text(change: InputChange) -> str:
    """`language_config.num_experts_per_tok: 6 -> 64`."""
    before, after = (
        "(absent)" if each is None
        else f"{each[:_LONGEST_VALUE]}..." if len(each) > _LONGEST_VALUE
        else each or "''"
        for each in (change.before, change.after)
    )  # fmt: skip
    where = "" if change.kind in ("config", "budget") else f"{change.kind} "
    return f"{where}{change.key}: {before} -> {after}"


def _levels(workload: WorkloadCheck) -> tuple[MoveLevel, ...]:
    """Kinds of operators show if bytes changed but no operator's FLOPs did."""
    return ("stage", "module", "operator" if workload.moves("operator") else "kind")


def _named(move: Move) -> str:
    amounts = (
        (_signed(move.flops), "FLOPs"),
        (_signed(move.bytes, is_bytes=True), "moved"),
        (_signed(move.params), "parameters"),
    )
    return f"{_name(move)}: {', '.join(f'{text} {what}' for text, what in amounts if text)}"


def _name(move: Move) -> str:
    """`prefill`, or `model.layers.*.mlp of prefill (12 modules)`."""
    if move.level == "stage":
        return move.name
    several = f" ({move.modules:,} modules)" if move.modules > 1 else ""
    return f"{move.name or 'the model itself'} of {move.stage}{several}"


def _cells(move: Move, *, with_part: bool) -> tuple[str, str, str]:
    return (
        _signed(move.flops, with_part=with_part) or "-",
        _signed(move.bytes, is_bytes=True, with_part=with_part) or "-",
        f"{100 * move.share:.3g} %",
    )


def _signed(amounts: Amounts | None, *, is_bytes: bool = False, with_part: bool = True) -> str:
    if amounts is None or not amounts.difference:
        return ""
    difference = amounts.difference
    text = bytes_text(abs(difference)) if is_bytes else scaled(abs(difference))
    part = f" ({_part_text(difference, amounts.before)})" if with_part else ""
    return f"{'-' if difference < 0 else '+'}{text}{part}"


def _part_text(difference: int | float, before: int | float) -> str:
    """`+2.5 %`, or `12.5 x` from ten times on."""
    if not before:
        return "new"
    part = difference / before
    return f"{1 + part:,.1f} x" if part >= _MANIFOLD else f"{100 * part:+.3g} %"


def _warnings(warnings: Iterable[str]) -> list[str]:
    return [f"warning: {each}" for each in warnings]


def _exceeded(workload: WorkloadCheck) -> list[str]:
    return [
        f"{'error' if each.outcome == 'failed' else 'warning'}: {each.message}"
        for each in workload.verdicts
        if each.outcome != "passed" and each.rule != "baseline"
    ]


def _unbudgeted(workload: WorkloadCheck) -> list[tuple[str, str, str, str]]:
    """Figures that differ without a budget, largest change first: cells of a row."""
    found: list[tuple[float, tuple[str, str, str, str]]] = []
    for each in workload.failures("failed"):
        if each.rule == "baseline":
            before, after = each.baseline or 0, each.value
            old, new = ("-" if it is None else f"{it:,}" for it in (each.baseline, after))
            change = "gone" if after is None else _part_text(after - before, before)
            part = float("inf") if not before or after is None else abs(after - before) / before
            found.append((-part, (each.key, old, new, change)))
    return [cells for _, cells in sorted(found, key=lambda each: each[0])]


# --- text --------------------------------------------------------------------------------------

_MOST_MOVES: Final = 6
_MOST_LINES: Final = 20
_AMOUNT: Final = re.compile(r"(?<=\d) (?=[kMGTPEZYx%]|B\b)")
_KEPT_SPACE: Final = "\u00a0"


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
        *_section(
            _aligned(("FLOPs", "bytes", "of batch", "what moved, largest first"), moved, width),
            sum(map(len, moves)) - len(moved),
        ),
        *_section(_wrapped(exceeded[:_MOST_LINES], width, "  "), len(exceeded) - _MOST_LINES),
        *_section(
            _aligned(("before", "after", "change", "figure"), figures, width),
            len(changed) - _MOST_LINES,
            "  figures that changed without a budget:",
        ),
    ]


def _section(lines: Sequence[str], left: int, *title: str) -> list[str]:
    more = [f"  and {left} more; the JSON has them all"] if left > 0 else []
    return ["", *title, *lines, *more] if lines else []


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows of right-aligned numbers and a name that wraps."""
    lines = []
    *columns, _ = (max(map(len, cells)) for cells in zip(header, *rows, strict=True))
    for *numbers, name in (header, *rows) if rows else ():
        start = f"  {'  '.join(map(str.rjust, numbers, columns))}  "
        first, *rest = _pieces(name, max(width - len(start), 20))
        lines += [f"{start}{first}", *(f"{' ' * len(start)}{each}" for each in rest)]
    return lines


def _pieces(name: str, room: int) -> list[str]:
    """A name in pieces, broken at spaces and before dots."""
    piece = rf" *(.{{1,{room}}}(?=[. ]|\Z)|.{{1,{room}}})"
    return [each.rstrip() for each in re.findall(piece, name, re.DOTALL)]


def _wrapped(lines: Iterable[str], width: int, start: str = "") -> list[str]:
    """Names are not broken, numbers stay with their units."""
    found: list[str] = []
    for line in (f"{start}{each}" for each in lines):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        found += textwrap.wrap(
            _AMOUNT.sub(_KEPT_SPACE, line), width, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return [each.replace(_KEPT_SPACE, " ") for each in found]


# --- Markdown ----------------------------------------------------------------------------------

_TITLES: Final = {
    "stage": "Stages",
    "module": "Modules (their own work)",
    "operator": "Operators",
    "kind": "Kinds of operators",
}
_MOST_ROWS: Final = 10
_MOST_FIGURES: Final = 50


def _markdown_of(workload: WorkloadCheck) -> list[str]:
    exceeded, changed = _exceeded(workload), _unbudgeted(workload)
    tables = [
        (
            f"{_TITLES[level]} that moved, largest first",
            ("what moved", "FLOPs", "bytes", "of the batch"),
            _MOST_ROWS,
            [(_name(each), *_cells(each, with_part=True)) for each in workload.moves(level)],
        )
        for level in _levels(workload)
    ]
    return [
        f"\n### {as_code_span(workload.name)}: {_WORDS[workload.outcome]}\n",
        f"{as_code_span(workload.title)}\n",
        *([f"All {equal}.\n"] if (equal := _equal_text(workload)) else []),
        *map(_bullet, _heads(workload)),
        *map(_bullet, _warnings(workload.warnings[:_MOST_FIGURES])),
        *map(_bullet, exceeded[:_MOST_FIGURES]),
        *_more(len(exceeded) - _MOST_FIGURES),
        *(line for table in tables for line in _table(*table)),
        *_table(
            "Figures that changed without a budget",
            ("figure", "before", "after", "change"),
            _MOST_FIGURES,
            changed,
        ),
    ]


def _bullet(line: str) -> str:
    what, _, names = line.partition(": ")
    return f"- {what}: {as_code_span(names)}"


def _more(left: int) -> list[str]:
    return [f"\nAnd {left:,} more.\n"] if left > 0 else []


def _table(
    title: str, header: Sequence[str], most: int, rows: Sequence[Sequence[str]]
) -> list[str]:
    lines = [
        header,
        ["---", *["---:"] * (len(header) - 1)],
        *(map(as_code_span, row) for row in rows[:most]),
    ]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return [f"\n{title}:\n", table, *_more(len(rows) - most)] if rows else []


# --- JUnit XML ---------------------------------------------------------------------------------


def _suite_of(workload: WorkloadCheck) -> ET.Element:
    equal = _equal_text(workload)
    cases = [
        *(_case(workload, each) for each in workload.verdicts),
        *([_element("testcase", classname=workload.name, name=f"all {equal}")] if equal else []),
    ]
    return _suite(workload.name, cases, [*_heads(workload), *_warnings(workload.warnings)])


def _suite(name: str, cases: Sequence[ET.Element], said: Sequence[str]) -> ET.Element:
    output = [_element("system-out", "\n".join(said))] if said else []
    return _element("testsuite", "", [*cases, *output], name=name)


def _case(workload: WorkloadCheck, verdict: Verdict) -> ET.Element:
    message = verdict.message
    said = {
        "passed": [],
        "warned": [_element("system-out", f"warning: {message}")],
        "failed": [_element("failure", message, message=message)],
    }
    return _element(
        "testcase", "", said[verdict.outcome], classname=workload.name,
        name=f"{verdict.key}: {verdict.rule}",
    )  # fmt: skip


def _element(
    tag: str, text: str = "", children: Iterable[ET.Element] = (), **attributes: str
) -> ET.Element:
    element = ET.Element(tag, {name: visible_lines(value) for name, value in attributes.items()})
    element.text = visible_lines(text)
    element.extend(children)
    return element
