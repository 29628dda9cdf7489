"""What a page costs: the one typed shape that both engines return and everything else takes.

`PageFigures` holds the kernel records of a workload by stage, and what is no sum over them:
parameters, calls, memory. Sums (by module, operator, kind, pass) are derived here and only here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.kernels import (
    NO_WORK,
    Attention,
    Kernel,
    KernelDevice,
    Kind,
    Work,
    WorkShare,
    ancestors,
    total_work,
    with_ancestors,
)
from dsocr_analyze.workload import AnyWorkload

__all__ = [
    "Engine",
    "ExpertsTouched",
    "KindFigures",
    "Ledger",
    "Memory",
    "ModelSource",
    "ModuleFigures",
    "PageFigures",
    "Parameters",
    "Peak",
    "Provenance",
    "Source",
    "StageFigures",
    "Tide",
]

Engine = Literal["trace", "analytic"]
Source = Literal["reference", "directory", "config"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from.

    Attributes:
        architecture: Name of its architecture; None where none recognises it.
        source: Whether it is the built-in reference, a directory with code, or a config for code
            that transformers has.
        id: Name for readers.
        config_digest: SHA-256 of the config's values.
        code_digest: SHA-256 over names and contents of all Python files.
        class_name: The model's class; None where no model was built.
        weights: Whether a checkpoint's values were loaded.
        config_text: The config's values as JSON, of which `config_digest` is; None if unknown.
    """

    architecture: str | None
    source: Source
    id: str
    config_digest: str
    code_digest: str
    class_name: str | None = None
    weights: Literal["none", "checkpoint"] = "none"
    config_text: str | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """How figures were obtained.

    Attributes:
        model: The model.
        engine: `trace` ran the model under hooks; `analytic` evaluated closed forms.
        device: Where it ran; `none` for the analytic engine.
        dtype: Type of weights and activations.
        attention: The decoder's attention implementation, as transformers names it.
        kernels_of: Whose kernels are counted; where nothing ran on a device, those of CUDA.
        versions: Versions of this program and of the packages that took part, by name.
    """

    model: ModelSource
    engine: Engine
    device: str
    dtype: Dtype
    attention: str
    kernels_of: KernelDevice
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ModuleFigures:
    """One module within one stage.

    Attributes:
        calls: How often it was called; 0 for a container whose children are.
        params: Parameters of the stage at or below it; None where no model was built.
        own: Work of its own forward, without its children.
        total: Own work and that of every module below.
    """

    calls: int
    params: int | None
    own: Work
    total: Work


@dataclass(frozen=True, slots=True)
class KindFigures:
    """All operators of one kind within one stage.

    Attributes:
        operators: Their names, costliest first.
        work: Their work.
    """

    operators: tuple[str, ...]
    work: Work


@dataclass(frozen=True, slots=True)
class ExpertsTouched:
    """How many routed experts the tokens of one pass touch; of many passes, arrays.

    Attributes:
        layers: Layers that have routed experts.
        weights_bytes: Bytes of one expert's weights.
        even: Experts of a layer where the tokens' choices spread evenly: the most they can touch.
        expected: Experts of a layer to expect where each token chooses uniformly, by itself.
        counted: Experts of all layers together whose weights the figures hold: the even split's,
            but with a checkpoint's values those that its own routing chose.
    """

    layers: int
    weights_bytes: int
    even: int
    expected: float
    counted: int

    @property
    def counted_per_layer(self) -> float:
        """`counted` as the mean over layers."""
        return self.counted / self.layers

    @property
    def bytes_beyond_counted(self) -> float:
        """Bytes of weights that the expected experts have more than those counted."""
        return (self.layers * self.expected - self.counted) * self.weights_bytes


