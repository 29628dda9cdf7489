"""The stages of a model, and what its closed forms say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dsocr_analyze.figures import MemoryFigures, Parameters, StageFigures
from dsocr_analyze.kernels import Work

__all__ = ["Composition", "IncidentalOperators", "StageScope", "owner_among"]

Role = Literal["vision", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class StageScope:
    """A stage: a part of the prefill pass, or the decode step.

    Attributes:
        prefixes: Paths of the modules that it owns, with all below them.
        role: A `vision` stage gets the work of its modules, `prefill` the rest of the prefill
            pass, `decode` a decode step. One stage is `prefill`, at most one, the last, `decode`.
        notes: On its figures, for a reader.
    """

    name: str
    prefixes: tuple[str, ...]
    role: Role
    notes: tuple[str, ...] = ()


def owner_among(stages: Sequence[StageScope], path: str) -> StageScope | None:
    """The stage that owns what is at `path`: the one with the longest prefix."""
    owner, longest, held = None, 0, f"{path}."
    for stage in stages:
        for prefix in stage.prefixes:
            if len(prefix) > longest and held.startswith(f"{prefix}."):
                owner, longest = stage, len(prefix)
    return owner


@dataclass(frozen=True, slots=True)
class IncidentalOperators:
    """Incidental operators without a closed form, for a reason.

    `modules` is a pattern of the paths of modules that call all of them.
    """

    modules: str
    operators: frozenset[str]
    reason: str


@dataclass(frozen=True)
class Composition:
    """The closed forms of a workload, as in `PageFigures`."""

    stages: Mapping[str, StageFigures]
    parameters: Parameters
    batch: Work
    causal_savable_flops: int
    memory: MemoryFigures
