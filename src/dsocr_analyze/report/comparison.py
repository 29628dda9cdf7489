"""Reports side by side: each quantity of every report, compared with the first."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from dsocr_analyze.report.comparison_document import (
    ComparedColumn,
    ComparedKey,
    ComparedQuantity,
    ComparisonDocument,
)
from dsocr_analyze.report.config_differences import KeyDifference, config_differences
from dsocr_analyze.report.document import SCHEMA_VERSION, Metadata, Report, Workload
from dsocr_analyze.report.opening import NO_OPTIONS, Options, opening_line
from dsocr_analyze.report.quantities import bytes_text, scaled
from dsocr_analyze.report.tables import Table, headline
from dsocr_analyze.report.time_entry import TimeEntry
from dsocr_analyze.report.time_tables import time_notes

__all__ = ["Comparison", "Row", "compare", "merged"]

Value: TypeAlias = int | float | None

_Sortable = TypeVar("_Sortable", str, "_Quantity")


@dataclass(frozen=True)
class Row:
    """One quantity in every report.

    Attributes:
        key: Its name for programs; the same in every release.
        quantity: Its name for readers.
        unit: Its unit.
        values: Value in each report; None for a report without such a stage.
    """

    key: str
    quantity: str
    unit: str
    values: tuple[Value, ...]

    def difference(self, index: int) -> Value:
        """Value of report `index` minus the first; None if either is missing."""
        first, value = self.values[0], self.values[index]
        return None if first is None or value is None else value - first

    def ratio(self, index: int) -> float | None:
        """Value of report `index` over the first; None if the first is 0 or either is missing."""
        first, value = self.values[0], self.values[index]
        return value / first if first and value is not None else None


@dataclass(frozen=True)
class Comparison:
    """Several reports' quantities.

    Attributes:
        names: Names of the reports, all different.
        headlines: Each report's model, and how it was counted.
        rows: One row per quantity.
        architectures: Name of each report's architecture; None if unknown.
        workloads: Each report's page and prompt.
        metadata: How each report's figures were obtained.
        shared: What the first line adds about all reports, such as their page; may be empty.
        config_names: Names of the compared configs; empty unless there are several.
        config_differences: The keys in which these configs differ.
        assumptions: What predicted seconds assume; empty without predictions.
    """

    names: tuple[str, ...]
    headlines: tuple[str, ...]
    rows: tuple[Row, ...]
    architectures: tuple[str | None, ...]
    workloads: tuple[Workload, ...]
    metadata: tuple[Metadata, ...]
    shared: str = ""
    config_names: tuple[str, ...] = ()
    config_differences: tuple[KeyDifference, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def pages(self) -> tuple[tuple[int, int] | None, ...]:
        """Width and height of each page in pixels; None for a model that reads no pages."""
        return tuple(each.page for each in self.workloads)

    def headline(self) -> str:
        """The first line: the model, or the models and the page if the models differ."""
        if len(set(self.headlines)) == 1:
            return f"Ran: {self.headlines[0]}{self.shared}"
        pairs = zip(self._names_of_models(), self.headlines, strict=True)
        return "Ran: " + "; ".join(f"{name}: {line}" for name, line in pairs) + self.shared

    def _names_of_models(self) -> Iterator[str]:
        """The reports' names, with the architecture if the name alone does not give it."""
        several = _has_several(self.architectures)
        for name, architecture in zip(self.names, self.architectures, strict=True):
            is_said = (
                not several or architecture is None or re.split("[:,]", name)[0] == architecture
            )
            yield name if is_said else f"{name}: {architecture}"

    def table(self) -> Table:
        """One column per report; from the second on, each value has its difference and ratio."""
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

    def config_table(self) -> Table | None:
        """The keys in which the configs differ, one column per config; None without configs."""
        if not self.config_names:
            return None
        if not self.config_differences:
            return Table("Configs: no key differs", ("key", *self.config_names), ())
        return Table(
            "Config keys that differ (-: absent)",
            ("key", *self.config_names),
            tuple((key.path, *(key.text(i) or "-" for i in range(len(self.config_names))))
                  for key in self.config_differences),
            label_columns=1 + len(self.config_names),
        )  # fmt: skip

    def document(self, options: Options = NO_OPTIONS) -> ComparisonDocument:
        """The comparison as a document; `options` are the command line's."""
        return ComparisonDocument(
            schema_version=SCHEMA_VERSION,
            command="compare",
            options=options,
            columns=tuple(self._columns()),
            names=self.names,
            ran=self.headlines,
            architectures=self.architectures,
            pages=self.pages,
            rows=tuple(
                ComparedQuantity(
                    key=row.key,
                    quantity=row.quantity,
                    unit=row.unit,
                    values=row.values,
                    differences=tuple(map(row.difference, range(len(self.names)))),
                    ratios=tuple(map(row.ratio, range(len(self.names)))),
                )
                for row in self.rows
            ),
            config_differences=tuple(
                ComparedKey(key=key.path, values=key.by_name(self.config_names))
                for key in self.config_differences
            ),
            assumptions=self.assumptions,
        )

    def _columns(self) -> Iterator[ComparedColumn]:
        for index, (name, about) in enumerate(zip(self.names, self.metadata, strict=True)):
            yield ComparedColumn(
                name=name,
                engine=about.engine,
                dtype=about.dtype,
                attention=about.attention,
                model=about.model,
                workload=self.workloads[index],
                figures={row.key: row.values[index] for row in self.rows},
            )

    def opening(self) -> str:
        """The second line: pages, view sizes, tokens, batches, data types and attention."""
        return opening_line(
            self.workloads,
            (about.dtype for about in self.metadata),
            (about.attention for about in self.metadata),
        )

    def as_csv(self) -> str:
        """One line per quantity and report; missing values are empty.

        Then one line per differing key and config: the value as JSON, empty if the key is absent.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("key", "quantity", "unit", "report", "value", "difference", "ratio"))
        for row in self.rows:
            for index, name in enumerate(self.names):
                writer.writerow(
                    (row.key, row.quantity, row.unit, name, row.values[index],
                     row.difference(index), row.ratio(index))
                )  # fmt: skip
        for key in self.config_differences:
            for index, name in enumerate(self.config_names):
                writer.writerow(
                    (f"config.{key.path}", key.path, "config", name, key.text(index), None, None)
                )
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


def compare(
    reports: Sequence[tuple[str, Report]],
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    with_page: bool = False,
) -> Comparison:
    """Puts reports side by side; the others are compared with the first.

    Args:
        reports: Each report with its name; repeated names get a number.
        configs: Parsed `config.json` files of the reports' models, by name; None or a single one
            if the models share a config.
        with_page: Whether the first line names the page even if all reports are of one
            architecture.
    """
    found = [report for _, report in reports]
    with_batch = any(report.workload.batch_size > 1 for report in found)
    with_params = len({report.total.params for report in found}) > 1
    stages = merged([_stage_quantities(report) for report in found])
    columns = [
        dict(_quantities(report, stages, with_batch=with_batch, with_params=with_params))
        for report in found
    ]
    architectures = tuple(report.metadata.model.architecture for report in found)
    several = configs if configs is not None and len(configs) > 1 else {}
    return Comparison(
        names=tuple(_distinct(name for name, _ in reports)),
        headlines=tuple(map(headline, found)),
        rows=tuple(
            Row(*quantity, tuple(column.get(quantity) for column in columns))
            for quantity in _union(columns)
        ),
        architectures=architectures,
        workloads=tuple(report.workload for report in found),
        metadata=tuple(report.metadata for report in found),
        shared=_shared(found) if with_page or _has_several(architectures) else "",
        config_names=tuple(several),
        config_differences=tuple(config_differences(list(several.values()))),
        assumptions=tuple(time_notes(entry for report in found for entry in report.time)),
    )


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """The names, with a number added to repeated ones."""
    seen: set[str] = set()
    for name in names:
        numbered = (f"{name} ({number})" for number in itertools.count(2))
        found = next(each for each in itertools.chain([name], numbered) if each not in seen)
        seen.add(found)
        yield found


def _has_several(architectures: Iterable[str | None]) -> bool:
    """Whether there are at least two known architectures."""
    return len(set(architectures) - {None}) > 1


def _shared(reports: Sequence[Report]) -> str:
    """The pages of all reports that have one, and their view sizes if these are all the same."""
    read = [(report, page) for report in reports if (page := report.workload.page) is not None]
    if not read:
        return ""
    pages = list(dict.fromkeys(f"{width} x {height}" for _, (width, height) in read))
    sizes = {_sizes(report.workload) for report, _ in read}
    what = f"page{'s' if len(pages) > 1 else ''} {', '.join(pages)} pixels"
    return f"; {what}, {sizes.pop()}" if len(sizes) == 1 else f"; {what}"


def _sizes(workload: Workload) -> str:
    """Sizes of views, written as on the command line."""
    if workload.crop_mode:
        return f"{workload.base_size}/{workload.image_size} (crops)"
    return f"{workload.image_size} (no crops)"


class _Quantity(NamedTuple):
    """What a row is about; attributes as in `Row`."""

    key: str
    quantity: str
    unit: str


def _stage_quantities(report: Report) -> list[_Quantity]:
    """The rows of a report's stages, in order."""
    keys = (
        (f"{name}_step", f"{name} step") if name == report.decode_name else (name, name)
        for name in report.stages
    )
    return [_Quantity(f"{key}_flops", label, "FLOPs") for key, label in keys]


