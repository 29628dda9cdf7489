"""Predicted seconds: the document of `dsocr-analyze time`, and tables."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, repeat
from operator import attrgetter, itemgetter
from typing import TypeAlias

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
from dsocr_analyze.timing import Interval, LoadedGpu, TimeEntry, TimeStage, bound_text


def _band(band: Interval | TimeStage) -> str:
    return f"{seconds_text(band.low)} to {seconds_text(band.high)}"


Wordings: TypeAlias = Sequence[str]
"""A statement's wordings, longest first."""


def time_answers(entries: Sequence[TimeEntry], workload: Workload) -> list[Wordings]:
    """One per prediction: the cheapest if prices are known, then the fastest."""
    ranked = sorted(entries, key=attrgetter("page_seconds"))
    cheapest, least = None, math.inf
    for entry in ranked:
        if (cost := _best(entry).cost_per_thousand_pages) and cost < least:
            cheapest, least = entry, cost
    if cheapest is not None:
        ranked.remove(cheapest)
        ranked.insert(0, cheapest)
    return list(map(_answer, ranked, repeat(workload)))


def _best(entry: TimeEntry) -> LoadedGpu:
    return max(entry.throughput, key=attrgetter("pages_per_second"))


def _answer(entry: TimeEntry, workload: Workload) -> Wordings:
    load, cost = _best(entry), _best(entry).cost_per_thousand_pages
    corrected = "" if entry.assumptions.correction is None else ", corrected"
    alone = f"{entry.title}{corrected}: {seconds_text(entry.page_seconds)}"
    rate, many = rate_text(load.pages_per_second), f"{load.concurrency:,}"
    units = workload.units
    each = "" if cost is None else f", {price_text(cost)} per 1,000 {units}"
    some = entry.largest_concurrency
    runs = "run at a time" if entry.assumptions.limits and some else "fit"
    each += "" if load.fits else f"; only {some} {runs}" if some else "; not one fits"
    few = each.replace(f" {units}", "")
    mean = entry.assumptions.new_tokens_mean
    page = short = f"a {workload.unit}"
    is_several = (workload.prompt_pages or 1) > 1
    if is_several:
        page = f"a prompt of {workload.prompt_pages:,} pages"
        many = counted(load.concurrency, "prompt")
    if mean != workload.max_new_tokens:  # which the counts above are for
        page = f"{page} {'and' if is_several else 'of'} {mean:,.0f} new tokens"
        short = f"for {mean:,.0f} tokens"
    prepared = f"{many} at once"
    if (workers := entry.assumptions.workers) > 1:
        prepared += f", {counted(workers, 'CPU worker')}"
    why, briefly = _waiting(entry)
    band, bound = _band(entry.bands["page_seconds"]), f", bound by {bound_text(load.bound)}"
    least = f"{alone} {short}; {rate}/s at {many}{few}"
    return (
        f"{alone} {page} ({band}){why}; {rate} {units}/s ({prepared}){bound}{each}",
        f"{alone} {page}{why}; {rate} {units}/s ({many} at once){bound}{each}",
        f"{alone} {page}{briefly}; {rate} {units}/s ({many} at once){each}",
        f"{alone} {page}{briefly}; {rate} {units}/s ({many} at once){few}",
        f"{alone} {short}{briefly}; {rate} {units}/s at {many}{few}",
        f"{alone} {short}{briefly}" if briefly else least,
        least,
    )


def _waiting(entry: TimeEntry) -> tuple[str, str]:
    """How busy the model's own code keeps the GPU, and a server's seconds; also in brief."""
    if entry.runtime != "eager" or entry.busy_share is None:
        return "", ""
    busy = percent_text(entry.busy_share)
    said = f", the GPU is busy {busy} of it and otherwise waits for the host to launch operators"
    if entry.served_page_seconds is None:
        return said, f", GPU busy {busy}"
    served = seconds_text(entry.served_page_seconds)
    return f"{said} ({served} under vllm)", f", GPU busy {busy} ({served} under vllm)"


def time_tables(entries: Iterable[TimeEntry], workload: Workload) -> list[Table]:
    """Per entry: its stages, and its throughput by concurrency."""
    tables = _stages, _throughput
    return [table(entry, workload) for entry in entries for table in tables]


def overview(entries: Iterable[TimeEntry], workload: Workload) -> Table:
    """Per entry: a page alone, and throughput at the highest concurrency."""
    unit = workload.unit
    loads = [(each, max(each.throughput, key=lambda load: load.concurrency)) for each in entries]
    return Table(
        f"Predicted: a {unit} alone, then throughput; ~ extrapolated from another GPU",
        ("GPU", "runtime", "~", "first token", "per token", unit, "at once", f"{workload.units}/s",
         "bound", "fits"),
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


def _stages(entry: TimeEntry, workload: Workload) -> Table:
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
            (workload.unit, "page_seconds", entry.page_seconds),
        )
        if seconds is not None
    ]
    return Table(
        f"{entry.title}: one {workload.unit} alone, predicted",
        ("what", "time", "band", "bound", "of peak", "of bandwidth"),
        (*stages, *page),
    )


def _throughput(entry: TimeEntry, workload: Workload) -> Table:
    unit, units = workload.unit, workload.units
    columns: tuple[str, ...] = (
        f"{unit}s at once", f"{units}/s", "band", "tokens/s", "first token", "per token", unit,
        "bound", "memory", f"per 1,000 {units}",
    )  # fmt: skip
    is_limited = entry.assumptions.limits and entry.largest_concurrency
    waiting = "some wait" if is_limited else "too much"
    rows: list[tuple[str, ...]] = [
        (str(each.concurrency), rate_text(each.pages_per_second),
         f"{rate_text(each.pages_per_second_band.low)} to"
         f" {rate_text(each.pages_per_second_band.high)}",
         f"{each.tokens_per_second:,.0f}",
         *map(seconds_text, (each.ttft_seconds, each.tpot_seconds, each.page_seconds)),
         each.bound, bytes_text(each.memory_bytes) if each.fits else waiting,
         price_text(each.cost_per_thousand_pages))
        for each in entry.throughput
    ]  # fmt: skip
    if all(map("-".__eq__, map(itemgetter(-1), rows))):  # without prices
        columns, rows = columns[:-1], list(map(itemgetter(slice(-1)), rows))
    cache = " fit" if entry.kv_tokens is None else f" ({entry.kv_tokens:,} KV tokens)"
    return Table(
        f"{entry.title}: throughput, {counted(entry.assumptions.workers, 'CPU worker')}; at most"
        f" {counted(entry.largest_concurrency, unit)} at once{cache}",
        columns,
        tuple(rows),
        optional=("tokens/s", "per token", "first token"),
    )


def doubts(entries: Iterable[TimeEntry]) -> Iterator[str]:
    """The assumptions that a reader must see."""
    return (said for each in entries for said in each.assumptions.notes)


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
