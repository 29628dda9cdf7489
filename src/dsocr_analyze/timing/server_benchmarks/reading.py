"""Reads a file of benchmark results from any of the known programs, whatever its name.

`vllm bench serve` and `python -m sglang.bench_serving` share most keys; times are in milliseconds:

- vllm/benchmarks/serve.py and, before 0.10, benchmarks/benchmark_serving.py (--save-result);
- python/sglang/bench_serving.py (--output-file); later versions add `server_info` and write an
  infinite rate as `Infinity`.

genai-perf (`profile_export_genai_perf.json`) and its successor AIPerf: every metric is a table with
its unit and its average; `input_config` holds the options: in sections since genai-perf 0.0.13
(`perf_analyzer.stimulus`), in one table before (`concurrency`), and in AIPerf's own sections
(`loadgen.concurrency`). Inter-token latency is time per output token.
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
from dsocr_analyze.timing.server_benchmarks import (
    Fields,
    ServerBenchmark,
    in_flight,
    mean_new_tokens,
    shown,
)

__all__ = ["read_benchmarks"]

_WITHOUT_DETAILS: Final = (
    "measure without --save-detailed or --output-details, which write every request"
)
_MOST_RESULTS: Final = 100
_RIGHT: Final = (
    "give what vllm bench serve --save-result, sglang.bench_serving --output-file or genai-perf"
    " (profile_export_genai_perf.json) writes"
)


def read_benchmarks(path: Path) -> list[ServerBenchmark]:
    """The benchmarks in a file: one, or one per line.

    Raises:
        BenchmarkError: It cannot be read, is not from a known program, or lacks a figure.
    """
    name = "".join(each if each.isprintable() else "?" for each in path.name) or "?"
    return [_benchmark(text, where, name) for text, where in _results(path, _text(path))]


def _text(path: Path) -> str:
    named = repr(str(path))
    try:
        text = read_bytes(path, DOCUMENT_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        right = _WITHOUT_DETAILS if getattr(error, "errno", 0) == errno.EFBIG else _RIGHT
        raise BenchmarkError(f"cannot read {named}: {reason}; {right}") from error
    return text


def _results(path: Path, text: str) -> Iterator[tuple[str, str]]:
    """The results in a file and where each is: one, or one per non-empty line."""
    named = repr(str(path))
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_table(lines[0][1]):
        if len(lines) > _MOST_RESULTS:
            raise BenchmarkError(f"{named} has more than {_MOST_RESULTS} results; give fewer")
        yield from ((line, f"line {number} of {named}") for number, line in lines)
    else:
        yield text, named


def _is_table(line: str) -> bool:
    """Whether a line is a JSON object by itself."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _parsed(text: str, where: str) -> Fields:
    try:
        value: Any = json.loads(text)
    except RecursionError as error:
        raise BenchmarkError(f"{where} is nested too deeply; {_RIGHT}") from error
    except ValueError as error:
        raise BenchmarkError(f"{where} is not JSON ({error}); {_RIGHT}") from error
    if not isinstance(value, dict):
        raise BenchmarkError(f"{where} is {shown(value)}, not a benchmark result; {_RIGHT}")
    return Fields(value, where)


def _benchmark(text: str, where: str, file: str) -> ServerBenchmark:
    fields = _parsed(text, where)
    digest = hashlib.sha256(text.strip().encode()).hexdigest()
    for script in (_VLLM, _SGLANG):
        if script.recognises(fields):
            return script.benchmark(fields, file, digest)
    if any(isinstance(fields.values.get(metric), dict) for metric in _METRICS):
        return _of_genai_perf(fields, file, digest)
    keys = ", ".join(shown(key) for key in list(fields.values)[:8]) or "none"
    raise BenchmarkError(f"{fields.where} is not a benchmark result (its keys: {keys}); {_RIGHT}")


# --- vLLM and SGLang --------------------------------------------------------------------------


_VERSION: Final = re.compile(r"v?[0-9]+(\.[0-9a-z+-]+)+", re.ASCII | re.IGNORECASE)

_LONGEST_VERSION: Final = 64


