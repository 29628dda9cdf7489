"""The keys that every command's JSON document starts with: command, options and model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from dsocr_analyze.report.document import Model, Workload

if TYPE_CHECKING:
    pass

__all__ = ["NO_OPTIONS", "ModelOpening", "Opening", "OptionValue", "Options", "PageOpening"]

OptionValue: TypeAlias = str | int | float | bool | tuple[str, ...] | None
Options: TypeAlias = Mapping[str, OptionValue]

NO_OPTIONS: Final[Options] = {}
"""For a document that was not made by a command."""


class Opening(Struct, frozen=True, kw_only=True):
    """The first keys of every document.

    Attributes:
        schema_version: Version of the schema.
        command: The command that wrote it.
        options: The command's options, defaults included, by name with _ for -; without those that
            only say where and how results are written.
    """

    schema_version: str
    command: str
    options: Options


class ModelOpening(Opening, frozen=True, kw_only=True):
    """The first keys of a document about one model.

    Attributes:
        model: The model.
    """

    model: Model


class PageOpening(ModelOpening, frozen=True, kw_only=True):
    """The first keys of a document about one model and one workload.

    Attributes:
        workload: The page and its prompt.
    """

    workload: Workload
