"""A server benchmark, from checked fields of a program's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsocr_analyze.errors import BenchmarkError
from dsocr_analyze.workload import LARGEST_COUNT

__all__ = ["Fields", "ServerBenchmark", "in_flight", "mean_new_tokens", "shown"]

_LARGEST: Final = 1e15
_SHOWN: Final = 60


def shown(value: object) -> str:
    """A value for messages: shortened, and without control characters."""
    text = ascii(value) if not isinstance(value, Mapping | list) else f"a {_KINDS[type(value)]}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_KINDS: Final[Mapping[type, str]] = {dict: "table", list: "list"}


@dataclass(frozen=True)
class Fields:
    """A table of a result: its values, the file, and the keys that lead to it."""

    values: Mapping[str, Any]
    where: str
    path: str = ""

    def has(self, key: str) -> bool:
        """Whether there is a value; null and the empty string count as missing."""
        return self.values.get(key) not in (None, "")

    def table(self, key: str) -> Fields:
        """The table under a key; an empty one if it is missing."""
        value = self.values.get(key) if self.has(key) else {}
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        return Fields(value, self.where, f"{self.path}{key}.")

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
        date: When it ran, as the program wrote it.
        model: The model's name in the result.
        engine: `vllm`, `sglang` or another name.
        concurrency: Requests in flight.
        is_steady: Whether every client sent request after request. If not, they waited for each
            other's prompts before their first token, not between tokens; a whole request takes the
            same time.
        prompt_tokens: Mean per request, as the program counts them.
        new_tokens: Mean generated tokens per request.
        ttft_seconds: To the first token.
        tpot_seconds: Per token after the first.
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


def in_flight(fields: Fields, requests: int, failed: int, limit: int | None) -> tuple[int, bool]:
    """Requests in flight, at most `limit`, and whether they are a steady load.

    Raises:
        BenchmarkError: Too many requests failed, or were in flight.
    """
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


def mean_new_tokens(fields: Fields, key: str, tokens: float) -> float:
    """Mean tokens generated per request, from a key.

    Raises:
        BenchmarkError: They are at most one, or more than is possible.
    """
    if not 1 < tokens <= LARGEST_COUNT:
        raise BenchmarkError(
            f"{fields.where}: {fields.path}{key} is {shown(fields.values.get(key))}, {tokens:.6g}"
            f" tokens per request; it must be more than 1 and at most {LARGEST_COUNT:,}"
        )
    return tokens
