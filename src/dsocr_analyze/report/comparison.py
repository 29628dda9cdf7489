"""Reports side by side: each quantity of every report, against the first."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from dsocr_analyze.report.document import Report
from dsocr_analyze.report.quantities import bytes_text, scaled
from dsocr_analyze.report.tables import Table, headline
from dsocr_analyze.report.time_entry import TimeEntry
from dsocr_analyze.report.time_tables import time_notes

__all__ = ["Comparison", "Row", "compare"]

Value: TypeAlias = int | float | None


@dataclass(frozen=True)
class Row:
    """One quantity in every report.

    Attributes:
        key: Its name for programs; the same in every release.
        quantity: Its name for readers.
        unit: Its unit.
        values: Of each report; None for one that has no such stage.
    """

    key: str
    quantity: str
    unit: str
    values: tuple[Value, ...]

    def difference(self, index: int) -> Value:
        """What report `index` has more than the first; None where one of them has no value."""
        first, value = self.values[0], self.values[index]
        return None if first is None or value is None else value - first

    def ratio(self, index: int) -> float | None:
        """Report `index` over the first; None where the first is 0 or one has no value."""
        first, value = self.values[0], self.values[index]
        return value / first if first and value is not None else None


@dataclass(frozen=True)
class Comparison:
    """Several reports' quantities."""

    names: tuple[str, ...]
    headlines: tuple[str, ...]
    """Which model each report is of, and how it was counted."""
    rows: tuple[Row, ...]
    assumptions: tuple[str, ...] = ()
    """What predicted seconds assume; empty where there are none."""

    def headline(self) -> str:
        """The first line: which model ran, or which ones."""
        if len(set(self.headlines)) == 1:
            return f"Ran: {self.headlines[0]}"
        pairs = zip(self.names, self.headlines, strict=True)
        return "Ran: " + "; ".join(f"{name}: {line}" for name, line in pairs)

    def table(self) -> Table:
        """One column per report; below each value of the others its difference and ratio."""
        rows = []
        for row in self.rows:
            others = (
                f"{_text(row.values[index], row.unit)}{_change(row, index)}"
                for index in range(1, len(self.names))
            )
            rows.append((row.quantity, row.unit, _text(row.values[0], row.unit), *others))
        return Table(
            f"Against {self.names[0]}",
            ("quantity", "unit", *self.names),
            tuple(rows),
            label_columns=2,
        )

    def as_json(self) -> str:
        """An object: names, models, and one row per quantity: values, differences and ratios."""
        rows = [
            {
                "key": row.key,
                "quantity": row.quantity,
                "unit": row.unit,
                "values": list(row.values),
                "differences": [row.difference(i) for i in range(len(self.names))],
                "ratios": [row.ratio(i) for i in range(len(self.names))],
            }
            for row in self.rows
        ]
        return (
            json.dumps(
                {
                    "names": list(self.names),
                    "ran": list(self.headlines),
                    "rows": rows,
                    "assumptions": list(self.assumptions),
                },
                indent=2,
            )
            + "\n"
        )

    def as_csv(self) -> str:
        """One line per quantity and report; a value that is missing is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("key", "quantity", "unit", "report", "value", "difference", "ratio"))
        for row in self.rows:
            for index, name in enumerate(self.names):
                writer.writerow(
                    (row.key, row.quantity, row.unit, name, row.values[index],
                     row.difference(index), row.ratio(index))
                )  # fmt: skip
        return text.getvalue()


def _text(value: Value, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return bytes_text(value)
    if unit in ("s", "pages/s", "price"):
        return f"{value:,.4g}"
    return scaled(value) if unit == "FLOPs" else f"{value:,}"


def _change(row: Row, index: int) -> str:
    difference, ratio = row.difference(index), row.ratio(index)
    if difference is None:
        return ""
    sign = "-" if difference < 0 else "+"
    times = "" if ratio is None else f", {ratio:.3f} x"
    return f"\n({sign}{_text(abs(difference), row.unit)}{times})"


# --- quantities ------------------------------------------------------------------------------


def compare(reports: Sequence[tuple[str, Report]]) -> Comparison:
    """Puts reports side by side; the first is what the others are measured against.

    Args:
        reports: Each with its name.
    """
    with_batch = any(report.workload.batch_size > 1 for _, report in reports)
    columns = [dict(_quantities(report, with_batch=with_batch)) for _, report in reports]
    return Comparison(
        tuple(name for name, _ in reports),
        tuple(headline(report) for _, report in reports),
        tuple(
            Row(*quantity, tuple(column.get(quantity) for column in columns))
            for quantity in _union(columns)
        ),
        tuple(time_notes(entry for _, report in reports for entry in report.time)),
    )


class _Quantity(NamedTuple):
    """What a row is about; the attributes are those of `Row`."""

    key: str
    quantity: str
    unit: str


def _quantities(report: Report, *, with_batch: bool) -> Iterator[tuple[_Quantity, int | float]]:
    """Every quantity of a report and its value."""
    workload, total, memory = report.workload, report.total, report.memory
    yield _Quantity("visual_tokens", "visual tokens", "tokens"), workload.visual_tokens
    yield _Quantity("seq_len", "prompt", "tokens"), workload.seq_len
    yield _Quantity("views", "views", "views"), sum(view.count for view in workload.views)
    for name, stage in report.stages.items():
        is_step = name == report.decode_name
        key, label = (f"{name}_step", f"{name} step") if is_step else (name, name)
        yield _Quantity(f"{key}_flops", label, "FLOPs"), stage.flops
    yield _Quantity("prefill_pass_flops", "prefill pass", "FLOPs"), total.flops
    yield (
        _Quantity("prefill_pass_matrix_flops", "prefill pass, matrix", "FLOPs"),
        total.matrix_flops,
    )
    yield _Quantity("page_flops", "page", "FLOPs"), total.page.flops
    if with_batch:
        yield _Quantity("batch_flops", "batch", "FLOPs"), total.batch.flops
    yield _Quantity("prefill_pass_bytes", "prefill pass", "bytes"), total.bytes_moved
    yield _Quantity("decode_step_bytes", "decode step", "bytes"), total.decode_step.bytes_moved
    step = report.stages[report.decode_name]
    if with_batch and step.bytes_read_expected is not None:
        yield (
            _Quantity("decode_step_expected_bytes", "decode step, expected experts", "bytes"),
            step.bytes_read_expected + step.bytes_written,
        )
    yield _Quantity("page_bytes", "page", "bytes"), total.page.bytes_moved
    if with_batch:
        yield _Quantity("batch_bytes", "batch", "bytes"), total.batch.bytes_moved
    yield _Quantity("weights_bytes", "weights", "bytes"), memory.weights_bytes
    yield _Quantity("kv_cache_bytes", "KV cache at the end", "bytes"), memory.kv_cache_bytes
    yield (
        _Quantity("peak_activation_bytes", "peak activation", "bytes"),
        memory.peak_activation_bytes,
    )
    yield _Quantity("max_new_tokens", "new tokens", "tokens"), workload.max_new_tokens
    for entry in report.time:
        yield from _times(entry)


def _times(entry: TimeEntry) -> Iterator[tuple[_Quantity, int | float]]:
    """Predicted seconds of a page alone, and pages per second at each concurrency."""
    key, label = f"{entry.gpu}_{entry.runtime}", f"{entry.gpu}, {entry.runtime}"
    figures = {
        "ttft": ("first token", entry.ttft_seconds),
        "tpot": ("each token after it", entry.tpot_seconds),
        "page": ("page alone", entry.page_seconds),
    }
    for name, (words, seconds) in figures.items():
        if seconds is not None:
            yield _Quantity(f"{key}_{name}_seconds", f"{label}: {words}", "s"), seconds
    for load in entry.throughput:
        at = f"{load.concurrency} at once"
        yield (
            _Quantity(f"{key}_pages_per_second_{load.concurrency}", f"{label}: {at}", "pages/s"),
            load.pages_per_second,
        )
        cost = load.cost_per_thousand_pages
        if cost is not None:
            name = f"{key}_cost_per_thousand_pages_{load.concurrency}"
            yield _Quantity(name, f"{label}: 1,000 pages, {at}", "price"), cost


def _union(columns: Sequence[Mapping[_Quantity, Value]]) -> list[_Quantity]:
    """All quantities; those that only later reports have stand after their neighbour."""
    found: list[_Quantity] = []
    for column in columns:
        place = 0
        for quantity in column:
            if quantity in found:
                place = found.index(quantity) + 1
            else:
                found.insert(place, quantity)
                place += 1
    return found
