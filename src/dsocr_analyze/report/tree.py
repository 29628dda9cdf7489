"""A model's modules and leaves as JSON, text and graphs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec import UNSET, UnsetType

from dsocr_analyze.escaping import as_graphviz, as_mermaid, visible
from dsocr_analyze.figures import Count, Model
from dsocr_analyze.module_tree import NestedShapes, TreeModule, TreeNode, fold
from dsocr_analyze.report.opening import (
    SCHEMA_VERSION,
    ModelOpening,
    Options,
    Workload,
    model_text,
    workload_document,
)
from dsocr_analyze.report.table import Line, exact, scaled, shortened, wrap
from dsocr_analyze.workload import AnyWorkload

Leaves = Mapping[str, Mapping[str, int]]
"""Modules of each class, by stage."""

_LEGEND = "params: at or below each module"
_TRACED_LEGEND = "; calls, FLOPs (of all calls) and shapes (of the first call): in one prefill pass"

_COLUMNS: Final = ("module", "stage", "params", "calls", "FLOPs", "input -> output")
_FLOPS: Final = 4
_NUMBERS: Final = (2, 3, _FLOPS)
_WANTED: Final = (0, 2, _FLOPS, 1, 3, 5)
"""The columns, most important first."""

_BRANCHES: Final = " " + "".join(map(chr, range(0x2500, 0x2580)))


class TreeDocument(ModelOpening, frozen=True, kw_only=True):
    """The modules of a model.

    Attributes:
        workload: The page that was traced; null without one.
        modules: One entry per module, parents first.
    """

    workload: Workload | None
    modules: tuple[TreeModule, ...]


class LeavesDocument(ModelOpening, frozen=True, kw_only=True):
    """The leaf classes of a model.

    Attributes:
        stages: Leaves of each class, by stage.
    """

    stages: Mapping[str, Mapping[str, Count]]


def tree_document(
    model: Model,
    shown: Leaves | TreeNode,
    *,
    stage: str | None,
    workload: AnyWorkload | None,
    options: Options,
) -> LeavesDocument | TreeDocument:
    """The document of a model's modules or leaf classes; `stage` is the only one included."""
    if not isinstance(shown, TreeNode):
        return LeavesDocument(
            schema_version=SCHEMA_VERSION,
            command="tree",
            options=options,
            model=model,
            stages=shown,
        )
    return TreeDocument(
        schema_version=SCHEMA_VERSION,
        command="tree",
        options=options,
        model=model,
        workload=None if workload is None else workload_document(workload),
        modules=tuple(node.module for node in shown.walk() if stage in (None, node.module.stage)),
    )


def drawing(
    model: Model, modules: Leaves | TreeNode, how: str, *, is_folded: bool = True
) -> Drawing:
    """A model's modules, folded or not, or its leaf classes; `how` says how it was built."""
    shown = fold(modules) if is_folded and isinstance(modules, TreeNode) else modules
    return Drawing(f"Ran: {model_text(model)} {how}", shown)


class Drawing(NamedTuple):
    """Modules or leaf classes for a reader, and the first line on them."""

    opening: str
    shown: TreeNode | Leaves

    def lines(self, width: int | None) -> Iterator[Line]:
        """Lines for a terminal, of any length for None."""
        below = (
            _tree_lines(self.shown, width)
            if isinstance(self.shown, TreeNode)
            else _leaves_lines(self.shown, width)
        )
        yield from map(Line, [*wrap(self.opening, width or len(self.opening)), "", *below])

    def text(self) -> str:
        """The lines, of any length, as one text."""
        return "".join(f"{line.text}\n" for line in self.lines(None))

    def mermaid(self) -> str:
        """A Mermaid flowchart: one box per module, or per stage and class."""
        lines, is_tree = ["flowchart LR"], isinstance(self.shown, TreeNode)
        for name, texts, parent in self._boxes():
            box = f'{name}["{"<br/>".join(map(as_mermaid, texts))}"]'
            lines += [f"  {box}"] if parent is None or is_tree else []
            lines += [] if parent is None else [f"  {parent} --> {name if is_tree else box}"]
        return "\n".join(lines) + "\n"

    def dot(self) -> str:
        """A Graphviz graph of the same boxes."""
        title = "model" if isinstance(self.shown, TreeNode) else "leaves"
        lines = [f"digraph {title} {{", "  rankdir=LR;", "  node [shape=box];"]
        for name, texts, parent in self._boxes():
            label = "\\n".join(map(as_graphviz, texts))
            lines.append(f'  {name} [label="{label}"];')
            lines += [] if parent is None else [f"  {parent} -> {name};"]
        return "\n".join([*lines, "}"]) + "\n"

    def _boxes(self) -> Iterator[_Box]:
        return (
            _tree_boxes(self.shown, None, itertools.count())
            if isinstance(self.shown, TreeNode)
            else _leaves_boxes(self.shown)
        )


