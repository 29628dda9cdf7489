"""The interface of an architecture, the only way other packages ask about a model.

A new architecture is a new package with one `Architecture`, plus one line in the registry.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
)

from dsocr_analyze.architectures.config_keys import Config, JsonValue
from dsocr_analyze.architectures.config_rules import Code, ConfigFindings
from dsocr_analyze.architectures.views import CropRule
from dsocr_analyze.dtypes import BFLOAT16, Dtype
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.figures import BytesAlive, ExpertsTouched, Memory, Parameters, StageFigures
from dsocr_analyze.kernels import Kernel, Work
from dsocr_analyze.tape import Size
from dsocr_analyze.workload import DecodeStep, Mode, Workload

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from dsocr_analyze.architectures.key_value_cache import KeyValueCache

__all__ = [
    "Architecture",
    "ClosedForms",
    "Composition",
    "ForwardInputs",
    "GenerateUse",
    "ModelDimensions",
    "NotModelled",
    "PageTotals",
    "Role",
    "Served",
    "Stage",
    "owner_among",
]

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


class ModelDimensions(Protocol):
    """What other packages read of a model's dimensions; the rest is private to the architecture."""

    @property
    def max_positions(self) -> int:
        """Positions the decoder was trained for."""

    @property
    def sliding_window(self) -> int | None:
        """Generated tokens that the cache keeps and a decode step attends to; None for all."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for a reader of the model's figures."""

    def step_cuts(self, seq_len: int) -> tuple[int, ...]:
        """Numbers of the decode steps from which their work changes in kind, ascending from 0."""


OwnDimensions = TypeVar("OwnDimensions", bound=ModelDimensions)
"""The dimensions of one architecture, which only its own functions read in full."""


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


class Served(ABC, Generic[OwnDimensions]):
    """The kernels that a serving engine launches for a model; counts may be arrays."""

    @abstractmethod
    def check(self, dimensions: OwnDimensions) -> None:
        """Raises ConfigError for dimensions that it does not cover."""

    @abstractmethod
    def views(
        self, N: Size, R: Size, dimensions: OwnDimensions, dtype: Dtype
    ) -> Mapping[str, tuple[Kernel, ...]]:
        """Kernels of one vision call on N views of R pixels per side, by stage."""

    @abstractmethod
    def prompt(
        self,
        T: Size,
        K: Size,
        visual: Size,
        dimensions: OwnDimensions,
        dtype: Dtype,
        cache_bits: int,
    ) -> tuple[Kernel, ...]:
        """Kernels of one chunk of a prompt.

        Args:
            T: Tokens of the chunk.
            K: Keys that its tokens see on average at its end, including those of the chunk.
            visual: Visual tokens among them.
            dimensions: The model's dimensions.
            dtype: Type of features.
            cache_bits: Bits per cached element.
        """

    @abstractmethod
    def step(
        self, B: Size, K: Size, dimensions: OwnDimensions, dtype: Dtype, cache_bits: int
    ) -> tuple[Kernel, ...]:
        """Kernels of one decode step of B sequences over K keys each, including the new token's."""

    @abstractmethod
    def cache_elements(self, dimensions: OwnDimensions) -> int:
        """Elements per token in the KV cache."""

    @abstractmethod
    def quantizable_params(self, dimensions: OwnDimensions) -> int:
        """Number of weights that are stored in the quantized type."""

    @abstractmethod
    def activation_bytes(self, dimensions: OwnDimensions, workload: Workload, dtype: Dtype) -> int:
        """Bytes of tensors alive at once in one page's prefill pass, besides weights and inputs."""

    @abstractmethod
    def inputs_bytes(self, workload: Workload, dtype: Dtype) -> int:
        """Bytes of a workload's inputs."""


