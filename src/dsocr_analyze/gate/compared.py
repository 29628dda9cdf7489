"""How a report compares with another, or with a measurement: changed inputs, where work moved."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from msgspec import Meta, Struct, structs, to_builtins

from dsocr_analyze.figures import Count, Model
from dsocr_analyze.gate.budgets import entry_labels, is_number
from dsocr_analyze.kernels import grouped
from dsocr_analyze.report.comparison import config_differences
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.measured import Measurement

InputKind = Literal["config", "code", "workload", "setting", "budget", "report"]
MoveLevel = Literal["stage", "module", "operator", "kind"]

_WORK: Final = ("matrix_flops", "vector_flops", "flops", "bytes_read", "bytes_written")
_MOST_NAMED: Final = 3
_DIGEST: Final = 12
"""Characters of a digest that are shown."""


class InputChange(Struct, frozen=True, kw_only=True):
    """A changed input, not its effect on figures.

    Attributes:
        kind: A config key, the model's code, an option, how it was counted, a budget, or any other
            statement of the report.
        key: Its name; a config key's dotted path.
        before: The baseline's value, JSON for a config key; null if absent.
        after: The value now, likewise.
    """

    kind: InputKind
    key: str
    before: str | None
    after: str | None


class Figure(Struct, frozen=True, kw_only=True):
    """A figure that differs from the baseline's.

    Attributes:
        key: Its key in the report.
        before: The baseline's value; null if new.
        after: The value now; null if gone.
    """

    key: str
    before: int | float | None
    after: int | float | None


class Amounts(Struct, frozen=True, kw_only=True):
    """An amount of work, before and after.

    Attributes:
        before: The baseline's; 0 if new.
        after: The amount now; 0 if gone.
    """

    before: Count
    after: Count

    @property
    def difference(self) -> int:
        """The increase; negative for a decrease."""
        return self.after - self.before


class Move(Struct, frozen=True, kw_only=True):
    """A stage whose work changed, or modules, an operator or a kind of operators within one.

    Attributes:
        level: Which of these it is.
        stage: The stage; amounts of a decode stage are per step.
        name: Name of the stage, operator or kind; or the modules' path, with `*` for numbers.
        modules: Modules that changed; else 1.
        flops: FLOPs; of modules, of their own forwards.
        bytes: Bytes read and written, likewise; null for an operator.
        params: Parameters of a stage; else null.
        share: The change's largest share of the baseline's FLOPs, bytes or parameters of the whole
            batch.
    """

    level: MoveLevel
    stage: str
    name: str
    modules: Count
    flops: Amounts
    bytes: Amounts | None
    params: Amounts | None
    share: Annotated[float, Meta(ge=0)]


class Difference(NamedTuple):
    """A part of two reports, and what each states there: a number, a text, names only it has."""

    key: str
    pattern: str
    """The key, with `*` for names and entries."""
    section: str
    """A stage (`stages.prefill`), or a key at the top (`workload`)."""
    before: Any
    after: Any


class ReportChanges(NamedTuple):
    """How two reports compare; as in a `WorkloadCheck`."""

    changed: tuple[Figure, ...] = ()
    following: int = 0
    unchanged: int = 0
    inputs: tuple[InputChange, ...] = ()
    moved: tuple[Move, ...] = ()


def compared(before: Report, after: Report) -> ReportChanges:
    """Compares everything that two reports state.

    What a section states beside its counted figures follows from these, or if it has none from all.
    """
    parts = [*_parts(Difference("", "", "", before, after))]
    equal = [to_builtins(each.after) for each in parts if each.before == each.after]
    differing = [each for each in parts if each.before != each.after]
    numbers = [each for each in differing if all(map(is_number, each[3:]))]
    texts = [each for each in differing if not (None in each[3:] or all(map(is_number, each[3:])))]
    old, new = counted_figures(before), counted_figures(after)
    stages = [
        Figure(key=key, before=old.get(key), after=new.get(key))
        for key in (*new, *old)
        if key.startswith("stages.") and (key in old) != (key in new)
    ]
    moved = {each.section for each in numbers if each.key in new} | {"stages" for _ in stages}
    sections = {f"stages.{name}" for name in after.stages}
    sections |= {key.partition(".")[0] for key in new} - {"stages"}

    def follows(each: Difference) -> bool:
        has_moved = each.section in moved if each.section in sections else bool(moved)
        return has_moved and each.section != "metadata"  # the inputs, which figures follow from

    own = [each for each in numbers if each.key in new or not follows(each)]
    words = [each for each in (*texts, *_nulls(differing)) if not follows(each)]
    return ReportChanges(
        (
            *(Figure(key=each.key, before=each.before, after=each.after) for each in own),
            *stages,
        ),
        len(numbers) - len(own), _numbers_in(equal),
        tuple(_inputs(before, after, words)), tuple(_moves(before, after)),
    )  # fmt: skip


def counted_figures(report: Report) -> dict[str, int]:
    """Tokens, parameters, FLOPs, bytes and memory by report key."""
    total = report.total
    parts: list[tuple[str, Struct | None, Sequence[str]]] = [
        ("workload", report.workload, ("visual_tokens", "text_tokens", "seq_len")),
        ("total", total, ("params", *_WORK, "causal_savable_flops")),
        ("total.decode_step", total.decode_step, _WORK),
        ("total.batch", total.batch, _WORK),
        *((f"stages.{name}", each, ("params", *_WORK)) for name, each in report.stages.items()),
        ("unassigned", report.unassigned, ("params",)),
        (
            "memory",
            report.memory,
            ("weights_bytes", "inputs_bytes", "kv_cache_bytes", "peak_activation_bytes"),
        ),
    ]
    named = (
        (f"{place}.{name}", getattr(part, name, None))
        for place, part, names in parts
        for name in names
    )
    return {key: value for key, value in named if value is not None}


# --- differences -------------------------------------------------------------------------------


def _parts(whole: Difference) -> Iterator[Difference]:
    """Parts of two reports, as large as they are equal, as small as they differ."""
    key, pattern, section, old, new = whole
    if old == new or old is None or new is None or not isinstance(new, Struct | Mapping | tuple):
        yield whole
        return
    step, any_step, (before, after) = _named(old, new)
    gone = [name for name in before if name not in after]
    added = [name for name in after if name not in before]
    if gone or added:
        yield whole._replace(before=gone, after=added)
    for name in filter(before.__contains__, after):
        below = f"{key}{step.format(name)}".removeprefix(".")
        place = (
            (below,) * 3 if key in ("", "stages")
            else (below, pattern + any_step.format(name), section)
        )  # fmt: skip
        yield from _parts(Difference(*place, before[name], after[name]))


def _named(old: Any, new: Any) -> tuple[str, str, Sequence[Mapping[str, Any]]]:
    """How parts' names stand in a key and in a pattern; and the parts by name."""
    if isinstance(new, Mapping):
        return ".{}", ".*", (old, new)
    if isinstance(new, Struct):
        return ".{}", ".{}", [
            dict(zip(each.__struct_encode_fields__, structs.astuple(each), strict=True))
            for each in (old, new)
        ]  # fmt: skip
    is_alike = len(old) == len(new)  # then entries are named by position, else by label
    labels = (entry_labels(to_builtins(new)) if is_alike else _labels(each) for each in (old, new))
    return "[{}]", "[*]", [*map(dict, map(zip, labels, (old, new)))]


