"""Places of a program that can be changed in a small way, and a choice of them by chance.

A mutation is one change of a file's text: an operator, a constant, a condition, a branch, a call,
an argument or a returned value. It is known by its file, its function, its kind and the text before
and after, so it stays the same where lines move.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

__all__ = ["Mutation", "chosen", "digest", "mutations_of"]

_OPERATORS = {"+": "-", "-": "+", "*": "//", "/": "*", "//": "*", "%": "*", "**": "*"}
SWAPS: Final = {
    **_OPERATORS, **{f"{old}=": f"{new}=" for old, new in _OPERATORS.items()},
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "in": "not in", "not in": "in", "is": "is not", "is not": "is", "and": "or", "or": "and",
}  # fmt: skip
"""What stands in an operator's place instead."""

NO_PLACES: Final = ("annotation", "decorator_list", "returns")
"""Parts of a node that say nothing about what the program does."""

GUARDS: Final = ("encoding", "strict")
"""Arguments against what does not happen here: another default encoding, lengths that differ."""

Edit = tuple[str, int, int, str]
"""A change: its kind, the first and last byte that it replaces, and by what."""


@dataclass(frozen=True)
class Mutation:
    """One small change; the first six fields are its name."""

    file: str  # within the package
    function: str  # the qualified name of the function or class around it, or ""
    kind: str
    before: str  # the lines that hold the place, with single spaces
    after: str
    number: int  # among changes of the same name, from 0
    edit: Edit = field(compare=False)
    lines: range = field(compare=False)  # of the statement or its head
    is_import: bool = field(compare=False)  # whether it runs when the file is imported

    @property
    def key(self) -> str:
        """A digest of its name."""
        name = (self.file, self.function, self.kind, self.before, self.after, str(self.number))
        return digest("\0".join(name).encode())

    @property
    def room(self) -> str:
        """The room of its file; the built-in reference networks are one of their own."""
        parts = Path(self.file).with_suffix("").parts
        return "reference networks" if "reference" in parts else parts[0]

    def applied(self, text: bytes) -> bytes:
        """The file's text with this change."""
        _, start, end, new = self.edit
        return text[:start] + new.encode() + text[end:]


def digest(content: bytes) -> str:
    """A short name for some content."""
    return hashlib.sha256(content).hexdigest()[:8]


