"""Reports side by side, compared with the first."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from msgspec import Struct

from dsocr_analyze.architectures.accuracy import Benchmark
from dsocr_analyze.extras import require_extra
from dsocr_analyze.figures import Model
from dsocr_analyze.report import table, tables, time_tables
from dsocr_analyze.report.document import Report
from dsocr_analyze.report.opening import (
    NO_OPTIONS,
    SCHEMA_VERSION,
    Opening,
    Options,
    Workload,
    opening_line,
)
from dsocr_analyze.timing import TimeEntry

if TYPE_CHECKING:
    import pandas as pd

Value: TypeAlias = int | float | None

_Quantity: TypeAlias = tuple[str, str, str]
"""`key`, `quantity` and `unit` of a row."""

_Sortable = TypeVar("_Sortable", str, _Quantity)

_NAMED_KEYS: Final = 5
"""Keys of configs that the first lines name."""

_TEXTS: Final[Mapping[str, Callable[[float], str]]] = {
    "FLOPs": table.scaled,
    "bytes": table.bytes_text,
    **dict.fromkeys(("s", "pages/s", "price"), "{:,.4g}".format),
}
"""How values of a unit are written; those of other units have all digits."""


class ComparedColumn(Struct, frozen=True, kw_only=True):
    """One of the compared reports.

    Attributes:
        name: Its name, unique among the reports.
        engine: trace, or analytic for closed forms.
        dtype: Data type of weights and activations.
        attention: The decoder's attention.
        model: The model.
        workload: The page and its prompt.
        figures: Its quantities by key; null if missing.
    """

    name: str
    engine: str
    dtype: str
    attention: str
    model: Model
    workload: Workload
    figures: Mapping[str, Value]


class ComparedQuantity(Struct, frozen=True):
    """One quantity across all reports.

    Attributes:
        key: Its name for programs: unique, stable across releases.
        quantity: Its name for readers.
        unit: Its unit.
        values: Its value in each report; null if missing.
        differences: Each value minus the first; null if either is missing.
        ratios: Each value over the first; null if that is 0 or either is missing.
    """

    key: str
    quantity: str
    unit: str
    values: tuple[Value, ...]
    differences: tuple[Value, ...]
    ratios: tuple[float | None, ...]

    def cell(self, index: int) -> str:
        """The value in report `index`, and below it its difference from the first."""
        text, difference = _text(self.values[index], self.unit), self.differences[index]
        if not index or difference is None:
            return text
        ratio = self.ratios[index]
        times = "" if ratio is None else f", {ratio:.3f} x"
        return (
            f"{text}\n({'-' if difference < 0 else '+'}{_text(abs(difference), self.unit)}{times})"
        )


class ComparedKey(Struct, frozen=True, kw_only=True):
    """A key in which configs differ.

    Attributes:
        key: Dotted path of the key.
        values: Its value in each config that has it, by the config's name.
    """

    key: str
    values: Mapping[str, Any]

    def text(self, name: str) -> str | None:
        """The value in a named config as JSON; None if absent."""
        return _json(self.values[name]) if name in self.values else None


class Ranking(Struct, frozen=True, kw_only=True):
    """What a comparison of all models says besides their figures.

    Attributes:
        sorted_by: Key of the quantity by which the reports are sorted.
        dpi: Resolution of the page in pixels per inch; null if only its pixels are known.
        left_out: Why models are not among the reports, by name.
        accuracies: Published accuracies, of which a model's first one is among its quantities.
    """

    sorted_by: str
    dpi: int | None
    left_out: Mapping[str, str]
    accuracies: Mapping[str, Benchmark]


class ComparisonDocument(Opening, frozen=True, kw_only=True, omit_defaults=True):
    """Reports side by side.

    Attributes:
        columns: Each report's model, workload and way of counting.
        names: Names of the reports.
        ran: Which model each report is of, and how it ran.
        architectures: Each report's architecture; null if unknown.
        pages: Each report's page, width and height in pixels; null without one.
        rows: One row per quantity.
        config_differences: Keys in which the configs differ.
        assumptions: What predicted seconds assume.
        notes: Those assumptions that make them doubtful, or that correct them.
        ranking: What a comparison of all models says besides; absent from others.
    """

    columns: tuple[ComparedColumn, ...]
    names: tuple[str, ...]
    ran: tuple[str, ...]
    architectures: tuple[str | None, ...]
    pages: tuple[tuple[int, int] | None, ...]
    rows: tuple[ComparedQuantity, ...]
    config_differences: tuple[ComparedKey, ...]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...] = ()
    ranking: Ranking | None = None

    def answer(self) -> list[str]:
        """The first lines: what a page takes in each report, or by what a ranking sorts them."""
        asked, most = "page_flops|.*_page_seconds|.*_cost_per_thousand_pages_.*", None
        if self.ranking is not None:
            asked, most = self.ranking.sorted_by, 1  # without its difference from the first
        lines = []
        for row in self.rows:
            if re.fullmatch(asked, row.key):
                texts = (
                    " ".join([name, *row.cell(place).splitlines()[:most]])
                    for place, name in enumerate(self.names)
                )
                lines.append(f"{row.quantity} [{row.unit}]: {'; '.join(texts)}")
        if keys := [each.key for each in self.config_differences]:
            others = f" and {len(keys) - _NAMED_KEYS} more" if len(keys) > _NAMED_KEYS else ""
            lines.insert(0, f"config keys that differ: {', '.join(keys[:_NAMED_KEYS])}{others}")
        return lines

    def headline(self) -> str:
        """What ran."""
        has_several = len(set(self.architectures) - {None}) > 1
        ran = self.ran[:1] if len(set(self.ran)) == 1 else [
            # A name may say the architecture by itself.
            f"{name}: {line}"
            if not has_several or architecture in (None, re.split("[:,]", name)[0])
            else f"{name}: {architecture}: {line}"
            for name, architecture, line in zip(
                self.names, self.architectures, self.ran, strict=True
            )
        ]  # fmt: skip
        return f"Ran: {'; '.join(ran)}"

    def opening(self) -> str:
        """Of what: sizes, tokens, batches, data types and attention."""
        return opening_line(
            [column.workload for column in self.columns],
            (column.dtype for column in self.columns),
            (column.attention for column in self.columns),
        )

    def tables(self, configs: Sequence[str] = ()) -> list[table.Table]:
        """All quantities, and keys in which named configs differ."""
        keys, columns = self.config_differences, range(len(self.names))
        against = table.Table(
            f"Against {self.names[0]}",
            ("quantity", "unit", *self.names),
            tuple((row.quantity, row.unit, *map(row.cell, columns)) for row in self.rows),
            label_columns=2,
        )
        if not configs:
            return [against]
        return [
            against,
            table.Table(
                "Config keys that differ (-: absent)" if keys else "Configs: no key differs",
                ("key", *configs),
                tuple((key.key, *(key.text(name) or "-" for name in configs)) for key in keys),
                label_columns=1 + len(configs) if keys else 1,
            ),
        ]

    def as_csv(self, configs: Sequence[str] = ()) -> str:
        """One line per quantity and report, then one per differing key and named config."""
        header = ("key", "quantity", "unit", "report", "value", "difference", "ratio")
        rows = (
            (row.key, row.quantity, row.unit, *figures)
            for row in self.rows
            for figures in zip(self.names, row.values, row.differences, row.ratios, strict=True)
        )
        keys = (
            (f"config.{key.key}", key.key, "config", name, key.text(name), None, None)
            for key in self.config_differences
            for name in configs
        )
        return table.csv_text([header, *rows, *keys])

    def to_pandas(self) -> pd.DataFrame:
        """One row per quantity, with exact integers. Needs the extra `pandas`.

        Columns are `key`, `quantity`, `unit`, and one named after each report.

        Raises:
            ExtraError: pandas is not installed.
        """
        require_extra("a table", "pandas", "pandas")
        import pandas as pd

        rows = [(row.key, row.quantity, row.unit, *row.values) for row in self.rows]
        columns = ["key", "quantity", "unit", *self.names]  # of which a report may have the name
        # Without dtype=object, a missing value would turn a column's integers into floats.
        return pd.DataFrame(rows, columns=columns, dtype=object)


def _text(value: Value, unit: str) -> str:
    return "-" if value is None else _TEXTS.get(unit, "{:,}".format)(value)


# --- quantities ------------------------------------------------------------------------------


def compare(
    reports: Sequence[tuple[str, Report]],
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    options: Options = NO_OPTIONS,
    accuracies: Mapping[str, Benchmark] | None = None,
) -> ComparisonDocument:
    """Compares reports with the first.

    Args:
        reports: Names and reports; a repeated name gets a number.
        configs: Parsed `config.json` files by name; None for a shared one.
        options: The command line's.
        accuracies: Published ones to put beside the figures.
    """
    found = [report for _, report in reports]
    names = tuple(_distinct(name for name, _ in reports))
    with_batch = any(report.workload.batch_size > 1 for report in found)
    with_params = len({report.total.params for report in found}) > 1
    stages: list[dict[_Quantity, Value]] = [
        {
            (f"{name}_step_flops", f"{name} step", "FLOPs")
            if name == report.decode_name
            else (f"{name}_flops", name, "FLOPs"): stage.flops
            for name, stage in report.stages.items()
        }
        for report in found
    ]
    order = merged([list(each) for each in stages])
    columns = [
        _figures(report, {row: flops.get(row) for row in order}, with_batch, with_params)
        | _scores(report.metadata.model.architecture or "", accuracies or {})
        for report, flops in zip(found, stages, strict=True)
    ]
    rows = tuple(
        _row(quantity, [column.get(quantity) for column in columns]) for quantity in _union(columns)
    )
    entries = [entry for report in found for entry in report.time]
    return ComparisonDocument(
        schema_version=SCHEMA_VERSION,
        command="compare",
        options=options,
        columns=tuple(
            ComparedColumn(
                name=name,
                engine=report.metadata.engine,
                dtype=report.metadata.dtype,
                attention=report.metadata.attention,
                model=report.metadata.model,
                workload=report.workload,
                figures={row.key: row.values[index] for row in rows},
            )
            for index, (name, report) in enumerate(zip(names, found, strict=True))
        ),
        names=names,
        ran=tuple(map(tables.headline, found)),
        architectures=tuple(report.metadata.model.architecture for report in found),
        pages=tuple(report.workload.page for report in found),
        rows=rows,
        config_differences=tuple(config_differences(configs or {})),
        assumptions=tuple(time_tables.time_notes(entries)),
        notes=tuple(dict.fromkeys(time_tables.doubts(entries))),
    )


def _distinct(names: Iterable[str]) -> Sequence[str]:
    """Repeated names get a number."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name} ({number})" for number in itertools.count(2))
        found.append(next(each for each in itertools.chain([name], numbered) if each not in found))
    return found