class ClosedForms(ABC, Generic[OwnDimensions]):
    """Everything known about an architecture without running it.

    Attributes:
        not_modelled: Operators that the closed forms leave out.
        crop_grids: How pages are cropped into local views.
    """

    not_modelled: tuple[NotModelled, ...]
    crop_grids: CropRule

    @property
    @abstractmethod
    def served(self) -> Served[OwnDimensions]:
        """What a serving engine launches for it."""

    # --- dimensions

    @abstractmethod
    def dimensions(self, config: Config, code: Code = "reference") -> OwnDimensions:
        """Dimensions of the model that the given code builds from a config.

        Args:
            config: The top-level object of a `config.json`.
            code: Whose code reads it; other code is assumed to read what the reference reads.

        Raises:
            ConfigError: The file does not describe a model, or one that is not modelled.
        """

    @abstractmethod
    def config_findings(self, config: Config, code: Code) -> ConfigFindings:
        """What a config's keys other than dimensions do, for the code that reads it."""

    @abstractmethod
    def parameter_count(self, dimensions: OwnDimensions) -> int:
        """Parameters of the whole model."""

    @abstractmethod
    def expert_params(self, dimensions: OwnDimensions) -> int:
        """Parameters of one routed expert; 0 without experts."""

    @abstractmethod
    def repeats(self, dimensions: OwnDimensions) -> Callable[[str], str | None]:
        """Which of a model's modules are alike.

        Returns:
            Maps a path to the name that they share, or to None for a module like no other.
        """

    # --- figures of a workload

    @abstractmethod
    def compose(
        self, dimensions: OwnDimensions, workload: Workload, dtype: Dtype, flash_attention: bool
    ) -> Composition:
        """The closed forms of a workload.

        Args:
            dimensions: The model's dimensions.
            workload: Page, text, batch and new tokens.
            dtype: Type of weights and activations.
            flash_attention: FlashAttention instead of the decoder's eager attention.

        Raises:
            ConfigError: A part of the model has no closed form.
        """

    @abstractmethod
    def step_kernels(
        self,
        dimensions: OwnDimensions,
        batch: int,
        cached: int,
        dtype: Dtype,
        flash_attention: bool,
        overwrites: bool = False,
    ) -> Sequence[Kernel]:
        """The records of an expected decode step over caches of `cached` tokens.

        They are those of `compose`, except that a batch runs the number of experts touched by
        independent choices, rounded to a whole number, instead of the maximum. If the new token
        `overwrites` one of a full window, `cached` excludes that.
        """

    @abstractmethod
    def page_totals(
        self,
        dimensions: OwnDimensions,
        *,
        dtype: Dtype = BFLOAT16,
        flash_attention: bool = False,
        **sizes: Size,
    ) -> PageTotals:
        """The closed forms of many workloads at once.

        Args:
            dimensions: The model's dimensions.
            dtype: Type of weights and features.
            flash_attention: FlashAttention instead of the decoder's eager attention.
            sizes: `base_size`, `whole_resolution`, `local_resolution`, `columns`, `rows`,
                `text_tokens`, `max_new_tokens`, `batch_size`; each an integer for all workloads, or
                an array `[n]`.

        Raises:
            WorkloadError: A size is not an integer, is too small, or differs in length.
            ConfigError: A part of the model has no closed form.
        """

    @abstractmethod
    def experts_touched(
        self, dimensions: OwnDimensions, workload: Workload, dtype: Dtype
    ) -> Mapping[str, ExpertsTouched]:
        """Routed experts that a workload touches under an even split, by stage that has any."""

    # --- its memory; arguments as for `compose`

    @abstractmethod
    def memory(
        self, dimensions: OwnDimensions, workload: Workload, dtype: Dtype, flash_attention: bool
    ) -> Memory:
        """Bytes that a workload holds in memory."""

    @abstractmethod
    def prefill_bytes_alive(
        self, dimensions: OwnDimensions, workload: Workload, dtype: Dtype, flash_attention: bool
    ) -> BytesAlive:
        """Bytes alive at the peak of the prefill pass, besides the weights."""

    @abstractmethod
    def decode_bytes_alive(
        self, dimensions: OwnDimensions, workload: Workload, dtype: Dtype, flash_attention: bool
    ) -> BytesAlive:
        """Bytes alive in the last decode step, besides the weights."""


@dataclass(frozen=True, slots=True)
class GenerateUse:
    """How a model that transformers' `generate` runs is called.

    Attributes:
        token: Id of every token that a pass would have chosen.
        without: Arguments that are not passed to forward although `generate` would.
    """

    token: int
    without: tuple[str, ...]


ForwardInputs: TypeAlias = dict[str, Any]
"""Keyword arguments of a model's forward, or of `generate`."""