@dataclass(frozen=True)
class StageFigures:
    """One stage: a part of the prefill pass, or one decode step.

    Attributes:
        name: Its name.
        params: Parameters that it owns.
        calls: Calls of its outermost module.
        kernels: What it executes, equal records merged.
        module_calls: Calls of every called module, by path in the order of the first call.
        own_params: Those of its parameters that a module holds itself, by the module's path; None
            where no model was built.
        notes: What a reader of its figures should know.
        experts: Routed experts that its tokens touch; None where it has none, or nothing is known.
    """

    name: str
    params: int
    calls: int
    kernels: tuple[Kernel, ...]
    module_calls: Mapping[str, int]
    own_params: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()
    experts: ExpertsTouched | None = None

    @cached_property
    def work(self) -> Work:
        """Work of all kernels."""
        return total_work(self.own.values())

    @property
    def bytes_read_expected(self) -> float | None:
        """Bytes read where as many experts are touched as expected; None without `experts`."""
        if self.experts is None:
            return None
        return self.work.bytes_read + self.experts.bytes_beyond_counted

    @cached_property
    def operators(self) -> Mapping[str, Work]:
        """Work by operator, costliest (by FLOPs) first."""
        parts: dict[str, list[Work]] = {}
        for operators in self.own_operators.values():
            for operator, work in operators.items():
                parts.setdefault(operator, []).append(work)
        sums = {operator: total_work(works) for operator, works in parts.items()}
        ordered = sorted(sums.items(), key=lambda item: (-item[1].flops, item[0]))
        return MappingProxyType(dict(ordered))

    @cached_property
    def kinds(self) -> Mapping[Kind, KindFigures]:
        """Operators by kind, costliest (by FLOPs) first."""
        kind_of: dict[str, Kind] = {kernel.operator: kernel.kind for kernel in self.kernels}
        members: dict[Kind, dict[str, Work]] = {}
        for operator, work in self.operators.items():
            members.setdefault(kind_of[operator], {})[operator] = work
        found = {
            kind: KindFigures(tuple(works), total_work(works.values()))
            for kind, works in members.items()
        }
        ordered = sorted(found.items(), key=lambda item: (-item[1].work.flops, item[0]))
        return MappingProxyType(dict(ordered))

    @property
    def causal_savable_flops(self) -> int:
        """Matrix FLOPs that kernels called as causal may skip."""
        return 2 * sum(
            kernel.calls
            * kernel.dimensions.skippable_scores
            * (kernel.dimensions.head_dim + kernel.dimensions.value_dim)
            for kernel in self.kernels
            if isinstance(kernel.dimensions, Attention)
        )

    @cached_property
    def own_operators(self) -> Mapping[str, Mapping[str, Work]]:
        """Own work of every module by operator, by path."""
        sums: dict[str, dict[str, Work]] = {}
        for kernel in self.kernels:
            operators = sums.setdefault(kernel.path, {})
            before = operators.get(kernel.operator)
            total = kernel.total
            operators[kernel.operator] = total if before is None else before.plus(total)
        return MappingProxyType(sums)

    @cached_property
    def own(self) -> Mapping[str, Work]:
        """Own work of every module that has some, by path."""
        return MappingProxyType(
            {path: total_work(works.values()) for path, works in self.own_operators.items()}
        )

    @cached_property
    def modules(self) -> Mapping[str, ModuleFigures]:
        """Every module that took part and everything above it, in the order of their paths."""
        own = {path: self.own.get(path, NO_WORK) for path in (*self.module_calls, *self.own)}
        params = None if self.own_params is None else self._params_below(self.own_params)
        return MappingProxyType(
            {
                path: ModuleFigures(
                    calls=self.module_calls.get(path, 0),
                    params=None if params is None else params[path],
                    own=own.get(path, NO_WORK),
                    total=total,
                )
                for path, total in sorted(with_ancestors(own).items(), key=_place)
            }
        )

    @staticmethod
    def _params_below(own_params: Mapping[str, int]) -> Counter[str]:
        below = Counter[str]()
        for path, params in own_params.items():
            for ancestor in ancestors(path):
                below[ancestor] += params
        return below


def _place(item: tuple[str, Work]) -> list[tuple[int, str]]:
    """Sorts paths component by component, parents first and layer 2 before layer 10."""
    return [(int(name), "") if name.isdecimal() else (-1, name) for name in item[0].split(".")]


