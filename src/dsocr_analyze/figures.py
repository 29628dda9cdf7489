"""What a page costs: `PageFigures`, which both engines return and everything else takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from dsocr_analyze.kernels import Attention, Kernel, Work, total_work, work_by
from dsocr_analyze.workload import AnyWorkload

Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0)]

# --- counts, and how they were obtained ----------------------------------------------------------


class Counts(Struct, frozen=True, kw_only=True):
    """Additive counts of a piece of work.

    Attributes:
        macs: Multiply-accumulates of matrix operators.
        matrix_flops: FLOPs of matrix operators: 2 * macs.
        vector_flops: FLOPs of all other operators.
        flops: matrix_flops + vector_flops.
        activations: Output elements of matrix operators.
        bytes_read: Bytes of all inputs, weights included, counted for each operator on its own.
        bytes_written: Bytes of all outputs, counted for each operator on its own.
    """

    macs: Count
    matrix_flops: Count
    vector_flops: Count
    flops: Count
    activations: Count
    bytes_read: Count
    bytes_written: Count

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


def counts_of(work: Work) -> dict[str, int]:
    """The fields of `Counts`."""
    return dict(zip(Counts.__struct_fields__, _COUNTS(work), strict=True))


_COUNTS = attrgetter(*Counts.__struct_fields__)


class Model(Struct, frozen=True, kw_only=True, rename={"class_name": "class"}):
    """Where the model comes from.

    Attributes:
        architecture: Name of its architecture; null if unknown.
        source: The built-in reference, a directory with code, or a config for transformers' code.
        id: Display name.
        config_digest: SHA-256 of the config's values.
        code_digest: SHA-256 of the names and contents of all Python files.
        class_name: Its class; null if no model was built.
        weights: Whether a checkpoint's weights were loaded.
        config_text: The config's values as JSON, hashed by config_digest; null if unknown.
    """

    architecture: str | None
    source: Literal["reference", "directory", "config"]
    id: str
    config_digest: str
    code_digest: str
    class_name: str | None
    weights: Literal["none", "checkpoint"]
    config_text: str | None = None


class Provenance(Struct, frozen=True, kw_only=True):
    """How an engine obtained figures.

    Attributes:
        model: The model.
        versions: Versions of this program (tool) and of the packages it used.
        engine: trace if the model ran under hooks, analytic if closed forms were evaluated.
        device: Device the model ran on; none for the analytic engine.
        dtype: Data type of weights and activations.
        attention: The decoder's attention implementation.
    """

    model: Model
    versions: Mapping[str, str]
    engine: Literal["trace", "analytic"]
    device: str
    dtype: str
    attention: str


class OperatorLedger(Struct, frozen=True, kw_only=True):
    """Calls of every operator of the prefill pass and one decode step, by name.

    Attributes:
        counted: Operators included in the figures.
        free: Operators that neither move nor compute anything.
        unknown: Operators without a counting rule, left out of all figures.
    """

    counted: Mapping[str, Count]
    free: Mapping[str, Count]
    unknown: Mapping[str, Count]


# --- stages ---


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
    visual_tokens: Any
    seq_len: Any
    kv_cache_bytes: Any
    decode_step_bytes_read_expected: Any
    peak_activation_bytes: Any


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """Routed experts that the tokens of one pass touch; for many passes, arrays.

    Attributes:
        layers: Layers that have routed experts.
        weights_bytes: Bytes of one expert's weights.
        even: Per layer, if choices spread evenly: the maximum.
        expected: Per layer, if tokens choose uniformly and independently.
        counted: Of all layers, in the figures: even, or as a checkpoint's routing chose.
    """

    layers: int
    weights_bytes: int
    even: int
    expected: float
    counted: int

    @property
    def bytes_beyond_counted(self) -> float:
        """Bytes of the expected experts' weights minus the counted ones'."""
        return (self.layers * self.expected - self.counted) * self.weights_bytes


def expected_experts(tokens: Any, experts: Any, per_token: Any) -> Any:
    """Experts that get one of n tokens, of numbers or arrays: `E (1 - (1 - k/E)^n)`.

    Those of the first token are whole, whatever is lost in the last digit.
    """
    others = experts - per_token
    return per_token + others * (1 - (others / experts) ** (tokens - 1))


@dataclass(frozen=True)
class StageFigures:
    """One stage: a part of the prefill pass, or one decode step.

    Attributes:
        calls: Calls of its outermost module.
        kernels: Its kernels, equal records merged.
        module_calls: Calls of modules by path, in the order of first calls.
        own_params: Parameters by path of the module that holds them; None without a built model.
        experts: Experts that its tokens touch; None if unknown or without any.
    """

    name: str
    params: int
    calls: int
    kernels: tuple[Kernel, ...]
    module_calls: Mapping[str, int]
    own_params: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()
    experts: RoutedExperts | None = None

    @cached_property
    def own(self) -> dict[str, Work]:
        """Own work of every module that has any, by path."""
        return work_by(self.kernels, "path")

    @cached_property
    def work(self) -> Work:
        """Work of all kernels."""
        return total_work(self.own.values())

    @property
    def causal_savable_flops(self) -> int:
        """Matrix FLOPs that causal attention kernels may skip."""
        flops = 0
        for kernel in self.kernels:
            if isinstance(sizes := kernel.dimensions, Attention):
                macs = sizes.skippable_scores * (sizes.head_dim + sizes.value_dim)
                flops += 2 * kernel.calls * macs
        return flops


@dataclass(frozen=True)
class Parameters:
    """Parameters of a model, each counted once.

    Attributes:
        unassigned: Those that no stage owns, by name.
    """

    total: int
    unassigned: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes of tensors alive at once in the prefill pass, besides weights and inputs.

    Attributes:
        path: Module whose own forward reaches it; empty for the model itself.
    """

    nbytes: int
    path: str


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """What the batch holds in memory, in bytes.

    Attributes:
        inputs_bytes: Pixels, token ids and masks of the prefill pass.
        prefill_cache_bytes: The KV cache of `seq_len` tokens.
        kv_cache_bytes: The KV cache of `seq_len + max_new_tokens - 1` tokens.
        peak: The peak of the prefill pass, the KV cache included.
    """

    weights_bytes: int
    inputs_bytes: int
    prefill_cache_bytes: int
    kv_cache_bytes: int
    peak: Peak


