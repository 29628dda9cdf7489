"""Everything in which two reports differ, found by the report's types: no key is listed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct, to_builtins

from dsocr_analyze.gate.report_keys import entry_labels
from dsocr_analyze.report.document import Report

__all__ = ["Difference", "Differences", "differences"]

_MOST_NAMED: Final = 3


class Difference(NamedTuple):
    """Something that two reports state differently.

    Attributes:
        key: Its key in the report, as in a budget.
        section: The part of the report that it is in: a stage (`stages.prefill`), or a key at the
            top (`workload`).
        before: The baseline's number or text; None if it has none.
        after: The number or text now; None if there is none any more.
    """

    key: str
    section: str
    before: Any
    after: Any


@dataclass
class Differences:
    """All differences between two reports.

    Attributes:
        equal: How many numbers are equal.
        numbers: Numbers that differ.
        words: Texts and truth values that differ, names and list entries that only one report has,
            and what is null in only one. The last are together under one key, with `*` for names.
    """

    equal: int = 0
    numbers: list[Difference] = field(default_factory=list)
    words: list[Difference] = field(default_factory=list)


class _Absent:
    """What stands for a name or an entry that a report does not have."""


_ABSENT: Final = _Absent()


class _Place(NamedTuple):
    """A place in a report.

    Attributes:
        key: Its key.
        pattern: The key with `*` for entries and for names other than a stage's.
        section: Its section.
    """

    key: str = ""
    pattern: str = ""
    section: str = ""

    def field(self, name: str) -> _Place:
        """The place of a key that every report has."""
        if not self.key:
            return _Place(name, name, name)
        return _Place(f"{self.key}.{name}", f"{self.pattern}.{name}", self.section)

    def named(self, name: str) -> _Place:
        """The place of a stage, a module, an operator, ..."""
        key = f"{self.key}.{name}"
        if self.key == "stages":
            return _Place(key, key, key)
        return _Place(key, f"{self.pattern}.*", self.section)

    def entry(self, label: str) -> _Place:
        """The place of a list's entry."""
        return _Place(f"{self.key}[{label}]", f"{self.pattern}[*]", self.section)


_Pairs: TypeAlias = list[tuple[str, Any, Any]]
_Nulls: TypeAlias = dict[_Place, list[tuple[Any, Any]]]


def differences(before: Report, after: Report) -> Differences:
    """All differences, in the order of the report."""
    found, nulls = Differences(), _Nulls()
    _compare(_Place(), before, after, found, nulls)
    for place, pairs in nulls.items():
        old, new = (_summary([pair[side] for pair in pairs]) for side in (0, 1))
        found.words.append(Difference(place.pattern, place.section, old, new))
    return found


def _compare(place: _Place, old: Any, new: Any, found: Differences, nulls: _Nulls) -> None:
    if old == new:
        found.equal += _numbers_in(new)
    elif old is None or new is None:
        nulls.setdefault(place._replace(key=""), []).append((old, new))
    elif _is_number(old) and _is_number(new):
        found.numbers.append(Difference(place.key, place.section, old, new))
    elif isinstance(new, Struct):
        for name, attribute in _fields(new):
            before = getattr(old, attribute, None)
            _compare(place.field(name), before, getattr(new, attribute), found, nulls)
    elif isinstance(new, Mapping):
        names = dict.fromkeys([*new, *old])
        pairs = [(name, old.get(name, _ABSENT), new.get(name, _ABSENT)) for name in names]
        _compare_parts(place, place.named, pairs, found, nulls)
    elif isinstance(new, tuple):
        _compare_parts(place, place.entry, _entries(old, new), found, nulls)
    else:
        found.words.append(Difference(place.key, place.section, old, new))


def _compare_parts(
    place: _Place, below: Callable[[str], _Place], pairs: _Pairs, found: Differences, nulls: _Nulls
) -> None:
    """Compare what both have, and list what only one has."""
    gone = [name for name, _, new in pairs if new is _ABSENT]
    added = [name for name, old, _ in pairs if old is _ABSENT]
    if gone or added:
        found.words.append(Difference(place.key, place.section, _listed(gone), _listed(added)))
    for name, old, new in pairs:
        if old is not _ABSENT and new is not _ABSENT:
            _compare(below(name), old, new, found, nulls)


def _entries(old: Sequence[Any], new: Sequence[Any]) -> _Pairs:
    """The entries of two lists: by position if there are as many of them, else by their label."""
    if len(old) == len(new):
        return list(zip(entry_labels(to_builtins(new)), old, new, strict=True))
    was, now = (dict(zip(_own_labels(each), each, strict=True)) for each in (old, new))
    return [(each, was.get(each, _ABSENT), now.get(each, _ABSENT)) for each in {**now, **was}]


def _own_labels(entries: Sequence[Any]) -> list[str]:
    """A label for each entry; a text is its own unless it is there twice."""
    if all(isinstance(each, str) for each in entries) and len(set(entries)) == len(entries):
        return list(entries)
    return entry_labels(to_builtins(entries))


def _fields(value: Struct) -> Iterator[tuple[str, str]]:
    """The keys of an object, and the attributes that have their values."""
    return zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers_in(value: Any) -> int:
    """How many numbers there are in a part of a report."""
    if isinstance(value, Struct):
        return sum(_numbers_in(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, Mapping):
        return sum(map(_numbers_in, value.values()))
    if isinstance(value, tuple):
        return sum(map(_numbers_in, value))
    return _is_number(value)


def _summary(values: Sequence[Any]) -> Any:
    """What stands in one report where the other has null; None if it is null here."""
    if all(each is None for each in values):
        return None
    if len(values) == 1 and isinstance(values[0], str | int | float):
        return values[0]
    return f"{len(values):,} value{'' if len(values) == 1 else 's'}"


def _listed(names: Sequence[str]) -> str | None:
    """The first of some names; None if there are none."""
    if not names:
        return None
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(name or "''" for name in names[:_MOST_NAMED]) + more
