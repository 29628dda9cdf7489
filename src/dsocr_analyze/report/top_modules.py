"""Which modules do most of the work, with repeated layers combined."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dsocr_analyze.hardware.devices import gpu_named

if TYPE_CHECKING:
    from dsocr_analyze.report.document import Report

__all__ = ["Ridge", "TopModule", "ridge_of", "top_modules"]


@dataclass(frozen=True)
class TopModule:
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
    found: dict[tuple[str, str, str | None], list[int]] = {}
    for stage in stages:
        for path, module in report.stages[stage].by_module.items():
            if module.own.flops:
                name = re.sub(r"\.\d+(?=\.|$)", ".*", path)
                sums = found.setdefault((stage, name, module.class_name), [0, 0, 0, 0])
                own = (1, module.calls or 0, module.own.flops, module.own.bytes_moved)
                sums[:] = [before + more for before, more in zip(sums, own, strict=True)]
    total = sum(report.stages[stage].flops for stage in stages)
    ranked = sorted(found.items(), key=lambda item: (-item[1][2], item[0][:2]))
    return [
        TopModule(*key, modules, calls, flops, nbytes, flops / total if total else 0.0)
        for key, (modules, calls, flops, nbytes) in ranked
    ]


@dataclass(frozen=True)
class Ridge:
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


REFERENCE_GPU: Final = "a100-40gb"
"""The GPU of the paper's own throughput figures, used if a report names none."""


def ridge_of(report: Report) -> Ridge:
    """The ridge point of the first GPU that a report names, or of the reference GPU."""
    for entry in report.time:
        if entry.ridge_flops_per_byte is not None:
            return Ridge(entry.gpu, entry.ridge_flops_per_byte, is_named=True)
    return Ridge(REFERENCE_GPU, gpu_named(REFERENCE_GPU).ridge_flops_per_byte, is_named=False)
