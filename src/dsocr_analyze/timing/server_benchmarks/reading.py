"""Reads a file of benchmark results from any of the known programs, whatever its name.

`vllm bench serve` (before 0.10 benchmark_serving.py) and `python -m sglang.bench_serving` share
most keys; later versions of the latter add `server_info` and write an infinite rate as `Infinity`.
Of genai-perf and its successor AIPerf every metric is a table with its unit and average;
`input_config` has the options: in sections since genai-perf 0.0.13 (`perf_analyzer.stimulus`), in
one table before, and in AIPerf's sections (`loadgen.concurrency`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsocr_analyze.errors import BenchmarkError
from dsocr_analyze.input_files import DOCUMENT_BYTES, read_bytes
from dsocr_analyze.workload import LARGEST_COUNT

__all__ = ["ServerBenchmark", "read_benchmarks", "shown"]

_WITHOUT_DETAILS: Final = (
    "measure without --save-detailed or --output-details, which write every request"
)
_MOST_RESULTS: Final = 100
_RIGHT: Final = (
    "give what vllm bench serve --save-result, sglang.bench_serving --output-file or genai-perf"
    " (profile_export_genai_perf.json) writes"
)


# --- fields of a result -------------------------------------------------------------------------

_LARGEST: Final = 1e15
_SHOWN: Final = 60


def shown(value: object) -> str:
    """A value for messages: shortened, and without control characters."""
    text = ascii(value) if not isinstance(value, Mapping | list) else f"a {_KINDS[type(value)]}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_KINDS: Final[Mapping[type, str]] = {dict: "table", list: "list"}


@dataclass(frozen=True)
class _Fields:
    """A table of a result: its values, the file, and the keys that lead to it."""

    values: Mapping[str, Any]
    where: str
    path: str = ""

    def has(self, key: str) -> bool:
        """Whether there is more than null or the empty string."""
        return self.values.get(key) not in (None, "")

    def table(self, key: str) -> _Fields:
        """The table under a key; an empty one if it is missing."""
        value = self.values[key] if self.has(key) else {}
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        return _Fields(value, self.where, f"{self.path}{key}.")

    def number(self, key: str) -> float:
        """The positive number under a key."""
        value = self.values.get(key)
        if value is None:
            raise BenchmarkError(f"{self.where} lacks {self.path}{key}, a number above 0")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number above 0")
        if not 0 < value < _LARGEST:
            raise self.wrong(key, f"a number above 0 and below {_LARGEST:.0e}")
        return float(value)

    def some_number(self, key: str) -> float | None:
        """The same; None if it is missing."""
        return self.number(key) if self.has(key) else None

    def count(self, key: str, *, least: int = 1) -> int:
        """The whole number under a key, maybe with a decimal point."""
        what = f"a whole number, {least} or more"
        value = self.values.get(key)
        if value is None:
            raise BenchmarkError(f"{self.where} lacks {self.path}{key}, {what}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value < _LARGEST or value != int(value):
            raise self.wrong(key, what)
        return int(value)

    def some_count(self, key: str, *, least: int = 1) -> int | None:
        """The same; None if it is missing."""
        return self.count(key, least=least) if self.has(key) else None

    def text(self, key: str) -> str | None:
        """The string under a key; None if it is missing."""
        if not self.has(key):
            return None
        value = self.values[key]
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        if not value.isprintable():
            raise self.wrong(key, "a string of printable characters")
        return value

    def wrong(self, key: str, right: str) -> BenchmarkError:
        """The error for a key with a wrong value."""
        value = shown(self.values[key])
        return BenchmarkError(f"{self.where}: {self.path}{key} is {value}; it must be {right}")


# --- the benchmark ------------------------------------------------------------------------------


_MOST_CONCURRENCY: Final = 65_536
_ROUNDS: Final = 4
"""Requests per client that make a load steady."""
_TOLERATED_FAILURES: Final = 0.05


@dataclass(frozen=True)
class ServerBenchmark:
    """One benchmark of a server, whose figures are means over requests.

    Attributes:
        where: The file and the part of it, for messages.
        digest: SHA-256 of the result.
        date: As the program wrote it.
        engine: `vllm`, `sglang` or another name.
        concurrency: Requests in flight.
        is_steady: Whether every client sent request after request. If not, they waited for each
            other's prompts before their first token; a whole request takes the same time.
        prompt_tokens: As the program counts them.
        measured_seconds: To the last token, if the program reported it.
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
    is_steady: bool
    prompt_tokens: float | None
    new_tokens: float
    requests_per_second: float
    tokens_per_second: float
    ttft_seconds: float
    tpot_seconds: float
    measured_seconds: float | None

    @property
    def request_seconds(self) -> float:
        """Seconds per request, if need be from the times of tokens."""
        if self.measured_seconds is not None:
            return self.measured_seconds
        return self.ttft_seconds + (self.new_tokens - 1) * self.tpot_seconds

    def doubts(self) -> list[str]:
        """Doubts about the figures in the file, one sentence each."""
        said: list[str] = []
        if self.failed:
            every = self.requests + self.failed
            said.append(f"{self.failed:,} of {every:,} requests failed; the others were measured")
        if not self.is_steady:
            said.append(
                f"{self.requests:,} requests, {self.concurrency:,} at a time, are a burst rather"
                " than a steady load, so only the time of the whole request is compared, not those"
                " of first and later tokens"
            )
        under_way = self.requests_per_second * self.request_seconds
        if under_way > 1.3 * self.concurrency:
            said.append(
                f"the figures contradict each other: {under_way:,.3g} requests would have been"
                f" in flight on average, but only {self.concurrency:,} were allowed"
            )
        tokens = self.requests_per_second * self.new_tokens
        if not 0.9 < self.tokens_per_second / tokens < 1.1:
            said.append(
                f"the figures contradict each other: {tokens:,.4g} tokens per second from requests"
                f" and their tokens, but {self.tokens_per_second:,.4g} in the file"
            )
        return said