def _labels(entries: Sequence[Any]) -> Sequence[str]:
    if all(isinstance(each, str) for each in entries) and len(set(entries)) == len(entries):
        return entries
    return entry_labels(to_builtins(entries))


def _numbers_in(value: Any) -> int:
    if isinstance(value, dict | list | tuple):
        return sum(map(_numbers_in, value.values() if isinstance(value, dict) else value))
    return is_number(value)


def _nulls(differing: Iterable[Difference]) -> Iterator[Difference]:
    """What is null in only one report, under one key with `*` for names."""
    alike = grouped(
        ((each.pattern, each.section), each)
        for each in differing
        if None in (each.before, each.after)
    )
    for (pattern, _), found in alike.items():
        before, after = (_summary([each[side] for each in found]) for side in (3, 4))
        yield found[0]._replace(key=pattern, before=before, after=after)


def _summary(values: Sequence[Any]) -> Any:
    """What stands where the other report has null; None if it is null here."""
    if len(values) == 1 and isinstance(values[0], str | int | float | None):
        return values[0]
    count = f"{len(values):,} value{'' if len(values) == 1 else 's'}"
    return None if all(each is None for each in values) else count


def listed(names: Sequence[str], most: int) -> str | None:
    """The first of some names; None without any."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(name or "''" for name in names[:most]) + more or None


# --- inputs ------------------------------------------------------------------------------------

_OPTIONS: Final = ("page", "base_size", "image_size", "crop_mode", "prompt_pages", "batch_size",
            "max_new_tokens", "text_tokens")  # fmt: skip
"""What a user sets; the rest follows from this and the model."""

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
"""Kinds of inputs, by key or section; others are statements of the report."""


def _inputs(before: Report, after: Report, words: Iterable[Difference]) -> Iterator[InputChange]:
    """All inputs that differ, config keys first."""
    old, new = before.metadata.model, after.metadata.model
    yield from _of_config(old, new)
    digests = _digests(old.code_digest, new.code_digest)
    yield from changed_input("code", "Python files", *map("digest {}".format, digests))
    # The options determine the prompt, except for its text and for a model that reads no pages.
    has_no_pages = before.workload.page is None and after.workload.page is None
    for name in (*_OPTIONS, *(["seq_len"] if has_no_pages else [])):
        yield from changed_input(
            "workload", name, getattr(before.workload, name), getattr(after.workload, name)
        )
    for each in words:
        key = each.key.removeprefix("metadata.").removeprefix("workload.")
        if key not in _SAID_OTHERWISE:
            kind = _KINDS.get(each.key) or _KINDS.get(each.section, "report")
            yield from changed_input(kind, key, each.before, each.after)


def _digests(*digests: str) -> Sequence[str]:
    """Their first characters, or all where these are the same."""
    begins = [each[:_DIGEST] for each in digests]
    return digests if len({*begins}) == 1 else begins


def _of_config(old: Model, new: Model) -> Iterator[InputChange]:
    texts = {old.config_text, new.config_text}
    if old.config_digest == new.config_digest and (None in texts or len(texts) == 1):
        return
    was, now = _config_of(old), _config_of(new)
    differ = () if was is None or now is None else config_differences({"was": was, "now": now})
    keys = [(each.key, each.text("was"), each.text("now")) for each in differ]
    for key, *values in keys or [("config.json", _config_name(old), _config_name(new))]:
        yield InputChange(kind="config", key=key, before=values[0], after=values[1])


def _config_name(model: Model) -> str:
    """The digest of a config whose keys are unknown or not its own."""
    text = model.config_text
    is_right = text is None or sha256(text.encode()).hexdigest() == model.config_digest
    return f"digest {model.config_digest[:_DIGEST]}{'' if is_right else ', not of its text'}"


def _config_of(model: Model) -> Mapping[str, Any] | None:
    """The config's values; None if unknown."""
    try:
        found = json.loads(model.config_text or "null")
    except (ValueError, RecursionError):
        return None  # a report's text need not be valid JSON
    return found if isinstance(found, dict) else None


