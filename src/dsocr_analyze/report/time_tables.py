"""Predicted seconds: the document of `dsocr-analyze time`, and tables."""

from collections.abc import Iterable, Iterator
from itertools import compress
from operator import itemgetter

from dsocr_analyze.figures import Model
from dsocr_analyze.report.opening import PageOpening, Workload, model_text
from dsocr_analyze.report.table import (
    Table,
    bytes_text,
    counted,
    percent_text,
    price_text,
    rate_text,
    seconds_text,
)
from dsocr_analyze.timing import Interval, TimeEntry, TimeStage


def _band(band: Interval | TimeStage) -> str:
    return f"{seconds_text(band.low)} to {seconds_text(band.high)}"


def time_tables(entries: Iterable[TimeEntry]) -> list[Table]:
    """Per entry: its stages, and its throughput by concurrency."""
    tables: list[Table] = []
    for entry in entries:
        title = f"{entry.gpu}, {entry.runtime_text}"
        tables += _stages(entry, title), _throughput(entry, title)
    return tables


def overview(entries: Iterable[TimeEntry]) -> Table:
    """Per entry: a page alone, and throughput at the highest concurrency."""
    loads = [(each, max(each.throughput, key=lambda load: load.concurrency)) for each in entries]
    return Table(
        "Predicted: a page alone, then throughput; ~ extrapolated from another GPU",
        ("GPU", "runtime", "~", "first token", "per token", "page", "at once", "pages/s", "bound",
         "fits"),
        tuple(
            (entry.gpu, entry.runtime_text, "~" if entry.profile.extrapolated else "",
             seconds_text(entry.ttft_seconds), seconds_text(entry.tpot_seconds),
             seconds_text(entry.page_seconds), str(load.concurrency),
             rate_text(load.pages_per_second), load.bound, "yes" if load.fits else "no")
            for entry, load in loads
        ),
        label_columns=3,
        optional=("per token", "first token"),
    )  # fmt: skip


def _stages(entry: TimeEntry, title: str) -> Table:
    *_, last = entry.stages
    stages = [
        (name + (", one step" if name == last else ""), seconds_text(stage.seconds), _band(stage),
         stage.bound, *map(percent_text, (stage.peak_share, stage.bandwidth_share)))
        for name, stage in entry.stages.items()
    ]  # fmt: skip
    page = [
        (label, seconds_text(seconds), _band(entry.bands[key]), "", "", "")
        for label, key, seconds in (
            ("first token", "ttft_seconds", entry.ttft_seconds),
            ("each token after it", "tpot_seconds", entry.tpot_seconds),
            ("page", "page_seconds", entry.page_seconds),
        )
        if seconds is not None
    ]
    return Table(
        f"{title}: one page alone, predicted",
        ("what", "time", "band", "bound", "of peak", "of bandwidth"),
        (*stages, *page),
    )


def _throughput(entry: TimeEntry, title: str) -> Table:
    columns: tuple[str, ...] = (
        "pages at once", "pages/s", "band", "tokens/s", "first token", "per token", "page", "bound",
        "memory", "per 1,000 pages",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (str(each.concurrency), rate_text(each.pages_per_second),
         f"{rate_text(each.pages_per_second_band.low)} to"
         f" {rate_text(each.pages_per_second_band.high)}",
         f"{each.tokens_per_second:,.0f}",
         *map(seconds_text, (each.ttft_seconds, each.tpot_seconds, each.page_seconds)),
         each.bound, bytes_text(each.memory_bytes) if each.fits else "too much",
         price_text(each.cost_per_thousand_pages))
        for each in entry.throughput
    ]  # fmt: skip
    if all(map("-".__eq__, map(itemgetter(-1), rows))):  # without prices
        columns, rows = columns[:-1], list(map(itemgetter(slice(-1)), rows))
    return Table(
        f"{title}: throughput; at most {counted(entry.largest_concurrency, 'page')} at once fit",
        columns,
        tuple(rows),
        optional=("tokens/s", "per token", "first token"),
    )


def time_notes(entries: Iterable[TimeEntry]) -> Iterator[str]:
    """What predictions assume, with the GPUs that it applies to."""
    about: dict[str, dict[str, None]] = {}
    for entry in entries:
        profile, source = entry.profile, entry.profile.source
        said = (
            f"kernel times {source if source.startswith('extrapolated') else f'from {source}'}",
            f"another GPU's coefficients, with a wider band: {', '.join(profile.extrapolated)}",
            f"error assumed, not measured: {', '.join(profile.assumed)}",
        )
        for sentence in compress(said, (True, profile.extrapolated, profile.assumed)):
            about.setdefault(sentence, {})[entry.gpu] = None
        for sentence in entry.assumptions.sentences:
            about.setdefault(sentence, {})[entry.runtime] = None
    for sentence, names in about.items():
        yield f"{', '.join(names)}: {sentence}"


# --- the document of `time` --------------------------------------------------------------------


class TimeReport(PageOpening, frozen=True, kw_only=True):
    """Predicted seconds of one page.

    Attributes:
        time: One entry per GPU and runtime.
    """

    time: tuple[TimeEntry, ...]


def headline(model: Model, workload: Workload) -> str:
    """Which model, and which page."""
    return (
        f"Predicted, nothing was run: {model_text(model)}\n"
        f"{workload.title[0].upper()}{workload.title[1:]}"
    )
