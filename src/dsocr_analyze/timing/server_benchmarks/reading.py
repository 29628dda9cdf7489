"""Reads a file of benchmark results from any of the programs in `programs.toml`, whatever its name.

Of all of them it makes the same record, which everything else reads.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from dsocr_analyze.errors import BenchmarkError, refuse
from dsocr_analyze.input_files import DOCUMENT_BYTES, read_bytes
from dsocr_analyze.package_data import package_toml
from dsocr_analyze.timing import MOST_CONCURRENCY
from dsocr_analyze.workload import LARGEST_COUNT

_MOST_RESULTS: Final = 100
_RIGHT: Final = (
    "give what vllm bench serve --save-result, sglang.bench_serving --output-file or vllm bench"
    " mm-processor --output-json writes, profile_export_genai_perf.json or"
    " profile_export_aiperf.json"
)


# --- the benchmark ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerBenchmark:
    """One benchmark of a server.

    Attributes:
        where: The file and the part of it, for messages.
        digest: SHA-256 of the result.
        date: As the program wrote it.
        engine: `vllm`, `sglang` or another name.
        requests: Requests that were answered.
        concurrency: Requests in flight.
        means: Over requests: `prompt_tokens` as the program counts them, `new_tokens`,
            `ttft_seconds`, `tpot_seconds`, `request_seconds`; and `requests_per_second` and
            `tokens_per_second`. Or `preprocess_seconds` of the CPU alone.
        note: Which model is assumed, if it does not say.
        quantization: Of the server's weights, if the file names one.
    """

    file: str
    where: str
    program: str
    digest: str
    date: str | None
    model: str | None
    engine: str | None
    version: str | None
    requests: int
    failed: int
    concurrency: int
    means: Mapping[str, float]
    note: str = ""
    quantization: str | None = None

    @property
    def is_served(self) -> bool:
        """Whether it is of a server that answers, not of the CPU alone."""
        return "ttft_seconds" in self.means

    @property
    def steady(self) -> bool:
        """Whether every client sent request after request.

        If not, they waited for each other's prompts before their first token; a whole request
        takes the same time.
        """
        every = self.requests + self.failed
        return self.concurrency == 1 or every >= _ROUNDS * self.concurrency

    @property
    def request_seconds(self) -> float:
        """Seconds per request, if need be from the times of tokens."""
        means = self.means
        tokens = means["ttft_seconds"] + (means["new_tokens"] - 1) * means["tpot_seconds"]
        return means.get("request_seconds", tokens)

    def doubts(self) -> list[str]:
        """Doubts about what is in the file, one sentence each."""
        every, means = self.requests + self.failed, self.means
        contradiction = "the figures contradict each other: "
        said = {
            self.note: self.note != "",
            f"{self.failed:,} of {every:,} requests failed; the others were measured": self.failed,
        }
        if self.is_served:
            rate, found = means["requests_per_second"], means["tokens_per_second"]
            under_way, tokens = rate * self.request_seconds, rate * means["new_tokens"]
            said |= {
                f"{self.requests:,} requests, {self.concurrency:,} at a time, are a burst rather"
                " than a steady load, so only the time of the whole request is compared, not those"
                " of first and later tokens": not self.steady,
                f"{contradiction}{under_way:,.3g} requests would have been in flight on average,"
                f" but only {self.concurrency:,} were allowed": under_way > 1.3 * self.concurrency,
                f"{contradiction}{tokens:,.4g} tokens per second from requests and their tokens,"
                f" but {found:,.4g} in the file": not 0.9 < found / tokens < 1.1,
            }
        return [doubt for doubt, is_so in said.items() if is_so]


_ROUNDS: Final = 4
"""Requests per client that make a load steady."""
_TOLERATED_FAILURES: Final = 0.05


# --- files --------------------------------------------------------------------------------------


def read_benchmarks(path: Path) -> list[ServerBenchmark]:
    """The benchmarks in a file: one, or one after the other.

    Raises:
        BenchmarkError: It cannot be read, is not from a known program, or lacks a figure.
    """
    try:
        text = read_bytes(path, DOCUMENT_BYTES).decode("utf-8-sig").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        right = (
            "measure without --save-detailed or --output-details, which write every request"
            if getattr(error, "errno", 0) == errno.EFBIG else _RIGHT
        )  # fmt: skip
        raise BenchmarkError(f"cannot read {str(path)!r}: {reason}; {right}") from error
    name = "".join(each if each.isprintable() else "?" for each in path.name) or "?"
    return [_benchmark(*result, name) for result in _results(repr(str(path)), text)]


def _results(named: str, text: str) -> list[tuple[_Fields, str]]:
    """The results in a file, and the text of each."""
    found: list[tuple[_Fields, str]] = []
    end = 0
    while end < len(text) or not found:
        start = len(text) - len(text[end:].lstrip())
        line = f"line {text.count(chr(10), 0, start) + 1} of {named}"
        where = line if found else named
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            deep = "nested too deeply" if isinstance(error, RecursionError) else None
            raise BenchmarkError(f"{where} is {deep or f'not JSON ({error})'}; {_RIGHT}") from error
        if not isinstance(value, dict):
            raise BenchmarkError(f"{where} is {shown(value)}, not a benchmark result; {_RIGHT}")
        if len(found) == _MOST_RESULTS:
            raise BenchmarkError(f"{named} has more than {_MOST_RESULTS} results; give fewer")
        where = line if found or end < len(text) else named
        found.append((_Fields(value, where), text[start:end]))
    return found


# --- fields of a result -------------------------------------------------------------------------


_LARGEST: Final = 1e15
_LONGEST_SECONDS: Final = 1e6
_SHOWN: Final = 60
_IN_A_SECOND: Final = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_VERSION: Final = re.compile(r"(?=.{1,64}$)v?[0-9]+(\.[0-9a-z+-]+)+", re.ASCII | re.IGNORECASE)


def shown(value: object) -> str:
    """A value for messages: shortened, and without control characters."""
    text = (
        ascii(value) if not isinstance(value, dict | list)
        else "a table" if isinstance(value, dict) else "a list"
    )  # fmt: skip
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@dataclass(frozen=True)
class _Fields:
    """A table of a result: its values, the file, and the keys that lead to it."""

    values: Mapping[str, Any]
    where: str
    path: str = ""

    def at(self, place: str) -> tuple[_Fields, str]:
        """The table that has, or lacks, what is at `a.b.c`, and its key `c`."""
        *tables, key = place.split(".")
        return functools.reduce(_Fields.table, tables, self), key

    def value(self, key: str) -> Any:
        """What is under a key, or in the list of one there; None for the empty string."""
        value = self.values.get(key)
        counted = [
            each for each in (value if isinstance(value, list) else [value])
            if not (isinstance(each, dict) and each.get("exclude_from_results"))
        ]  # fmt: skip
        value = counted[0] if len(counted) == 1 else value
        return None if value == "" else value

    def table(self, key: str) -> _Fields:
        """The table under a key; an empty one if it is missing."""
        value = self.value(key)
        if not isinstance(value, dict | None):
            raise self.wrong(key, "one table")
        return _Fields(value or {}, self.where, f"{self.path}{key}.")

    def number(self, key: str, least: int | None = None) -> float:
        """The positive number under a key; a whole one, `least` or more, if that is given."""
        value, above = self.values[key], f"a number above 0 and below {_LARGEST:.0e}"
        right = above if least is None else f"a whole number, {least} or more"
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_in_range = is_number and (least or 0) <= value < _LARGEST
        if not is_in_range or (value == 0 if least is None else value != int(value)):
            raise self.wrong(key, right)
        return float(value)

    def seconds(self, key: str) -> float:
        """The positive time under a key, below a million seconds."""
        unit = (self.text("unit", "unit") if self.path else None) or "ms"
        if unit not in _IN_A_SECOND:
            raise self.wrong("unit", f"one of {', '.join(_IN_A_SECOND)}")
        if (seconds := self.number(key) / _IN_A_SECOND[unit]) >= _LONGEST_SECONDS:
            raise self.wrong(key, f"a number above 0 and below {_LONGEST_SECONDS:.0e} s")
        return seconds

    def text(self, kind: str, key: str) -> str | None:
        """The string under a key; None for no version, or an API that many engines have."""
        value = self.value(key)
        text = "" if value is None else value
        if not isinstance(text, str) or not text.isprintable():
            raise self.wrong(key, "one string of printable characters")
        says_nothing = {
            # Unless it measures Triton, genai-perf writes its option's default.
            "engine": self.values.get("service_kind", "triton") != "triton"
            or text.startswith("openai"),
            "version": not _VERSION.fullmatch(text),
            "quantization": text.lower() == "none",
        }
        read = {"engine": text.split("-")[0], "version": text.removeprefix("v")}
        return None if says_nothing.get(kind) else read.get(kind, text)

    def wrong(self, key: str, right: str) -> BenchmarkError:
        """The error for a key with a wrong value."""
        value = shown(self.values[key])
        return BenchmarkError(f"{self.where}: {self.path}{key} is {value}; it must be {right}")


# --- programs -----------------------------------------------------------------------------------


Found = TypeVar("Found")
_WHOLE: Final = "a whole number, 1 or more"


class _Program(msgspec.Struct):
    """Where a program keeps what; see `programs.toml`."""

    marks: Sequence[str]
    optional: Sequence[str]
    counts: Mapping[str, Sequence[str]]
    texts: Mapping[str, Sequence[str]]
    means: Mapping[str, Sequence[str]]
    totals: Mapping[str, Sequence[str]] = {}
    refused: Mapping[str, Sequence[str]] = {}
    hints: Mapping[str, str] = {}
    defaults: dict[str, int] = {}
    nested: bool = False
    engine: str | None = None

    def wrote(self, result: _Fields) -> bool:
        """Whether a result is one of this program's."""
        marks = (table.values.get(key) for table, key in map(result.at, self.marks))
        return any(
            isinstance(mark, dict | list) == self.nested for mark in marks if mark is not None
        )

    def refuse(self, result: _Fields) -> None:
        """Raise BenchmarkError for a load that is not predicted."""
        for right, places in self.refused.items():
            fine = right.partition(":")[0].split(" or ")
            for table, key in map(result.at, places):
                value = table.value(key)
                plain = shown(value).strip("'").removesuffix(".0").lower()
                if value is not None and plain not in fine:
                    raise table.wrong(key, right)

    def read(
        self, result: _Fields, places: Mapping[str, Sequence[str]],
        read: Callable[[str, _Fields, str], Found | None], what: str,
    ) -> dict[str, Found]:  # fmt: skip
        """What is at the first place of each name that says anything."""
        found = {}
        for name, ways in places.items():
            said = (
                read(name, table, key)
                for table, key in map(result.at, ways) if table.value(key) is not None
            )  # fmt: skip
            if (first := next((each for each in said if each is not None), None)) is not None:
                found[name] = first
            elif what and name not in self.optional:
                hint = f"; {self.hints[name]}" if name in self.hints else ""
                raise BenchmarkError(f"{result.where} lacks {ways[0]}, {what}{hint}")
        return found


