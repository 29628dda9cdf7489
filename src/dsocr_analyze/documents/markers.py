"""Computed parts of Markdown: where they stand between markers, and how they are filled in place.

    <!-- begin figures -->         a block: the lines up to its end are computed; what follows its
    <!-- end figures -->           name tells it more
    top <!-- =k -->6<!-- / -->     a value inside a sentence or a cell of a table
    <!-- numbers d, 4 * d -->      the numbers of the fenced lines that follow, in order

Markers are comments, which no renderer shows.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Protocol

from dsocr_analyze.errors import DocumentError

__all__ = ["Filled", "Source", "filled"]

_BLOCK: Final = re.compile(
    r"^(?P<open><!-- begin (?P<name>[\w-]+) ?(?P<arguments>[^>]*?) ?-->\n)(?P<body>.*?)"
    r"(?P<close><!-- end (?P=name) -->)$",
    re.M | re.S,
)
_VALUE: Final = re.compile(
    r"(?P<open><!-- =(?P<arguments>[^>]*?) -->)(?P<body>[^\n]*?)(?P<close><!-- / -->)"
)
_NUMBERS: Final = re.compile(
    r"^(?P<open><!-- numbers (?P<arguments>[^>]*?) -->\n```(?P<name>\w*)\n)"
    r"(?P<body>.*?)(?P<close>```)$",
    re.M | re.S,
)
_COMMENT: Final = re.compile(r"<!--(?! (?:cases|output:|table:) ).*?(?:-->|$)", re.M)
_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?![\w.])")


class Source(Protocol):
    """Computes the parts of one page."""

    def block(self, name: str, arguments: str, body: str) -> str:
        """The lines of a block, from its arguments and from the lines that stand there."""

    def value(self, expression: str) -> str:
        """The text of a value."""

    def number(self, expression: str, language: str) -> str:
        """A number among fenced lines."""


class Filled(NamedTuple):
    """A page with all computed parts, and the markers of those that were different before."""

    text: str
    changed: list[str]


def filled(text: str, source: Source) -> Filled:
    """Computes all parts of a page.

    Raises:
        DocumentError: A marker is unknown or has no end, or a part cannot be computed.
    """
    changed: list[str] = []

    def replaced(match: re.Match[str], body: str) -> str:
        if body != match["body"]:
            changed.append(match["open"].splitlines()[0])
        return match["open"] + body + match["close"]

    def numbers(match: re.Match[str]) -> str:
        return replaced(match, _with_numbers(match, source))

    def block(match: re.Match[str]) -> str:
        body = source.block(match["name"], match["arguments"], match["body"])
        return replaced(match, f"\n{body}\n\n" if body else "")

    for comment in _strange_comments(text):
        raise DocumentError(f"unknown or unfinished marker {comment!r}")
    text = _VALUE.sub(lambda match: replaced(match, source.value(match["arguments"])), text)
    text = _NUMBERS.sub(numbers, text)
    return Filled(_BLOCK.sub(block, text), changed)


def _strange_comments(text: str) -> list[str]:
    """Comments that are no markers, or markers that lack their other end."""
    for pattern in (_VALUE, _NUMBERS, _BLOCK):
        text = pattern.sub(lambda match: match["body"], text)
    return _COMMENT.findall(text)


def _with_numbers(match: re.Match[str], source: Source) -> str:
    """Fenced lines with each of their numbers computed."""
    body, expressions = match["body"], match["arguments"].split(", ")
    found = _NUMBER.findall(body)
    if len(found) != len(expressions):
        raise DocumentError(
            f"{match['open'].splitlines()[0]} names {len(expressions)} numbers, but there are"
            f" {len(found)} in the lines below: {', '.join(found)}"
        )
    values = iter([source.number(each, match["name"]) for each in expressions])
    return _NUMBER.sub(lambda _: next(values), body)