@dataclass(frozen=True)
class _ServingScript:
    """One of the two programs.

    Attributes:
        marks: Keys of which only its results have any.
        request_ms: Key of the time of a whole request, which vLLM need not write.
        engine: What it measures if `backend` does not say; None for any.
    """

    program: str
    marks: tuple[str, ...]
    request_ms: str
    engine: str | None

    def recognises(self, fields: Fields) -> bool:
        """Whether a result is from this program."""
        values = fields.values
        is_of_both = "mean_ttft_ms" in values or "request_throughput" in values
        # AIPerf uses some of these names for tables.
        return is_of_both and any(
            mark in values and not isinstance(values[mark], dict) for mark in self.marks
        )

    def benchmark(self, fields: Fields, file: str, digest: str) -> ServerBenchmark:
        """The benchmark in a result; raises BenchmarkError."""
        for key in ("spec_decode_acceptance_length", "accept_length"):
            accepted = fields.values.get(key)
            if isinstance(accepted, int | float) and accepted > 1:
                wanted = "absent: speculative decoding is not predicted; switch it off"
                raise fields.wrong(key, wanted)
        server, requests = fields.table("server_info"), fields.count("completed")
        tokens = fields.count("total_output_tokens") / requests
        prompt = fields.some_number("total_input_tokens")
        failed = fields.some_count("failed", least=0)
        if failed is None:
            failed = max(0, (fields.some_count("num_prompts") or 0) - requests)
        _check_rate(fields)
        limit, request_ms = (
            fields.some_count("max_concurrency"),
            fields.some_number(self.request_ms),
        )
        new_tokens = mean_new_tokens(fields, "total_output_tokens", tokens)
        concurrency, is_steady = in_flight(fields, requests, failed, limit)
        backend = fields.text("backend") or fields.text("endpoint_type") or ""
        # Many engines have the OpenAI API.
        named = "" if backend.startswith("openai") else backend.split("-")[0]
        return ServerBenchmark(
            file=file,
            where=fields.where,
            program=self.program,
            digest=digest,
            date=fields.text("date"),
            model=_first_text(fields, "model_id")
            or _first_text(server, "served_model_name", "model_path"),
            engine=named or self.engine,
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


_VLLM: Final = _ServingScript(
    program="vllm bench serve",
    marks=("total_token_throughput", "tokenizer_id", "num_prompts", "endpoint_type"),
    request_ms="mean_e2el_ms",
    engine=None,
)
_SGLANG: Final = _ServingScript(
    program="sglang.bench_serving",
    marks=("mean_e2e_latency_ms", "total_output_tokens_retokenized"),
    request_ms="mean_e2e_latency_ms",
    engine="sglang",
)


def _check_rate(fields: Fields) -> None:
    """Reject requests sent on a schedule rather than as earlier ones return."""
    why = (
        "requests sent on a schedule are not predicted; measure with --request-rate inf and"
        " --max-concurrency N"
    )
    if fields.values.get("request_rate") not in (None, "inf", math.inf):
        raise fields.wrong("request_rate", f"inf: {why}")
    if fields.has("ramp_up_strategy"):
        raise fields.wrong("ramp_up_strategy", f"left out: {why}")


def _first_text(fields: Fields, *keys: str) -> str | None:
    return next((fields.text(key) for key in keys if fields.has(key)), None)


def _version(fields: Fields, *keys: str) -> str | None:
    text = _first_text(fields, *keys)
    if text is None or len(text) > _LONGEST_VERSION or not _VERSION.fullmatch(text):
        return None
    return text.removeprefix("v")


# --- genai-perf and AIPerf --------------------------------------------------------------------


_SECONDS: Final[Mapping[str, float]] = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0,
}  # fmt: skip
_METRICS: Final = ("request_throughput", "request_latency", "time_to_first_token")


def _of_genai_perf(fields: Fields, file: str, digest: str) -> ServerBenchmark:
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
    new_tokens = mean_new_tokens(tokens, "avg", tokens.number("avg"))
    concurrency, is_steady = in_flight(fields, requests, failed, limit)
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


def _seconds(metric: Fields) -> float:
    unit = metric.text("unit") or "ms"
    if unit not in _SECONDS:
        raise metric.wrong("unit", f"one of {', '.join(_SECONDS)}")
    return _SECONDS[unit] * metric.number("avg")


def _requests(fields: Fields, config: Fields) -> int:
    """Answered requests, or in versions without `request_count` how many were asked for."""
    measurement = config.table("perf_analyzer").table("measurement")
    if not fields.has("request_count"):
        if measurement.text("mode") == "request_count" and measurement.has("num"):
            return measurement.count("num")
        if config.has("request_count"):
            return config.count("request_count")
    return fields.table("request_count").count("avg")


def _concurrency(config: Fields) -> int:
    """Requests in flight; raises BenchmarkError if they are sent on a schedule."""
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


def _model(config: Fields) -> str | None:
    endpoint = config.table("endpoint")
    for place, key in ((config, "model_names"), (config, "model"), (endpoint, "model_names")):
        if place.has(key):
            value = place.values[key]
            names = value if isinstance(value, list) else [value]
            if len(names) != 1 or not isinstance(names[0], str) or not names[0].isprintable():
                raise place.wrong(key, "the name of one model, in a list")
            return names[0]
    return None
