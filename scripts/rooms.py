#!/usr/bin/env python3
"""Draws the rooms of `src/dsocr_analyze` in CONTRIBUTING.md.

`ROOMS` is the only list of them; tests/test_architecture.py holds every import to its order.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

__all__ = ["ROOMS", "drawn", "nodes_by_kind", "nodes_in", "parsed", "room_imports"]

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "dsocr_analyze"
DOCUMENT: Final = ROOT / "CONTRIBUTING.md"
BLOCK: Final = re.compile(r"(<!-- rooms -->\n).*?(<!-- end of rooms -->)", re.DOTALL)

Node = TypeVar("Node", bound=ast.AST)

FOUNDATIONS: Final[tuple[tuple[str, ...], ...]] = (
    ("interruption", "forking"),
    ("errors", "escaping"),
    ("input_files", "output_files"),
    ("package_data", "toml_table", "extras"),
    ("version",),
    ("kernels",),
)
"""The rooms that any other may use; the diagram leaves them out."""

ROOMS: Final = (
    *FOUNDATIONS,
    ("workload",),
    ("row_files",),
    ("figures",),
    ("tape",),
    ("architectures",),
    ("model",),
    ("module_tree",),
    ("trace",),
    ("agreement", "analytic"),
    ("hardware",),
    ("timing",),
    ("measuring",),
    ("report",),
    ("pictures",),
    ("archive", "gate"),
    ("session", "counting"),
    ("traced_forms",),
    ("analysis",),
    ("documents",),
    ("cli",),
    ("predictions",),
)
"""In the direction of data: a room may import those before it, and none that stands beside it."""


@functools.cache
def parsed(file: Path) -> ast.Module:
    """A file's code."""
    return ast.parse(file.read_text(encoding="utf-8"))


def nodes_in(code: ast.Module, kind: type[Node]) -> list[Node]:
    """Every node of a kind in a file's code."""
    return [node for node in nodes_by_kind(code)[kind] if isinstance(node, kind)]


@functools.cache
def nodes_by_kind(code: ast.Module) -> Mapping[type[ast.AST], Sequence[ast.AST]]:
    """Every node of a file's code, by its type."""
    found: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    for node in ast.walk(code):
        found[type(node)].append(node)
    return found


def files_of(room: str) -> list[Path]:
    """A room's Python files, its own first; of `architectures`, without the reference networks."""
    file = PACKAGE / f"{room}.py"
    if file.is_file():
        return [file]
    own = PACKAGE / room / "__init__.py"
    others = (each for each in sorted((PACKAGE / room).rglob("*.py")) if each != own)
    return [own, *(each for each in others if "reference" not in each.parts)]


def purpose_of(room: str) -> str:
    """What a room is for: the first line of its docstring."""
    text = ast.get_docstring(parsed(files_of(room)[0]))
    if not text:
        raise SystemExit(f"the room {room} has no docstring; say in one line what it is for")
    return text.splitlines()[0]


@functools.cache
def room_imports() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    rooms = [*itertools.chain(*ROOMS)]
    return {room: {*_imports_of(room)} & {*rooms} - {room} for room in rooms}


def _imports_of(room: str) -> Iterator[str]:
    for file in files_of(room):
        for node in nodes_in(parsed(file), ast.ImportFrom):
            if node.module == PACKAGE.name:
                yield from (alias.name for alias in node.names)
            elif node.module:
                yield node.module.removeprefix(f"{PACKAGE.name}.").split(".")[0]


def shortest(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same imports, less those that also lead by way of another room."""

    @functools.cache
    def reached(room: str) -> set[str]:
        return imports[room].union(*map(reached, imports[room]))

    return {room: found.difference(*map(reached, found)) for room, found in imports.items()}


def drawn() -> str:
    """The diagram and the table of the rooms, in Markdown."""
    imports = shortest(room_imports())
    hidden = {*itertools.chain(*FOUNDATIONS)}
    arrows = [
        f"  {source} --> {room}"
        for room in itertools.chain(*ROOMS)
        for source in itertools.chain(*ROOMS)
        if source in imports[room] - hidden
    ]
    rows = [f"| `{room}` | {purpose_of(room)} |" for room in itertools.chain(*ROOMS)]
    diagram = ["```mermaid", "flowchart TD", *arrows, "```"]
    return "\n".join([*diagram, "", "| room | what it is for |", "| --- | --- |", *rows, ""])


def main() -> None:
    """Draws the rooms again."""
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(BLOCK.sub(lambda found: found[1] + drawn() + found[2], text), "utf-8")


if __name__ == "__main__":
    main()
