"""The model that is counted: an architecture, and the dimensions that one config gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from dsocr_analyze.architectures import DEFAULT, architecture_of
from dsocr_analyze.model.directory import ModelDirectory

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture, ModelDimensions

__all__ = ["CountedModel", "published_model"]


@dataclass(frozen=True)
class CountedModel:
    """A model as the analytic engine sees it.

    Attributes:
        architecture: What kind of model it is.
        dimensions: Its sizes; the architecture's own type.
        warnings: Keys of its config that do nothing and may have been meant to do something.
    """

    architecture: Architecture
    dimensions: ModelDimensions
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CountedModel:
        """The model of a parsed `config.json` that the built-in reference reads.

        Raises:
            ConfigError: No architecture recognises the config, it lacks a key, or it holds a value
                no model can be built from, or one that is not modelled.
        """
        architecture = architecture_of(config)
        return cls(
            architecture,
            architecture.forms.dimensions(config),
            architecture.forms.config_findings(config, "reference").warnings,
        )

    @classmethod
    def from_directory(cls, directory: ModelDirectory) -> CountedModel:
        """The model that the code of a directory builds; errors as of `from_config`."""
        return cls(
            directory.architecture,
            directory.dimensions(),
            directory.config_findings.warnings,
        )

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self.architecture.forms.parameter_count(self.dimensions)


@cache
def published_model() -> CountedModel:
    """The published model of the default architecture."""
    return CountedModel.from_directory(ModelDirectory.read(DEFAULT.reference))
