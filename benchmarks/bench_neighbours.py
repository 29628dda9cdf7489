"""Published throughput of DeepSeek-OCR's neighbours against the prediction.

    python benchmarks/bench_neighbours.py [--table]

`measured/neighbours.toml` has the rows, their conditions and sources, and what is assumed where a
source says nothing. Every row is predicted once as assumed and once for each assumption changed,
which spans its range. Nothing in the program is fitted to these rows but `Host.cpu_factor`, which
was chosen with the 87 ms of the first series in view; there, the CPU's time is the stated one.

A short run of N requests by C clients goes in rounds, the last of which may have fewer. Where all
requests send one image, an engine's caches keep its processed tensors, its features and the keys
and values of its prompt: every request but the first decodes and hashes the image and computes one
block of its prompt anew (vLLM: `mm_processor_cache_gb`, `EncoderCacheManager`, automatic prefix
caching with blocks of 16).

The server of the second series was looked up after its first prediction, under vLLM of 2026, which
stands among the others. Exits with 1 for a row that is off by more than 30 % and has no reason
beside it. `--table` prints what docs/seconds.md shows.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from conditions import print_environment
from msgspec import structs

from dsocr_analyze.architectures import architecture_named
from dsocr_analyze.architectures.neighbours.neighbour import Neighbour
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import BFLOAT16
from dsocr_analyze.timing.assumptions import Assumptions, estimated_preprocessing
from dsocr_analyze.timing.kernel_seconds import total_duration
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import SERVERS, Host
from dsocr_analyze.timing.serving import (
    LoopTimes,
    ServedModel,
    TimedModel,
    closed_loop,
    running_counts,
)
from dsocr_analyze.workload import PageWorkload, parse_page

SERIES = Path(__file__).parent / "measured" / "neighbours.toml"
LIMIT = 0.30
BLOCK = 16
"""Tokens of a prompt that prefix caching leaves to be computed, at most."""


class Speed(NamedTuple):
    """Pages per second, and seconds of a page."""

    rate: float
    page: float


class Row(NamedTuple):
    """A published figure, its prediction as assumed, and the others by changed assumption."""

    series: Mapping[str, Any]
    published: Mapping[str, Any]
    predicted: Speed
    otherwise: Mapping[str, Speed]

    @property
    def error(self) -> float:
        return self.predicted.rate / float(self.published["published"]) - 1

    @property
    def is_met(self) -> bool:
        return abs(self.error) <= LIMIT

    @property
    def range(self) -> tuple[float, float]:
        rates = [self.predicted.rate, *(each.rate for each in self.otherwise.values())]
        return min(rates), max(rates)


# --- a model under conditions ------------------------------------------------------------------


class WithLimits(Neighbour):
    """A model with the pixel limits of another version's processor."""

    def __init__(self, built_in: Neighbour, least: int, largest: int) -> None:
        super().__init__(built_in.name)
        smart = {**self.data.resizing["smart"], "least": least, "largest": largest}
        self.data = structs.replace(self.data, resizing={"smart": smart})


