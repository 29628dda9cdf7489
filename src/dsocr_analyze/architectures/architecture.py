"""The interface of an architecture, by which other rooms ask about a model; prompts and caches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dsocr_analyze.architectures.config_file import Config, JsonValue
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions as ModelDimensions
from dsocr_analyze.errors import ConfigError, WorkloadError
from dsocr_analyze.figures import StageScope, owner_among

if TYPE_CHECKING:
    import re

    import torch
    from torch import Tensor
    from transformers import DynamicCache

    from dsocr_analyze.architectures.ocr_family.closed_forms import ClosedForms
    from dsocr_analyze.workload import AnyWorkload, Mode

ForwardInputs: TypeAlias = dict[str, Any]
"""Keyword arguments of a model's forward, or of `generate`."""

# --- the prompt -------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlacedValue:
    """The same value at `count` consecutive positions from `start`, the first being 0."""

    value: bool | int | float
    start: int
    count: int


@dataclass(frozen=True)
class Prompt:
    """A prompt of `tokens` ids, all `fill` but for those `placed`, as transformers takes it.

    Attributes:
        argument: Of `generate`, which takes the ids.
        without: Arguments not passed to forward although `generate` would.
    """

    tokens: int
    argument: str
    fill: int
    placed: tuple[PlacedValue, ...] = ()
    without: tuple[str, ...] = ()


# --- inputs -----------------------------------------------------------------------------------

BATCH: Final = "batch"
TOKENS: Final = "tokens"
KEYS: Final = "keys"
"""Sizes set by a workload: prompts per batch, and tokens per prompt by either name."""

MODEL_DTYPE: Final = "model"
IDS_DTYPE: Final = "int64"

Number: TypeAlias = bool | int | float
Size: TypeAlias = int | str
Numbers: TypeAlias = "Number | Sequence[Numbers]"


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor passed to the model: `values` in nested lists, or a `shape` that is filled.

    Attributes:
        dtype: `model` for that of the weights.
        placed: Other values along its last dimension.
        is_repeated: Whether for every prompt, along its first dimension.
    """

    shape: tuple[Size, ...] | None
    values: tuple[Numbers, ...] | None = None
    dtype: str = MODEL_DTYPE
    fill: Number = 1
    placed: tuple[PlacedValue, ...] = ()
    is_repeated: bool = False


Input: TypeAlias = TensorInput | Number | str | tuple["Input", ...]
"""An argument of forward."""


def made_inputs(
    prompt: Prompt | None,
    inputs: Mapping[str, Input],
    device: torch.device,
    dtype: torch.dtype,
    lengths: AnyWorkload,
    file: str = "",
) -> ForwardInputs:
    """A prompt's ids, their mask, and other inputs; WorkloadError for what `file` cannot mean."""
    import torch

    batch, tokens = lengths.batch_size, lengths.seq_len
    named = {BATCH: batch, TOKENS: tokens, KEYS: tokens}

    def value(key: str, described: Input) -> Any:
        if isinstance(described, tuple):
            return [value(key, item) for item in described]
        return tensor(key, described) if isinstance(described, TensorInput) else described

    def tensor(key: str, described: TensorInput) -> torch.Tensor:
        own = dtype if described.dtype == MODEL_DTYPE else getattr(torch, described.dtype)
        if described.values is not None:
            made = torch.tensor(described.values, dtype=own, device=device)
        else:
            sizes = described.shape or ()
            shape = [named[size] if isinstance(size, str) else size for size in sizes]
            made = torch.full(shape, described.fill, dtype=own, device=device)
        for run in described.placed:
            end, length = run.start + run.count, made.shape[-1]
            if end > length:
                raise WorkloadError(
                    f"{file}: '{key}.placed' puts {run.value} {run.count} times at"
                    f" {run.start}, beyond the end of {length} positions; give at least {end}"
                )
            made[..., run.start : end] = run.value
        if described.is_repeated and batch > 1:
            made = made.repeat(batch, *[1] * (made.dim() - 1))
        return made

    given: ForwardInputs = {}
    if prompt is not None:
        described = TensorInput((BATCH, TOKENS), None, IDS_DTYPE, prompt.fill, prompt.placed)
        ids = tensor("prompt", described)
        given[prompt.argument] = ids
        if prompt.argument == "input_ids":
            given["attention_mask"] = torch.ones_like(ids)
        given = {name: each for name, each in given.items() if name not in prompt.without}
    return given | {key: value(key, each) for key, each in inputs.items()}


# --- the KV cache, which the model extends, and the steps that find it -------------------------


@dataclass(frozen=True, slots=True)
class CacheStep:
    """Decode step k = `number`, from 1, whose input is the k-th generated token.

    Attributes:
        prompt_tokens: S, all of which stay in the cache.
        window: W >= 1, the most generated tokens that the cache keeps; None for all.
    """

    prompt_tokens: int
    number: int
    window: int | None = None

    @property
    def position(self) -> int:
        """Position of the step's token, from 0: S + k - 1."""
        return self.prompt_tokens + self.number - 1

    @property
    def cached_tokens(self) -> int:
        """Tokens in the cache before the step: S + min(k - 1, W)."""
        return self.prompt_tokens + min(self.number - 1, self.window or self.number)

    @property
    def slot(self) -> int | None:
        """Index of the generated token that the step overwrites; None if it appends."""
        if self.window is None or self.number <= self.window:
            return None
        return (self.number - 1) % self.window