def _in_flight(fields: _Fields, requests: int, failed: int, limit: int | None) -> tuple[int, bool]:
    """Requests in flight, and whether they are a steady load."""
    every = requests + failed
    if failed > _TOLERATED_FAILURES * every:
        raise BenchmarkError(
            f"{fields.where}: {failed:,} of {every:,} requests failed; give a benchmark in which at"
            f" most {100 * _TOLERATED_FAILURES:g} % fail"
        )
    concurrency = every if limit is None else min(limit, every)
    if concurrency > _MOST_CONCURRENCY:
        raise BenchmarkError(
            f"{fields.where}: {concurrency:,} requests at a time are too many; give a benchmark"
            f" with at most {_MOST_CONCURRENCY:,}"
        )
    return concurrency, concurrency == 1 or every >= _ROUNDS * concurrency


def _mean_new_tokens(fields: _Fields, key: str, tokens: float) -> float:
    if not 1 < tokens <= LARGEST_COUNT:
        raise BenchmarkError(
            f"{fields.where}: {fields.path}{key} is {shown(fields.values.get(key))}, {tokens:.6g}"
            f" tokens per request; it must be more than 1 and at most {LARGEST_COUNT:,}"
        )
    return tokens


# --- files --------------------------------------------------------------------------------------


def read_benchmarks(path: Path) -> list[ServerBenchmark]:
    """The benchmarks in a file: one, or one per line.

    Raises:
        BenchmarkError: It cannot be read, is not from a known program, or lacks a figure.
    """
    name = "".join(each if each.isprintable() else "?" for each in path.name) or "?"
    return [_benchmark(text, where, name) for text, where in _results(path, _text(path))]


