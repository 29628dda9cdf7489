"""Figures of a report by key, as named in budgets."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from dsocr_analyze.errors import ConfigError, DeviceError
from dsocr_analyze.hardware.devices import catalogue_name
from dsocr_analyze.report.document import Report

__all__ = ["NamedFigure", "ReportKeys", "entry_labels"]

_MOST_NAMED: Final = 12
"""Most names listed in an error."""


class NamedFigure(NamedTuple):
    """A number in a report.

    Attributes:
        key: Its dotted path.
        value: The number; None if it is unknown (null).
    """

    key: str
    value: int | float | None


class ReportKeys:
    """The keys of one report.

    A key is a dotted path from the top: `total.flops`. A name containing dots is written as it is
    (`stages.prefill.by_module.model.layers.0.mlp.flops`) or in quotes. A list entry is selected by
    index from 0 or by a value in it (`workload.page[0]`, `time[gpu=a100].page_seconds`).
    `*` matches any one name or entry.

    Args:
        report: The report.
    """

    def __init__(self, report: Report) -> None:
        self._document = msgspec.to_builtins(report)

    def has(self, key: str) -> bool:
        """Whether the report has anything at that key."""
        return any(True for _ in _walk(self._document, key, "", _Nearest()))

    def paths(self, key: str) -> list[str]:
        """The paths of everything that a key names; may be empty."""
        return [path for path, _ in _walk(self._document, key, "", _Nearest())]

    def figures(self, key: str) -> list[NamedFigure]:
        """The numbers that a key names: one, or any number if the key contains `*`.

        Raises:
            ConfigError: The report has no such key, or its value is not a number.
        """
        nearest = _Nearest()
        found = list(_walk(self._document, key, "", nearest))
        if not found:
            nearest.refuse(key)
        numbers = [NamedFigure(path, value) for path, value in found if _is_number(value)]
        if not numbers or (len(numbers) < len(found) and "*" not in key):
            path, value = found[0]
            raise ConfigError(f"report key {key!r} is not a number: {path!r} is {_kind(value)}")
        return numbers


class _Failure(NamedTuple):
    """A place in a report where the lookup of a key failed.

    Attributes:
        place: Its path.
        value: The value there.
        rest: The rest of the key.
        is_named: Whether the rest starts with one of its names and failed further on.
    """

    place: str
    value: Any
    rest: str
    is_named: bool

    def closest(self) -> tuple[float, str]:
        """Similarity of the name closest to the one asked for, and that name."""
        rest = self.rest.lstrip(".")
        names = [] if not isinstance(self.value, Mapping) else [
            name for name in self.value if not _begins(rest, name)
        ]  # fmt: skip
        found = [
            (difflib.SequenceMatcher(None, asked, name).ratio(), name)
            for asked in ([] if self.is_named else [_first_name(rest)]) + [rest]
            for name in difflib.get_close_matches(asked, names, n=1)
        ]
        return max(found, default=(0.0, ""))


def _first_name(rest: str) -> str:
    return rest.partition(".")[0].partition("[")[0]


class _Nearest:
    """Where the lookup of a key failed, for the error message."""

    def __init__(self) -> None:
        self._failures: list[_Failure] = []

    def failed(self, place: str, value: Any, rest: str, *, is_named: bool = False) -> None:
        """Record a failure at `place`; arguments as in `_Failure`."""
        self._failures.append(_Failure(place, value, rest, is_named))

    def refuse(self, key: str) -> NoReturn:
        """Raise ConfigError naming what there is at the failure most similar or furthest along."""
        self._failures.sort(key=lambda each: (each.closest()[0], len(each.place)))
        place, value, rest, _ = self._failures[-1]
        where = repr(place) if place else "the report"
        if isinstance(value, Mapping):
            said = _said_of_names(where, self._failures[-1])
        elif isinstance(value, Sequence) and not isinstance(value, str):
            said = _said_of_entries(where, value)
        else:
            said = f"{where} is {_kind(value)}, which has no {rest.lstrip('.')!r}"
        raise ConfigError(f"report key {key!r} is unknown: {said}")


def _said_of_names(where: str, failure: _Failure) -> str:
    names, rest = list(failure.value), failure.rest.lstrip(".")
    _, close = failure.closest()
    near = f"did you mean {close!r}? " if close else ""
    listed = ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
    asked = rest if "." in close else _first_name(rest) or rest
    return f"{where} has no {asked!r}; {near}it has {listed or 'nothing'}"


def _said_of_entries(where: str, entries: Sequence[Any]) -> str:
    if not entries:
        needs = " (a workload with gpu = ... has some)" if where == "'time'" else ""
        return f"{where} is an empty list{needs}"
    labels = [
        f"[{', '.join(f'{name}={value}' for name, value in _labels(each))}]"
        if isinstance(each, Mapping) else f"[{index}]"
        for index, each in enumerate(entries[:_MOST_NAMED])
    ]  # fmt: skip
    return f"{where} is a list; name one of its entries: {' or '.join(labels)}"


def _labels(entry: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """What distinguishes a list entry from others: its leading text values, else a number."""
    texts = list(itertools.takewhile(lambda each: isinstance(each[1], str), entry.items()))
    yield from texts or list(entry.items())[:1]


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"an object ({', '.join(list(value)[:_MOST_NAMED])})"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, Sequence) else f"{json.dumps(value)}"


def _walk(value: Any, rest: str, place: str, nearest: _Nearest) -> Iterator[tuple[str, Any]]:
    """Everything that the rest of a key names below `value`, with its full path."""
    if not rest:
        yield place, value
    elif rest.startswith("["):
        yield from _into_list(value, rest, place, nearest)
    elif isinstance(value, Mapping):
        yield from _into_object(value, rest, place, nearest)
    else:
        nearest.failed(place, value, rest)


def _into_object(
    values: Mapping[str, Any], rest: str, place: str, nearest: _Nearest
) -> Iterator[tuple[str, Any]]:
    if place:
        if not rest.startswith("."):
            nearest.failed(place, values, rest)
            return
        rest = rest[1:]
    name, after = _quoted(rest)
    if name is not None:
        names = [(name, after)] if name in values else []
    elif rest == "*" or rest[:2] in ("*.", "*["):
        names = [(each, rest[1:]) for each in values]
    else:
        # Names may contain dots; the longest one that leads to a value wins.
        names = [(each, rest[len(each) :]) for each in values if _begins(rest, each)]
        names.sort(key=lambda each: -len(each[0]))
    is_any = rest.startswith("*")
    led = False
    for each, following in names:
        path = f"{place}.{each}" if place else each
        for found in _walk(values[each], following, path, nearest):
            led = True
            yield found
        if led and not is_any:
            return
    if not led:
        nearest.failed(place, values, rest, is_named=bool(names))


def _begins(rest: str, name: str) -> bool:
    """Whether a rest starts with exactly that name, not a longer one."""
    return rest.startswith(name) and rest[len(name) : len(name) + 1] in ("", ".", "[")


def _quoted(rest: str) -> tuple[str | None, str]:
    """The quoted name that a rest starts with, if any, and what follows."""
    if not rest.startswith('"'):
        return None, rest
    try:
        name, end = json.JSONDecoder().raw_decode(rest)
    except ValueError as error:
        raise ConfigError(f"report key: {rest!r} has no closing quote") from error
    return str(name), rest[end:]


def _into_list(values: Any, rest: str, place: str, nearest: _Nearest) -> Iterator[tuple[str, Any]]:
    selector, bracket, after = rest[1:].partition("]")
    if not isinstance(values, Sequence) or isinstance(values, str) or not bracket:
        nearest.failed(place, values, rest)
        return
    matching = list(_selected(values, selector.strip()))
    if len(matching) > 1 and selector.strip() != "*":
        raise ConfigError(
            f"report key: {place}[{selector}] matches {len(matching)} entries; be more specific, or"
            f" use [*]: {_said_of_entries(repr(place), values)}"
        )
    for label, entry in matching:
        yield from _walk(entry, after, f"{place}[{label}]", nearest)
    if not matching:
        nearest.failed(place, values, rest)


def _selected(values: Sequence[Any], selector: str) -> Iterator[tuple[str, Any]]:
    """Entries that a selector matches, each with a unique label."""
    for index, entry in enumerate(values):
        if selector == "*" or (selector.isdecimal() and str(index) == selector):
            yield _label(entry, index, values), entry
        elif isinstance(entry, Mapping) and "=" in selector:
            parts = [part.partition("=") for part in selector.split(",")]
            if all(_holds(entry, name.strip(), text.strip()) for name, _, text in parts):
                yield _label(entry, index, values), entry


def entry_labels(entries: Sequence[Any]) -> list[str]:
    """The label of each entry of a list in a report."""
    return [_label(each, index, entries) for index, each in enumerate(entries)]


def _label(entry: Any, index: int, values: Iterable[Any]) -> str:
    """An entry's label: what distinguishes it from the others, else its index."""
    if isinstance(entry, Mapping):
        label = ", ".join(f"{name}={value}" for name, value in _labels(entry))
        same = sum(
            isinstance(each, Mapping) and dict(_labels(each)) == dict(_labels(entry))
            for each in values
        )
        if label and same == 1:
            return label
    return str(index)


def _holds(entry: Mapping[str, Any], name: str, text: str) -> bool:
    """Whether an entry has that value under a name; a GPU may be given by any of its names."""
    value = entry.get(name)
    if name == "gpu" and isinstance(value, str):
        try:
            return catalogue_name(text, {value: entry}) == value
        except DeviceError:
            return False
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    return value is not None and not isinstance(value, Mapping) and str(value) == text
