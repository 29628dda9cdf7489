"""Metadata of a table or document of many workloads: which model, counted how."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from dsocr_analyze.analytic import UNIFORM_ROUTING_NOTE
from dsocr_analyze.columns.setting import notes_of_modes
from dsocr_analyze.report.document import (
    CONVENTIONS,
    NO_OPTIONS,
    SCHEMA_VERSION,
    ModelOpening,
    Options,
)
from dsocr_analyze.version import VERSION

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.workload import Mode

__all__ = ["CountMetadata", "CountOpening", "Versions", "opening_of"]


class Versions(msgspec.Struct, frozen=True):
    """Versions of the software.

    Attributes:
        tool: Version of this program.
    """

    tool: str


class CountMetadata(msgspec.Struct, frozen=True, kw_only=True):
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
    """The opening of analytic figures.

    Args:
        directory: The directory with the model's config.
        architecture: The model's architecture.
        modes: The modes that are counted.
        notes: Further caveats.
        command: The command that counts; empty for calls from Python.
        options: The command line's options.
    """
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
                *notes_of_modes(architecture, modes),
                *directory.assumptions,
                *notes,
            ),
        ),
    )
