"""A server benchmark: its load and what it measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsocr_analyze.errors import BenchmarkError
from dsocr_analyze.timing.server_benchmarks.fields import Fields, shown
from dsocr_analyze.workload.workload import LARGEST_COUNT

__all__ = ["Load", "Measured", "ServerBenchmark", "Source", "closed_loop_load", "mean_new_tokens"]

MOST_CONCURRENCY: Final = 65_536
_ROUNDS: Final = 4
"""Requests per client that make a load steady enough to compare first and later tokens."""
_TOLERATED_FAILURES: Final = 0.05


@dataclass(frozen=True)
class Source:
    """Where a benchmark is from.

    Attributes:
        file: Name of the file.
        where: The file and the part of it, for messages.
        program: The benchmark program.
        digest: SHA-256 of the result.
        date: When it ran, as the program wrote it; None if it did not.
    """

    file: str
    where: str
    program: str
    digest: str
    date: str | None


@dataclass(frozen=True)
class Load:
    """The load on a server.

    Attributes:
        requests: Answered requests.
        failed: Failed requests.
        concurrency: Requests in flight.
        is_steady: Whether every client sent request after request. If not, most requests came at
            once and waited for each other's prompts before their first token, while under a steady
            load they wait for those between tokens. The whole request takes the same time.
        prompt_tokens: Mean per request, as the program counts them; None if it does not.
        new_tokens: Mean generated tokens per request.
    """

    requests: int
    failed: int
    concurrency: int
    is_steady: bool
    prompt_tokens: float | None
    new_tokens: float


@dataclass(frozen=True)
class Measured:
    """What was measured, as means over requests.

    Attributes:
        requests_per_second: Answered requests.
        tokens_per_second: Generated tokens.
        ttft_seconds: Time to the first token.
        tpot_seconds: Time per token after the first.
        request_seconds: Time to the last token; None if the program did not report it.
    """

    requests_per_second: float
    tokens_per_second: float
    ttft_seconds: float
    tpot_seconds: float
    request_seconds: float | None


@dataclass(frozen=True)
class ServerBenchmark:
    """One benchmark of a server.

    Attributes:
        source: Where it is from.
        model: The model's name in the result; None if there is none.
        engine: The serving engine: `vllm`, `sglang` or another name; None if the file has none.
        version: The engine's version; None if the file has none.
        load: The load.
        measured: What was measured.
    """

    source: Source
    model: str | None
    engine: str | None
    version: str | None
    load: Load
    measured: Measured

    @property
    def request_seconds(self) -> float:
        """Seconds per request; computed from the token times if it was not measured."""
        measured = self.measured
        if measured.request_seconds is not None:
            return measured.request_seconds
        return measured.ttft_seconds + (self.load.new_tokens - 1) * measured.tpot_seconds

    def doubts(self) -> list[str]:
        """Doubts about the figures in the file, one sentence each."""
        load, said = self.load, []
        if load.failed:
            every = load.requests + load.failed
            said.append(f"{load.failed:,} of {every:,} requests failed; the others were measured")
        if not load.is_steady:
            said.append(
                f"{load.requests:,} requests, {load.concurrency:,} at a time, are a burst rather"
                " than a steady load, so only the time of the whole request is compared, not those"
                " of first and later tokens"
            )
        under_way = self.measured.requests_per_second * self.request_seconds
        if under_way > 1.3 * load.concurrency:
            said.append(
                f"the figures contradict each other: {under_way:,.3g} requests would have been"
                f" in flight on average, but only {load.concurrency:,} were allowed"
            )
        tokens = self.measured.requests_per_second * load.new_tokens
        if not 0.9 < self.measured.tokens_per_second / tokens < 1.1:
            said.append(
                f"the figures contradict each other: {tokens:,.4g} tokens per second from requests"
                f" and their tokens, but {self.measured.tokens_per_second:,.4g} in the file"
            )
        return said


def closed_loop_load(
    fields: Fields,
    *,
    requests: int,
    failed: int,
    limit: int | None,
    prompt_tokens: float | None,
    new_tokens: float,
) -> Load:
    """The load of clients that each send the next request as soon as the previous one returns.

    Args:
        fields: The result, for messages.
        requests: Answered requests.
        failed: Failed requests.
        limit: Most requests in flight; None for all at once.
        prompt_tokens: Mean prompt tokens per request.
        new_tokens: Mean generated tokens per request.

    Raises:
        BenchmarkError: Too many requests failed, or too many were in flight for a prediction.
    """
    every = requests + failed
    if failed > _TOLERATED_FAILURES * every:
        raise BenchmarkError(
            f"{fields.where}: {failed:,} of {every:,} requests failed; give a benchmark in which at"
            f" most {100 * _TOLERATED_FAILURES:g} % fail"
        )
    concurrency = every if limit is None else min(limit, every)
    if concurrency > MOST_CONCURRENCY:
        raise BenchmarkError(
            f"{fields.where}: {concurrency:,} requests at a time are too many; give a benchmark"
            f" with at most {MOST_CONCURRENCY:,}"
        )
    is_steady = concurrency == 1 or every >= _ROUNDS * concurrency
    return Load(requests, failed, concurrency, is_steady, prompt_tokens, new_tokens)


def mean_new_tokens(fields: Fields, key: str, tokens: float) -> float:
    """Check the mean number of tokens generated per request and return it.

    Args:
        fields: The table they are from, for messages.
        key: Their key, for messages.
        tokens: The mean.

    Raises:
        BenchmarkError: There is at most one token per request, or more than is possible.
    """
    if not 1 < tokens <= LARGEST_COUNT:
        raise BenchmarkError(
            f"{fields.where}: {fields.path}{key} is {shown(fields.values.get(key))}, {tokens:.6g}"
            f" tokens per request; it must be more than 1 and at most {LARGEST_COUNT:,}"
        )
    return tokens