def speed(given: Mapping[str, Any]) -> Speed:
    """As predicted under the conditions."""
    limits, clients, requests = given.get("limits"), given["concurrency"], given.get("requests", 0)
    built_in = architecture_named(given["architecture"])
    architecture: Any = WithLimits(cast("Neighbour", built_in), *limits) if limits else built_in
    model = TimedModel(architecture, architecture.dimensions, BFLOAT16, False, device(given["gpu"]))
    page = architecture.plan(page=parse_page(given["page"]), max_new_tokens=given["new_tokens"])
    host = SERVERS[given["server"]]
    if stated := given.get("processor_ms"):
        factor = 1e-3 * stated / estimated_preprocessing(architecture, page)
        host = replace(host, cpu_factor=factor)
    assumptions = Assumptions(host, workers=given["workers"])
    rounds = [clients] * (requests // clients or 1)
    if requests % clients:
        rounds.append(requests % clients)
    found = predict(model, page, assumptions, rounds)
    loops = [Speed(each.pages_per_second, each.page_seconds) for each in found.throughput]
    first_seconds = 0.0
    if given.get("repeated"):
        loops = [repeated(model, page, host, given["workers"], each) for each in rounds]
        first_seconds = found.ttft_seconds  # until the caches have the page
    if not requests:
        return loops[0]
    return Speed(requests / (first_seconds + sum(each.page for each in loops)), loops[0].page)


def repeated(
    model: TimedModel, page: PageWorkload, host: Host, workers: int, clients: int
) -> Speed:
    """Clients that all send a page which the engine's caches have: nothing is resized or sent."""
    cpu_seconds = estimated_preprocessing(model.architecture, page, replace(host, sent_ns=0.0))
    cpu_seconds -= host.cpu_factor * estimated_preprocessing(model.architecture, page)
    served, sequences = ServedModel(model, host), running_counts(clients)
    prefill = total_duration(served.prefill((), BLOCK, 0).values()).seconds
    keys = page.seq_len + page.max_new_tokens // 2
    step = served.step(np.maximum(1, sequences), keys)
    attention = sum(
        seconds
        for kind, seconds in step.kinds.items()
        if kind.kind.startswith("generation_attention")
    )
    times = LoopTimes(
        cpu_seconds, workers, np.array([prefill]), np.array([1.0 * host.mixes_prefill]),
        np.array([page.max_new_tokens - 1.0]), sequences, np.asarray(step.seconds),
        np.asarray(attention * (sequences > 0)),
    )  # fmt: skip
    point = closed_loop(np.array([clients]), times)
    return Speed(float(point.pages_per_second[0]), float(point.page[0]))


# --- rows ----------------------------------------------------------------------------------------


def rows() -> Iterator[Row]:
    """Every row of every series."""
    for series in tomllib.loads(SERIES.read_text(encoding="utf-8"))["series"]:
        for published in series["rows"]:
            given = series | published
            others = {name: speed(given | each) for name, each in series["otherwise"].items()}
            yield Row(series, published, speed(given), others)


def table() -> str:
    """What docs/seconds.md shows of all rows."""
    lines = [
        "| model, GPU, server | clients | CPU workers | published | predicted | off by | with one"
        " assumption changed |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows():
        low, high = row.range
        verdict = "" if row.is_met else f", missed: {row.published['miss']}"
        lines.append(
            f"| {row.series['title']} | {row.published['concurrency']} | {row.published['workers']}"
            f" | {row.published['published']:.2f} /s | {row.predicted.rate:.2f} /s"
            f" | {row.error:+.0%}{verdict} | {low:.2f} to {high:.2f} /s |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    if parser.parse_args().table:
        print(table(), end="")
        return 0
    print_environment()
    is_unexplained, title = False, ""
    for row in rows():
        if row.series["title"] != title:
            title = row.series["title"]
            print(f"{title}\n  stated: {row.series['stated']}\n  assumed: {row.series['assumed']}")
            print(f"  source: {row.series['source']}")
        published, verdict = row.published["published"], "within" if row.is_met else "MISSED"
        print(
            f"  clients {row.published['concurrency']}, workers {row.published['workers']}:"
            f" published {published:.2f} /s, predicted {row.predicted.rate:.2f} ({row.error:+.0%},"
            f" {verdict} {LIMIT:.0%})"
        )
        if seconds := row.published.get("seconds"):
            print(f"    a request: published {seconds:.2f} s, predicted {row.predicted.page:.2f} s")
        for name, other in row.otherwise.items():
            print(f"    {name}: {other.rate:.2f} /s ({other.rate / published - 1:+.0%})")
        if not row.is_met:
            print(f"    missed: {row.published.get('miss', 'for no known reason')}")
            is_unexplained |= "miss" not in row.published
    return int(is_unexplained)


if __name__ == "__main__":
    sys.exit(main())
