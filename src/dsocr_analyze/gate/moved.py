"""Where work changed between two reports: by stage, module and operator, largest share first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dsocr_analyze.gate.document import Amounts, Move
from dsocr_analyze.report.document import Report, Stage

__all__ = ["moves"]


@dataclass(frozen=True)
class _Whole:
    """The baseline's batch, relative to which changes are measured.

    Attributes:
        flops: Its FLOPs.
        bytes: Its bytes.
        params: The model's parameters.
        steps: How often each stage runs in the batch.
    """

    flops: int
    bytes: int
    params: int
    steps: Mapping[str, int]

    def share(
        self, stage: str, flops: Amounts, nbytes: Amounts | None, params: Amounts | None
    ) -> float:
        """The change in these amounts as a share of the whole."""
        runs = self.steps.get(stage, 1)
        moved = [abs(flops.difference) * runs / self.flops]
        if nbytes is not None:
            moved.append(abs(nbytes.difference) * runs / self.bytes)
        if params is not None:
            moved.append(abs(params.difference) / self.params)
        return max(moved)


def moves(before: Report, after: Report) -> list[Move]:
    """Everything whose work changed: stages, then modules, operators and kinds of operators.

    At every level, the largest change relative to the batch comes first.
    """
    batch = before.total.batch
    decode = after.decode_name or before.decode_name
    whole = _Whole(
        flops=max(batch.flops, 1),
        bytes=max(batch.bytes_moved, 1),
        params=max(before.total.params, 1),
        # A report without decode steps may still have a decode stage; it isn't part of the batch.
        steps={} if decode is None else {decode: max(batch.decode_steps, 1)},
    )
    names = dict.fromkeys([*after.stages, *before.stages])
    pairs = [(name, before.stages.get(name), after.stages.get(name)) for name in names]
    found: list[Move] = []
    for level in (_stages, _modules, _operators, _kinds):
        moved = level(pairs, whole)
        found += sorted(moved, key=lambda each: (-each.share, each.stage, each.name))
    return found


_Pairs = Iterable[tuple[str, Stage | None, Stage | None]]


def _move(
    level: Literal["stage", "module", "operator", "kind"],
    stage: str,
    name: str,
    whole: _Whole,
    *,
    flops: Amounts,
    nbytes: Amounts | None,
    params: Amounts | None = None,
    modules: int = 1,
) -> Iterator[Move]:
    """The move, if any of the amounts changed."""
    if any(each is not None and each.difference for each in (flops, nbytes, params)):
        yield Move(
            level=level, stage=stage, name=name, modules=modules, flops=flops, bytes=nbytes,
            params=params, share=whole.share(stage, flops, nbytes, params),
        )  # fmt: skip


def _stages(pairs: _Pairs, whole: _Whole) -> Iterator[Move]:
    for name, old, new in pairs:
        yield from _move(
            "stage", name, name, whole,
            flops=Amounts(before=old.flops if old else 0, after=new.flops if new else 0),
            nbytes=Amounts(before=old.bytes_moved if old else 0,
                           after=new.bytes_moved if new else 0),
            params=Amounts(before=old.params if old else 0, after=new.params if new else 0),
        )  # fmt: skip


def _operators(pairs: _Pairs, whole: _Whole) -> Iterator[Move]:
    for name, old, new in pairs:
        was, now = old.operators if old else {}, new.operators if new else {}
        for operator in dict.fromkeys([*now, *was]):
            flops = Amounts(before=was.get(operator, 0), after=now.get(operator, 0))
            yield from _move("operator", name, operator, whole, flops=flops, nbytes=None)


def _kinds(pairs: _Pairs, whole: _Whole) -> Iterator[Move]:
    for name, old, new in pairs:
        was = old.operator_families if old else {}
        now = new.operator_families if new else {}
        for kind in dict.fromkeys([*now, *was]):
            first, last = was.get(kind), now.get(kind)
            yield from _move(
                "kind", name, kind, whole,
                flops=Amounts(before=first.flops if first else 0, after=last.flops if last else 0),
                nbytes=Amounts(before=first.bytes if first else 0, after=last.bytes if last else 0),
            )  # fmt: skip


@dataclass
class _Alike:
    """Modules whose paths differ only in numbers, and the change in each one's own work."""

    paths: list[list[str]] = field(default_factory=list)
    flops: list[Amounts] = field(default_factory=list)
    bytes: list[Amounts] = field(default_factory=list)

    def path(self) -> str:
        """Their common path, with `*` for numbers that differ."""
        parts = (set(each) for each in zip(*self.paths, strict=True))
        return ".".join(part.pop() if len(part) == 1 else "*" for part in parts)


def _modules(pairs: _Pairs, whole: _Whole) -> Iterator[Move]:
    for name, old, new in pairs:
        was, now = old.by_module if old else {}, new.by_module if new else {}
        alike: defaultdict[tuple[str, ...], _Alike] = defaultdict(_Alike)
        for path in dict.fromkeys([*now, *was]):
            first, last = was.get(path), now.get(path)
            flops = Amounts(
                before=first.own.flops if first else 0, after=last.own.flops if last else 0
            )
            nbytes = Amounts(
                before=first.own.bytes_moved if first else 0,
                after=last.own.bytes_moved if last else 0,
            )
            if flops.difference or nbytes.difference:
                parts = path.split(".")
                group = alike[tuple("*" if part.isdecimal() else part for part in parts)]
                group.paths.append(parts)
                group.flops.append(flops)
                group.bytes.append(nbytes)
        for group in alike.values():
            yield from _move(
                "module", name, group.path(), whole, flops=_sum(group.flops),
                nbytes=_sum(group.bytes), modules=len(group.paths),
            )  # fmt: skip


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    found = list(amounts)
    return Amounts(
        before=sum(each.before for each in found), after=sum(each.after for each in found)
    )
