"""Computed parts of docs/seconds.md: fusions, one page worked through, errors and hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family.fusions import FUSIONS
from dsocr_analyze.documents.tables import table
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.hardware.profile import all_profiles
from dsocr_analyze.hardware.timed_device import device
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.report.quantities import bytes_text
from dsocr_analyze.report.time_tables import seconds_text
from dsocr_analyze.timing.assumptions import Assumptions, estimated_preprocessing
from dsocr_analyze.timing.kernel_seconds import kernel_seconds
from dsocr_analyze.timing.output_lengths import OutputLengths
from dsocr_analyze.timing.predict import TimedModel, predict
from dsocr_analyze.timing.runtimes import EAGER, SERVERS
from dsocr_analyze.timing.serving import ServedModel

if TYPE_CHECKING:
    from dsocr_analyze.hardware.profile import Fitted
    from dsocr_analyze.timing.prediction import PagePrediction
    from dsocr_analyze.timing.runtimes import Host
    from dsocr_analyze.workload import Workload

__all__ = ["BLOCKS"]

_GPU: Final = "h100-sxm"
_PAGE: Final = (1240, 1754)
_TOKENS: Final = 1024
_KINDS: Final = {
    "gemm": "GEMM",
    "encoder_attention": "encoder attention",
    "context_attention": "context attention",
    "generation_attention": "generation attention",
    "experts": "grouped experts",
}


@cache
def _served() -> ServedModel:
    return ServedModel(DEFAULT, _dimensions(), BFLOAT16, device(_GPU), SERVERS["vllm"])


def _dimensions() -> Any:
    return ModelDirectory.read(DEFAULT.reference).dimensions()


@cache
def _workload() -> Workload:
    planned: Workload = DEFAULT.plan(page=_PAGE, max_new_tokens=_TOKENS)
    return planned


def _prediction(host: Host) -> str:
    """Stages and totals of the page."""
    model = TimedModel(DEFAULT, _dimensions(), BFLOAT16, False, device(_GPU))
    prepared = estimated_preprocessing(DEFAULT, _workload())
    assumptions = Assumptions(host, OutputLengths.fixed(_TOKENS), prepared, True)
    return _stages(predict(model, _workload(), assumptions, (1, 4, 16)))


def _stated() -> str:
    """The page that is worked through."""
    return (
        f"A4 at 150 dpi in the default mode ({_workload().seq_len} prompt tokens, {_TOKENS} new"
        f" tokens), bfloat16, {device(_GPU).gpu.title}."
    )


def _step() -> str:
    return _kernels(_served().step_kernels(1, _workload().seq_len + 1))


def _prompt() -> str:
    return _kernels(_served().prompt_kernels(_workload().seq_len, _workload().visual_tokens))


def _fusions() -> str:
    return table(("kernel", "replaces"), ((f"`{name}`", what) for name, what in FUSIONS.items()))


def _hosts() -> str:
    header = ("server", "what it is", "per step", "per sequence", "source")
    return table(header, map(_host, SERVERS.values()))


def _kernels(kernels: Sequence[Kernel]) -> str:
    """One row per kernel, and their sum."""
    priced = kernel_seconds(kernels, device(_GPU))
    rows = []
    for number, kernel in enumerate(kernels):
        seconds = float(priced.seconds[number, 0])
        sizes = ", ".join(
            f"{name} {value}" for name, value in kernel.dimensions._asdict().items()
            if name not in ("masked", "skippable_scores")
        )  # fmt: skip
        rows.append(
            (f"`{kernel.operator}`", sizes, str(kernel.calls), seconds_text(seconds),
             seconds_text(kernel.calls * seconds),
             "memory" if priced.is_memory[number, 0] else "compute")
        )  # fmt: skip
    total = seconds_text(float(priced.total[0]))
    rows.append(("all", "", str(sum(each.calls for each in kernels)), "", total, ""))
    return table(("kernel", "sizes", "calls", "each", "together", "bound"), rows)


def _stages(prediction: PagePrediction) -> str:
    rows: list[tuple[str, ...]] = [
        (name, seconds_text(float(span.seconds)), f"{seconds_text(span.low)} to"
         f" {seconds_text(span.high)}", span.bound, bytes_text(round(float(span.nbytes))))
        for name, span in prediction.stages.items()
    ]  # fmt: skip
    figures = {
        "first token, preprocessing included": prediction.ttft_seconds,
        "each token after it": prediction.tpot_seconds,
        "page": prediction.page_seconds,
    }
    for label, band in figures.items():
        if band is not None:
            spread = f"{seconds_text(band.low)} to {seconds_text(band.high)}"
            rows.append((label, seconds_text(band.value), spread, "", ""))
    loads = ", ".join(
        f"{load.pages_per_second.value:.3g} pages/s with {load.concurrency} at once"
        for load in prediction.throughput
    )
    stages = table(("stage", "time", "band", "bound", "bytes"), rows)
    return f"{stages}\n\nThroughput: {loads}."


def _errors() -> str:
    """One row per GPU with a measured kind; extrapolated kinds are left out."""
    rows = []
    for name, profile in all_profiles().items():
        if not profile.extrapolated:
            rows.append((name, *(_error(profile.fitted, kind) for kind in _KINDS)))
    return table(("GPU", *_KINDS.values()), rows)


def _error(fitted: Mapping[tuple[str, str], Fitted], kind: str) -> str:
    found = fitted.get((kind, "bfloat16"))
    if found is None or found.extrapolated:
        return "-"
    return f"{100 * found.median:.1f} / {100 * found.p90:.0f}"


def _host(host: Host) -> tuple[str, ...]:
    step = f"{host.step_us:g} us, {host.hidden_step_us:g} us overlapped"
    sequence = f"{host.sequence_us:g} us, {host.hidden_sequence_us:g} us overlapped"
    return f"`{host.name}`", host.title, step, sequence, host.source


BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "seconds-page": _stated,
    "seconds-step": _step,
    "seconds-prompt": _prompt,
    "seconds-serving": lambda: _prediction(SERVERS["vllm"]),
    "seconds-eager": lambda: _prediction(EAGER),
    "seconds-errors": _errors,
    "fusions": _fusions,
    "hosts": _hosts,
}
