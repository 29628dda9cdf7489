"""Compare a benchmark with its prediction, and derive the correction."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.errors import BenchmarkError
from dsocr_analyze.timing.correction import (
    LARGEST_FACTOR,
    NO_CORRECTIONS,
    UNKNOWN_VERSION,
    Corrections,
    KeptBenchmark,
    basis_of,
)
from dsocr_analyze.timing.output_lengths import OutputLengths
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import SERVERS
from dsocr_analyze.timing.server_benchmarks.fields import shown

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.timing.assumptions import Assumptions, JobAssumptions
    from dsocr_analyze.timing.predict import TimedModel
    from dsocr_analyze.timing.prediction import TimeEntry
    from dsocr_analyze.timing.server_benchmarks.benchmark import ServerBenchmark
    from dsocr_analyze.workload import Workload

__all__ = [
    "Compared",
    "Figure",
    "Predictor",
    "check_engine",
    "check_model",
    "server_of",
    "version_of",
]

_PROMPT_TOLERANCE: Final = 1.2
_VERSION: Final = re.compile(r"[\w.+-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class Figure:
    """A figure that was predicted and measured.

    Attributes:
        name: `pages_per_second`, `tokens_per_second`, `ttft_seconds`, `tpot_seconds` or
            `request_seconds`.
        predicted: Prediction without any correction.
        measured: The benchmark's figure.
        corrected: Prediction with all stored benchmarks, this one included.
    """

    name: str
    predicted: float
    measured: float
    corrected: float

    @property
    def error(self) -> float:
        """Error of the prediction, relative to the measurement."""
        return self.predicted / self.measured - 1

    @property
    def corrected_error(self) -> float:
        """The same for the corrected prediction."""
        return self.corrected / self.measured - 1


@dataclass(frozen=True)
class Predictor:
    """Predicts a benchmark's load.

    Attributes:
        model: The model and its GPU.
        workload: The page or pages of one request.
        job: The serving engine and all other assumptions; its lengths are not used.
    """

    model: TimedModel
    workload: Workload
    job: JobAssumptions

    def prediction(self, benchmark: ServerBenchmark, corrections: Corrections) -> TimeEntry:
        """The prediction for a benchmark's load."""
        assumptions = self.assumptions(benchmark, corrections)
        return predict(self.model, self.workload, assumptions, (benchmark.load.concurrency,))

    def assumptions(self, benchmark: ServerBenchmark, corrections: Corrections) -> Assumptions:
        """The assumptions for a benchmark, with its measured output length."""
        mean = benchmark.load.new_tokens
        lengths = OutputLengths.mean_and_limit(mean, math.floor(mean) + 2, 0.0)
        job = replace(self.job, lengths=lambda _: lengths, corrections=corrections)
        model = self.model
        return job.of(model.architecture, self.workload, profile=model.device.profile)

    def kept(self, benchmark: ServerBenchmark, version: str, when: str) -> KeptBenchmark:
        """The record to store for a benchmark.

        Args:
            benchmark: The benchmark.
            version: The server's version.
            when: The time, in the format of `KeptBenchmark`.

        Raises:
            BenchmarkError: It is so far from its prediction that it must have measured something
                else.
        """
        first_token, per_token = self._factors(benchmark)
        device, host, load = self.model.device, self.job.host, benchmark.load
        architecture = self.model.architecture.name
        key = "\n".join((device.name, host.name, version, architecture, benchmark.source.digest))
        return KeptBenchmark(
            id=hashlib.sha256(key.encode()).hexdigest()[:16],
            gpu=device.name,
            server=host.name,
            version=version,
            architecture=architecture,
            basis=basis_of(device.profile, host),
            first_token=first_token,
            per_token=per_token,
            requests=load.requests,
            concurrency=load.concurrency,
            file=benchmark.source.file,
            kept=when,
        )

    def _factors(self, benchmark: ServerBenchmark) -> tuple[float, float]:
        """Measured over predicted seconds: for the first token, and for each after it."""
        predicted = _figures(self.prediction(benchmark, NO_CORRECTIONS))
        if not benchmark.load.is_steady:
            whole = benchmark.request_seconds / predicted["request_seconds"]
            _check_factor(benchmark, "a request", whole)
            return whole, whole
        first_token = benchmark.measured.ttft_seconds / predicted["ttft_seconds"]
        per_token = benchmark.measured.tpot_seconds / predicted["tpot_seconds"]
        _check_factor(benchmark, "the first token", first_token)
        _check_factor(benchmark, "a token after the first", per_token)
        return first_token, per_token

    def doubts(self, benchmark: ServerBenchmark) -> list[str]:
        """Doubts about a benchmark, one sentence each."""
        said, tokens, T = benchmark.doubts(), benchmark.load.prompt_tokens, self.workload.seq_len
        # Some programs do not count visual tokens, so too few tokens prove nothing.
        if tokens is not None and tokens > _PROMPT_TOLERANCE * T:
            said.append(
                f"a request had {tokens:,.0f} tokens on average, but the predicted page has {T:,};"
                " predict the page, mode and prompt that were measured"
            )
        return said

    def compared(self, benchmark: ServerBenchmark, corrections: Corrections) -> Compared:
        """A benchmark with its predictions, without corrections and with these."""
        bare = self.prediction(benchmark, NO_CORRECTIONS)
        return Compared(benchmark, bare, self.prediction(benchmark, corrections))


