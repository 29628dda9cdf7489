"""Which modules do most of the work, repeated layers together."""

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
    """The modules of one path but for the numbers of their layers, by what their own forwards do.

    Attributes:
        stage: Their stage.
        name: Their path, with * for the number of a layer; empty for the model itself.
        class_name: Their class; None where no model was built.
        modules: How many they are.
        calls: How often they are called; 0 where that is unknown.
        flops: Their FLOPs.
        nbytes: Bytes that they read and write.
        flops_share: Their part of the FLOPs of all modules that were asked for.
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
        """The end of the path, as of the list that the repeated layers are in."""
        before, star, after = self.name.partition(".*")
        return f"{before.rpartition('.')[2]}{star}{after}" or "the model itself"


def top_modules(report: Report, *stages: str) -> list[TopModule]:
    """The modules of some stages of which all forwards compute something, costliest first."""
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
    """From how many FLOPs per byte on a GPU's products bound it, not its memory.

    Attributes:
        gpu: Name of the GPU.
        flops_per_byte: Its peak over its bandwidth.
        is_named: Whether the report names that GPU; else it stands for GPUs in general.
    """

    gpu: str
    flops_per_byte: float
    is_named: bool

    def bound(self, flops_per_byte: float) -> str:
        """Which of compute and memory bounds work of that intensity."""
        return "compute" if flops_per_byte >= self.flops_per_byte else "memory"


REFERENCE_GPU: Final = "a100-40gb"
"""The GPU of the paper's own throughput figures, by which to judge where none is named."""


def ridge_of(report: Report) -> Ridge:
    """The ridge point of the first GPU that a report names, or of the reference GPU."""
    for entry in report.time:
        if entry.ridge_flops_per_byte is not None:
            return Ridge(entry.gpu, entry.ridge_flops_per_byte, is_named=True)
    return Ridge(REFERENCE_GPU, gpu_named(REFERENCE_GPU).ridge_flops_per_byte, is_named=False)
