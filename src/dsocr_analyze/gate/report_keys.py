"""Figures of a report by key, as named in budgets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from itertools import takewhile
from typing import Any, Final, TypeAlias

import msgspec

from dsocr_analyze.errors import ConfigError, DeviceError
from dsocr_analyze.hardware.devices import catalogue_name
from dsocr_analyze.report.document import Report

__all__ = ["ReportKeys", "entry_labels", "is_number"]

_MOST_NAMED: Final = 12
"""Most names listed in an error."""


class ReportKeys:
    """The keys of one report: dotted paths such as `total.flops`.

    A name with dots may stand in quotes. A list's entry has an index or a value in it
    (`workload.page[0]`, `time[gpu=a100].page_seconds`). `*` is any one name or entry.
    """

    def __init__(self, report: Report | None) -> None:
        self._document = msgspec.to_builtins(report)

    def values(self, key: str) -> dict[str, Any]:
        """What a key names, by path; empty if nothing, or ambiguous."""
        try:
            return dict(_walk(self._document, key, "", []))
        except ConfigError:
            return {}

    def figures(self, key: str) -> dict[str, int | float | None]:
        """The numbers that a key names by path, None for null; several only with `*`.

        Raises:
            ConfigError: The report has no such key, or its value is not a number.
        """
        failures: list[_Failure] = []
        found = dict(_walk(self._document, key, "", failures))
        if not found:
            raise _unknown(key, failures)
        numbers = {path: each for path, each in found.items() if each is None or is_number(each)}
        if not numbers or (len(numbers) < len(found) and "*" not in key):
            path, value = next(iter(found.items()))
            raise ConfigError(f"report key {key!r} is not a number: {path!r} is {_kind(value)}")
        return numbers


def is_number(value: object) -> bool:
    """Whether a value of a report is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def entry_labels(entries: Sequence[Any]) -> list[str]:
    """What distinguishes each entry of a list, else its index."""
    labels = [*map(_label, entries)]
    return [
        label if label and labels.count(label) == 1 else str(index)
        for index, label in enumerate(labels)
    ]


def _label(entry: Any) -> str:
    """An object's leading texts, else its first value."""
    items = list(entry.items()) if isinstance(entry, Mapping) else []
    texts = list(takewhile(lambda each: isinstance(each[1], str), items))
    return ", ".join(f"{name}={value}" for name, value in texts or items[:1])


# --- where a key leads -------------------------------------------------------------------------


_Failure: TypeAlias = tuple[str, Any, str, bool]
"""A path that leads nowhere, the value there, the rest of the key, whether parts match."""


def _walk(value: Any, rest: str, place: str, failures: list[_Failure]) -> list[tuple[str, Any]]:
    """What the rest of a key names below `value`, with full paths."""
    if not rest:
        return [(place, value)]
    step = rest.removeprefix(".") if place else rest
    found: list[tuple[str, Any]] = []
    parts = _parts(value, rest, step, place)
    for path, part, following in parts:
        found += _walk(part, following, path, failures)
        if found and step[:1] not in ("*", "["):
            break  # of names that begin alike, the longest that leads wins
    if not found:
        failures.append((place, value, rest.lstrip("."), bool(parts)))
    return found


def _parts(value: Any, rest: str, step: str, place: str) -> list[tuple[str, Any, str]]:
    """What the next step of a key may name: paths, parts and the rest of the key."""
    if rest.startswith("["):
        return _entries(value, rest, place) if isinstance(value, list | tuple) else []
    if not isinstance(value, Mapping) or (place and rest == step):
        return []
    if step.startswith('"'):
        names = [each for each in [_quoted(step)] if each[0] in value]
    elif step == "*" or step[:2] in ("*.", "*["):
        names = [(each, step[1:]) for each in value]
    else:
        names = [
            (each, step[len(each) :])
            for each in sorted(value, key=len, reverse=True)
            if _begins(step, each)
        ]
    return [(f"{place}.{each}" if place else each, value[each], after) for each, after in names]


