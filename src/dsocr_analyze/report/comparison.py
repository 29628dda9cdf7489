"""Reports side by side: each quantity of every report, against the first."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.report.document import SCHEMA_VERSION, Document
from dsocr_analyze.report.quantities import bytes_text, exact, scaled
from dsocr_analyze.report.tables import Table, headline

__all__ = ["Comparison", "Row", "compare", "load_report"]


@dataclass(frozen=True)
class Row:
    """One quantity in every report."""

    quantity: str
    unit: str
    values: tuple[int, ...]

    def difference(self, index: int) -> int:
        """What report `index` has more than the first."""
        return self.values[index] - self.values[0]

    def ratio(self, index: int) -> float | None:
        """Report `index` over the first; None where the first is 0."""
        return self.values[index] / self.values[0] if self.values[0] else None


_Value = Callable[[Document], int]


def _stage(name: str, key: str) -> _Value:
    return lambda document: int(document["stages"][name][key])


def _at(*path: str) -> _Value:
    def value(document: Document) -> int:
        found = document
        for key in path:
            found = found[key]
        return int(found)  # type: ignore[call-overload,no-any-return]  # the schema says so

    return value


def _moved(*path: str) -> _Value:
    read, written = _at(*path, "bytes_read"), _at(*path, "bytes_written")
    return lambda document: read(document) + written(document)


_QUANTITIES: Final[tuple[tuple[str, str, _Value], ...]] = (
    ("visual tokens", "tokens", _at("workload", "visual_tokens")),
    ("prompt", "tokens", _at("workload", "seq_len")),
    ("views", "views", lambda d: sum(view["count"] for view in d["workload"]["views"])),
    ("sam", "FLOPs", _stage("sam", "flops")),
    ("clip", "FLOPs", _stage("clip", "flops")),
    ("projector", "FLOPs", _stage("projector", "flops")),
    ("prefill", "FLOPs", _stage("prefill", "flops")),
    ("decode step", "FLOPs", _stage("decode", "flops")),
    ("prefill pass", "FLOPs", _at("total", "flops")),
    ("prefill pass, matrix", "FLOPs", _at("total", "matrix_flops")),
    ("page", "FLOPs", _at("total", "page", "flops")),
    ("prefill pass", "bytes", _moved("total")),
    ("decode step", "bytes", _moved("total", "decode_step")),
    ("page", "bytes", _moved("total", "page")),
    ("weights", "bytes", _at("memory", "weights_bytes")),
    ("KV cache at the end", "bytes", _at("memory", "kv_cache_bytes")),
    ("peak activation", "bytes", _at("memory", "peak_activation_bytes")),
    ("new tokens", "tokens", _at("workload", "max_new_tokens")),
)


@dataclass(frozen=True)
class Comparison:
    """Several reports' quantities."""

    names: tuple[str, ...]
    headlines: tuple[str, ...]
    """Which model each report is of, and how it was counted."""
    rows: tuple[Row, ...]

    def headline(self) -> str:
        """The first line: which model ran, or which ones."""
        if len(set(self.headlines)) == 1:
            return f"Ran: {self.headlines[0]}"
        pairs = zip(self.names, self.headlines, strict=True)
        return "Ran: " + "; ".join(f"{name}: {line}" for name, line in pairs)

    def table(self) -> Table:
        """One column a report; below each value of the others its difference and ratio."""
        rows = []
        for row in self.rows:
            others = (
                f"{_text(row.values[index], row.unit)}\n{_change(row, index)}"
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
        """An object: names, models, and a row a quantity with values, differences and ratios."""
        rows = [
            {
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
                {"names": list(self.names), "ran": list(self.headlines), "rows": rows}, indent=2
            )
            + "\n"
        )

    def as_csv(self) -> str:
        """A line a quantity and report: quantity, unit, report, value, difference, ratio."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("quantity", "unit", "report", "value", "difference", "ratio"))
        for row in self.rows:
            for index, name in enumerate(self.names):
                ratio = row.ratio(index)
                writer.writerow(
                    (row.quantity, row.unit, name, row.values[index], row.difference(index),
                     "" if ratio is None else repr(ratio))
                )  # fmt: skip
        return text.getvalue()


def _text(value: int, unit: str) -> str:
    if unit == "bytes":
        return bytes_text(value)
    return scaled(value) if unit == "FLOPs" else exact(value)


def _change(row: Row, index: int) -> str:
    difference, ratio = row.difference(index), row.ratio(index)
    sign = "-" if difference < 0 else "+"
    times = "" if ratio is None else f", {ratio:.3f} x"
    return f"({sign}{_text(abs(difference), row.unit)}{times})"


def compare(documents: Sequence[tuple[str, Document]]) -> Comparison:
    """Puts reports side by side; the first is what the others are measured against."""
    return Comparison(
        tuple(name for name, _ in documents),
        tuple(headline(document) for _, document in documents),
        tuple(
            Row(quantity, unit, tuple(value(document) for _, document in documents))
            for quantity, unit, value in _QUANTITIES
        ),
    )


def load_report(path: Path) -> Document:
    """A saved `static_compute.json`; raises ConfigError where it is no report of this schema."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read report {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"report {str(path)!r} is not JSON: {error}") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"report {str(path)!r} has schema_version {version!r};"
            f" a dsocr-analyze report has {SCHEMA_VERSION!r}"
        )
    try:
        compare([("", document)])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"report {str(path)!r} lacks {error}") from error
    return dict(document)
