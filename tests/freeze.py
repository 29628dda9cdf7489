"""What is true now, frozen: every figure of many cases, so that a rewrite can show it kept them.

`tests/data/freeze` holds one file per group of cases, each a JSON object from a case's name to its
value. Modules that are alike are one entry, and their records are a digest beside the total work
and the calls of each operator, so that a difference names the module and the quantity.

    pytest -m "" tests/test_freeze.py   every difference from what is frozen
    python tests/freeze.py [GROUP ...]  freezes what is true now; read the difference first
"""

import hashlib
import json
import lzma
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dsocr_analyze.kernels import Kernel, Work

DATA = Path(__file__).parent / "data" / "freeze"

Value = Any
"""A JSON value."""


# --- comparing ----------------------------------------------------------------------------------


class Difference(NamedTuple):
    """One place that has another value than it had: group, case and keys, joined by ` | `."""

    place: str
    then: Value
    now: Value


def differences(then: Value, now: Value, *place: str) -> Iterator[Difference]:
    """Every place at which two values differ; floats may by the order of their operations."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *(key for key in now if key not in then)]:
            yield from differences(then.get(key), now.get(key), *place, key)
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for number, pair in enumerate(zip(then, now, strict=True)):
            yield from differences(*pair, *place, str(number))
    elif type(then) is not type(now) or not (
        math.isclose(then, now, rel_tol=1e-9) if isinstance(then, float) else then == now
    ):
        yield Difference(" | ".join(place), then, now)


def told(found: Iterable[Difference]) -> str:
    """Differences, those at one place of several cases together."""
    by_place: dict[str, list[Difference]] = {}
    for each in found:
        by_place.setdefault(each.place.split(" | ", 2)[-1], []).append(each)
    return "\n".join(
        f"{first.place}:\n      then {_short(first.then)}\n      now  {_short(first.now)}"
        + (f"\n      and in {len(others)} more cases" if others else "")
        for first, *others in by_place.values()
    )


def _short(value: Value) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 400 else f"{text[:400]}..."


# --- values -------------------------------------------------------------------------------------


def records(kernels: Iterable[Kernel]) -> Value:
    """The multiset of records of every module, by path; without paths and stages."""
    return folded(own_records(kernels))


def own_records(kernels: Iterable[Kernel]) -> dict[str, Value]:
    by_path: dict[str, list[tuple[Any, ...]]] = {}
    for kernel in kernels:
        by_path.setdefault(kernel.path, []).append(kernel[:7])
    return {path: _multiset(tuple(rows)) for path, rows in by_path.items()}


@cache
def _multiset(rows: tuple[tuple[Any, ...], ...]) -> dict[str, Value]:
    """Total work, calls by operator, and a digest of the records."""
    calls: Counter[tuple[Any, ...]] = Counter()
    operators: Counter[str] = Counter()
    total = [0] * len(Work._fields)
    for *row, count in rows:
        kind, operator, dimensions, dtype, output_dtype, each = row
        shape = type(dimensions).__name__, *map(int, dimensions)
        calls[kind, operator, shape, dtype, output_dtype, tuple(map(_exact, each))] += count
        operators[operator] += count
        total = [sum_ + count * one for sum_, one in zip(total, each, strict=True)]
    return {
        **{name: count for name, count in zip(Work._fields, map(_exact, total), strict=True)
           if count},
        "operators": " ".join(f"{name}*{count}" for name, count in sorted(operators.items())),
        "records": digest(sorted(calls.items())),
    }  # fmt: skip


def _exact(count: Any) -> Value:
    """A whole number as such; any other to as many digits as no order of operations changes."""
    return int(count) if count == int(count) else float(f"{count:.10g}")


def digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def folded(by_path: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """Values by path, those of repeated modules together.

    Returns:
        For each path, with its numbers replaced by `*`, the distinct values by the numbers that
        have it; `all` for a path without numbers.
    """
    groups: dict[str, dict[str, list[tuple[int, ...]]]] = {}
    for path, value in by_path.items():
        pattern, numbers = _pattern(path)
        groups.setdefault(pattern, {}).setdefault(json.dumps(value), []).append(numbers)
    return {
        pattern: {_listed(members): json.loads(value) for value, members in values.items()}
        for pattern, values in sorted(groups.items())
    }


@cache
def _pattern(path: str) -> tuple[str, tuple[int, ...]]:
    return _NUMBER.sub("*", path) or "(model)", tuple(map(int, _NUMBER.findall(path)))


def _listed(members: list[tuple[int, ...]]) -> str:
    """Numbers as ranges of the last one: `0-11` for layers, `1:0-63 2:0-63` for their experts."""
    runs: list[list[int | tuple[int, ...]]] = []
    for *above, last in sorted(filter(None, members)):
        before = tuple(above)
        if runs and runs[-1][0] == before and runs[-1][2] == last - 1:
            runs[-1][2] = last
        else:
            runs.append([before, last, last])
    listed = [
        "".join(f"{number}:" for number in above) + "-".join(map(str, sorted({first, last})))
        for above, first, last in runs
    ]
    return " ".join(listed) or "all"


# --- files --------------------------------------------------------------------------------------


def frozen(group: str) -> dict[str, Value]:
    """The values of a group's cases, by name."""
    return json.loads(lzma.decompress((DATA / f"{group}.json.xz").read_bytes()))


def write(group: str, values: Mapping[str, Value]) -> None:
    """Freezes the values of all cases of a group."""
    text = json.dumps(values, separators=(",", ":"))
    # Cases repeat each other from afar: gzip, which looks back 32 KiB, makes six times as much.
    (DATA / f"{group}.json.xz").write_bytes(lzma.compress(text.encode()))


def value_now(value: Callable[[], Value]) -> Value:
    """A case's value, or the error that it ends in, which is another value than any frozen one."""
    try:
        return value()
    except Exception as error:  # noqa: BLE001  # the other cases are compared all the same
        return {"raised": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    from frozen_cases import GROUPS

    for group in sys.argv[1:] or GROUPS:
        write(group, {name: value() for name, value in GROUPS[group]().items()})
