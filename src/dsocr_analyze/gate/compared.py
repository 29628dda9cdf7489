"""How two reports compare: what differs, which inputs changed, and where work moved.

Everything is found by the report's types, so a new key is compared without being listed. Counts are
exact: they only change if what is counted changes.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias, get_args

from msgspec import Struct, structs, to_builtins

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.gate.document import Amounts, Figure, InputChange, InputKind, Move, MoveLevel
from dsocr_analyze.gate.report_keys import entry_labels, is_number
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.report.config_differences import config_differences
from dsocr_analyze.report.document import Model, Report, Stage

__all__ = [
    "Compared",
    "changed_input",
    "compared",
    "counted_figures",
    "input_changes",
    "listed",
    "moves",
]

_WORK: Final = ("matrix_flops", "vector_flops", "flops", "bytes_read", "bytes_written")
_MEMORY: Final = ("weights_bytes", "inputs_bytes", "kv_cache_bytes", "peak_activation_bytes")
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


@dataclass(frozen=True)
class Compared:
    """How two reports compare.

    Attributes:
        changed: Figures that differ, except those that follow from another.
        following: How many figures differ and follow from another.
        unchanged: How many figures are equal.
        words: Everything else that differs and doesn't follow from a figure.
    """

    changed: list[Figure] = field(default_factory=list)
    following: int = 0
    unchanged: int = 0
    words: list[Difference] = field(default_factory=list)


def compared(before: Report, after: Report) -> Compared:
    """Compare everything that two reports state.

    A section's other numbers and its texts follow from its counted figures; in a section without
    any, such as predicted seconds, they follow from all counted figures. So they count as changed
    only if none of these has changed.
    """
    found = _Differences()
    found.compare(_Place(), before, after)
    old, new = counted_figures(before), counted_figures(after)
    stages = [
        Figure(key=key, before=old.get(key), after=new.get(key))
        for key in (*new, *old)
        if key.startswith("stages.") and (key in old) != (key in new)
    ]
    moved = {each.section for each in found.numbers if each.key in new}
    moved |= {"stages"} if stages else set()
    sections = {key.partition(".")[0] for key in new} - {"stages"}
    sections |= {f"stages.{name}" for name in after.stages}

    def follows(each: Difference) -> bool:
        has_moved = each.section in moved if each.section in sections else bool(moved)
        return has_moved and each.section != "metadata"  # the inputs, which figures follow from

    own = [each for each in found.numbers if each.key in new or not follows(each)]
    figures = [Figure(key=each.key, before=each.before, after=each.after) for each in own]
    words = [each for each in (*found.words, *found.summaries()) if not follows(each)]
    return Compared([*figures, *stages], len(found.numbers) - len(own), found.equal, words)


def counted_figures(report: Report) -> dict[str, int]:
    """Tokens, parameters, FLOPs, bytes and memory, in total and by stage, by report key."""
    total = report.total
    parts: list[tuple[str, Struct | None, Sequence[str]]] = [
        ("workload", report.workload, ("visual_tokens", "text_tokens", "seq_len")),
        ("total", total, ("params", *_WORK, "causal_savable_flops")),
        ("total.decode_step", total.decode_step, _WORK),
        ("total.batch", total.batch, _WORK),
        *((f"stages.{name}", each, ("params", *_WORK)) for name, each in report.stages.items()),
        ("unassigned", report.unassigned, ("params",)),
        ("memory", report.memory, _MEMORY),
    ]
    named = (
        (f"{place}.{name}", getattr(part, name, None))
        for place, part, names in parts
        for name in names
    )
    return {key: value for key, value in named if value is not None}


# --- differences -------------------------------------------------------------------------------


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

    def below(self, step: str, pattern: str) -> _Place:
        """The place of a part, given the step there (`.flops`, `[0]`) and that step's pattern."""
        if self.key in ("", "stages"):
            key = f"{self.key}{step}" if self.key else step[1:]
            return _Place(key, key, key)
        return _Place(self.key + step, self.pattern + pattern, self.section)


