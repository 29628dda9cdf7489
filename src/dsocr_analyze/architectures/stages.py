"""The stages of a model, and what its closed forms say of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dsocr_analyze.figures import Memory, Parameters, StageFigures
from dsocr_analyze.kernels import Work
from dsocr_analyze.tape import Size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Composition", "NotModelled", "PageTotals", "Stage", "owner_among"]

Role = Literal["vision", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: a part of the prefill pass, or the decode step.

    Attributes:
        name: Its name.
        prefixes: Paths of the modules that it owns, along with everything below them.
        role: A `vision` stage gets the work of its own modules; `prefill` gets the rest of the
            prefill pass; `decode` gets a whole decode step. Exactly one stage is `prefill`, and at
            most one, the last, is `decode`.
        notes: Notes on its figures for a reader.
    """

    name: str
    prefixes: tuple[str, ...]
    role: Role
    notes: tuple[str, ...] = ()


def owner_among(stages: Sequence[Stage], path: str) -> Stage | None:
    """The stage that owns the module or parameter at `path`: the one with the longest prefix."""
    owner, longest, held = None, 0, f"{path}."
    for stage in stages:
        for prefix in stage.prefixes:
            if len(prefix) > longest and held.startswith(f"{prefix}."):
                owner, longest = stage, len(prefix)
    return owner


@dataclass(frozen=True, slots=True)
class NotModelled:
    """Incidental operators without a closed form.

    Attributes:
        modules: Pattern of the paths of the modules that call them.
        operators: Their names; only modules that call all of them are meant.
        reason: Why they have no closed form.
    """

    modules: str
    operators: frozenset[str]
    reason: str


@dataclass(frozen=True)
class Composition:
    """The closed forms of a workload; the attributes are those of `PageFigures`."""

    stages: Mapping[str, StageFigures]
    parameters: Parameters
    batch: Work
    causal_savable_flops: int
    memory: Memory


@dataclass(frozen=True)
class PageTotals:
    """What n workloads cost; every count is an integer (for all alike) or an array `[n]`.

    Attributes:
        prefill: The whole prefill pass of the batch.
        decode_step: One step of the batch over a cache of `seq_len` tokens.
        batch: The prefill pass and all decode steps of the batch.
        visual_tokens: Visual tokens per page.
        seq_len: Tokens per prompt.
        kv_cache_bytes: Cache of the batch including its last token.
        decode_step_bytes_read_expected: Bytes the step reads if it touches the expected number of
            routed experts instead of the maximum; floats.
        peak_activation_bytes: Most bytes of tensors alive at once in the prefill pass, besides
            weights and inputs.
    """

    prefill: Work
    decode_step: Work
    batch: Work
    visual_tokens: Size
    seq_len: Size
    kv_cache_bytes: Size
    decode_step_bytes_read_expected: float | NDArray[np.float64]
    peak_activation_bytes: Size

    def counts(self) -> Iterator[Size]:
        """Yields every count except expected values."""
        for work in (self.prefill, self.decode_step, self.batch):
            yield from work
        yield from (
            self.visual_tokens, self.seq_len, self.kv_cache_bytes, self.peak_activation_bytes
        )  # fmt: skip
