"""Tables of predicted seconds and throughput."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsocr_analyze.report.quantities import bytes_text, counted, percent_text, price_text
from dsocr_analyze.report.table import Table
from dsocr_analyze.timing.prediction import Interval, TimeEntry

__all__ = ["overview", "rate_text", "seconds_text", "time_notes", "time_tables"]


def seconds_text(seconds: float) -> str:
    """Three digits and a unit: 0.0132 is '13.2 ms'."""
    for step, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= step:
            return f"{_three(seconds / step)} {unit}"
    return f"{_three(seconds * 1e6)} us"


def _three(value: float) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def rate_text(rate: float) -> str:
    """A throughput with three significant digits or more: '0.0745', '12.3', '1,234'."""
    return f"{rate:#.3g}".removesuffix(".") if rate < 999.5 else f"{rate:,.0f}"


def _band(band: Interval) -> str:
    return f"{seconds_text(band.low)} to {seconds_text(band.high)}"


def time_tables(entries: Iterable[TimeEntry]) -> list[Table]:
    """Two tables per entry: its stages, and its throughput by concurrency."""
    tables = []
    for entry in entries:
        tables += [_stages(entry), _throughput(entry)]
    return tables


def overview(entries: Iterable[TimeEntry]) -> Table:
    """One row per entry: a page alone, and the throughput at the highest concurrency."""
    rows = []
    for entry in entries:
        load = max(entry.throughput, key=lambda each: each.concurrency)
        mark = "~" if entry.profile.extrapolated else ""
        rows.append(
            (entry.gpu, entry.runtime, mark, seconds_text(entry.ttft_seconds),
             "-" if entry.tpot_seconds is None else seconds_text(entry.tpot_seconds),
             seconds_text(entry.page_seconds), str(load.concurrency),
             rate_text(load.pages_per_second), load.bound, "yes" if load.fits else "no")
        )  # fmt: skip
    return Table(
        "Predicted: a page alone, then throughput; ~ extrapolated from another GPU",
        ("GPU", "runtime", "~", "first token", "per token", "page", "at once", "pages/s", "bound",
         "fits"),
        tuple(rows),
        label_columns=3,
        optional=("per token", "first token"),
    )  # fmt: skip


def _title(entry: TimeEntry) -> str:
    host = entry.assumptions.host
    runtime = entry.runtime if host == entry.runtime else f"{entry.runtime}, {host}"
    return f"{entry.gpu}, {runtime}"


def _stages(entry: TimeEntry) -> Table:
    decode = list(entry.stages)[-1]
    rows: list[tuple[str, ...]] = [
        (name if name != decode else f"{name}, one step", seconds_text(stage.seconds),
         _band(Interval(low=stage.low, high=stage.high)), stage.bound,
         percent_text(stage.peak_share), percent_text(stage.bandwidth_share))
        for name, stage in entry.stages.items()
    ]  # fmt: skip
    figures = {
        "first token": ("ttft_seconds", entry.ttft_seconds),
        "each token after it": ("tpot_seconds", entry.tpot_seconds),
        "page": ("page_seconds", entry.page_seconds),
    }
    for label, (key, seconds) in figures.items():
        if seconds is not None:
            rows.append((label, seconds_text(seconds), _band(entry.bands[key]), "", "", ""))
    return Table(
        f"{_title(entry)}: one page alone, predicted",
        ("what", "time", "band", "bound", "of peak", "of bandwidth"),
        tuple(rows),
    )


def _throughput(entry: TimeEntry) -> Table:
    priced = any(each.cost_per_thousand_pages is not None for each in entry.throughput)
    rows = []
    for each in entry.throughput:
        band = each.pages_per_second_band
        row = [
            str(each.concurrency),
            rate_text(each.pages_per_second),
            f"{rate_text(band.low)} to {rate_text(band.high)}",
            f"{each.tokens_per_second:,.0f}",
            seconds_text(each.ttft_seconds),
            "-" if each.tpot_seconds is None else seconds_text(each.tpot_seconds),
            seconds_text(each.page_seconds),
            each.bound,
            bytes_text(each.memory_bytes) if each.fits else "too much",
        ]
        if priced:
            cost = each.cost_per_thousand_pages
            row.append("-" if cost is None else price_text(cost))
        rows.append(tuple(row))
    columns = ["pages at once", "pages/s", "band", "tokens/s", "first token", "per token", "page",
               "bound", "memory"]  # fmt: skip
    if priced:
        columns.append("per 1,000 pages")
    return Table(
        f"{_title(entry)}: throughput; at most {counted(entry.largest_concurrency, 'page')}"
        " at once fit",
        tuple(columns),
        tuple(rows),
        optional=("tokens/s", "per token", "first token"),
    )


def time_notes(entries: Iterable[TimeEntry]) -> Iterator[str]:
    """What the predictions assume: each sentence once, with the GPUs it applies to."""
    about: dict[str, dict[str, None]] = {}
    for entry in entries:
        profile = entry.profile
        said = [f"kernel times {_origin(profile.source)}"]
        if profile.extrapolated:
            kinds = ", ".join(profile.extrapolated)
            said.append(f"another GPU's coefficients, with a wider band: {kinds}")
        if profile.assumed:
            said.append(f"error assumed, not measured: {', '.join(profile.assumed)}")
        for sentence in said:
            about.setdefault(sentence, {})[entry.gpu] = None
        for sentence in entry.assumptions.sentences:
            about.setdefault(sentence, {})[entry.runtime] = None
    for sentence, names in about.items():
        yield f"{', '.join(names)}: {sentence}"


def _origin(source: str) -> str:
    return source if source.startswith("extrapolated") else f"from {source}"
