"""Results of `vllm bench serve` and of `python -m sglang.bench_serving`.

The two programs have a common ancestor and share most keys; times are in milliseconds. Sources:

- vllm/benchmarks/serve.py and, before 0.10, benchmarks/benchmark_serving.py (--save-result);
- python/sglang/bench_serving.py (--output-file); later versions add what the server reports
  about itself (`server_info`) and write an infinite rate as `Infinity`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from dsocr_analyze.timing.server_benchmarks.benchmark import (
    Load,
    Measured,
    ServerBenchmark,
    Source,
    closed_loop_load,
    mean_new_tokens,
)
from dsocr_analyze.timing.server_benchmarks.fields import Fields

__all__ = ["SGLANG", "VLLM", "ServingScript"]

_VERSION: Final = re.compile(r"v?[0-9]+(\.[0-9a-z+-]+)+", re.ASCII | re.IGNORECASE)

_LONGEST_VERSION: Final = 64


@dataclass(frozen=True)
class ServingScript:
    """One of the two programs.

    Attributes:
        program: Its name.
        marks: Keys that only its results have; one is enough.
        request_ms: Key of the time of a whole request; vLLM writes it only on request.
        engine: The engine it measures if `backend` does not name one; None for any engine.
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
        """The benchmark in a result; raises BenchmarkError for missing or impossible values."""
        _refuse_speculation(fields)
        server = fields.table("server_info")
        return ServerBenchmark(
            source=Source(file, fields.where, self.program, digest, fields.text("date")),
            model=_first_text(fields, "model_id")
            or _first_text(server, "served_model_name", "model_path"),
            engine=_engine(fields.text("backend") or fields.text("endpoint_type")) or self.engine,
            version=_version(fields, "server_version", "vllm_version", "sglang_version")
            or _version(server, "version"),
            load=_load(fields),
            measured=Measured(
                requests_per_second=fields.number("request_throughput"),
                tokens_per_second=fields.number("output_throughput"),
                ttft_seconds=fields.number("mean_ttft_ms") / 1e3,
                tpot_seconds=fields.number("mean_tpot_ms") / 1e3,
                request_seconds=_milliseconds(fields.some_number(self.request_ms)),
            ),
        )


VLLM: Final = ServingScript(
    program="vllm bench serve",
    marks=("total_token_throughput", "tokenizer_id", "num_prompts", "endpoint_type"),
    request_ms="mean_e2el_ms",
    engine=None,
)
SGLANG: Final = ServingScript(
    program="sglang.bench_serving",
    marks=("mean_e2e_latency_ms", "total_output_tokens_retokenized"),
    request_ms="mean_e2e_latency_ms",
    engine="sglang",
)


def _load(fields: Fields) -> Load:
    requests = fields.count("completed")
    tokens = fields.count("total_output_tokens") / requests
    prompt = fields.some_number("total_input_tokens")
    failed = fields.some_count("failed", least=0)
    if failed is None:
        failed = max(0, (fields.some_count("num_prompts") or 0) - requests)
    _check_rate(fields)
    return closed_loop_load(
        fields,
        requests=requests,
        failed=failed,
        limit=fields.some_count("max_concurrency"),
        prompt_tokens=None if prompt is None else prompt / requests,
        new_tokens=mean_new_tokens(fields, "total_output_tokens", tokens),
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


def _refuse_speculation(fields: Fields) -> None:
    """Reject speculative decoding, which is not predicted."""
    for key in ("spec_decode_acceptance_length", "accept_length"):
        accepted = fields.values.get(key)
        if isinstance(accepted, int | float) and accepted > 1:
            raise fields.wrong(key, "absent: speculative decoding is not predicted; switch it off")


def _engine(backend: str | None) -> str | None:
    """The engine named by a backend; None for the OpenAI API, which many engines have."""
    if backend is None or backend.startswith("openai"):
        return None
    return backend.split("-")[0]


def _first_text(fields: Fields, *keys: str) -> str | None:
    return next((fields.text(key) for key in keys if fields.has(key)), None)


def _version(fields: Fields, *keys: str) -> str | None:
    text = _first_text(fields, *keys)
    if text is None or len(text) > _LONGEST_VERSION or not _VERSION.fullmatch(text):
        return None
    return text.removeprefix("v")


def _milliseconds(value: float | None) -> float | None:
    return None if value is None else value / 1e3
