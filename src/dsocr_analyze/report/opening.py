"""What documents start with: command, options and model; and in words, what was counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from dsocr_analyze.report.document import Model, Workload

__all__ = [
    "NO_OPTIONS",
    "ModelOpening",
    "Opening",
    "OptionValue",
    "Options",
    "PageOpening",
    "opening_line",
]

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


def opening_line(
    workloads: Sequence[Workload], dtypes: Iterable[str], attentions: Iterable[str]
) -> str:
    """Page, sizes, tokens, batch, data type and attention; all values of those that differ.

    Args:
        workloads: One or more workloads.
        dtypes: Data types of weights and activations, one per workload or one for all.
        attentions: Implementations of the decoder's attention, one per workload or one for all.
    """
    pages = _all("{} x {}".format(*each.page) for each in workloads if each.page is not None)
    parts = [
        *([f"page of {pages} pixels", f"views {_all(map(_sizes, workloads))}"] if pages else []),
        f"{_all(f'{each.seq_len:,}' for each in workloads)} prompt tokens",
        f"batch {_all(f'{each.batch_size:,}' for each in workloads)}",
        f"{_all(f'{each.max_new_tokens:,}' for each in workloads)} new tokens",
        _all(dtypes),
        f"{_all(attentions)} attention",
    ]
    line = ", ".join(parts)
    return line[0].upper() + line[1:]


def _sizes(workload: Workload) -> str:
    """Sizes of views, written as on the command line, and how many the page is cut into."""
    if not workload.crop_mode:
        return f"{workload.image_size}"
    columns, rows = workload.grid or (1, 1)
    cut = "not cut" if (columns, rows) == (1, 1) else f"cut {columns} x {rows}"
    return f"{workload.base_size}/{workload.image_size} ({cut})"


def _all(values: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(values))