def merged(sequences: Sequence[Sequence[_Sortable]]) -> list[_Sortable]:
    """The stages of several architectures, merged without changing the order within each.

    Among stages that may come next, prefer the one followed by most others, since all passes end
    alike, then the alphabetically first: the result does not depend on the order of reports.
    """
    rest = [list(sequence) for sequence in sequences]
    found: list[_Sortable] = []
    while any(rest):
        heads = [sequence for sequence in rest if sequence]
        later = {quantity for sequence in heads for quantity in sequence[1:]}
        # If architectures contradict one another, every head also occurs later in another one.
        free = [sequence for sequence in heads if sequence[0] not in later] or heads[:1]
        chosen = min(free, key=lambda sequence: (-len(sequence), sequence[0]))[0]
        found.append(chosen)
        rest = [[each for each in sequence if each != chosen] for sequence in rest]
    return found


def _quantities(
    report: Report, stages: Sequence[_Quantity], *, with_batch: bool, with_params: bool
) -> Iterator[tuple[_Quantity, Value]]:
    """Every quantity of a report and its value; None for a stage that only other reports have."""
    workload, total, memory = report.workload, report.total, report.memory
    if workload.visual_tokens is not None:
        yield _Quantity("visual_tokens", "visual tokens", "tokens"), workload.visual_tokens
    yield _Quantity("seq_len", "prompt", "tokens"), workload.seq_len
    if workload.views is not None:
        yield _Quantity("views", "views", "views"), sum(view.count for view in workload.views)
    if with_params:
        yield _Quantity("params", "parameters", "parameters"), total.params
    work = dict(zip(_stage_quantities(report), report.stages.values(), strict=True))
    for stage in stages:
        yield stage, work[stage].flops if stage in work else None
    yield _Quantity("prefill_pass_flops", "prefill pass", "FLOPs"), total.flops
    yield (
        _Quantity("prefill_pass_matrix_flops", "prefill pass, matrix", "FLOPs"),
        total.matrix_flops,
    )
    yield _Quantity("page_flops", "page", "FLOPs"), total.page.flops
    if with_batch:
        yield _Quantity("batch_flops", "batch", "FLOPs"), total.batch.flops
    yield _Quantity("prefill_pass_bytes", "prefill pass", "bytes"), total.bytes_moved
    if total.decode_step is not None:
        yield _Quantity("decode_step_bytes", "decode step", "bytes"), total.decode_step.bytes_moved
    step = None if report.decode_name is None else report.stages[report.decode_name]
    if with_batch and step is not None and step.bytes_read_expected is not None:
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
    key = f"{entry.gpu}_{entry.runtime}".replace("-", "_")
    label = f"{entry.gpu}, {entry.runtime}"
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
    """All quantities; those found only in later reports follow their predecessor there."""
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
