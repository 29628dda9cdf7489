"""Files made wrong: bytes for any of them, values for those that have a structure."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

NAMES = (
    "", "a", "../x", "a" * 300, "a\x1b[2Kb", "\u202egnp", "x\ny", "<script>x</script>",
    "|`*_[x](y)", "-q", "--yes", "$(id)", "%s%n", "nan", "None", "\ud800", "\U0001f4a9", "'\"\\",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 63, 64, 65, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**30, 10**400,
    -(10**400), 0.5, -0.0, 1e-300, 1e300, math.inf, -math.inf, math.nan,
)  # fmt: skip
DEEP: Any = []
for _ in range(60):
    DEEP = [DEEP]
VALUES = (*NAMES, *NUMBERS, None, True, False, [], {}, [[]], {"": {}}, DEEP, ["a"] * 1000)

_CHUNKS = (
    b"", b"\0", b"\xff" * 8, b"\n", b",", b'"', b"[" * 5000, b"{" * 5000, b'{"a":' * 500,
    b"(" * 300,
    b"9" * 5000, b"1e999", b"-1", b"NaN", b"\x00\x00\x00\x7f", b"\xff\xff\xff\x7f", b"%PDF",
    b"PAR1",
    b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x1b[2J", b"../../../etc/passwd", b"#", b" " * 5000,
)  # fmt: skip


def mutated_bytes(data: bytes, draw: Random) -> bytes:
    """A few pieces of the content changed, moved, repeated, cut off or replaced."""
    content = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        start = draw.randrange(len(content) + 1)
        end = min(len(content), start + draw.choice((0, 1, 1, 2, 4, 16, 256)))
        kind = draw.randrange(7)
        if kind == 0:
            content[start:end] = bytes(draw.randrange(256) for _ in range(end - start))
        elif kind == 1:
            content[start:end] = b""
        elif kind == 2:
            content[start:end] = content[start:end] * draw.choice((2, 3, 100))
        elif kind == 3:
            content[start:end] = draw.choice(_CHUNKS)
        elif kind == 4:
            del content[start:]
        elif kind == 5:
            other = draw.randrange(len(content) + 1)
            content[start:end] = content[other : other + end - start]
        elif start < len(content):
            content[start] ^= 1 << draw.randrange(8)
    return bytes(content)


def mutated_values(value: Any, draw: Random) -> Any:
    """The value with one or a few of what is in it replaced, removed, renamed or added."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        value = _changed(value, draw)
    return value


def _changed(value: Any, draw: Random) -> Any:
    if isinstance(value, dict) and value and draw.random() < 0.9:
        copy = dict(value)
        key = draw.choice(list(copy))
        kind = draw.random()
        if kind < 0.75:
            copy[key] = _changed(copy[key], draw)
        elif kind < 0.85:
            del copy[key]
        elif kind < 0.93:
            copy[str(draw.choice(NAMES))] = draw.choice(VALUES)
        else:
            copy[str(draw.choice(NAMES))] = copy.pop(key)
        return copy
    if isinstance(value, list | tuple) and value and draw.random() < 0.8:
        copies = list(value)
        at = draw.randrange(len(copies))
        copies[at : at + draw.choice((0, 1, 1, 1))] = [_changed(copies[at], draw)]
        return copies
    if isinstance(value, int) and not isinstance(value, bool) and draw.random() < 0.4:
        return (
            value + draw.choice((-1, 1, 7))
            if draw.random() < 0.5
            else value * draw.choice((2, 1000))
        )
    if draw.random() < 0.5:  # of the same kind, so that somebody reads on
        return draw.choice([each for each in VALUES if type(each) is type(value)] or VALUES)
    return draw.choice(VALUES)


def as_json(value: Any, draw: Random) -> bytes:
    """JSON, now and then with a key twice, broken, or in another encoding."""
    text = json.dumps(value, ensure_ascii=draw.random() < 0.7)
    if draw.random() < 0.05:
        text = text.replace("{", '{"a": 1, "a": 2, ', 1)
    encoding = "utf-16" if draw.random() < 0.02 else "utf-8"
    data = text.encode(encoding, "surrogatepass")
    return mutated_bytes(data, draw) if draw.random() < 0.25 else data
