"""The module tree as text, a Mermaid flowchart and a Graphviz graph."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dsocr_analyze.escaping import as_graphviz, as_mermaid, visible
from dsocr_analyze.module_tree import FoldedNode, TreeNode

__all__ = [
    "leaves_dot",
    "leaves_mermaid",
    "leaves_text",
    "tree_dot",
    "tree_mermaid",
    "tree_text",
]

_LEGEND = "params: of each one, what is below included"
_TRACED_LEGEND = "; calls, FLOPs (of all calls) and shapes (of the first): of one prefill pass"


def tree_text(root: FoldedNode) -> str:
    """An indented tree with a column each for stage, parameters, calls, FLOPs and shapes."""
    rows = [[visible(cell) for cell in row] for row in _text_rows(root, "", "")]
    is_traced = root.node.traced is not None
    header = ["module", "stage", "params"]
    if is_traced:
        header += ["calls", "FLOPs", "input -> output"]
    rows.insert(0, header)
    rows = [row[: len(header)] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in (2, 3, 4) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([*lines, "", _LEGEND + (_TRACED_LEGEND if is_traced else "")]) + "\n"


def _text_rows(folded: FoldedNode, lead: str, below: str) -> Iterator[list[str]]:
    node = folded.node
    title = f"{folded.label}: {node.class_name}" if folded.label else node.class_name
    row = [lead + title, node.stage or "", f"{node.params:,}"]
    if node.same_as is not None:
        row[0] += f" (= {node.same_as})"
    if node.traced is not None:
        row += [f"{node.traced.calls:,}", f"{node.traced.flops:,}", _shapes_text(node)]
    yield row
    for index, child in enumerate(folded.children):
        is_last = index == len(folded.children) - 1
        yield from _text_rows(
            child,
            below + ("└─ " if is_last else "├─ "),
            below + ("   " if is_last else "│  "),
        )


def _shapes_text(node: TreeNode) -> str:
    if node.traced is None or not node.traced.calls:
        return ""
    return f"{_shape(node.traced.inputs)} -> {_shape(node.traced.outputs)}"


def _shape(shape: Any) -> str:
    """Shapes as JSON; what lies deeper than a list of tensors, such as a KV cache, as `...`."""
    if shape is None:
        return "-"
    return json.dumps(_flat(shape)).replace('"..."', "...")


def _flat(shape: Any, depth: int = 0) -> Any:
    if isinstance(shape, list | tuple):
        nested = any(isinstance(item, list | tuple) for item in shape)
        return "..." if nested and depth else [_flat(item, depth + 1) for item in shape]
    return shape


def tree_mermaid(root: FoldedNode) -> str:
    """A Mermaid flowchart, a box a node, from the left to the right."""
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
    """A Graphviz graph, a box a node, from the left to the right."""
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


def leaves_text(leaves: Leaves) -> str:
    """A line a stage and class."""
    rows = [("stage", "leaf class", "modules")]
    rows += [
        (visible(stage), visible(name), f"{count:,}")
        for stage, found in leaves.items()
        for name, count in found.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "".join(
        f"{stage.ljust(widths[0])}  {name.ljust(widths[1])}  {count.rjust(widths[2])}\n"
        for stage, name, count in rows
    )


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