@dataclass(eq=False)
class GrowingCache:
    """Keys and values per layer, `[B, heads, K, head_dim]`, grown by concatenation.

    As `DynamicCache` of transformers 4.46.3; later ones also copy the first.
    """

    key_cache: list[Tensor] = field(default_factory=list)
    value_cache: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.key_cache)

    def __getitem__(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        return self.key_cache[layer_idx], self.value_cache[layer_idx]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.key_cache, self.value_cache, strict=True)

    def update(self, key: Tensor, value: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Appends `[B, heads, T, head_dim]` to a layer; returns all its keys and values.

        Raises IndexError if the layer below is empty.
        """
        import torch

        keys, values = self.key_cache, self.value_cache
        if layer_idx > len(keys):
            raise IndexError(f"layer {layer_idx} came before layer {len(keys)}")
        if layer_idx == len(keys):
            keys.append(key)
            values.append(value)
        else:
            keys[layer_idx] = torch.cat([keys[layer_idx], key], dim=-2)
            values[layer_idx] = torch.cat([values[layer_idx], value], dim=-2)
        return keys[layer_idx], values[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions held by a layer."""
        keys = self.key_cache
        return keys[layer_idx].shape[-2] if layer_idx < len(keys) else 0


KeyValueCache: TypeAlias = "GrowingCache | DynamicCache | tuple[tuple[Tensor, ...], ...]"
"""A cache, or keys and values by layer, as older models return them."""


def zeros_like(held: Tensor, dim: int, tokens: int) -> Tensor:
    """Zeros like a tensor, of some tokens along a dimension."""
    return held.new_zeros((*held.shape[:dim], tokens, *held.shape[dim + 1 :]))


# --- the architecture --------------------------------------------------------------------------


class Architecture(ABC):
    """A model architecture: what a trace needs, and the closed forms if there are any.

    Attributes:
        name: On the command line and in reports; `title` is for readers.
        config_class: Of the whole model, as a `config.json` names it.
        model_types: Used if no class is named.
        stages: In order; the last is the decode step, if the model decodes.
        modes: Settings of the vision side by name; empty if it reads no pages.
        text_tokens: Of its usual prompt besides the visual ones, with BOS.
        reference: Directory of the built-in reference.
        is_of_transformers: Whether transformers itself has its class, so that there is no
            `reference`, but a `config` to build it from.
        published_code: SHA-256 of the published Python files by name, whose repetition is declared.
        routed_expert: Pattern of paths in a routed expert, with groups `experts` and `index`.
        generate: The prompt with which transformers' `generate` runs it, which always chooses its
            `fill`. None if it does not decode, or has `decode_inputs` and `decode_cache`.
        has_window: Whether its config has a sliding window, which can be switched off.
        closed_forms: None for a model that is only traced; its traces if it is to be predicted.
        left_out_where_unknown: Inputs passed only if the model's forward names them.
        model_class: Class of transformers to build, if not the config's.
        least_transformers: The oldest version whose class the closed forms equal; None for any.
    """

    name: str
    title: str
    config_class: str = ""
    model_types: tuple[str, ...] = ()
    stages: tuple[StageScope, ...]
    modes: Mapping[str, Mode] = {}
    default_mode: str = ""
    text_tokens: int
    reference: Path
    is_of_transformers: bool = False
    config: Config
    published_code: Mapping[str, str] = {}
    routed_expert: re.Pattern[str] | None = None
    generate: Prompt | None = None
    has_window: bool = False
    closed_forms: ClosedForms | None = None
    left_out_where_unknown: frozenset[str] = frozenset()
    model_class: str | None = None
    least_transformers: str | None = None
    attention: str = "eager"

    def recognizes(self, config: Config) -> bool:
        """Whether a parsed `config.json` belongs to it."""
        classes = config.get("architectures")
        if isinstance(classes, list) and classes:
            return self.config_class in classes
        return config.get("model_type") in self.model_types

    def of_config(self, config: Config) -> Architecture:
        """The architecture for a `config.json` that belongs to it, on which plans may depend."""
        return self

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
        """What may not be meant about a workload that runs."""
        return ()

    # --- its passes

    @abstractmethod
    def prefill_inputs(
        self, device: torch.device, dtype: torch.dtype, workload: Any
    ) -> ForwardInputs:
        """Keyword arguments of forward, or of `generate`, for a prefill pass, without the cache."""

    def decode_inputs(self, device: torch.device, workload: Any, position: int) -> ForwardInputs:
        """Keyword arguments of forward for a decode step, without the cache."""
        raise AssertionError("generate makes the inputs of its steps")

    def decode_cache(self, cache: KeyValueCache, step: CacheStep) -> KeyValueCache:
        """The cache that a step finds if none runs since the pass that left `cache`."""
        raise AssertionError("generate makes the cache of its steps")

    # --- what follows from these

    @property
    def forms(self) -> ClosedForms:
        """Its closed forms; raises ConfigError if it has none."""
        if self.closed_forms is None:
            raise ConfigError(f"{self.title} has no closed forms; it can only be traced")
        return self.closed_forms

    @property
    def decode(self) -> StageScope | None:
        """The stage of the decode step, if any."""
        return next((last for last in self.stages[-1:] if last.role == "decode"), None)

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the stages."""
        return tuple(map(attrgetter("name"), self.stages))

    def owner_of(self, path: str) -> str | None:
        """Name of the stage that owns the module or parameter at `path`, or None."""
        owner = owner_among(self.stages, path)
        return None if owner is None else owner.name