def _row(quantity: _Quantity, values: Sequence[Value]) -> ComparedQuantity:
    first = values[0]
    return ComparedQuantity(
        *quantity,
        values=tuple(values),
        differences=tuple(
            None if first is None or value is None else value - first for value in values
        ),
        ratios=tuple(value / first if first and value is not None else None for value in values),
    )


def merged(sequences: Sequence[Sequence[_Sortable]]) -> list[_Sortable]:
    """Several architectures' stages, merged without changing the order within each.

    The one followed by most goes first, since all passes end alike, then the alphabetically first:
    the order of reports doesn't matter.
    """
    found: list[_Sortable] = []
    while rest := [
        left for each in sequences if (left := [stage for stage in each if stage not in found])
    ]:
        later = {quantity for sequence in rest for quantity in sequence[1:]}
        # If architectures contradict one another, every head also occurs later in another one.
        free = [sequence for sequence in rest if sequence[0] not in later] or rest[:1]
        found.append(min(free, key=lambda sequence: (-len(sequence), sequence[0]))[0])
    return found


def _figures(
    report: Report, stages: Mapping[_Quantity, Value], with_batch: bool, with_params: bool
) -> dict[_Quantity, Value]:
    """A report's quantities; a stage that only other reports have is None."""
    workload, total, memory = report.workload, report.total, report.memory
    views, step, batch = workload.views, total.decode_step, total.batch if with_batch else None
    decode = report.stages.get(report.decode_name or "") if with_batch else None
    expected = None if decode is None else decode.bytes_read_expected
    return {
        **_known({
            ("visual_tokens", "visual tokens", "tokens"): workload.visual_tokens,
            ("seq_len", "prompt", "tokens"): workload.seq_len,
            ("views", "views", "views"): None if views is None else sum(v.count for v in views),
            ("params", "parameters", "parameters"): total.params if with_params else None,
        }),
        **stages,
        **_known({
            ("prefill_pass_flops", "prefill pass", "FLOPs"): total.flops,
            ("prefill_pass_matrix_flops", "prefill pass, matrix", "FLOPs"): total.matrix_flops,
            ("page_flops", "page", "FLOPs"): total.page.flops,
            ("batch_flops", "batch", "FLOPs"): batch.flops if batch else None,
            ("prefill_pass_bytes", "prefill pass", "bytes"): total.bytes_moved,
            ("decode_step_bytes", "decode step", "bytes"): step.bytes_moved if step else None,
            ("decode_step_expected_bytes", "decode step, expected experts", "bytes"):
                None if decode is None or expected is None else expected + decode.bytes_written,
            ("page_bytes", "page", "bytes"): total.page.bytes_moved,
            ("batch_bytes", "batch", "bytes"): batch.bytes_moved if batch else None,
            ("weights_bytes", "weights", "bytes"): memory.weights_bytes,
            ("kv_cache_bytes", "KV cache at the end", "bytes"): memory.kv_cache_bytes,
            ("peak_activation_bytes", "peak activation", "bytes"): memory.peak_activation_bytes,
            ("max_new_tokens", "new tokens", "tokens"): workload.max_new_tokens,
        }),
        **_known({row: value for each in report.time for row, value in _times(each).items()}),
    }  # fmt: skip