def changed_input(kind: InputKind, key: str, was: object, now: object) -> list[InputChange]:
    """An input's change in words; empty without one."""
    return (
        [] if was == now else [InputChange(kind=kind, key=key, before=_text(was), after=_text(now))]
    )


def _text(value: object) -> str | None:
    if isinstance(value, list):
        return listed(value, _MOST_NAMED)
    if isinstance(value, tuple):
        is_size = any(isinstance(each, int) for each in value)
        return (" x " if is_size else ", ").join(map(str, value)) or None
    text = None if value is None else str(value)
    return text.lower() if text and isinstance(value, bool) else text


# --- whether a saved measurement is of a workload ----------------------------------------------

_MEASURED_WITH: Final = (
    "page", "base_size", "image_size", "crop_mode", "prompt_pages", "batch_size", "text_tokens",
    "seq_len", "max_new_tokens",
)  # fmt: skip


def differences(measured: Measurement, report: Report, device: str) -> Iterator[str]:
    """What was measured otherwise than a report counts it, and than on a device, in words."""
    old, new = measured.model, report.metadata.model
    for name, was, now in (
        ("device", measured.title, device),
        ("dtype", measured.dtype, report.metadata.dtype),
        ("attention", measured.attention, report.metadata.attention),
        *(
            (name, getattr(measured.workload, name), getattr(report.workload, name))
            for name in _MEASURED_WITH
        ),
        ("config", *_digests(old.config_digest, new.config_digest)),
        ("the model's code", *_digests(old.code_digest, new.code_digest)),
    ):
        if was != now:
            yield f"{name} {_text(was) or 'none'}, not {_text(now) or 'none'}"