def _begins(rest: str, name: str) -> bool:
    return rest.startswith(name) and rest[len(name) : len(name) + 1] in ("", ".", "[")


def _quoted(rest: str) -> tuple[str, str]:
    try:
        name, end = json.JSONDecoder().raw_decode(rest)
    except ValueError as error:
        raise ConfigError(f"report key: {rest!r} has no closing quote") from error
    return str(name), rest[end:]


def _entries(values: Sequence[Any], rest: str, place: str) -> list[tuple[str, Any, str]]:
    selector, bracket, after = rest[1:].partition("]")
    found = [
        (f"{place}[{label}]", entry, after)
        for index, (label, entry) in enumerate(zip(entry_labels(values), values, strict=True))
        if bracket and _is_selected(entry, index, selector.strip())
    ]
    if len(found) > 1 and selector.strip() != "*":
        raise ConfigError(
            f"report key: {place}[{selector}] matches {len(found)} entries; be more specific, or"
            f" use [*]: {_said_of_entries(repr(place), values)}"
        )
    return found


def _is_selected(entry: Any, index: int, selector: str) -> bool:
    if not isinstance(entry, Mapping) or "=" not in selector:
        return selector in ("*", str(index))
    parts = (map(str.strip, part.partition("=")) for part in selector.split(","))
    return all(_is_said(entry.get(name), name, text) for name, _, text in parts)


def _is_said(value: Any, name: str, text: str) -> bool:
    """Whether a text is the value of that name, or any name of a GPU."""
    if name == "gpu" and isinstance(value, str) and text != value:
        try:
            return catalogue_name(text, {value: value}) == value
        except DeviceError:
            return False
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    return not isinstance(value, Mapping | None) and str(value) == text


# --- what is wrong with a key --------------------------------------------------------------------


def _unknown(key: str, failures: Sequence[_Failure]) -> ConfigError:
    """What there is at the failure most similar or furthest along."""
    ranked = [(*_closest(*each[1:]), each) for each in reversed(failures)]
    _, close, (place, value, rest, _) = max(ranked, key=lambda each: (each[0], len(each[2][0])))
    where = repr(place) if place else "the report"
    if isinstance(value, Mapping):
        near = f"did you mean {close!r}? " if close else ""
        listed = ", ".join([*list(value)[:_MOST_NAMED], *["..."] * (len(value) > _MOST_NAMED)])
        asked = rest if "." in close else _first_name(rest) or rest
        said = f"{where} has no {asked!r}; {near}it has {listed or 'nothing'}"
    elif isinstance(value, list | tuple):
        said = _said_of_entries(where, value)
    else:
        said = f"{where} is {_kind(value)}, which has no {rest!r}"
    return ConfigError(f"report key {key!r} is unknown: {said}")


def _closest(value: Any, rest: str, is_begun: bool) -> tuple[float, str]:
    known = value if isinstance(value, Mapping) else ()
    names = [name for name in known if not _begins(rest, name)]
    found = [
        (SequenceMatcher(None, asked, name).ratio(), name)
        for asked in ([] if is_begun else [_first_name(rest)]) + [rest]
        for name in get_close_matches(asked, names, n=1)
    ]
    return max(found, default=(0.0, ""))


def _first_name(rest: str) -> str:
    return re.split(r"[.[]", rest, maxsplit=1)[0]


def _said_of_entries(where: str, entries: Sequence[Any]) -> str:
    if not entries:
        needs = " (a workload with gpu = ... has some)" if where == "'time'" else ""
        return f"{where} is an empty list{needs}"
    labels = [
        f"[{_label(each) if isinstance(each, Mapping) else index}]"
        for index, each in enumerate(entries[:_MOST_NAMED])
    ]
    return f"{where} is a list; name one of its entries: {' or '.join(labels)}"


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"an object ({', '.join(list(value)[:_MOST_NAMED])})"
    if isinstance(value, str | list | tuple):
        return "a text" if isinstance(value, str) else "a list"
    return json.dumps(value)