# --- graphs ----------------------------------------------------------------------------------


_Box: TypeAlias = tuple[str, Sequence[str], str | None]
"""A box's name and texts, and the box above it."""


def _tree_boxes(node: TreeNode, parent: str | None, numbers: Iterator[int]) -> Iterator[_Box]:
    name, module = f"n{next(numbers)}", node.module
    lines = [*filter(None, [node.label]), module.class_name, f"{module.params:,} params"]
    lines += [] if module.flops is UNSET else [f"{module.flops:,} FLOPs"]
    yield name, lines, parent
    for child in node.children:
        yield from _tree_boxes(child, name, numbers)


def _leaves_boxes(leaves: Leaves) -> Iterator[_Box]:
    for number, (stage, found) in enumerate(leaves.items()):
        yield f"s{number}", [stage], None
        for index, (name, count) in enumerate(found.items()):
            yield f"s{number}c{index}", [name, f"x {count:,}"], f"s{number}"


# --- text ------------------------------------------------------------------------------------


def _tree_lines(root: TreeNode, width: int | None) -> list[str]:
    """The tree with the columns that fit, if need be with rounded FLOPs."""
    is_traced = root.module.calls is not UNSET
    names = _COLUMNS if is_traced else _COLUMNS[:3]
    rows = [list(names), *_text_rows(root, "", "", exact)]
    # Without a stages file, no module has a stage.
    told = [each for each in range(len(names)) if any(row[each] for row in rows[1:])]
    shown = _columns_that_fit(rows, told, width)
    if is_traced and _FLOPS not in shown:
        rows = [list(names), *_text_rows(root, "", "", scaled)]
        shown = _columns_that_fit(rows, told, width)
    if width is not None:
        room = width - sum(_width_of(rows, each) + 2 for each in shown[1:])
        rows = [[_narrowed(first, room), *others] for first, *others in rows]
    legend = _LEGEND + (_TRACED_LEGEND if is_traced else "")
    if left_out := ", ".join(names[each] for each in told if each not in shown):
        legend += f"\nleft out at {width} columns: {left_out}; a file and JSON have them all"
    lines = _aligned([[row[each] for each in shown] for row in rows], shown)
    return [*lines, "", *wrap(legend, width or len(legend))]


def _columns_that_fit(rows: list[list[str]], told: list[int], width: int | None) -> list[int]:
    shown: list[int] = []
    used = -2
    for column in (each for each in _WANTED if each in told):
        needed = _width_of(rows, column) + 2
        if width is None or not shown or used + needed <= width:
            shown.append(column)
            used += needed
    return sorted(shown)


def _width_of(rows: list[list[str]], column: int) -> int:
    return max(len(row[column]) for row in rows)


def _narrowed(branch: str, room: int) -> str:
    name = branch.lstrip(_BRANCHES)
    lead = branch[: len(branch) - len(name)]
    return lead + shortened(name, max(room - len(lead), 1))


def _aligned(rows: list[list[str]], columns: Sequence[int]) -> list[str]:
    widths = [_width_of(rows, each) for each in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if column in _NUMBERS else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in rows
    ]


def _text_rows(
    node: TreeNode, lead: str, below: str, flops_text: Callable[[int], str]
) -> Iterator[list[str]]:
    module = node.module
    title = f"{node.label}: {module.class_name}" if node.label else module.class_name
    same = f" (= {module.same_as})" if module.same_as else ""
    row = [f"{lead}{title}{same}", module.stage or "", exact(module.params)]
    if module.calls is not UNSET:
        shapes = f"{_shape(module.input)} -> {_shape(module.output)}" if module.calls else ""
        row += [exact(module.calls), flops_text(module.flops or 0), shapes]
    yield [visible(cell) for cell in row]
    for child in node.children:
        is_last = child is node.children[-1]
        branch, beyond = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield from _text_rows(child, below + branch, below + beyond, flops_text)


def _shape(shapes: NestedShapes | UnsetType) -> str:
    """Shapes as JSON; `...` for more than tensors, such as a KV cache."""
    if not isinstance(shapes, list):
        return "-"
    flat = [
        "..." if isinstance(each, list) and any(isinstance(item, list) for item in each) else each
        for each in shapes
    ]
    return json.dumps(flat).replace('"..."', "...")


def _leaves_lines(leaves: Leaves, width: int | None) -> list[str]:
    rows = [
        ["stage", "leaf class", "modules"],
        *([visible(stage), visible(name), exact(count)]
          for stage, found in leaves.items() for name, count in found.items()),
    ]  # fmt: skip
    if width is not None:
        room = max(width - _width_of(rows, 0) - _width_of(rows, 2) - 4, 1)
        rows = [[stage, shortened(name, room), count] for stage, name, count in rows]
    return _aligned(rows, range(3))
