"""The module tree as text, a Mermaid flowchart and a Graphviz graph."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from dsocr_analyze.escaping import as_graphviz, as_mermaid, visible
from dsocr_analyze.module_tree import FoldedNode, TreeNode
from dsocr_analyze.report.layout import shortened, wrap
from dsocr_analyze.report.quantities import exact, scaled

__all__ = [
    "leaves_dot",
    "leaves_mermaid",
    "leaves_text",
    "tree_dot",
    "tree_mermaid",
    "tree_text",
]

_LEGEND = "params: at or below each module"
_TRACED_LEGEND = "; calls, FLOPs (of all calls) and shapes (of the first call): in one prefill pass"

_COLUMNS: Final = ("module", "stage", "params", "calls", "FLOPs", "input -> output")
_FLOPS: Final = 4
_NUMBERS: Final = (2, 3, _FLOPS)
_WANTED: Final = (0, 2, _FLOPS, 1, 3, 5)
"""Columns by priority: the last ones are left out first."""


def tree_text(root: FoldedNode, width: int | None = None) -> str:
    """An indented tree with columns for stage, parameters, calls, FLOPs and shapes.

    Args:
        root: The tree.
        width: Columns of the terminal; None for no limit. Columns that don't fit are left out and
            listed; FLOPs are rounded first.
    """
    is_traced = root.node.traced is not None
    names = _COLUMNS if is_traced else _COLUMNS[:3]
    rows = [list(names), *_text_rows(root, "", "", exact)]
    shown = _columns_that_fit(rows, width)
    if is_traced and _FLOPS not in shown:
        rows = [list(names), *_text_rows(root, "", "", scaled)]
        shown = _columns_that_fit(rows, width)
    room = None if width is None else width - sum(_width_of(rows, each) + 2 for each in shown[1:])
    legend = _LEGEND + (_TRACED_LEGEND if is_traced else "")
    left_out = [names[each] for each in _told(rows) if each not in shown]
    if left_out:
        legend += (
            f"\nleft out at {width} columns: {', '.join(left_out)}; a file and JSON have them all"
        )
    lines = _aligned([[row[each] for each in shown] for row in rows], shown, room)
    return "\n".join([*lines, "", *wrap(legend, width or len(legend))]) + "\n"


def _columns_that_fit(rows: list[list[str]], width: int | None) -> list[int]:
    """Indices of the columns that fit, in order; always includes the first."""
    shown: list[int] = []
    used = 0
    told = _told(rows)
    for column in (each for each in _WANTED if each in told):
        needed = _width_of(rows, column) + (2 if shown else 0)
        if width is None or not shown or used + needed <= width:
            shown.append(column)
            used += needed
    return sorted(shown)


def _told(rows: list[list[str]]) -> list[int]:
    """Indices of the columns that say something: without a stages file, no module has a stage."""
    return [each for each in range(len(rows[0])) if any(row[each] for row in rows[1:])]


def _width_of(rows: list[list[str]], column: int) -> int:
    return max(len(row[column]) for row in rows)


def _aligned(rows: list[list[str]], columns: list[int], room: int | None) -> list[str]:
    """Lines with these columns; the first column is at most `room` wide."""
    if room is not None:
        for row in rows:
            stem = re.match(r"[\u2500-\u257f ]*", row[0])
            lead = "" if stem is None else stem[0]
            row[0] = lead + shortened(row[0].removeprefix(lead), max(room - len(lead), 1))
    widths = [_width_of(rows, each) for each in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if column in _NUMBERS else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in rows
    ]


def _text_rows(
    folded: FoldedNode, lead: str, below: str, flops_text: Callable[[int], str]
) -> Iterator[list[str]]:
    node = folded.node
    title = f"{folded.label}: {node.class_name}" if folded.label else node.class_name
    row = [lead + title, node.stage or "", f"{node.params:,}"]
    if node.same_as is not None:
        row[0] += f" (= {node.same_as})"
    if node.traced is not None:
        row += [exact(node.traced.calls), flops_text(node.traced.flops), _shapes_text(node)]
    yield [visible(cell) for cell in row]
    for index, child in enumerate(folded.children):
        is_last = index == len(folded.children) - 1
        yield from _text_rows(
            child,
            below + ("└─ " if is_last else "├─ "),
            below + ("   " if is_last else "│  "),
            flops_text,
        )


def _shapes_text(node: TreeNode) -> str:
    if node.traced is None or not node.traced.calls:
        return ""
    return f"{_shape(node.traced.inputs)} -> {_shape(node.traced.outputs)}"


def _shape(shape: Any) -> str:
    """Shapes as JSON; anything deeper than a list of tensors, such as a KV cache, is `...`."""
    if shape is None:
        return "-"
    return json.dumps(_flat(shape)).replace('"..."', "...")


def _flat(shape: Any, depth: int = 0) -> Any:
    if isinstance(shape, list | tuple):
        nested = any(isinstance(item, list | tuple) for item in shape)
        return "..." if nested and depth else [_flat(item, depth + 1) for item in shape]
    return shape


def tree_mermaid(root: FoldedNode) -> str:
    """A Mermaid flowchart from left to right, one box per node."""
    lines = ["flowchart LR"]
    _add_boxes(root, None, lines, [0])
    return "\n".join(lines) + "\n"


def _add_boxes(
    folded: FoldedNode, parent: str | None, lines: list[str], numbers: list[int]
) -> None:
    name = f"n{numbers[0]}"
    numbers[0] += 1
    label = "<br/>".join(map(as_mermaid, _box_lines(folded)))
    lines.append(f'  {name}["{label}"]')
    if parent is not None:
        lines.append(f"  {parent} --> {name}")
    for child in folded.children:
        _add_boxes(child, name, lines, numbers)


def _box_lines(folded: FoldedNode) -> list[str]:
    node = folded.node
    lines = [folded.label, node.class_name] if folded.label else [node.class_name]
    lines.append(f"{node.params:,} params")
    if node.traced is not None:
        lines.append(f"{node.traced.flops:,} FLOPs")
    return lines


def tree_dot(root: FoldedNode) -> str:
    """A Graphviz graph from left to right, one box per node."""
    lines = ["digraph model {", "  rankdir=LR;", "  node [shape=box];"]
    _add_dot_boxes(root, None, lines, [0])
    return "\n".join([*lines, "}"]) + "\n"


def _add_dot_boxes(
    folded: FoldedNode, parent: str | None, lines: list[str], numbers: list[int]
) -> None:
    name = f"n{numbers[0]}"
    numbers[0] += 1
    lines.append(f"  {name} [label={_dot_text(_box_lines(folded))}];")
    if parent is not None:
        lines.append(f"  {parent} -> {name};")
    for child in folded.children:
        _add_dot_boxes(child, name, lines, numbers)


def _dot_text(parts: list[str]) -> str:
    return '"' + "\\n".join(map(as_graphviz, parts)) + '"'


# --- leaves ----------------------------------------------------------------------------------

Leaves = Mapping[str, Mapping[str, int]]


def leaves_text(leaves: Leaves, width: int | None = None) -> str:
    """One line per stage and class.

    Args:
        leaves: Number of modules of each class, by stage.
        width: Columns of the terminal; None for no limit.
    """
    rows = [["stage", "leaf class", "modules"]]
    rows += [
        [visible(stage), visible(name), f"{count:,}"]
        for stage, found in leaves.items()
        for name, count in found.items()
    ]
    if width is not None:
        room = width - _width_of(rows, 0) - _width_of(rows, 2) - 4
        rows = [[stage, shortened(name, max(room, 1)), count] for stage, name, count in rows]
    return "".join(f"{line}\n" for line in _aligned(rows, [0, 1, 2], None))


def leaves_mermaid(leaves: Leaves) -> str:
    """A Mermaid flowchart from each stage to its leaf classes."""
    lines = ["flowchart LR"]
    for number, (stage, found) in enumerate(leaves.items()):
        lines.append(f'  s{number}["{as_mermaid(stage)}"]')
        for index, (name, count) in enumerate(found.items()):
            lines.append(f'  s{number} --> s{number}c{index}["{as_mermaid(name)}<br/>x {count:,}"]')
    return "\n".join(lines) + "\n"


def leaves_dot(leaves: Leaves) -> str:
    """A Graphviz graph from each stage to its leaf classes."""
    lines = ["digraph leaves {", "  rankdir=LR;", "  node [shape=box];"]
    for number, (stage, found) in enumerate(leaves.items()):
        lines.append(f"  s{number} [label={_dot_text([stage])}];")
        for index, (name, count) in enumerate(found.items()):
            box = f"s{number}c{index}"
            lines.append(f"  {box} [label={_dot_text([name, f'x {count:,}'])}];")
            lines.append(f"  s{number} -> {box};")
    return "\n".join([*lines, "}"]) + "\n"
