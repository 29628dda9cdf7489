"""Text from elsewhere, escaped for where it goes.

Names of files and modules, values of a config and messages of exceptions must not move a terminal's
cursor, turn a line around, or be read as markup.
"""

import codecs
import html
import re
from typing import Final

_ACTING: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for tab and line feed
    r"\xad\u034f\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff"  # marks that nobody sees
    r"\U000e0000-\U000e0fff\ud800-\udfff"  # tags, and halves of characters, which are no UTF-8
)
# Commands to GitHub's runner, which reads along: they open a line, or stand anywhere in it.
_COMMANDS: Final = r"(?<=##)\[|(?m:^)[^\S\n]*:(?=:)"
_IN_LINES: Final = re.compile(f"[{_ACTING}]|{_COMMANDS}")
_IN_A_LINE: Final = re.compile(rf"[\t\n{_ACTING}]|{_COMMANDS}")
_SHORT: Final = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def visible(text: str) -> str:
    """The text on one line, with escapes for characters that act unseen."""
    return _IN_A_LINE.sub(_escape, text)


def visible_lines(text: str) -> str:
    """The same for several lines: line feeds and tabs stay."""
    return _IN_LINES.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return "".join(map(_escaped, found[0]))


def _escaped(character: str) -> str:
    code = ord(character)
    kind, digits = ("x", 2) if code < 0x100 else ("u", 4) if code < 0x10000 else ("U", 8)
    return _SHORT.get(character) or f"\\{kind}{code:0{digits}x}"


def as_json(document: str) -> str:
    """A JSON document with escapes for what acts in strings; it means the same."""
    if document.isascii() and "\x7f" not in document and "##[" not in document:
        return document
    return _IN_LINES.sub(lambda found: _json_escaped(found[0]), document)


def _json_escaped(text: str) -> str:
    encoded = text.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{encoded[at : at + 4]}" for at in range(0, len(encoded), 4))


LOOK_ALIKES: Final = "dsocr-analyze.look-alikes"
"""The error handler for encodings that lack a character: it is written as one like it, else as JSON
escapes it."""
_LIKE: Final = dict(zip("─│├└…", "-||`~", strict=True))


def _look_alikes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "it is for writing alone"
    lacking = error.object[error.start : error.end]
    return "".join(_LIKE.get(each) or _json_escaped(each) for each in lacking), error.end


codecs.register_error(LOOK_ALIKES, _look_alikes)


_SPANS: Final = (
    r"[\\`*|\[\]~$]"  # code, links, cells, formulas
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis, which begins and ends at words' edges
)
_OPENS_A_BLOCK: Final = (
    r"^(?: |[-+](?=\s|$)|[-=](?=[-=\s]*$)|\#(?=\#{0,5}(?:\s|$))|\d+(?=[.)](?:\s|$)))"
)
_IN_A_CELL: Final = re.compile(_SPANS)
_ON_A_LINE: Final = re.compile(f"{_SPANS}|{_OPENS_A_BLOCK}")
_HTML: Final = re.compile(r"<(?=[A-Za-z/!?])|&(?=#?\w)|^\s*>")  # tags, entities, quotations


def as_markdown(text: str, *, is_cell: bool = False) -> str:
    """The text as one line of GitHub's Markdown that reads as the text itself.

    In a cell of a table, nothing opens a list or a heading.
    """
    shown = _HTML.sub(lambda found: html.escape(found[0]), visible(text))
    shown = (_IN_A_CELL if is_cell else _ON_A_LINE).sub(_markdown_escape, shown)
    return shown.replace("://", ":&#47;/").replace("www.", "www&#46;").replace("@", "&#64;")


def _markdown_escape(found: re.Match[str]) -> str:
    first, rest = found[0][0], found[0][1:]
    # A backslash escapes punctuation alone; a space or a digit that would open a block is a number.
    return f"&#{ord(first)};{rest}" if first.isalnum() or first == " " else f"\\{found[0]}"


_LONGEST_CODE: Final = 300


def as_code_span(text: str) -> str:
    """The text in a code span of Markdown, on one line, with codes for what could end it."""
    safe = "".join(
        each if each.isprintable() and each not in "`|\\" else f"(U+{ord(each):04X})"
        for each in text
    )
    cut = safe if len(safe) <= _LONGEST_CODE else f"{safe[:_LONGEST_CODE]}..."
    return f"`{cut}`" if cut.strip() else "`(empty)`"


_MERMAID: Final = {each: f"#{ord(each)};" for each in '"<>&#`;\\'}


def as_mermaid(text: str) -> str:
    """The text for a quoted label of a Mermaid diagram."""
    return "".join(_MERMAID.get(each, each) for each in visible(text))


def as_graphviz(text: str) -> str:
    """The text for a quoted label of a Graphviz diagram."""
    return visible(text).replace("\\", "\\\\").replace('"', '\\"')


def shown(value: object) -> str:
    """A value of a JSON or TOML file, on one line of readable length."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    try:
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a huge number"
    except (ValueError, RecursionError):  # a number of thousands of digits, or deep tables
        text = "a huge table"
    return text if len(text) <= 60 else text[:57] + "..."
