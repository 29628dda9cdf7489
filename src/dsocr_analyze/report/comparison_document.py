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
    """One of the compared reports.

    Attributes:
        name: Its name, unique among the compared reports.
        engine: trace if the model ran under hooks, analytic if closed forms were evaluated.
        dtype: Data type of weights and activations.
        attention: The decoder's attention implementation.
        model: The model.
        workload: The page and its prompt.
        figures: Its value of each quantity, by key; null if it has none.
    """

    name: str
    engine: str
    dtype: str
    attention: str
    model: Model
    workload: Workload
    figures: Mapping[str, int | float | None]


class ComparedQuantity(Struct, frozen=True, kw_only=True):
    """One quantity across all reports.

    Attributes:
        key: Its name for programs: unique among the rows and stable across releases.
        quantity: Its name for readers.
        unit: Its unit.
        values: Value in each report, in the order of `names`; null if it has none.
        differences: Each value minus the first; null if either is missing.
        ratios: Each value divided by the first; null if the first is 0 or either is missing.
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
        values: Its value in each config, by the config's name; configs without the key are absent.
    """

    key: str
    values: Mapping[str, Any]


class ComparisonDocument(QuantityTable, Opening, frozen=True, kw_only=True):
    """Reports side by side.

    Attributes:
        columns: Each report's model, workload and way of counting.
        names: Names of the reports, in order.
        ran: Headline of each report: which model ran, and how.
        architectures: Name of each report's architecture; null if unknown.
        pages: Width and height of each report's page in pixels; null if its model reads no pages.
        rows: One row per quantity.
        config_differences: Keys in which the configs differ.
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
