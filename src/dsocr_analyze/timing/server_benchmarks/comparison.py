"""Compare a benchmark with its prediction, and derive the correction."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, Final

from msgspec import Meta, Struct

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.errors import BenchmarkError, chosen
from dsocr_analyze.timing import TimeEntry
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths, estimated_preprocessing
from dsocr_analyze.timing.correction import (
    LARGEST_FACTOR,
    NO_CORRECTIONS,
    UNKNOWN_VERSION,
    Corrections,
    KeptBenchmark,
    basis_of,
)
from dsocr_analyze.timing.predict import TimeRequest, predict
from dsocr_analyze.timing.runtimes import SERVERS
from dsocr_analyze.timing.server_benchmarks.reading import ServerBenchmark, shown
from dsocr_analyze.timing.serving import TimedModel
from dsocr_analyze.workload import PageWorkload

Positive = Annotated[float, Meta(gt=0)]

_PROMPT_TOLERANCE: Final = 1.2


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
class Comparison:
    """A benchmark beside the prediction of its load; lengths of the job are not used."""

    benchmark: ServerBenchmark
    model: TimedModel
    workload: PageWorkload
    job: Assumptions

    def _predicted(self, corrections: Corrections) -> TimeEntry:
        mean = self.benchmark.means["new_tokens"]
        lengths = OutputLengths.mean_and_limit(mean, math.floor(mean) + 2, 0.0)
        job = replace(self.job, lengths=lambda _: lengths, corrections=corrections)
        return predict(self.model, self.workload, job, (self.benchmark.concurrency,))

    @cached_property
    def _figures(self) -> Mapping[str, float]:
        return _figures(self._predicted(NO_CORRECTIONS))

    def kept(self, version: str, when: str) -> KeptBenchmark:
        """The record to store for the benchmark of a server's version, at a time.

        Raises:
            BenchmarkError: It is too far from its prediction to have measured the same.
        """
        first_token, per_token = self._factors()
        benchmark, device, host = self.benchmark, self.model.device, self.job.host
        what = (device.gpu.name, host.name, version, self.model.architecture.name)
        return KeptBenchmark(
            id=hashlib.sha256("\n".join((*what, benchmark.digest)).encode()).hexdigest()[:16],
            gpu=device.gpu.name,
            server=host.name,
            version=version,
            architecture=self.model.architecture.name,
            basis=basis_of(device, host),
            first_token=first_token,
            per_token=per_token,
            requests=benchmark.requests,
            concurrency=benchmark.concurrency,
            file=benchmark.file,
            kept=when,
        )

    def _factors(self) -> tuple[float, float]:
        measured = {**self.benchmark.means, "request_seconds": self.benchmark.request_seconds}
        tokens = {"ttft_seconds": "the first token", "tpot_seconds": "a token after the first"}
        parts = tokens if self.benchmark.steady else {"request_seconds": "a request"}
        factors = [measured[each] / self._figures[each] for each in parts]
        for what, factor in zip(parts.values(), factors, strict=True):
            if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
                raise BenchmarkError(
                    f"{self.benchmark.where}: {what} took {factor:.3g} times as long as predicted,"
                    f" but corrections range from {1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}. The"
                    " benchmark probably ran another GPU, page, mode or weight type than the"
                    " prediction, several GPUs, a prompt cache, or a server that had not warmed up"
                )
        return factors[0], factors[-1]

    def entry(self, kept: KeptBenchmark, corrections: Corrections) -> BenchmarkEntry:
        """The benchmark and its predictions, without and with corrections."""
        benchmark, corrected = self.benchmark, self._predicted(corrections)
        predicted, better, means = self._figures, _figures(corrected), benchmark.means
        doubts, tokens = benchmark.doubts(), means.get("prompt_tokens")
        # Some programs do not count visual tokens, so too few tokens prove nothing.
        if tokens is not None and tokens > _PROMPT_TOLERANCE * self.workload.seq_len:
            doubts.append(
                f"a request had {tokens:,.0f} tokens on average, but the predicted page has"
                f" {self.workload.seq_len:,}; predict the page, mode and prompt that were measured"
            )
        if benchmark.quantization is not None and self.job.precision.weights is None:
            doubts.append(
                f"the server's weights were quantized ({shown(benchmark.quantization)}), but the"
                " predicted ones are not; predict the type that was measured"
            )
        rate = self.workload.prompt_pages * means["requests_per_second"]
        measured = {"pages_per_second": rate, **means}
        said = ("file", "program", "date", "model", "requests", "failed", "concurrency", "steady")
        return BenchmarkEntry(
            **{name: getattr(benchmark, name) for name in said},
            gpu=kept.gpu,
            server=kept.server,
            server_version=kept.version,
            prompt_tokens=tokens,
            new_tokens=means["new_tokens"],
            first_token=kept.first_token,
            per_token=kept.per_token,
            figures=tuple(
                BenchmarkFigure(
                    name=name,
                    predicted=value,
                    measured=measured[name],
                    error=value / measured[name] - 1,
                    corrected=better[name],
                    corrected_error=better[name] / measured[name] - 1,
                )
                for name, value in predicted.items() if name in measured
            ),
            doubts=tuple(doubts),
            time=corrected,
        )  # fmt: skip


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


def measured_server(
    benchmarks: Sequence[ServerBenchmark], server: str, version: str | None, *, is_given: bool
) -> tuple[str, str]:
    """The serving engine that was measured, and its version, from the files or given.

    Without a given server it is the first file's, or `server`; without any version it is
    `UNKNOWN_VERSION`.

    Raises:
        BenchmarkError: A file names another server or version, or the version is none.
    """
    named = benchmarks[0].engine
    is_other = not is_given and named in SERVERS and named != _family(server)
    server = chosen("server", str(named) if is_other else server, SERVERS)
    if version is not None and not re.fullmatch(r"[\w.+-]{1,64}", version, re.ASCII):
        raise BenchmarkError(
            f"server_version {version!r} is not a version; give one like 0.11.0",
            arguments=["server_version"],
        )
    for each in benchmarks:
        fitting = next((name for name in SERVERS if _family(name) == each.engine), None)
        right = f"give server={fitting}" if fitting else f"known engines: {', '.join(SERVERS)}"
        if each.engine not in (None, _family(server)):
            raise BenchmarkError(
                f"{each.where}: the engine was {shown(each.engine)}, not {server}; {right}",
                arguments=["server"],
            )
        if version is not None and each.version not in (None, version):
            raise BenchmarkError(
                f"{each.where}: the engine's version was {each.version}, not server_version"
                f" {version}; leave server_version out",
                arguments=["server_version"],
            )
    versions = [version or each.version for each in benchmarks if each.is_served]
    found, *others = dict.fromkeys(each or UNKNOWN_VERSION for each in versions or [version])
    if others:
        raise BenchmarkError(
            f"the benchmarks are of several versions ({', '.join([found, *others])}); give those"
            " of one version at a time, and server_version for files that do not contain it",
            arguments=["server_version"],
        )
    return server, found


def _family(server: str) -> str:
    return server.split("-")[0]


def with_preprocessing(
    request: TimeRequest,
    benchmarks: Sequence[ServerBenchmark],
    architecture: Architecture,
    workload: PageWorkload,
) -> TimeRequest:
    """A request with the CPU's seconds per page that a benchmark measured, if one did.

    Raises:
        BenchmarkError: Several did.
    """
    measured = [each for each in benchmarks if not each.is_served]
    if len(measured) > 1:
        raise BenchmarkError(
            f"{' and '.join(each.where for each in measured)} all measure preprocessing; give one"
        )
    for each in measured:
        seconds = each.means["preprocess_seconds"]
        expected = estimated_preprocessing(architecture, workload)
        is_far = not 1 / LARGEST_FACTOR <= seconds / expected <= LARGEST_FACTOR
        check = ", so check that the requests were this page" if is_far else ""
        origin = "; ".join((
            f"measured by {each.program} over {each.requests:,} requests, {each.file}",
            f"the same work is estimated at {1e3 * expected:.1f} ms{check}", *each.doubts(),
        ))  # fmt: skip
        request = replace(request, jobs=[
            replace(
                job, preprocess_seconds=seconds / workload.prompt_pages, preprocess_origin=origin
            )
            for job in request.jobs
        ])  # fmt: skip
    return request


def of_model(
    benchmark: ServerBenchmark, architecture: Architecture, *, is_given: bool
) -> ServerBenchmark:
    """A benchmark with a note if its file does not name the architecture.

    A name that is not recognized is accepted if the user named the model.

    Raises:
        BenchmarkError: Another model ran, or the name is not recognized.
    """
    name, title = benchmark.model, architecture.title
    found = None if name is None else _architecture_called(name)
    if found == architecture.name:
        return benchmark
    where = f"{benchmark.where}: the model is {shown(name)}"
    if found is not None:
        raise BenchmarkError(
            f"{where}, not {title}; give architecture={found}", arguments=["architecture"]
        )
    if name is not None and not is_given:
        raise BenchmarkError(
            f"{where}, which is unknown (known are {', '.join(ARCHITECTURES)}); if it is a copy of"
            f" {title}, give architecture={architecture.name}",
            arguments=["architecture"],
        )
    said = "does not name the model" if name is None else f"calls the model {shown(name)}"
    return replace(benchmark, note=f"the file {said}; assumed to be {title}")


def _architecture_called(name: str) -> str | None:
    """The architecture in a model's name: deepseek-ai/DeepSeek-OCR-2, /models/deepseek_ocr2_fp8."""
    parts = PurePosixPath(name.lower()).parts
    text = " ".join([*(part for part in parts if part.startswith("models--")), *parts[-1:]])
    longest_first = {
        each: r"[-_. ]*".join(map(re.escape, each.split("-")))
        for each in sorted(ARCHITECTURES, key=len, reverse=True)
    }
    found = (
        each for each, words in longest_first.items()
        if re.search(rf"(?<![a-z0-9]){words}(?![0-9])", text)
    )  # fmt: skip
    return next(found, None)
