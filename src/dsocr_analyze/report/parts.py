"""What a page's cost is made of: stages and their colours, and the modules that do most of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from dsocr_analyze.hardware.devices import gpu_named

if TYPE_CHECKING:
    from dsocr_analyze.report.document import Counts, Report
    from dsocr_analyze.timing.prediction import TimeEntry

__all__ = [
    "AMOUNTS",
    "OUTSIDE",
    "PALETTE",
    "Amount",
    "Ridge",
    "TopModule",
    "batch_parts",
    "page_parts",
    "ridge_of",
    "seconds_parts",
    "stage_colours",
    "top_modules",
]

Amount: TypeAlias = "Callable[[Counts], int]"

AMOUNTS: Final[dict[str, Amount]] = {
    "flops": attrgetter("flops"),
    "bytes": attrgetter("bytes_moved"),
}
"""The part of a stage's counts that is summed."""

PALETTE: Final = (
    "#2b66ad", "#a84f12", "#2a7a57", "#9a3b74", "#6353ab", "#7d5f10", "#23728a", "#b03a3a",
    "#5c6670",
)  # fmt: skip
"""Colours dark enough for white text."""

OUTSIDE: Final = "preprocessing, host"
"""Name for the seconds of a page that are in no stage."""

_KNOWN: Final = ("sam", "clip", "projector", "prefill", "decode", OUTSIDE, "encoder")
"""Stages with fixed colours, in the palette's order."""

REFERENCE_GPU: Final = "a100-40gb"
"""The GPU of the paper's own throughput figures, used if a report names none."""


# --- stages: the parts that add up to the whole page ---------------------------------------------


def batch_parts(report: Report, amount: Amount) -> dict[str, int]:
    """An amount of the whole batch by stage, all decode steps summed."""
    parts = {name: amount(stage) for name, stage in report.stages.items()}
    if report.decode_name is not None:
        parts[report.decode_name] = amount(report.total.batch) - amount(report.total)
    return parts


def page_parts(report: Report, amount: Amount) -> dict[str, float]:
    """The same for one page: its share of the batch."""
    pages = report.total.page.pages
    return {name: part / pages for name, part in batch_parts(report, amount).items()}


def seconds_parts(report: Report, entry: TimeEntry) -> dict[str, float]:
    """Seconds of a page alone by stage, with the rest under `OUTSIDE`.

    Benchmarks correct the first token as a whole. If the corrected time is below the sum of its
    stages, the stages are scaled down to it.
    """
    before = {
        name: entry.stages[name].seconds if name in entry.stages else 0.0
        for name in report.stages
        if name != report.decode_name
    }
    together = sum(before.values())
    factor = min(1.0, entry.ttft_seconds / together) if together else 1.0
    parts = {name: factor * seconds for name, seconds in before.items()}
    if report.decode_name is not None:
        parts[report.decode_name] = entry.page_seconds - entry.ttft_seconds
    return parts | {OUTSIDE: max(entry.ttft_seconds - factor * together, 0.0)}


def stage_colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each stage, the same everywhere; other models' take the remaining colours.

    Args:
        names: The stages, in order.
    """
    distinct = list(dict.fromkeys(names))
    found = {name: PALETTE[_KNOWN.index(name)] for name in distinct if name in _KNOWN}
    others = [name for name in distinct if name not in _KNOWN]
    free = [colour for colour in PALETTE if colour not in found.values()] or PALETTE
    return found | {name: free[index % len(free)] for index, name in enumerate(others)}


# --- modules -------------------------------------------------------------------------------------


class TopModule(NamedTuple):
    """Modules whose paths differ only in layer numbers; counts are of their own forwards.

    Attributes:
        stage: Their stage.
        name: Their path, with * for a layer number; empty for the model itself.
        class_name: Their class; None if no model was built.
        modules: Number of modules.
        calls: Number of calls; 0 if unknown.
        flops: Their FLOPs.
        nbytes: Bytes they read and write.
        flops_share: Their share of the FLOPs of all modules in the requested stages.
    """

    stage: str
    name: str
    class_name: str | None
    modules: int
    calls: int
    flops: int
    nbytes: int
    flops_share: float

    @property
    def short_name(self) -> str:
        """The end of the path, starting at the list of repeated layers."""
        before, star, after = self.name.partition(".*")
        return f"{before.rpartition('.')[2]}{star}{after}" or "the model itself"


def top_modules(report: Report, *stages: str) -> list[TopModule]:
    """Modules of some stages whose own forwards compute something, costliest first."""
    found: dict[tuple[str, str, str | None], list[tuple[int, ...]]] = {}
    for stage in stages:
        for path, module in report.stages[stage].by_module.items():
            if module.own.flops:
                key = stage, re.sub(r"\.\d+(?=\.|$)", ".*", path), module.class_name
                own = (1, module.calls or 0, module.own.flops, module.own.bytes_moved)
                found.setdefault(key, []).append(own)
    total = sum(report.stages[stage].flops for stage in stages)
    sums = {key: [*map(sum, zip(*each, strict=True))] for key, each in found.items()}
    ranked = [
        TopModule(*key, modules, calls, flops, nbytes, flops / total if total else 0.0)
        for key, (modules, calls, flops, nbytes) in sums.items()
    ]
    return sorted(ranked, key=lambda each: (-each.flops, each.stage, each.name))


class Ridge(NamedTuple):
    """FLOPs per byte above which a GPU is bound by compute rather than memory.

    Attributes:
        gpu: Name of the GPU.
        flops_per_byte: Its peak over its bandwidth.
        is_named: Whether the report names that GPU; if not, it stands for GPUs in general.
    """

    gpu: str
    flops_per_byte: float
    is_named: bool

    def bound(self, flops_per_byte: float) -> str:
        """Whether compute or memory bounds work of that intensity."""
        return "compute" if flops_per_byte >= self.flops_per_byte else "memory"


def ridge_of(report: Report) -> Ridge:
    """The ridge point of the first GPU that a report names, or of the reference GPU."""
    for entry in report.time:
        if entry.ridge_flops_per_byte is not None:
            return Ridge(entry.gpu, entry.ridge_flops_per_byte, is_named=True)
    return Ridge(REFERENCE_GPU, gpu_named(REFERENCE_GPU).ridge_flops_per_byte, is_named=False)
