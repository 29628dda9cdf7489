"""What is counted, and how; and the opening of its documents."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from msgspec import Struct

from dsocr_analyze.analytic import ATTENTION_NAMES, UNIFORM_ROUTING_NOTE
from dsocr_analyze.architectures import DEFAULT, PageRequest
from dsocr_analyze.architectures.architecture import Architecture, ModelDimensions
from dsocr_analyze.dtypes import Dtype
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.report.opening import (
    CONVENTIONS,
    NO_OPTIONS,
    SCHEMA_VERSION,
    ModelOpening,
    Options,
)
from dsocr_analyze.version import VERSION
from dsocr_analyze.workload import LARGEST_SIDE, AnyWorkload, Mode

__all__ = [
    "CountMetadata",
    "CountOpening",
    "CountedModel",
    "Setting",
    "Versions",
    "opening_of",
    "published_model",
    "settings_of",
    "warnings_of_modes",
]

_MOST_WARNINGS: Final = 6


@dataclass(frozen=True)
class Setting:
    """One way to run a model on any page."""

    mode: Mode
    dtype: Dtype
    flash_attention: bool = False
    """FlashAttention instead of the decoder's eager attention."""
    sliding_window: bool = True
    """Whether decode steps use the model's sliding window, if it has one."""

    @property
    def attention(self) -> str:
        """The kind of attention, as in a report's metadata."""
        return ATTENTION_NAMES[self.flash_attention]

    @property
    def attention_label(self) -> str:
        """The kind of attention, and whether its window is off."""
        return self.attention if self.sliding_window else f"{self.attention}, no window"


def settings_of(
    dtypes: Iterable[Dtype],
    attentions: Iterable[bool],
    modes: Iterable[Mode],
    windows: Iterable[bool] = (True,),
) -> list[Setting]:
    """Every combination; the mode varies fastest."""
    return [
        Setting(mode, dtype, flash, window)
        for dtype, flash, window, mode in itertools.product(dtypes, attentions, windows, modes)
    ]


def warnings_of_modes(architecture: Architecture, modes: Iterable[Mode]) -> list[str]:
    """What is odd about the sizes of these modes; only the first few are listed."""
    warnings = [
        f"mode {mode.name}: {warning}"
        for mode in dict.fromkeys(modes)
        for warning in architecture.warnings_of(_largest_page(architecture, mode))
    ]
    shown, more = warnings[:_MOST_WARNINGS], len(warnings) - _MOST_WARNINGS
    return [*shown, f"{more:,} more warnings about the sizes of modes"] if more > 0 else shown


def _largest_page(architecture: Architecture, mode: Mode) -> AnyWorkload:
    """A page that is cut if the mode cuts pages at all."""
    return PageRequest(
        architecture=architecture, page=(LARGEST_SIDE, LARGEST_SIDE), base_size=mode.base_size,
        image_size=mode.image_size, crop_mode=mode.crop_mode,
    ).workload  # fmt: skip


@dataclass(frozen=True)
class CountedModel:
    """A model as the analytic engine sees it."""

    architecture: Architecture
    dimensions: ModelDimensions
    warnings: tuple[str, ...] = ()
    """Keys of its config that have no effect."""
    without_window: ModelDimensions | None = None
    """Its sizes with its sliding window off, if it has one."""

    @classmethod
    def from_directory(cls, directory: ModelDirectory) -> CountedModel:
        """The model built by a directory's code.

        Raises:
            ConfigError: No architecture recognises its config, a key is missing, or a value is
                impossible or not modelled.
        """
        architecture, without_window = directory.architecture, None
        if architecture.has_window:
            config = architecture.without_window(directory.config)
            without_window = architecture.forms.dimensions(config, directory.code)
        return cls(
            architecture,
            directory.dimensions(),
            directory.config_findings.warnings,
            without_window,
        )

    def dimensions_in(self, setting: Setting) -> ModelDimensions:
        """Its sizes under a setting, with or without its sliding window."""
        return (not setting.sliding_window and self.without_window) or self.dimensions

    def keys_in(self, setting: Setting) -> dict[str, Any]:
        """A setting by column and key; that of the window is None if there is none."""
        is_on = self.dimensions_in(setting).decoder.sliding_window is not None
        return {
            "mode": setting.mode.name,
            "base_size": setting.mode.base_size,
            "image_size": setting.mode.image_size,
            "crop_mode": setting.mode.crop_mode,
            "dtype": setting.dtype.name,
            "attention": setting.attention,
            "sliding_window": None if self.without_window is None else is_on,
        }

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self.architecture.forms.parameter_count(self.dimensions)


@cache
def published_model() -> CountedModel:
    """The published model of the default architecture."""
    return CountedModel.from_directory(ModelDirectory.read(DEFAULT.reference))


# --- what documents and tables open with ----------------------------------------------------------


class Versions(Struct, frozen=True):
    """Versions of the software.

    Attributes:
        tool: Version of this program.
    """

    tool: str


class CountMetadata(Struct, frozen=True, kw_only=True):
    """How the figures were counted.

    Attributes:
        versions: Versions of the software.
        engine: Always analytic: closed forms were evaluated.
        conventions: How each quantity is counted.
        notes: Caveats about the figures.
    """

    versions: Versions
    engine: str
    conventions: tuple[str, ...]
    notes: tuple[str, ...]


class CountOpening(ModelOpening, frozen=True, kw_only=True):
    """The first keys of a document of analytic figures, and the metadata of a table.

    Attributes:
        metadata: How the figures were counted.
    """

    metadata: CountMetadata


def opening_of(
    directory: ModelDirectory,
    architecture: Architecture,
    modes: Iterable[Mode],
    notes: Iterable[str] = (),
    *,
    command: str = "",
    options: Options = NO_OPTIONS,
) -> CountOpening:
    """The opening of analytic figures of some modes; no command in Python."""
    of_modes = (
        note for mode in modes for note in architecture.notes_of(_largest_page(architecture, mode))
    )
    return CountOpening(
        schema_version=SCHEMA_VERSION,
        command=command,
        options=options,
        model=directory.source(architecture.name),
        metadata=CountMetadata(
            versions=Versions(tool=VERSION),
            engine="analytic",
            conventions=CONVENTIONS,
            notes=(
                *directory.config_findings.warnings,
                UNIFORM_ROUTING_NOTE,
                *dict.fromkeys(of_modes),
                *directory.assumptions,
                *notes,
            ),
        ),
    )
