"""Results of genai-perf (`profile_export_genai_perf.json`) and of its successor AIPerf.

Every metric is a table with its unit and its average; `input_config` holds the options: in sections
since genai-perf 0.0.13 (`perf_analyzer.stimulus`), in one flat table before (`concurrency`), and in
AIPerf's own sections (`loadgen.concurrency`). Inter-token latency is what other programs call time
per output token: (request latency - first token) / (tokens - 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsocr_analyze.errors import BenchmarkError
from dsocr_analyze.timing.server_benchmarks.benchmark import (
    Load,
    Measured,
    ServerBenchmark,
    Source,
    closed_loop_load,
    mean_new_tokens,
)
from dsocr_analyze.timing.server_benchmarks.fields import Fields

__all__ = ["benchmark", "recognises"]

_SECONDS: Final[Mapping[str, float]] = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0,
}  # fmt: skip
_METRICS: Final = ("request_throughput", "request_latency", "time_to_first_token")


def recognises(fields: Fields) -> bool:
    """Whether a result is from genai-perf or AIPerf."""
    return any(isinstance(fields.values.get(metric), dict) for metric in _METRICS)


def benchmark(fields: Fields, file: str, digest: str) -> ServerBenchmark:
    """The benchmark in a result; raises BenchmarkError for missing or impossible values."""
    config = fields.table("input_config")
    if fields.values.get("was_cancelled") is True:
        raise fields.wrong("was_cancelled", "false: measure to the end")
    if not fields.has("time_to_first_token"):
        raise BenchmarkError(
            f"{fields.where} lacks time_to_first_token; measure with --streaming, which times the"
            " first token"
        )
    is_aiperf = config.has("loadgen")
    return ServerBenchmark(
        source=Source(
            file, fields.where, "AIPerf" if is_aiperf else "genai-perf", digest,
            fields.text("end_time"),
        ),
        model=_model(config),
        engine=_engine(config),
        version=None,
        load=_load(fields, config),
        measured=Measured(
            requests_per_second=fields.table("request_throughput").number("avg"),
            tokens_per_second=fields.table("output_token_throughput").number("avg"),
            ttft_seconds=_seconds(fields.table("time_to_first_token")),
            tpot_seconds=_seconds(fields.table("inter_token_latency")),
            request_seconds=_seconds(fields.table("request_latency"))
            if fields.has("request_latency")
            else None,
        ),
    )  # fmt: skip


def _seconds(metric: Fields) -> float:
    unit = metric.text("unit") or "ms"
    if unit not in _SECONDS:
        raise metric.wrong("unit", f"one of {', '.join(_SECONDS)}")
    return _SECONDS[unit] * metric.number("avg")


def _load(fields: Fields, config: Fields) -> Load:
    new_tokens = fields.table("output_sequence_length")
    failed = fields.table("error_request_count")
    return closed_loop_load(
        fields,
        requests=_requests(fields, config),
        failed=failed.some_count("avg", least=0) or 0,
        limit=_concurrency(config),
        prompt_tokens=fields.table("input_sequence_length").some_number("avg"),
        new_tokens=mean_new_tokens(new_tokens, "avg", new_tokens.number("avg")),
    )


def _requests(fields: Fields, config: Fields) -> int:
    """Answered requests; versions without `request_count` give only how many were asked for."""
    if fields.has("request_count"):
        return fields.table("request_count").count("avg")
    measurement = config.table("perf_analyzer").table("measurement")
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
    for place, key in (
        (config, "model_names"),
        (config, "model"),
        (config.table("endpoint"), "model_names"),
    ):
        if place.has(key):
            value = place.values[key]
            names = value if isinstance(value, list) else [value]
            if len(names) != 1 or not isinstance(names[0], str) or not names[0].isprintable():
                raise place.wrong(key, "the name of one model, in a list")
            return names[0]
    return None


def _engine(config: Fields) -> str | None:
    """The engine. `backend` names it only behind Triton; else it is the option's default."""
    endpoint = config.table("endpoint")
    place = endpoint if endpoint.has("service_kind") else config
    return place.text("backend") if place.text("service_kind") == "triton" else None
