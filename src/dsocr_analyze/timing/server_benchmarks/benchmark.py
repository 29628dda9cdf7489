"""A server's benchmark: the load it was under, and what it measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsocr_analyze.errors import BenchmarkError
from dsocr_analyze.timing.server_benchmarks.fields import Fields, shown
from dsocr_analyze.workload.workload import LARGEST_COUNT

__all__ = ["Load", "Measured", "ServerBenchmark", "Source", "closed_loop_load", "mean_new_tokens"]

MOST_CONCURRENCY: Final = 65_536
_ROUNDS: Final = 4
"""So many requests of every client make a load steady enough to tell its first tokens apart."""
_TOLERATED_FAILURES: Final = 0.05


@dataclass(frozen=True)
class Source:
    """Where a benchmark is from.

    Attributes:
        file: Name of the file.
        where: The file, and what part of it, for messages.
        program: What measured.
        digest: SHA-256 of the result.
        date: When, as the program wrote it; None where it did not.
    """

    file: str
    where: str
    program: str
    digest: str
    date: str | None


@dataclass(frozen=True)
class Load:
    """The load that a server was under.

    Attributes:
        requests: How many it answered.
        failed: How many it did not.
        concurrency: Requests under way at a time.
        is_steady: Whether every client sent request after request. If not, most of them came at
            once: what requests of a steady load wait for between two tokens, the prompts of others,
            these wait for before their first one. The whole request takes as long.
        prompt_tokens: Of a request on average, as the program counts them; None where it did not.
        new_tokens: That a request generated, on average.
    """

    requests: int
    failed: int
    concurrency: int
    is_steady: bool
    prompt_tokens: float | None
    new_tokens: float


@dataclass(frozen=True)
class Measured:
    """What was measured, on average over requests.

    Attributes:
        requests_per_second: Answered.
        tokens_per_second: Generated.
        ttft_seconds: Until the first token.
        tpot_seconds: Per token after the first.
        request_seconds: Until the last token; None where the program did not say it.
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
        model: Which model ran, as the program calls it; None where it did not say.
        engine: What served: `vllm`, `sglang`, or another name; None where the file does not say.
        version: The engine's version; None where the file does not say.
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
        """Seconds of a request; from first token and the others where it was not measured."""
        measured = self.measured
        if measured.request_seconds is not None:
            return measured.request_seconds
        return measured.ttft_seconds + (self.load.new_tokens - 1) * measured.tpot_seconds

    def doubts(self) -> list[str]:
        """What in the file a reader should know, a sentence each."""
        load, said = self.load, []
        if load.failed:
            every = load.requests + load.failed
            said.append(f"{load.failed:,} of {every:,} requests failed; the others were measured")
        if not load.is_steady:
            said.append(
                f"{load.requests:,} requests, {load.concurrency:,} at a time, are a burst more than"
                " a steady load: how the time of a request divides into the first token and the"
                " others is not compared, only the whole"
            )
        under_way = self.measured.requests_per_second * self.request_seconds
        if under_way > 1.3 * load.concurrency:
            said.append(
                f"the figures contradict each other: {under_way:,.3g} requests would have been"
                f" under way on average, and {load.concurrency:,} were allowed"
            )
        tokens = self.measured.requests_per_second * load.new_tokens
        if not 0.9 < self.measured.tokens_per_second / tokens < 1.1:
            said.append(
                f"the figures contradict each other: {tokens:,.4g} tokens a second by requests and"
                f" their tokens, {self.measured.tokens_per_second:,.4g} by the file"
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
    """The load of clients each of which sends its next request when the last one has come back.

    Args:
        fields: The result, for messages.
        requests: How many were answered.
        failed: How many were not.
        limit: Most at a time; None for all at once.
        prompt_tokens: Of a request on average.
        new_tokens: That a request generated, on average.

    Raises:
        BenchmarkError: Too many failed, or too many were under way for a prediction.
    """
    every = requests + failed
    if failed > _TOLERATED_FAILURES * every:
        raise BenchmarkError(
            f"{fields.where}: {failed:,} of {every:,} requests failed; give a benchmark in which at"
            f" most {100 * _TOLERATED_FAILURES:g} % do"
        )
    concurrency = every if limit is None else min(limit, every)
    if concurrency > MOST_CONCURRENCY:
        raise BenchmarkError(
            f"{fields.where}: {concurrency:,} requests at a time are more than {MOST_CONCURRENCY:,}"
        )
    is_steady = concurrency == 1 or every >= _ROUNDS * concurrency
    return Load(requests, failed, concurrency, is_steady, prompt_tokens, new_tokens)


def mean_new_tokens(fields: Fields, key: str, tokens: float) -> float:
    """Tokens that a request generated on average.

    Args:
        fields: Where they are.
        key: Their key, for messages.
        tokens: How many.

    Raises:
        BenchmarkError: Nothing came after the first token, or more than is possible.
    """
    if not 1 < tokens <= LARGEST_COUNT:
        raise BenchmarkError(
            f"{fields.where}: {fields.path}{key} is {shown(fields.values.get(key))}, {tokens:.6g}"
            f" tokens a request; it must be more than 1 and at most {LARGEST_COUNT:,}"
        )
    return tokens