def _text(path: Path) -> str:
    try:
        return read_bytes(path, DOCUMENT_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        right = _WITHOUT_DETAILS if getattr(error, "errno", 0) == errno.EFBIG else _RIGHT
        raise BenchmarkError(f"cannot read {str(path)!r}: {reason}; {right}") from error


def _results(path: Path, text: str) -> Iterator[tuple[str, str]]:
    """The results in a file, one or one per line, and where each is."""
    named = repr(str(path))
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_table(lines[0][1]):
        if len(lines) > _MOST_RESULTS:
            raise BenchmarkError(f"{named} has more than {_MOST_RESULTS} results; give fewer")
        yield from ((line, f"line {number} of {named}") for number, line in lines)
    else:
        yield text, named


def _is_table(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _parsed(text: str, where: str) -> _Fields:
    try:
        value: Any = json.loads(text)
    except RecursionError as error:
        raise BenchmarkError(f"{where} is nested too deeply; {_RIGHT}") from error
    except ValueError as error:
        raise BenchmarkError(f"{where} is not JSON ({error}); {_RIGHT}") from error
    if not isinstance(value, dict):
        raise BenchmarkError(f"{where} is {shown(value)}, not a benchmark result; {_RIGHT}")
    return _Fields(value, where)


def _benchmark(text: str, where: str, file: str) -> ServerBenchmark:
    fields, digest = _parsed(text, where), hashlib.sha256(text.strip().encode()).hexdigest()
    if program := _serving_script(fields):
        return _of_serving_script(program, fields, file, digest)
    if any(isinstance(fields.values.get(metric), dict) for metric in _METRICS):
        return _of_genai_perf(fields, file, digest)
    keys = ", ".join(shown(key) for key in list(fields.values)[:8]) or "none"
    raise BenchmarkError(f"{fields.where} is not a benchmark result (its keys: {keys}); {_RIGHT}")


# --- vLLM and SGLang --------------------------------------------------------------------------


_VERSION: Final = re.compile(r"v?[0-9]+(\.[0-9a-z+-]+)+", re.ASCII | re.IGNORECASE)
_LONGEST_VERSION: Final = 64


_SCHEDULED: Final = (
    "requests sent on a schedule are not predicted; measure with --request-rate inf and"
    " --max-concurrency N"
)
_SERVING_SCRIPTS: Final[dict[str, tuple[tuple[str, ...], str, str | None]]] = {
    "vllm bench serve": (
        ("total_token_throughput", "tokenizer_id", "num_prompts", "endpoint_type"),
        "mean_e2el_ms", None,
    ),
    "sglang.bench_serving": (
        ("mean_e2e_latency_ms", "total_output_tokens_retokenized"),
        "mean_e2e_latency_ms", "sglang",
    ),
}  # fmt: skip
"""Keys of which only a program's results have any, its key of the time of a whole request, which
vLLM need not write, and what it measures if `backend` does not say."""


def _serving_script(fields: _Fields) -> str | None:
    """Which of the two programs wrote a result, if any."""
    values = fields.values
    if "mean_ttft_ms" not in values and "request_throughput" not in values:
        return None
    # AIPerf uses some of these names for tables.
    return next(
        (program for program, (marks, _, _) in _SERVING_SCRIPTS.items()
         if any(mark in values and not isinstance(values[mark], dict) for mark in marks)),
        None,
    )  # fmt: skip


def _of_serving_script(program: str, fields: _Fields, file: str, digest: str) -> ServerBenchmark:
    for key in ("spec_decode_acceptance_length", "accept_length"):
        accepted = fields.values.get(key)
        if isinstance(accepted, int | float) and accepted > 1:
            raise fields.wrong(key, "absent: speculative decoding is not predicted; switch it off")
    server, requests = fields.table("server_info"), fields.count("completed")
    tokens = fields.count("total_output_tokens") / requests
    prompt = fields.some_number("total_input_tokens")
    failed = fields.some_count("failed", least=0)
    if failed is None:
        failed = max(0, (fields.some_count("num_prompts") or 0) - requests)
    if fields.values.get("request_rate") not in (None, "inf", math.inf):
        raise fields.wrong("request_rate", f"inf: {_SCHEDULED}")
    if fields.has("ramp_up_strategy"):
        raise fields.wrong("ramp_up_strategy", f"left out: {_SCHEDULED}")
    _, of_request, engine = _SERVING_SCRIPTS[program]
    limit, request_ms = fields.some_count("max_concurrency"), fields.some_number(of_request)
    new_tokens = _mean_new_tokens(fields, "total_output_tokens", tokens)
    concurrency, is_steady = _in_flight(fields, requests, failed, limit)
    backend = fields.text("backend") or fields.text("endpoint_type") or ""
    # Many engines have the OpenAI API.
    named = "" if backend.startswith("openai") else backend.split("-")[0]
    return ServerBenchmark(
        file=file,
        where=fields.where,
        program=program,
        digest=digest,
        date=fields.text("date"),
        model=_first_text(fields, "model_id")
        or _first_text(server, "served_model_name", "model_path"),
        engine=named or engine,
        version=_version(fields, "server_version", "vllm_version", "sglang_version")
        or _version(server, "version"),
        requests=requests,
        failed=failed,
        concurrency=concurrency,
        is_steady=is_steady,
        prompt_tokens=None if prompt is None else prompt / requests,
        new_tokens=new_tokens,
        requests_per_second=fields.number("request_throughput"),
        tokens_per_second=fields.number("output_throughput"),
        ttft_seconds=fields.number("mean_ttft_ms") / 1e3,
        tpot_seconds=fields.number("mean_tpot_ms") / 1e3,
        measured_seconds=None if request_ms is None else request_ms / 1e3,
    )


def _first_text(fields: _Fields, *keys: str) -> str | None:
    return next((fields.text(key) for key in keys if fields.has(key)), None)


def _version(fields: _Fields, *keys: str) -> str | None:
    text = _first_text(fields, *keys) or ""
    is_version = len(text) <= _LONGEST_VERSION and _VERSION.fullmatch(text)
    return text.removeprefix("v") if is_version else None


# --- genai-perf and AIPerf --------------------------------------------------------------------


_SECONDS: Final[Mapping[str, float]] = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0,
}  # fmt: skip
_METRICS: Final = ("request_throughput", "request_latency", "time_to_first_token")


def _of_genai_perf(fields: _Fields, file: str, digest: str) -> ServerBenchmark:
    config = fields.table("input_config")
    if fields.values.get("was_cancelled") is True:
        raise fields.wrong("was_cancelled", "false: measure to the end")
    if not fields.has("time_to_first_token"):
        raise BenchmarkError(
            f"{fields.where} lacks time_to_first_token; measure with --streaming, which times the"
            " first token"
        )
    requests = _requests(fields, config)
    failed = fields.table("error_request_count").some_count("avg", least=0) or 0
    limit, tokens = _concurrency(config), fields.table("output_sequence_length")
    new_tokens = _mean_new_tokens(tokens, "avg", tokens.number("avg"))
    concurrency, is_steady = _in_flight(fields, requests, failed, limit)
    endpoint = config.table("endpoint")
    place = endpoint if endpoint.has("service_kind") else config
    return ServerBenchmark(
        file=file,
        where=fields.where,
        program="AIPerf" if config.has("loadgen") else "genai-perf",
        digest=digest,
        date=fields.text("end_time"),
        model=_model(config),
        # `backend` names it only behind Triton; else it is the option's default.
        engine=place.text("backend") if place.text("service_kind") == "triton" else None,
        version=None,
        requests=requests,
        failed=failed,
        concurrency=concurrency,
        is_steady=is_steady,
        prompt_tokens=fields.table("input_sequence_length").some_number("avg"),
        new_tokens=new_tokens,
        requests_per_second=fields.table("request_throughput").number("avg"),
        tokens_per_second=fields.table("output_token_throughput").number("avg"),
        ttft_seconds=_seconds(fields.table("time_to_first_token")),
        tpot_seconds=_seconds(fields.table("inter_token_latency")),
        measured_seconds=_seconds(fields.table("request_latency"))
        if fields.has("request_latency")
        else None,
    )


def _seconds(metric: _Fields) -> float:
    unit = metric.text("unit") or "ms"
    if unit not in _SECONDS:
        raise metric.wrong("unit", f"one of {', '.join(_SECONDS)}")
    return _SECONDS[unit] * metric.number("avg")


def _requests(fields: _Fields, config: _Fields) -> int:
    """Answered requests, or in versions without `request_count` how many were asked for."""
    measurement = config.table("perf_analyzer").table("measurement")
    if not fields.has("request_count"):
        if measurement.text("mode") == "request_count" and measurement.has("num"):
            return measurement.count("num")
        if config.has("request_count"):
            return config.count("request_count")
    return fields.table("request_count").count("avg")


def _concurrency(config: _Fields) -> int:
    stimulus = config.table("perf_analyzer").table("stimulus")
    flat = config if config.has("concurrency") or config.has("request_rate") else None
    place = flat or (config.table("loadgen") if config.has("loadgen") else stimulus)
    for key in ("request_rate", "session_concurrency", "session_request_rate", "fixed_schedule"):
        if key in place.values and place.values[key] not in (None, "", False):
            raise BenchmarkError(
                f"{place.wrong(key, 'absent')}: requests sent on a schedule or in sessions are not"
                " predicted; measure with a fixed number of clients (stimulus: concurrency)"
            )
    return place.count("concurrency")


def _model(config: _Fields) -> str | None:
    endpoint = config.table("endpoint")
    for place, key in ((config, "model_names"), (config, "model"), (endpoint, "model_names")):
        if place.has(key):
            value = place.values[key]
            names = value if isinstance(value, list) else [value]
            if len(names) != 1 or not isinstance(names[0], str) or not names[0].isprintable():
                raise place.wrong(key, "the name of one model, in a list")
            return names[0]
    return None