class BytesAlive(Struct, frozen=True):
    """What is alive at a memory peak besides the weights.

    Attributes:
        inputs_bytes: Inputs of the prefill pass.
        cache_bytes: The KV cache.
        activation_bytes: All other tensors except the logits.
        logits_bytes: The logits.
    """

    inputs_bytes: Count
    cache_bytes: Count
    activation_bytes: Count
    logits_bytes: Count

    @property
    def nbytes(self) -> int:
        """The sum of all four."""
        return self.inputs_bytes + self.cache_bytes + self.activation_bytes + self.logits_bytes


@dataclass(frozen=True)
class Composition:
    """What follows from the passes of a workload.

    Attributes:
        stages: The prefill pass in order; then, if the model decodes, a step over `seq_len` tokens.
        batch: The prefill pass and `max_new_tokens - 1` decode steps with a growing cache.
        causal_savable_flops: Matrix FLOPs of the prefill pass that a causal kernel may skip.
    """

    stages: Mapping[str, StageFigures]
    parameters: Parameters
    batch: Work
    causal_savable_flops: int
    memory: MemoryFigures


@dataclass(frozen=True, kw_only=True)
class PageFigures(Composition):
    """What a workload costs.

    Attributes:
        module_classes: By path; empty without a built model.
        flops_analytic: By stage, by closed forms to compare a trace with.
        warnings: Reasons to doubt a figure.
        notes: For a reader, warnings first.
    """

    workload: AnyWorkload
    provenance: Provenance
    ledger: OperatorLedger
    module_classes: Mapping[str, str] = field(default_factory=dict)
    decodes: bool = True
    flops_analytic: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def prefill(self) -> Sequence[StageFigures]:
        """Stages of the prefill pass; the last is the decoder's part of it."""
        stages = tuple(self.stages.values())
        return stages[:-1] if self.decodes else stages

    @property
    def decode(self) -> StageFigures | None:
        """The decode step; None for a model that does not decode."""
        return tuple(self.stages.values())[-1] if self.decodes else None

    @cached_property
    def prefill_pass(self) -> Work:
        """Work of the prefill pass."""
        return total_work(map(attrgetter("work"), self.prefill))