@dataclass(frozen=True)
class Parameters:
    """Parameters of a model, each counted once.

    Attributes:
        total: All of them.
        unassigned: Those that no stage owns, by name.
    """

    total: int
    unassigned: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes of tensors alive at once in the prefill pass, besides weights and inputs.

    Attributes:
        nbytes: How many.
        path: Module in whose own forward that is; empty for the model itself.
    """

    nbytes: int
    path: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What the batch holds in memory, in bytes.

    Attributes:
        weights_bytes: All parameters.
        inputs_bytes: What the prefill pass is called with: pixels, token ids, masks.
        prefill_cache_bytes: KV cache after the prefill pass: `seq_len` tokens.
        kv_cache_bytes: KV cache at the end: `seq_len + max_new_tokens - 1` tokens.
        peak: Peak activation of the prefill pass, the KV cache among it.
    """

    weights_bytes: int
    inputs_bytes: int
    prefill_cache_bytes: int
    kv_cache_bytes: int
    peak: Peak


@dataclass(frozen=True, slots=True)
class Tide:
    """What is alive at a peak of memory besides the weights, by what it is, in bytes.

    Attributes:
        inputs_bytes: What the prefill pass is called with.
        cache_bytes: Keys and values of the layers that have run.
        activation_bytes: All the rest.
        logits_bytes: Logits, in every type in which they are there.
    """

    inputs_bytes: int
    cache_bytes: int
    activation_bytes: int
    logits_bytes: int

    @property
    def nbytes(self) -> int:
        """All of it."""
        return self.inputs_bytes + self.cache_bytes + self.activation_bytes + self.logits_bytes


@dataclass(frozen=True)
class Ledger:
    """Calls of every operator of the prefill pass and one decode step, by name.

    Attributes:
        counted: Operators with a kernel record.
        free: Operators that move and compute nothing: views, shape queries. The analytic engine
            knows none.
        unknown: Operators without a rule; they are in no figure.
    """

    counted: Mapping[str, int]
    free: Mapping[str, int]
    unknown: Mapping[str, int]


@dataclass(frozen=True)
class PageFigures:
    """What a workload costs.

    Attributes:
        workload: The page, its prompt and its batch.
        provenance: How the figures were obtained.
        stages: In the architecture's order; the last is one decode step over a cache of `seq_len`
            tokens, where the model decodes; the others together are the prefill pass.
        parameters: Of the whole model.
        batch: The whole batch: the prefill pass and `max_new_tokens - 1` decode steps over growing
            caches.
        causal_savable_flops: Matrix FLOPs of the prefill pass that a causal kernel may skip.
        memory: What the batch holds.
        ledger: Every operator that ran.
        module_classes: Class of every module by path; empty where no model was built.
        decodes: Whether the model decodes.
        warnings: Why a figure may be in doubt.
        notes: What a reader should know.
    """

    workload: AnyWorkload
    provenance: Provenance
    stages: Mapping[str, StageFigures]
    parameters: Parameters
    batch: Work
    causal_savable_flops: int
    memory: Memory
    ledger: Ledger
    module_classes: Mapping[str, str] = field(default_factory=dict)
    decodes: bool = True
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def with_notes(self, warnings: Sequence[str], notes: Sequence[str]) -> PageFigures:
        """The same figures with warnings and notes; a warning is a note too."""
        return replace(self, warnings=tuple(warnings), notes=(*warnings, *notes))

    @property
    def decode(self) -> StageFigures | None:
        """The decode step: the last stage; None of a model that does not decode."""
        return list(self.stages.values())[-1] if self.decodes else None

    @cached_property
    def prefill_pass(self) -> Work:
        """Work of the prefill pass: every stage but the decode step."""
        return total_work(stage.work for stage in self.stages.values() if stage is not self.decode)

    @property
    def decode_step(self) -> Work | None:
        """Work of one decode step over a cache of `seq_len` tokens."""
        return None if self.decode is None else self.decode.work

    @property
    def page(self) -> WorkShare:
        """One page's share of the batch."""
        return self.batch.divided_by(self.workload.pages)
