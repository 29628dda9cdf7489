"""Compare a benchmark with its prediction, and derive the correction."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.errors import BenchmarkError
from dsocr_analyze.timing import TimeEntry
from dsocr_analyze.timing.assumptions import OutputLengths
from dsocr_analyze.timing.correction import (
    LARGEST_FACTOR,
    NO_CORRECTIONS,
    UNKNOWN_VERSION,
    Corrections,
    KeptBenchmark,
    basis_of,
)
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import SERVERS
from dsocr_analyze.timing.server_benchmarks.reading import ServerBenchmark, shown

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.timing.assumptions import Assumptions
    from dsocr_analyze.timing.page_times import TimedModel
    from dsocr_analyze.workload import PageWorkload

__all__ = [
    "BenchmarkEntry",
    "Predictor",
    "check_engine",
    "check_model",
    "server_of",
    "version_of",
]

Positive = Annotated[float, Meta(gt=0)]

_PROMPT_TOLERANCE: Final = 1.2
_VERSION: Final = re.compile(r"[\w.+-]{1,64}", re.ASCII)


class BenchmarkFigure(Struct, frozen=True, kw_only=True):
    """A figure that was predicted and measured.

    Attributes:
        name: Name of the figure.
        predicted: Predicted without correction.
        measured: From the benchmark.
        error: Error of the prediction relative to the measurement.
        corrected: Predicted with the correction from all kept benchmarks, this one included.
        corrected_error: The same for the corrected prediction.
    """

    name: str
    predicted: float
    measured: float
    error: float
    corrected: float
    corrected_error: float


class BenchmarkEntry(Struct, frozen=True, kw_only=True):
    """One benchmark and its prediction.

    Attributes:
        file: Name of the file.
        program: The benchmark program.
        date: As the program wrote it, if it did.
        gpu: Name of the GPU.
        server: Name of the serving engine.
        server_version: Its version; `unknown` if not given.
        model: The model, as the program calls it, if it does.
        requests: Requests that were answered.
        failed: Requests that failed.
        concurrency: Requests in flight.
        steady: Whether every client sent one request after another; if not, the time of the whole
            request corrects predictions.
        prompt_tokens: Mean per request, as the program counts them, if it does.
        new_tokens: Mean tokens generated per request.
        first_token: Factor of correction: measured over predicted time of the first token.
        per_token: The same for each later token.
        figures: Predicted and measured figures.
        doubts: Caveats about the file.
        time: The corrected prediction.
    """

    file: str
    program: str
    date: str | None
    gpu: str
    server: str
    server_version: str
    model: str | None
    requests: int
    failed: int
    concurrency: int
    steady: bool
    prompt_tokens: float | None
    new_tokens: float
    first_token: Positive
    per_token: Positive
    figures: tuple[BenchmarkFigure, ...]
    doubts: tuple[str, ...]
    time: TimeEntry


@dataclass(frozen=True)
class Predictor:
    """Predicts a benchmark's load of these pages; lengths of the job are not used."""

    model: TimedModel
    workload: PageWorkload
    job: Assumptions

    def _prediction(self, benchmark: ServerBenchmark, corrections: Corrections) -> TimeEntry:
        mean = benchmark.new_tokens
        lengths = OutputLengths.mean_and_limit(mean, math.floor(mean) + 2, 0.0)
        job = replace(self.job, lengths=lambda _: lengths, corrections=corrections)
        return predict(self.model, self.workload, job, (benchmark.concurrency,))

    def kept(self, benchmark: ServerBenchmark, version: str, when: str) -> KeptBenchmark:
        """The record to store for a benchmark of a server's version, at a time.

        Raises:
            BenchmarkError: It is too far from its prediction to have measured the same.
        """
        first_token, per_token = self._factors(benchmark)
        device, host = self.model.device, self.job.host
        architecture = self.model.architecture.name
        key = "\n".join((device.gpu.name, host.name, version, architecture, benchmark.digest))
        return KeptBenchmark(
            id=hashlib.sha256(key.encode()).hexdigest()[:16],
            gpu=device.gpu.name,
            server=host.name,
            version=version,
            architecture=architecture,
            basis=basis_of(device, host),
            first_token=first_token,
            per_token=per_token,
            requests=benchmark.requests,
            concurrency=benchmark.concurrency,
            file=benchmark.file,
            kept=when,
        )

    def _factors(self, benchmark: ServerBenchmark) -> tuple[float, float]:
        predicted = _figures(self._prediction(benchmark, NO_CORRECTIONS))
        factors = {"a request": benchmark.request_seconds / predicted["request_seconds"]}
        if benchmark.is_steady:
            factors = {
                "the first token": benchmark.ttft_seconds / predicted["ttft_seconds"],
                "a token after the first": benchmark.tpot_seconds / predicted["tpot_seconds"],
            }
        for what, factor in factors.items():
            if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
                raise BenchmarkError(
                    f"{benchmark.where}: {what} took {factor:.3g} times as long as predicted, but"
                    f" corrections range from {1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}. The"
                    " benchmark probably ran another GPU, page, mode or weight type than the"
                    " prediction, several GPUs, a prompt cache, or a server that had not warmed up"
                )
        values = [*factors.values()]
        return values[0], values[-1]

    def entry(
        self,
        benchmark: ServerBenchmark,
        kept: KeptBenchmark,
        corrections: Corrections,
        note: str | None,
    ) -> BenchmarkEntry:
        """A benchmark and its predictions, without and with corrections; a note on its model."""
        bare, corrected = (
            self._prediction(benchmark, each) for each in (NO_CORRECTIONS, corrections)
        )
        predicted, better = _figures(bare), _figures(corrected)
        doubts, tokens = benchmark.doubts(), benchmark.prompt_tokens
        # Some programs do not count visual tokens, so too few tokens prove nothing.
        if tokens is not None and tokens > _PROMPT_TOLERANCE * self.workload.seq_len:
            doubts.append(
                f"a request had {tokens:,.0f} tokens on average, but the predicted page has"
                f" {self.workload.seq_len:,}; predict the page, mode and prompt that were measured"
            )
        found = {
            "pages_per_second": self.workload.prompt_pages * benchmark.requests_per_second,
            "tokens_per_second": benchmark.tokens_per_second,
            "ttft_seconds": benchmark.ttft_seconds,
            "tpot_seconds": benchmark.tpot_seconds,
            "request_seconds": benchmark.measured_seconds,
        }
        return BenchmarkEntry(
            file=benchmark.file,
            program=benchmark.program,
            date=benchmark.date,
            gpu=kept.gpu,
            server=kept.server,
            server_version=kept.version,
            model=benchmark.model,
            requests=benchmark.requests,
            failed=benchmark.failed,
            concurrency=benchmark.concurrency,
            steady=benchmark.is_steady,
            prompt_tokens=benchmark.prompt_tokens,
            new_tokens=benchmark.new_tokens,
            first_token=kept.first_token,
            per_token=kept.per_token,
            figures=tuple(
                BenchmarkFigure(
                    name=name,
                    predicted=predicted[name],
                    measured=value,
                    error=predicted[name] / value - 1,
                    corrected=better[name],
                    corrected_error=better[name] / value - 1,
                )
                for name, value in found.items()
                if value is not None
            ),
            doubts=(*filter(None, [note]), *doubts),
            time=corrected,
        )


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


def check_engine(benchmark: ServerBenchmark, server: str) -> None:
    """Raise BenchmarkError if a file names an engine other than `server`."""
    engine = benchmark.engine
    if engine is None or engine == _family(server):
        return
    fitting = [name for name in SERVERS if _family(name) == engine]
    right = f"give server={fitting[0]}" if fitting else f"known engines: {', '.join(SERVERS)}"
    raise BenchmarkError(
        f"{benchmark.where}: the engine was {shown(engine)}, not {server}; {right}",
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
            f"{benchmark.where}: the engine's version was {benchmark.version}, not"
            f" server_version {given}; leave server_version out",
            arguments=["server_version"],
        )
    return given


def check_model(
    benchmark: ServerBenchmark, architecture: Architecture, *, is_given: bool
) -> str | None:
    """A note on the model that a benchmark measured; None if its file names this one.

    A name that is not recognized is accepted if the user named the model.

    Raises:
        BenchmarkError: Another model ran, or the name is not recognized.
    """
    name, title = benchmark.model, architecture.title
    if name is None:
        return f"the file does not name the model; assumed to be {title}"
    found = _architecture_called(name)
    if found == architecture.name:
        return None
    where = f"{benchmark.where}: the model is {shown(name)}"
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
