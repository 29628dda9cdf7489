"""The interface of an architecture, the only way other packages ask about a model.

A new architecture is a new package with one `Architecture`, plus one line in the registry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeAlias,
    TypeVar,
)

from dsocr_analyze.architectures.config_keys import Config, JsonValue
from dsocr_analyze.architectures.config_rules import Code, ConfigFindings
from dsocr_analyze.architectures.crop_grid import CropRule
from dsocr_analyze.dtypes import Dtype
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
    "PageInViews",
    "PageTotals",
    "PixelWork",
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


class PixelWork(NamedTuple):
    """What the CPU does to a page before the model sees it; arrays for many pages.

    Attributes:
        resized: Pixels processed by both passes of each bicubic resize, over all resizes.
        viewed: Pixels of all views, which become tensors.
    """

    resized: int
    viewed: int


@dataclass(frozen=True, slots=True)
class PageInViews:
    """How a whole page appears in the views of one vision call.

    Attributes:
        views: Views that show it: one, or several tiles.
        resolution: Pixels per side of a view.
        content: Width and height in pixels that the page occupies in them all; the rest is padding.
        tokens: Vision tokens the encoder makes of them all, before any newline or separator.
    """

    views: int
    resolution: int
    content: tuple[int, int]
    tokens: int


@dataclass(frozen=True, slots=True)
class Served(Generic[OwnDimensions]):
    """The kernels a serving engine launches for a model; counts may be arrays.

    Attributes:
        check: Raises ConfigError for dimensions it does not cover.
        views: Kernels of one vision call by stage, from views, pixels per side, dimensions, type.
        prompt: Kernels of a chunk of one prompt, from its tokens, the keys they see, its visual
            tokens, dimensions, type and bits per cached element.
        step: Kernels of one decode step, from running sequences, keys per sequence, dimensions,
            type and bits per cached element.
        cache_elements: Elements per token in the KV cache.
        quantizable_params: Number of weights that are stored in the quantized type.
        activation_bytes: Bytes of tensors alive at once in one page's prefill pass, besides weights
            and inputs, from dimensions, workload and type.
        inputs_bytes: Bytes of a workload's inputs, from it and a type.
    """

    check: Callable[[OwnDimensions], None]
    views: Callable[[Size, Size, OwnDimensions, Dtype], Mapping[str, tuple[Kernel, ...]]]
    prompt: Callable[[Size, Size, Size, OwnDimensions, Dtype, int], tuple[Kernel, ...]]
    step: Callable[[Size, Size, OwnDimensions, Dtype, int], tuple[Kernel, ...]]
    cache_elements: Callable[[OwnDimensions], int]
    quantizable_params: Callable[[OwnDimensions], int]
    activation_bytes: Callable[[OwnDimensions, Workload, Dtype], int]
    inputs_bytes: Callable[[Workload, Dtype], int]


@dataclass(frozen=True)
class ClosedForms(Generic[OwnDimensions]):
    """Everything known about an architecture without running it.

    Attributes:
        network: Its network, whose forwards run on tapes.
        dimensions: Reads dimensions from a parsed `config.json`, for the code that reads it
            (default: the reference's); raises ConfigError.
        config_findings: What a config's keys other than dimensions do, for the code that reads it.
        not_modelled: Operators that the closed forms leave out.
        compose: The closed forms of a workload, from dimensions, workload, type and whether
            attention is FlashAttention; raises ConfigError if a part has none.
        step_kernels: The records of one decode step with the expected number of routed experts,
            from dimensions, batch, cached tokens, type, whether attention is FlashAttention, and
            whether the new token overwrites an additional one in a full window.
        page_totals: The closed forms of many workloads at once, from dimensions and, by keyword,
            `base_size`, `whole_resolution`, `local_resolution`, `columns`, `rows`, `text_tokens`,
            `max_new_tokens`, `batch_size` (each an integer for all workloads, or an array `[n]`),
            `dtype` and `flash_attention`; raises ConfigError if a part has none.
        crop_grids: How many local views pages are cropped into.
        parameter_count: Parameters of the whole model.
        memory: The memory of a workload alone, by closed forms.
        prefill_bytes_alive: Bytes alive at the peak of the prefill pass, besides the weights.
        decode_bytes_alive: Bytes alive in the last decode step, besides the weights.
        expert_params: Parameters of one routed expert; 0 without experts.
        experts_touched: Routed experts that a workload touches under an even split, by stage that
            has any.
        repeats: Which of a model's modules are alike: maps a path to the name that they share, or
            to None for a module like no other.
        served: What a serving engine launches for it.
        page_in_views: The page as it appears in each vision call of a workload, in order.
        pixel_work: What the CPU does to a page's pixels.
        pixel_work_of_pages: The same for many pages, from their widths, heights and the columns and
            rows of their crop grids (each an integer or an array `[n]`) and, by keyword,
            `base_size`, `image_size` and `crop_mode`.
    """

    network: Any
    dimensions: Callable[..., OwnDimensions]
    config_findings: Callable[[Config, Code], ConfigFindings]
    not_modelled: tuple[NotModelled, ...]
    compose: Callable[[OwnDimensions, Workload, Dtype, bool], Composition]
    step_kernels: Callable[..., Sequence[Kernel]]
    page_totals: Callable[..., PageTotals]
    crop_grids: CropRule
    parameter_count: Callable[[OwnDimensions], int]
    memory: Callable[[OwnDimensions, Workload, Dtype, bool], Memory]
    prefill_bytes_alive: Callable[[OwnDimensions, Workload, Dtype, bool], BytesAlive]
    decode_bytes_alive: Callable[[OwnDimensions, Workload, Dtype, bool], BytesAlive]
    expert_params: Callable[[OwnDimensions], int]
    experts_touched: Callable[[OwnDimensions, Workload, Dtype], Mapping[str, ExpertsTouched]]
    repeats: Callable[[OwnDimensions], Callable[[str], str | None]]
    served: Served[OwnDimensions]
    page_in_views: Callable[[Workload], tuple[PageInViews, ...]]
    pixel_work: Callable[[Workload], PixelWork]
    pixel_work_of_pages: Callable[..., PixelWork]


@dataclass(frozen=True, slots=True)
class GenerateUse:
    """How a model that transformers' `generate` runs is called.

    Attributes:
        token: Id of every token that a pass would have chosen.
        without: Arguments that are not passed to forward although `generate` would.
    """

    token: int
    without: tuple[str, ...]


def _made_by_generate(*_: Any) -> NoReturn:
    raise AssertionError("generate makes the inputs and the cache of its steps")


ForwardInputs: TypeAlias = dict[str, Any]
"""Keyword arguments of a model's forward, or of `generate`."""


@dataclass(frozen=True)
class Architecture:
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
        recognizes: Whether a parsed `config.json` belongs to it.
        plan: Plans a workload from a page, sizes and lengths; raises WorkloadError.
        notes_of: Notes for a reader of a workload's figures.
        warnings_of: What is odd about a workload that runs, but may not be what was meant.
        prefill_inputs: Keyword arguments of the model's forward for one prefill pass, as
            `generate` passes them, without the cache; with `generate`, its own arguments.
        generate: How transformers' `generate` runs it; None if it does not decode, or if the next
            two make the arguments of each step.
        decode_inputs: Keyword arguments of forward for a decode step, from device, workload and the
            position of its token.
        decode_cache: The cache that a decode step finds, from the one an earlier pass left, if the
            steps in between do not run.
        without_window: A config with its sliding window switched off; None for a model without
            one.
        closed_forms: What is known without running it; None for a model that is only traced.
        left_out_where_unknown: Inputs passed only if the model's forward names them.
        model_class: Class of transformers to build; None for the one named in the config.
        attention: Default attention implementation.
    """

    name: str
    title: str
    stages: tuple[Stage, ...]
    modes: Mapping[str, Mode]
    default_mode: str
    text_tokens: int
    built_in: Path | None
    published_code: Mapping[str, str]
    routed_expert: re.Pattern[str] | None
    recognizes: Callable[[Config], bool]
    plan: Callable[..., Any]
    notes_of: Callable[[Any], list[str]]
    prefill_inputs: Callable[[torch.device, torch.dtype, Any], ForwardInputs]
    decode_inputs: Callable[[torch.device, Any, int], ForwardInputs] = _made_by_generate
    decode_cache: Callable[[KeyValueCache, DecodeStep], KeyValueCache] = _made_by_generate
    generate: GenerateUse | None = None
    without_window: Callable[[Config], dict[str, JsonValue]] | None = None
    closed_forms: ClosedForms[Any] | None = None
    left_out_where_unknown: frozenset[str] = frozenset()
    model_class: str | None = None
    attention: str = "eager"
    warnings_of: Callable[[Any], Iterable[str]] = lambda _: ()

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
