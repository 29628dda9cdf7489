"""The model that is counted: an architecture, and the dimensions that one config gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from dsocr_analyze.architectures import DEFAULT, architecture_of
from dsocr_analyze.model.directory import read_config

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture, ModelDimensions

__all__ = ["CountedModel", "published_model"]


@dataclass(frozen=True)
class CountedModel:
    """A model as the analytic engine sees it.

    Attributes:
        architecture: What kind of model it is.
        dimensions: Its sizes; the architecture's own type.
    """

    architecture: Architecture
    dimensions: ModelDimensions

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CountedModel:
        """The model of a parsed `config.json`.

        Raises:
            ConfigError: No architecture recognises the config, it lacks a key, or it holds a value
                no model can be built from.
        """
        architecture = architecture_of(config)
        return cls(architecture, architecture.dimensions(config))

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self.architecture.parameter_count(self.dimensions)


@cache
def published_model() -> CountedModel:
    """The published model of the default architecture."""
    return CountedModel(DEFAULT, DEFAULT.dimensions(read_config(DEFAULT.reference / "config.json")))
