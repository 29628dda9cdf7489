"""The interface of an architecture, the only way other packages ask about a model.

A new architecture is a new package with one `Architecture`, plus one line in the registry.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dsocr_analyze.architectures.config_file import Config, JsonValue
from dsocr_analyze.architectures.ocr_family.dimensions import ModelDimensions
from dsocr_analyze.architectures.stages import Stage, owner_among
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.workload import DecodeStep, Mode

if TYPE_CHECKING:
    import torch

    from dsocr_analyze.architectures.key_value_cache import KeyValueCache
    from dsocr_analyze.architectures.ocr_family.closed_forms import ClosedForms

__all__ = ["Architecture", "ForwardInputs", "GenerateUse", "ModelDimensions"]


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
    closed_forms: ClosedForms | None = None
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
    def forms(self) -> ClosedForms:
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