def _scores(architecture: str, accuracies: Mapping[str, Benchmark]) -> dict[_Quantity, Value]:
    """An architecture's scores; in all benchmarks, so that these keep their order."""
    return {
        (f"accuracy_{key}", each.name, "score"): (
            each.first[architecture].score if architecture in each.first else None
        )
        for key, each in accuracies.items()
    }


def _known(figures: Mapping[_Quantity, Value]) -> dict[_Quantity, Value]:
    return {row: value for row, value in figures.items() if value is not None}


def _times(entry: TimeEntry) -> dict[_Quantity, Value]:
    # Another engine's seconds are another quantity.
    engine = "" if entry.assumptions.host in (entry.runtime, "vllm") else entry.assumptions.host
    key = "_".join(filter(None, (entry.gpu, entry.runtime, engine))).replace("-", "_")
    label = entry.title
    found: dict[_Quantity, Value] = {
        (f"{key}_ttft_seconds", f"{label}: first token", "s"): entry.ttft_seconds,
        (f"{key}_tpot_seconds", f"{label}: each token after it", "s"): entry.tpot_seconds,
        (f"{key}_page_seconds", f"{label}: page alone", "s"): entry.page_seconds,
    }
    for load in entry.throughput:
        at_once = f"{load.concurrency} at once"
        found |= {
            (f"{key}_pages_per_second_{load.concurrency}", f"{label}: {at_once}", "pages/s"):
                load.pages_per_second,
            (f"{key}_cost_per_thousand_pages_{load.concurrency}",
             f"{label}: 1,000 pages, {at_once}", "price"): load.cost_per_thousand_pages,
        }  # fmt: skip
    return found


def _union(columns: Sequence[Mapping[_Quantity, Value]]) -> list[_Quantity]:
    """Quantities of later reports alone follow their predecessor there."""
    found: list[_Quantity] = []
    for column in columns:
        place = 0
        for quantity in column:
            if quantity not in found:
                found.insert(place, quantity)
            place = found.index(quantity) + 1
    return found


# --- configs ---------------------------------------------------------------------------------


def config_differences(configs: Mapping[str, Mapping[str, Any]]) -> Iterator[ComparedKey]:
    """The keys in which parsed `config.json` files differ, in file order.

    Objects are compared by key, lists as a whole; absent differs from null.
    """
    return _differences("", configs, len(configs))


def _differences(path: str, values: Mapping[str, Any], configs: int) -> Iterator[ComparedKey]:
    """The differing keys at or below a path that some configs have."""
    if any(values.values()) and all(isinstance(each, Mapping) for each in values.values()):
        for key in dict.fromkeys(key for each in values.values() for key in each):
            below = {name: each[key] for name, each in values.items() if key in each}
            yield from _differences(f"{path}.{key}" if path else key, below, configs)
    elif len(values) < configs or len(set(map(_json, values.values()))) > 1:
        yield ComparedKey(key=path, values=values)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