@dataclass(frozen=True)
class Compared:
    """A benchmark and its predictions.

    Attributes:
        benchmark: The benchmark.
        bare: Prediction without any correction.
        corrected: Prediction with all stored benchmarks, this one included.
    """

    benchmark: ServerBenchmark
    bare: TimeEntry
    corrected: TimeEntry

    def figures(self, pages: int) -> list[Figure]:
        """Predicted and measured figures, for requests of `pages` pages each."""
        measured = self.benchmark.measured
        found = {
            "pages_per_second": pages * measured.requests_per_second,
            "tokens_per_second": measured.tokens_per_second,
            "ttft_seconds": measured.ttft_seconds,
            "tpot_seconds": measured.tpot_seconds,
            "request_seconds": measured.request_seconds,
        }
        bare, corrected = _figures(self.bare), _figures(self.corrected)
        return [
            Figure(name, bare[name], value, corrected[name])
            for name, value in found.items()
            if value is not None
        ]


def _figures(prediction: TimeEntry) -> Mapping[str, float]:
    [load] = prediction.throughput
    assert load.tpot_seconds is not None, "requests have more than one token"
    return {
        "pages_per_second": load.pages_per_second,
        "tokens_per_second": load.tokens_per_second,
        "ttft_seconds": load.ttft_seconds,
        "tpot_seconds": load.tpot_seconds,
        "request_seconds": load.page_seconds,
    }


def _check_factor(benchmark: ServerBenchmark, what: str, factor: float) -> None:
    if 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        return
    raise BenchmarkError(
        f"{benchmark.source.where}: {what} took {factor:.3g} times as long as predicted, but"
        f" corrections range from {1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}. The benchmark"
        " probably ran another GPU, page, mode or weight type than the prediction, several GPUs, a"
        " prompt cache, or a server that had not warmed up"
    )


def check_engine(benchmark: ServerBenchmark, server: str) -> None:
    """Raise BenchmarkError if a file names an engine other than `server`."""
    engine = benchmark.engine
    if engine is None or engine == _family(server):
        return
    fitting = [name for name in SERVERS if _family(name) == engine]
    right = f"give server={fitting[0]}" if fitting else f"known engines: {', '.join(SERVERS)}"
    raise BenchmarkError(
        f"{benchmark.source.where}: the engine was {shown(engine)}, not {server}; {right}",
        arguments=["server"],
    )


def server_of(benchmark: ServerBenchmark, default: str) -> str:
    """The serving engine if the user named none: the file's, or the default."""
    is_other = benchmark.engine in SERVERS and benchmark.engine != _family(default)
    return benchmark.engine if is_other and benchmark.engine is not None else default


def _family(server: str) -> str:
    return server.split("-")[0]


def version_of(benchmark: ServerBenchmark, given: str | None) -> str:
    """The server's version, from the file or given; `UNKNOWN_VERSION` if neither has it.

    Raises:
        BenchmarkError: The two differ, or the given one is not a version.
    """
    if given is None:
        return benchmark.version or UNKNOWN_VERSION
    if not _VERSION.fullmatch(given):
        raise BenchmarkError(
            f"server_version {given!r} is not a version; give one like 0.11.0",
            arguments=["server_version"],
        )
    if benchmark.version not in (None, given):
        raise BenchmarkError(
            f"{benchmark.source.where}: the engine's version was {benchmark.version}, not"
            f" server_version {given}; leave server_version out",
            arguments=["server_version"],
        )
    return given


def check_model(
    benchmark: ServerBenchmark, architecture: Architecture, *, is_given: bool
) -> str | None:
    """Check that a benchmark measured a model.

    Args:
        benchmark: The benchmark.
        architecture: The model's architecture.
        is_given: Whether the user named the model, so that an unrecognized name in the file is
            accepted.

    Returns:
        A note for the reader; None if the file names this model.

    Raises:
        BenchmarkError: Another model ran, or the name is not recognized.
    """
    name, title = benchmark.model, architecture.title
    if name is None:
        return f"the file does not name the model; assumed to be {title}"
    found = _architecture_called(name)
    if found == architecture.name:
        return None
    where = f"{benchmark.source.where}: the model is {shown(name)}"
    if found is not None:
        raise BenchmarkError(
            f"{where}, not {title}; give architecture={found}", arguments=["architecture"]
        )
    if is_given:
        return f"the file calls the model {shown(name)}; assumed to be {title}"
    raise BenchmarkError(
        f"{where}, which is unknown (known are {', '.join(ARCHITECTURES)}); if it is a copy of"
        f" {title}, give architecture={architecture.name}",
        arguments=["architecture"],
    )


def _architecture_called(name: str) -> str | None:
    """The architecture in a model's name: deepseek-ai/DeepSeek-OCR-2, /models/deepseek_ocr2_fp8."""
    parts = [part for part in PurePosixPath(name.lower()).parts if part.startswith("models--")]
    text = " ".join([*parts, PurePosixPath(name.lower()).name])
    for known in sorted(ARCHITECTURES, key=len, reverse=True):
        words = r"[-_. ]*".join(re.escape(word) for word in known.split("-"))
        if re.search(rf"(?<![a-z0-9]){words}(?![0-9])", text):
            return known
    return None
