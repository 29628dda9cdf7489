"""A check for the terminal: changed inputs and largest moves first; numbers are never broken."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from dsocr_analyze.gate.document import Check, Move, WorkloadCheck
from dsocr_analyze.gate.wording import (
    change_cells,
    heads,
    levels_of,
    move_name,
    shown_verdicts,
    signed,
    summary,
    unbudgeted,
    workload_summary,
)

__all__ = ["text_lines"]

_MOST_MOVES: Final = 6
_MOST_LINES: Final = 20
_AMOUNT: Final = re.compile(r"(?<=\d) (?=[kMGTPEZYx%]|B\b)")
_KEPT_SPACE: Final = "\u00a0"


def text_lines(check: Check, width: int) -> Iterator[str]:
    """The lines of a check, at most `width` columns wide unless a single name is wider."""
    yield from _wrapped(f"check: {summary(check)}", width)
    for warning in check.warnings:
        yield from _wrapped(f"  warning: {warning}", width)
    for workload in check.workloads:
        yield from _workload(workload, width)


def _workload(workload: WorkloadCheck, width: int) -> Iterator[str]:
    yield from _wrapped(workload_summary(workload), width)
    for line in heads(workload):
        yield from _wrapped(f"  {line}", width)
    for warning in workload.warnings:
        yield from _wrapped(f"  warning: {warning}", width)
    if workload.moved:
        yield ""
        yield from _moves(workload, width)
    found = shown_verdicts(workload)
    if found:
        yield ""
    for verdict in found[:_MOST_LINES]:
        word = "error" if verdict.outcome == "failed" else "warning"
        yield from _wrapped(f"  {word}: {verdict.message}", width)
    yield from _more(len(found))
    changed = [change_cells(each) for each in unbudgeted(workload)]
    if changed:
        yield ""
        yield "  figures that changed without a budget:"
        yield from _aligned([each[1:] + each[:1] for each in changed[:_MOST_LINES]],
                            ("before", "after", "change", "figure"), width)  # fmt: skip
        yield from _more(len(changed))


def _more(count: int) -> Iterator[str]:
    if count > _MOST_LINES:
        yield f"  and {count - _MOST_LINES} more; the JSON has them all"


def _moves(workload: WorkloadCheck, width: int) -> Iterator[str]:
    rows = [
        (*_cells(move), f"{move.level} {move_name(move)}")
        for level in levels_of(workload)
        for move in workload.moves(level)[:_MOST_MOVES]
    ]
    yield from _aligned(rows, ("FLOPs", "bytes", "of batch", "what moved, largest first"), width)
    left = sum(max(len(workload.moves(level)) - _MOST_MOVES, 0) for level in levels_of(workload))
    if left:
        yield f"  and {left} more; the JSON has them all"


def _cells(move: Move) -> tuple[str, str, str]:
    nbytes = "" if move.bytes is None else signed(move.bytes, is_bytes=True, with_part=False)
    flops = signed(move.flops, with_part=False)
    return flops or "-", nbytes or "-", f"{100 * move.share:.3g} %"


def _aligned(rows: Sequence[tuple[str, ...]], header: tuple[str, ...], width: int) -> Iterator[str]:
    """Rows under a header: right-aligned numbers, then a name that wraps within its column."""
    lines = [header, *rows]
    columns = [max(len(line[index]) for line in lines) for index in range(len(header) - 1)]
    indent = " " * (2 + sum(columns) + 2 * len(columns))
    for line in lines:
        numbers = "  ".join(
            cell.rjust(column) for cell, column in zip(line[:-1], columns, strict=True)
        )
        yield from _named(f"  {numbers}  ", line[-1], indent, width)


def _named(start: str, name: str, indent: str, width: int) -> Iterator[str]:
    room = max(width - len(start), 20)
    parts = _pieces(name, room)
    yield f"{start}{parts[0]}"
    for part in parts[1:]:
        yield f"{indent}{part}"


def _pieces(name: str, room: int) -> list[str]:
    """A name in pieces of at most `room` characters, broken at spaces and before dots."""
    pieces, rest = [], name
    while len(rest) > room:
        cut = max(rest.rfind(".", 1, room + 1), rest.rfind(" ", 1, room + 1))
        cut = cut if cut > 0 else room
        pieces.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip(" ")
    return [*pieces, rest]


def _wrapped(line: str, width: int) -> list[str]:
    """A line, wrapped; names are not broken, and numbers stay with their units."""
    indent = " " * (len(line) - len(line.lstrip()))
    lines = textwrap.wrap(
        _AMOUNT.sub(_KEPT_SPACE, line), width, subsequent_indent=indent + "  ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [each.replace(_KEPT_SPACE, " ") for each in lines]
