"""The stages of a model, and what its closed forms say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from dsocr_analyze.kernels import Work
from dsocr_analyze.tape import Size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PREFILL_STAGE: Final = "prefill"
DECODE_STAGE: Final = "decode"
"""Names of the last two stages of models that read pages."""


@dataclass(frozen=True, slots=True)
class StageScope:
    """A stage: a part of the prefill pass, or the decode step.

    Attributes:
        prefixes: Paths of the modules that it owns, with all below them.
        role: `vision` for the work of its modules; `prefill`, of one, for the rest of the prefill
            pass; `decode`, of the last, for a decode step.
        notes: On its figures.
    """

    name: str
    prefixes: tuple[str, ...]
    role: Literal["vision", "prefill", "decode"]
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
    """Operators without a closed form; `modules` is a pattern of paths that call them all."""

    modules: str
    operators: frozenset[str]
    reason: str


@dataclass(frozen=True)
class PageTotals:
    """What n workloads cost; every count is an integer for all, or an array `[n]`.

    Attributes:
        prefill: The prefill pass of the batch.
        decode_step: One step over a cache of `seq_len` tokens.
        batch: The prefill pass and all decode steps.
        visual_tokens: Per page.
        seq_len: Tokens per prompt.
        kv_cache_bytes: With the last token.
        decode_step_bytes_read_expected: With the expected number of routed experts; floats.
        peak_activation_bytes: Most bytes alive in the prefill pass, besides weights and inputs.
    """

    prefill: Work
    decode_step: Work
    batch: Work
    visual_tokens: Size
    seq_len: Size
    kv_cache_bytes: Size
    decode_step_bytes_read_expected: float | NDArray[np.float64]
    peak_activation_bytes: Size
