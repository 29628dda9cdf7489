"""What every JSON document of a command opens with: what it is, of what, asked for how."""

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
"""Of a document that no command line asked for."""


class Opening(Struct, frozen=True, kw_only=True):
    """How a document opens.

    Attributes:
        schema_version: Version of the documents.
        command: The command that made it.
        options: What the command was given or took by default, by the options' names with _ for -;
            but for those that say where and how results are written.
    """

    schema_version: str
    command: str
    options: Options


class ModelOpening(Opening, frozen=True, kw_only=True):
    """How a document about one model opens.

    Attributes:
        model: The model.
    """

    model: Model


class PageOpening(ModelOpening, frozen=True, kw_only=True):
    """How a document about one model and one workload opens.

    Attributes:
        workload: The page and its prompt.
    """

    workload: Workload