# --- where work moved --------------------------------------------------------------------------

_NOTHING: Final = (0, 0, 0)

_Moving: TypeAlias = tuple[MoveLevel, str, str]
"""Level, stage and name of something that does work."""


def _moves(before: Report, after: Report) -> list[Move]:
    """Everything whose work changed, largest first; modules alike are one."""
    old, new = _works(before), _works(after)
    alike: defaultdict[_Moving, list[Any]] = defaultdict(list)
    for key in {**new, **old}:
        level, stage, name = key
        pairs = [*zip(old.get(key, _NOTHING), new.get(key, _NOTHING), strict=False)]
        if any(was != now for was, now in pairs):
            pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", name) if level == "module" else name
            alike[level, stage, pattern].append((name.split("."), pairs))
    batch, decode = before.total.batch, after.decode_name or before.decode_name
    whole = (batch.flops, batch.bytes_moved, before.total.params)
    found: list[Move] = []
    for (level, stage, _), same in alike.items():
        paths, changes = zip(*same, strict=True)
        amounts = [
            Amounts(before=sum(was for was, _ in pairs), after=sum(now for _, now in pairs))
            for pairs in zip(*changes, strict=True)
        ]
        # Without decode steps there may still be a decode stage; it isn't part of the batch.
        runs = max(batch.decode_steps, 1) if stage == decode else 1
        shares = [
            abs(each.difference) * times / max(of, 1)
            for each, times, of in zip(amounts, (runs, runs, 1), whole, strict=False)
        ]
        if any(shares):
            found.append(Move(
                level=level, stage=stage, modules=len(paths), share=max(shares),
                name=".".join(
                    parts[0] if len({*parts}) == 1 else "*" for parts in zip(*paths, strict=True)
                ),
                flops=amounts[0], bytes=amounts[1] if len(amounts) > 1 else None,
                params=amounts[2] if len(amounts) > 2 else None,
            ))  # fmt: skip
    return sorted(
        found,
        key=lambda each: (
            get_args(MoveLevel).index(each.level),
            -each.share,
            each.stage,
            each.name,
        ),
    )


def _works(report: Report) -> dict[_Moving, tuple[int, ...]]:
    """FLOPs, bytes and parameters of everything, as far as it has them."""
    found: dict[_Moving, tuple[int, ...]] = {}
    for stage, each in report.stages.items():
        found["stage", stage, stage] = (each.flops, each.bytes_moved, each.params)
        found |= {
            ("module", stage, path): (module.own.flops, module.own.bytes_moved)
            for path, module in each.by_module.items()
        }
        found |= {("operator", stage, name): (flops,) for name, flops in each.operators.items()}
        found |= {
            ("kind", stage, kind): (family.flops, family.bytes)
            for kind, family in each.operator_families.items()
        }
    return found
