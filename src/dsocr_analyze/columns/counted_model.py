"""The model that is counted: an architecture, and its dimensions from one config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from dsocr_analyze.architectures import DEFAULT, architecture_of
from dsocr_analyze.model.directory import ModelDirectory

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture, ModelDimensions
    from dsocr_analyze.architectures.config_rules import Code
    from dsocr_analyze.columns.setting import Setting

__all__ = ["CountedModel", "published_model"]


@dataclass(frozen=True)
class CountedModel:
    """A model as the analytic engine sees it.

    Attributes:
        architecture: The model's architecture.
        dimensions: Its sizes, in the architecture's own type.
        warnings: Keys of its config that have no effect but look as if they should.
        without_window: Its sizes with its sliding window switched off; None if it has no window.
    """

    architecture: Architecture
    dimensions: ModelDimensions
    warnings: tuple[str, ...] = ()
    without_window: ModelDimensions | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CountedModel:
        """The model of a parsed `config.json` that the built-in reference reads.

        Raises:
            ConfigError: No architecture recognises the config, it lacks a key, or a value in it is
                impossible or not modelled.
        """
        architecture = architecture_of(config)
        return cls(
            architecture,
            architecture.forms.dimensions(config),
            architecture.forms.config_findings(config, "reference").warnings,
            _without_window(architecture, config, "reference"),
        )

    @classmethod
    def from_directory(cls, directory: ModelDirectory) -> CountedModel:
        """The model built by a directory's code; errors as in `from_config`."""
        return cls(
            directory.architecture,
            directory.dimensions(),
            directory.config_findings.warnings,
            _without_window(directory.architecture, directory.config, directory.code),
        )

    def dimensions_in(self, setting: Setting) -> ModelDimensions:
        """Its sizes under a setting, with or without its sliding window."""
        if setting.sliding_window or self.without_window is None:
            return self.dimensions
        return self.without_window

    def window_in(self, setting: Setting) -> bool | None:
        """Whether decode steps use a sliding window; None if the model has none."""
        if self.without_window is None:
            return None
        return self.dimensions_in(setting).sliding_window is not None

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self.architecture.forms.parameter_count(self.dimensions)


def _without_window(
    architecture: Architecture, config: Mapping[str, Any], code: Code
) -> ModelDimensions | None:
    if architecture.without_window is None:
        return None
    found: ModelDimensions = architecture.forms.dimensions(
        architecture.without_window(config), code
    )
    return found


@cache
def published_model() -> CountedModel:
    """The published model of the default architecture."""
    return CountedModel.from_directory(ModelDirectory.read(DEFAULT.reference))