class _Finder:
    """Walks a file's code and finds the places that can be changed."""

    def __init__(self, file: str, text: bytes) -> None:
        self.file, self.text = file, text
        self.starts = [0, *(found.end() for found in re.finditer(rb"\n", text))]
        self.found: list[Mutation] = []

    def walk(self, node: ast.AST, names: tuple[str, ...], lines: range, is_import: bool) -> None:
        if _says_nothing(node):
            return
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            after = body[0].lineno if body else (node.end_lineno or 0) + 1
            lines = range(node.lineno, max(after, node.lineno + 1))
        for edit in self.edits(node):
            name = (self.file, ".".join(names), edit[0], *self.shown(edit), 0)
            self.found.append(Mutation(*name, edit, lines, is_import))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = (*names, node.name)
        for part, value in ast.iter_fields(node):
            runs_later = part == "body" and isinstance(node, ast.FunctionDef)
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and part not in NO_PLACES:
                    self.walk(child, names, lines, is_import and not runs_later)

    def span(self, node: Any) -> tuple[int, int]:
        """First and last byte of a node."""
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def shown(self, edit: Edit) -> tuple[str, str]:
        """The lines around a change, before and after it."""
        _, start, end, new = edit
        first, last = self.text.rfind(b"\n", 0, start) + 1, self.text.find(b"\n", end)
        left, right = self.text[first:start], self.text[end : last if last >= 0 else None]
        before, after = left + self.text[start:end] + right, left + new.encode() + right
        return " ".join(before.decode().split()), " ".join(after.decode().split())

    def edits(self, node: ast.AST) -> Iterator[Edit]:
        """Every change that begins at a node."""
        match node:
            case ast.BinOp(left=left, right=right) if not _is_text(node):
                yield from self.swapped("arithmetic", left, right)
            case ast.AugAssign(target=left, value=right) if not _is_text(right):
                yield from self.swapped("arithmetic", left, right)
            case ast.Compare(left=left, comparators=[right]):
                yield from self.swapped("comparison", left, right)
            case ast.BoolOp(values=values):
                for left, right in pairwise(values):
                    yield from self.swapped("boolean", left, right)
            case ast.UnaryOp(op=ast.Not()):
                start, _ = self.span(node)
                word = re.match(rb"not\b\s*", self.text[start:])
                yield "condition", start, start + (word.end() if word else 0), ""
            case ast.Constant(value=bool(value)):
                yield "constant", *self.span(node), str(not value)
            case ast.Constant(value=int(value)):
                yield "constant", *self.span(node), str(value + 1)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield from self.negated(test)
                if isinstance(node, ast.If):
                    yield "branch", *self.span(test), "False"
            case ast.comprehension(ifs=conditions):
                for test in conditions:
                    yield from self.negated(test)
            case ast.Expr(value=ast.Call()):
                yield "call", *self.span(node), "pass"
            case ast.Call(keywords=keywords):
                for keyword in keywords:
                    if keyword.arg and keyword.arg not in GUARDS:
                        yield "argument", *self.with_comma(*self.span(keyword)), ""
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield "return", *self.span(value), "None"

    def swapped(self, kind: str, left: ast.AST, right: ast.AST) -> Iterator[Edit]:
        start, end = self.span(left)[1], self.span(right)[0]
        if found := re.fullmatch(rb"[\s)\\]*(.+?)[\s(\\]*", self.text[start:end], re.DOTALL):
            operator = " ".join(found[1].decode().split())
            if operator in SWAPS:  # and not, for instance, with a comment beside it
                yield kind, start + found.start(1), start + found.end(1), SWAPS[operator]

    def negated(self, test: ast.expr) -> Iterator[Edit]:
        match test:
            case ast.UnaryOp():
                return  # `not` is dropped
            case ast.Compare(ops=[operator, *_]):
                if not isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                    return  # the operator is swapped
        start, end = self.span(test)
        yield "condition", start, end, f"not ({self.text[start:end].decode()})"

    def with_comma(self, start: int, end: int) -> tuple[int, int]:
        """The span of an argument with the comma after it, or before it."""
        if found := re.match(rb"\s*,[^\S\n]*", self.text[end:]):
            return start, end + found.end()
        before = re.search(rb",?\s*$", self.text[:start])
        return (before.start() if before else start), end


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def _says_nothing(node: ast.AST) -> bool:
    """Whether a node is an error's text, a format, a list of names, or only for type checkers."""
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Subscript(value=ast.Name(id="Literal")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
    return False


def mutations_of(file: str, text: bytes) -> list[Mutation]:
    """Every mutation of a file, in the order of its text."""
    finder = _Finder(file, text)
    finder.walk(ast.parse(text), (), range(1), True)
    seen: Counter[str] = Counter()
    numbered = []
    for each in sorted(finder.found, key=lambda found: found.edit[1:]):
        numbered.append(replace(each, number=seen[each.key]))
        seen[each.key] += 1
    return numbered


def chosen(
    files: dict[str, bytes], count: int, seed: int, kept: Collection[Mutation] = ()
) -> list[Mutation]:
    """Mutations by chance, at least three per room and else as many as it has statements for.

    In a room every kind of change is equally likely. Their order goes round the rooms. Those that
    are kept from an earlier choice count, and are not among the new ones.
    """
    places: dict[str, dict[str, list[Mutation]]] = defaultdict(lambda: defaultdict(list))
    statements: Counter[str] = Counter()
    for file, text in sorted(files.items()):
        for each in (found := [each for each in mutations_of(file, text) if each not in kept]):
            places[each.room][each.kind].append(each)
        if found:
            nodes = ast.walk(ast.parse(text))
            statements[found[0].room] += sum(isinstance(node, ast.stmt) for node in nodes)
    taken: dict[str, list[Mutation]] = {room: [] for room in sorted(places)}

    kept_by_room = Counter(each.room for each in kept)

    def need(room: str) -> tuple[bool, float]:
        have = len(taken[room]) + kept_by_room[room]
        return have < 3, statements[room] / (have + 1)

    for number in range(len(kept), count):
        room = max((each for each in taken if places[each]), key=need)
        chance = random.Random(f"{seed}/{room}/{number}")
        kind = chance.choice(sorted(places[room]))
        of_kind = places[room][kind]
        taken[room].append(of_kind.pop(chance.randrange(len(of_kind))))
        if not of_kind:
            del places[room][kind]
    rounds = range(max(map(len, taken.values()), default=0))
    return [found[turn] for turn in rounds for found in taken.values() if turn < len(found)]