class Architecture(ABC):
    """One model architecture: what a trace needs, and the closed forms if there are any.

    Attributes:
        name: Its name on the command line and in reports.
        title: Its name for readers.
        stages: Stages in order; the last is the decode step, if the model decodes.
        modes: Named settings of the vision side, by name; empty if it reads no pages.
        default_mode: Name of the mode used if none is named; empty without modes.
        text_tokens: Tokens of its usual prompt besides the visual ones, including BOS.
        built_in: Directory of the built-in reference: config and Python files; None if
            there is none.
        published_code: SHA-256 of the published model's Python files, by file name; a directory
            with exactly these files runs the code whose repetition is declared.
        routed_expert: Pattern of the paths of a routed expert and everything in it, with groups
            `experts` and `index`; what runs there depends on the routing. None without experts.
        generate: How transformers' `generate` runs it; None if it does not decode, or if
            `decode_inputs` and `decode_cache` make the arguments of each step.
        has_window: Whether its config has a sliding window, which can be switched off.
        closed_forms: What is known without running it; None for a model that is only traced.
        left_out_where_unknown: Inputs passed only if the model's forward names them.
        model_class: Class of transformers to build; None for the one named in the config.
        attention: Default attention implementation.
    """

    name: str
    title: str
    stages: tuple[Stage, ...]
    modes: Mapping[str, Mode] = {}
    default_mode: str = ""
    text_tokens: int
    built_in: Path | None = None
    published_code: Mapping[str, str] = {}
    routed_expert: re.Pattern[str] | None = None
    generate: GenerateUse | None = None
    has_window: bool = False
    closed_forms: ClosedForms[Any] | None = None
    left_out_where_unknown: frozenset[str] = frozenset()
    model_class: str | None = None
    attention: str = "eager"

    def recognizes(self, config: Config) -> bool:
        """Whether a parsed `config.json` belongs to it."""
        return False

    def without_window(self, config: Config) -> dict[str, JsonValue]:
        """A config with its sliding window switched off."""
        return {**config}

    # --- a workload

    @abstractmethod
    def plan(self, *_: Any, **asked: Any) -> Any:
        """Plans a workload from a page, sizes and lengths; raises WorkloadError."""

    @abstractmethod
    def notes_of(self, workload: Any) -> list[str]:
        """Notes for a reader of a workload's figures, one line each."""

    def warnings_of(self, workload: Any) -> Iterable[str]:
        """What is odd about a workload that runs, but may not be what was meant."""
        return ()

    # --- its passes

    @abstractmethod
    def prefill_inputs(
        self, device: torch.device, dtype: torch.dtype, workload: Any
    ) -> ForwardInputs:
        """Keyword arguments of the model's forward for one prefill pass, without the cache.

        They are those that `generate` passes, or its own for a model that it runs.

        Args:
            device: Device of the model.
            dtype: Type of the model.
            workload: The workload.
        """

    def decode_inputs(self, device: torch.device, workload: Any, position: int) -> ForwardInputs:
        """Keyword arguments of forward for a decode step, without the cache.

        Args:
            device: Device of the model.
            workload: The workload.
            position: Position of the step's token.
        """
        raise AssertionError("generate makes the inputs of its steps")

    def decode_cache(self, cache: KeyValueCache, step: DecodeStep) -> KeyValueCache:
        """The cache that a decode step finds if the steps in between do not run.

        Args:
            cache: The one that an earlier pass left.
            step: The step.
        """
        raise AssertionError("generate makes the cache of its steps")

    # --- what follows from these

    @property
    def forms(self) -> ClosedForms[Any]:
        """Its closed forms.

        Raises:
            ConfigError: It has no closed forms.
        """
        if self.closed_forms is None:
            raise ConfigError(f"{self.title} has no closed forms; it can only be traced")
        return self.closed_forms

    @property
    def reference(self) -> Path:
        """Directory of the built-in reference.

        Raises:
            ConfigError: There is no built-in reference.
        """
        if self.built_in is None:
            raise ConfigError(f"{self.title} has no built-in reference")
        return self.built_in

    @property
    def decode(self) -> Stage | None:
        """The stage that is one decode step; None for a model that does not decode."""
        return next((stage for stage in self.stages if stage.role == "decode"), None)

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the stages, in order."""
        return tuple(stage.name for stage in self.stages)

    def owner_of(self, path: str) -> str | None:
        """Name of the stage that owns the module or parameter at `path`, or None."""
        owner = owner_among(self.stages, path)
        return None if owner is None else owner.name