@dataclass
class _Differences:
    """All differences between two reports, in the order of the report.

    Attributes:
        equal: How many numbers are equal.
        numbers: Numbers that differ.
        words: Texts and truth values that differ, names and list entries that only one report has.
        nulls: The values where only one report has null, by pattern and section.
    """

    equal: int = 0
    numbers: list[Difference] = field(default_factory=list)
    words: list[Difference] = field(default_factory=list)
    nulls: dict[tuple[str, str], list[tuple[Any, Any]]] = field(default_factory=dict)

    def compare(self, place: _Place, old: Any, new: Any) -> None:
        """Compare what stands at a place."""
        if old == new:
            self.equal += _numbers_in(to_builtins(new))
        elif old is None or new is None:
            self.nulls.setdefault(place[1:], []).append((old, new))
        elif is_number(old) and is_number(new):
            self.numbers.append(Difference(place.key, place.section, old, new))
        elif isinstance(new, Struct):
            self._compare_parts(place, ".{}", ".{}", *_by_key(old, new))
        elif isinstance(new, Mapping):
            self._compare_parts(place, ".{}", ".*", old, new)
        elif isinstance(new, tuple):
            self._compare_parts(place, "[{}]", "[*]", *_by_label(old, new))
        else:
            self.words.append(Difference(place.key, place.section, old, new))

    def _compare_parts(
        self, place: _Place, step: str, pattern: str, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> None:
        """Compare what both have, and list what only one has."""
        gone = listed([name for name in old if name not in new], _MOST_NAMED)
        added = listed([name for name in new if name not in old], _MOST_NAMED)
        if gone or added:
            self.words.append(Difference(place.key, place.section, gone, added))
        for name in filter(old.__contains__, new):
            below = place.below(step.format(name), pattern.format(name))
            self.compare(below, old[name], new[name])

    def summaries(self) -> Iterator[Difference]:
        """What is null in only one report, together under one key with `*` for names."""
        for (pattern, section), pairs in self.nulls.items():
            old, new = map(_summary, zip(*pairs, strict=True))
            yield Difference(pattern, section, old, new)


def _by_key(old: Struct, new: Struct) -> list[dict[str, Any]]:
    """The values of two objects by key."""
    return [
        dict(zip(each.__struct_encode_fields__, structs.astuple(each), strict=True))
        for each in (old, new)
    ]


def _by_label(old: Sequence[Any], new: Sequence[Any]) -> list[dict[str, Any]]:
    """The entries of two lists: by position if there are as many of them, else by their label."""
    is_alike = len(old) == len(new)
    own = (entry_labels(to_builtins(new)) if is_alike else _own_labels(each) for each in (old, new))
    return [dict(zip(*each, strict=True)) for each in zip(own, (old, new), strict=True)]


def _own_labels(entries: Sequence[Any]) -> list[str]:
    """A label for each entry; a text is its own unless it is there twice."""
    if all(isinstance(each, str) for each in entries) and len(set(entries)) == len(entries):
        return list(entries)
    return entry_labels(to_builtins(entries))


def _numbers_in(value: Any) -> int:
    """How many numbers there are in a part of a report."""
    if isinstance(value, Mapping):
        return sum(map(_numbers_in, value.values()))
    return sum(map(_numbers_in, value)) if isinstance(value, list | tuple) else is_number(value)


def _summary(values: Sequence[Any]) -> Any:
    """What stands in one report where the other has null; None if it is null here."""
    if all(each is None for each in values):
        return None
    if len(values) == 1 and isinstance(values[0], str | int | float):
        return values[0]
    return f"{len(values):,} value{'' if len(values) == 1 else 's'}"


def listed(names: Sequence[str], most: int) -> str | None:
    """The first of some names, at most so many; None if there are none."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(name or "''" for name in names[:most]) + more or None


# --- inputs ------------------------------------------------------------------------------------

_OPTIONS: Final = ("page", "base_size", "image_size", "crop_mode", "prompt_pages", "batch_size",
            "max_new_tokens")  # fmt: skip
"""What a user sets for a workload; the rest follows from these and the model."""

_SAID_OTHERWISE: Final = (
    *_OPTIONS, "model.config_digest", "model.config_text", "model.code_digest",  # by other rules
    "model.id", "created",  # the name of a folder, and a time: neither is an input
)  # fmt: skip

_KINDS: Final[Mapping[str, InputKind]] = {
    "workload": "workload",
    "metadata": "setting",
    "metadata.dtype": "workload",
    "metadata.attention": "workload",
}
"""The kinds of inputs, by key or section; others are statements of the report."""


def input_changes(before: Report, after: Report, words: Iterable[Difference]) -> list[InputChange]:
    """All inputs that differ, config keys first, since these are what a model's author changes.

    If the baseline does not contain its config (an early report), published configs are identified
    by digest; for any other, all that is known is that it differs.

    Args:
        before: The baseline.
        after: The report now.
        words: All differences that are neither numbers nor follow from one.
    """
    old, new = before.metadata.model, after.metadata.model
    length = 12 if old.code_digest[:12] != new.code_digest[:12] else None
    digests = (f"digest {each.code_digest[:length]}" for each in (old, new))
    found = [*_of_config(old, new), *changed_input("code", "Python files", *digests)]
    # The options determine the prompt, except for its text and for a model that reads no pages.
    has_no_pages = before.workload.page is None and after.workload.page is None
    for name in (*_OPTIONS, "text_tokens", *(["seq_len"] if has_no_pages else [])):
        values = (getattr(each.workload, name) for each in (before, after))
        found += changed_input("workload", name, *values)
    for each in words:
        key = each.key.removeprefix("metadata.").removeprefix("workload.")
        kind = _KINDS.get(each.key) or _KINDS.get(each.section, "report")
        if key not in _SAID_OTHERWISE:
            found += changed_input(kind, key, each.before, each.after)
    return found


def _of_config(old: Model, new: Model) -> Iterator[InputChange]:
    texts = {old.config_text, new.config_text}
    if old.config_digest == new.config_digest and (None in texts or len(texts) == 1):
        return
    was, now = _config_of(old), _config_of(new)
    keys = [] if was is None or now is None else [*config_differences({"was": was, "now": now})]
    for key in keys:
        yield InputChange(kind="config", key=key.key, before=key.text("was"), after=key.text("now"))
    if not keys:
        names = {"before": _config_name(old), "after": _config_name(new)}
        yield InputChange(kind="config", key="config.json", **names)


def _config_name(model: Model) -> str:
    """The digest of a config whose keys are unknown or not those of its digest."""
    text = model.config_text
    is_right = text is None or sha256(text.encode()).hexdigest() == model.config_digest
    return f"digest {model.config_digest[:12]}{'' if is_right else ', not of its text'}"


def _config_of(model: Model) -> Mapping[str, Any] | None:
    """The config's values; None if unknown."""
    if model.config_text is None:
        return _published_configs().get(model.config_digest)
    try:
        found = json.loads(model.config_text)
    except (ValueError, RecursionError):
        return None  # a report's text need not be valid JSON
    return found if isinstance(found, dict) else None


@cache
def _published_configs() -> Mapping[str, Mapping[str, Any]]:
    """The built-in references' configs by digest."""
    found = (ModelDirectory.read(each.reference) for each in ARCHITECTURES.values())
    return {directory.config_digest(): directory.config for directory in found}


def changed_input(kind: InputKind, key: str, was: object, now: object) -> list[InputChange]:
    """The change of an input, its values in words; empty if there is none."""
    before, after = _text(was), _text(now)
    return [] if was == now else [InputChange(kind=kind, key=key, before=before, after=after)]


def _text(value: object) -> str | None:
    if isinstance(value, tuple):
        is_size = any(isinstance(each, int) for each in value)
        return (" x " if is_size else ", ").join(map(str, value)) or None
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


# --- where work moved --------------------------------------------------------------------------

_Works: TypeAlias = Mapping[str, tuple[int, ...]]
"""FLOPs, bytes and parameters by name, as far as something has them."""

_LEVELS: Final[tuple[MoveLevel, ...]] = get_args(MoveLevel)
_NOTHING: Final = (0, 0, 0)


def moves(before: Report, after: Report) -> list[Move]:
    """Everything whose work changed: stages, then modules, operators and kinds of operators.

    At every level, the largest change relative to the baseline's batch comes first.
    """
    batch, params = before.total.batch, before.total.params
    decode = after.decode_name or before.decode_name
    found: list[Move] = []
    for stage in {**after.stages, **before.stages}:
        # Without decode steps there may still be a decode stage; it isn't part of the batch.
        runs = max(batch.decode_steps, 1) if stage == decode else 1
        whole = ((runs, batch.flops), (runs, batch.bytes_moved), (1, params))
        old, new = (_works(stage, each.stages.get(stage)) for each in (before, after))
        for level in _LEVELS:
            found += _moves(level, stage, old[level], new[level], whole)
    return sorted(
        found, key=lambda each: (_LEVELS.index(each.level), -each.share, each.stage, each.name)
    )


def _works(name: str, stage: Stage | None) -> Mapping[MoveLevel, _Works]:
    """The work of everything in a stage, by level; empty if there is no such stage."""
    if stage is None:
        return {level: {} for level in _LEVELS}
    modules = {path: each.own for path, each in stage.by_module.items()}
    kinds = stage.operator_families
    return {
        "stage": {name: (stage.flops, stage.bytes_moved, stage.params)},
        "module": {path: (own.flops, own.bytes_moved) for path, own in modules.items()},
        "operator": {operator: (flops,) for operator, flops in stage.operators.items()},
        "kind": {kind: (each.flops, each.bytes) for kind, each in kinds.items()},
    }


def _moves(
    level: MoveLevel, stage: str, old: _Works, new: _Works, whole: Sequence[tuple[int, int]]
) -> Iterator[Move]:
    """The moves within a stage; modules whose paths differ only in numbers are one.

    Args:
        level: The level.
        stage: The stage.
        old: The work in the baseline.
        new: The work now.
        whole: How often the stage runs in the baseline's batch, and the batch's FLOPs; the same for
            bytes and parameters.
    """
    alike: defaultdict[str, list[tuple[list[str], list[Amounts]]]] = defaultdict(list)
    for name in {**new, **old}:
        pairs = zip(old.get(name, _NOTHING), new.get(name, _NOTHING), strict=False)
        amounts = [Amounts(before=was, after=now) for was, now in pairs]
        if any(each.difference for each in amounts):
            pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", name) if level == "module" else name
            alike[pattern].append((name.split("."), amounts))
    for found in alike.values():
        paths, changes = zip(*found, strict=True)
        parts = (set(each) for each in zip(*paths, strict=True))
        sums = [
            Amounts(
                before=sum(each.before for each in same), after=sum(each.after for each in same)
            )
            for same in zip(*changes, strict=True)
        ]
        shares = [
            abs(each.difference) * runs / max(of, 1)
            for each, (runs, of) in zip(sums, whole, strict=False)
        ]
        if any(shares):
            yield Move(
                level=level, stage=stage, modules=len(paths), share=max(shares),
                name=".".join(part.pop() if len(part) == 1 else "*" for part in parts),
                flops=sums[0], bytes=sums[1] if len(sums) > 1 else None,
                params=sums[2] if len(sums) > 2 else None,
            )  # fmt: skip
