"""The JSON document of `dsocr-analyze compare`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dsocr_analyze.report.document import Model, Workload
from dsocr_analyze.report.frame import QuantityTable
from dsocr_analyze.report.opening import Opening

__all__ = ["ComparedColumn", "ComparedKey", "ComparedQuantity", "ComparisonDocument"]


class ComparedColumn(Struct, frozen=True, kw_only=True):
    """One of the reports that stand side by side.

    Attributes:
        name: What it is called; all are different.
        engine: Whether the model ran under hooks (trace) or closed forms were evaluated (analytic).
        dtype: Type of weights and activations.
        attention: The decoder's attention implementation.
        model: The model.
        workload: The page and its prompt.
        figures: Its value of every quantity, by key; null where it has none.
    """

    name: str
    engine: str
    dtype: str
    attention: str
    model: Model
    workload: Workload
    figures: Mapping[str, int | float | None]


class ComparedQuantity(Struct, frozen=True, kw_only=True):
    """One quantity of every report.

    Attributes:
        key: Its name for programs: no other row has it, and it stays from release to release.
        quantity: Its name for readers.
        unit: Its unit.
        values: Of each report, in the order of `names`; null where it has none.
        differences: What each has more than the first.
        ratios: Each over the first; null where the first is 0.
    """

    key: str
    quantity: str
    unit: str
    values: tuple[int | float | None, ...]
    differences: tuple[int | float | None, ...]
    ratios: tuple[float | None, ...]


class ComparedKey(Struct, frozen=True, kw_only=True):
    """A key in which configs differ.

    Attributes:
        key: Dotted path of the key.
        values: By name of the config, as it stands there; a config without the key is left out.
    """

    key: str
    values: Mapping[str, Any]


class ComparisonDocument(QuantityTable, Opening, frozen=True, kw_only=True):
    """Reports side by side.

    Attributes:
        columns: What is compared: of each report the model, the workload and how it was counted.
        names: Of the reports, in order.
        ran: Which model each report is of, for readers.
        architectures: Name of each report's architecture; null where it is unknown.
        pages: Width and height of each page in pixels; null of a model that reads none.
        rows: One per quantity.
        config_differences: The keys in which configs differ.
        assumptions: What predicted seconds assume.
    """

    columns: tuple[ComparedColumn, ...]
    names: tuple[str, ...]
    ran: tuple[str, ...]
    architectures: tuple[str | None, ...]
    pages: tuple[tuple[int, int] | None, ...]
    rows: tuple[ComparedQuantity, ...]
    config_differences: tuple[ComparedKey, ...]
    assumptions: tuple[str, ...]