@functools.cache
def _programs() -> Mapping[str, _Program]:
    tables = package_toml(__package__, "programs.toml", dict[str, dict[str, Any]])
    return {
        name: msgspec.convert({**tables.get(table.get("like", ""), {}), **table}, _Program)
        for name, table in tables.items()
    }


def _count(kind: str, table: _Fields, key: str) -> int:
    if kind == "asked" and isinstance(listed := table.values[key], list):
        return len(listed)
    return int(table.number(key, least=int(kind != "failed")))


def _benchmark(result: _Fields, text: str, file: str) -> ServerBenchmark:
    name = next((each for each, program in _programs().items() if program.wrote(result)), None)
    if name is None:
        keys = ", ".join(shown(key) for key in list(result.values)[:8]) or "none"
        raise BenchmarkError(
            f"{result.where} is not a benchmark result (its keys: {keys}); {_RIGHT}"
        )
    program = _programs()[name]
    program.refuse(result)
    texts = program.read(result, program.texts, lambda kind, at, key: at.text(kind, key), "")
    counts = program.defaults | program.read(
        result, program.counts, _count, _WHOLE,
    )  # fmt: skip
    requests = counts["requests"]
    failed = counts.get("failed", max(0, counts.get("asked", 0) - requests))
    every = requests + failed
    concurrency = min(counts.get("concurrency", every), every)
    means = program.read(
        result, program.totals, lambda _, at, key: at.number(key, least=1) / requests, _WHOLE
    ) | program.read(
        result, program.means,
        lambda kind, at, key: at.seconds(key) if kind.endswith("_seconds") else at.number(key),
        "a number above 0",
    )  # fmt: skip
    benchmark = ServerBenchmark(
        file=file,
        where=result.where,
        program=name,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        date=texts.get("date"),
        model=texts.get("model"),
        engine=texts.get("engine", program.engine),
        version=texts.get("version"),
        quantization=texts.get("quantization"),
        requests=requests,
        failed=failed,
        concurrency=concurrency,
        means=means,
    )
    tokens = means.get("new_tokens", 2)
    [place, *_] = {**program.means, **program.totals}.get("new_tokens", [""])
    table, key = result.at(place)
    refuse(
        BenchmarkError,
        (not 1 < tokens <= LARGEST_COUNT,
         f"{result.where}: {place} is {shown(table.values.get(key))}, {tokens:.6g} tokens per"
         f" request; it must be more than 1 and at most {LARGEST_COUNT:,}"),
        (failed > _TOLERATED_FAILURES * every,
         f"{result.where}: {failed:,} of {every:,} requests failed; give a benchmark in which at"
         f" most {100 * _TOLERATED_FAILURES:g} % fail"),
        (concurrency > MOST_CONCURRENCY and benchmark.is_served,
         f"{result.where}: {concurrency:,} requests at a time are too many; give a benchmark with"
         f" at most {MOST_CONCURRENCY:,}"),
    )  # fmt: skip
    return benchmark
