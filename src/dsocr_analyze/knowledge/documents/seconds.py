"""docs/seconds.md: how seconds are predicted, one page worked through, and the errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family.fusions import FUSIONS
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.hardware.profile import all_profiles
from dsocr_analyze.hardware.timed_device import Device, device
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.knowledge.machinery.render import table
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

__all__ = ["seconds_page"]

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

_METHOD: Final = """\
# Predicted seconds

`dsocr-analyze time`, `--gpu` and `dsocr_analyze.hardware.device` predict times without running
anything. A prediction is made in five steps.

1. **Kernels.** Under `eager`, every kernel record of the count is launched, as in the model's own
   code; the trace and the closed forms give the same list. Under `serving`, the encoders stay as
   they are, and the decoder consists of fused kernels, with one rule for each (below).
2. **Seconds of a kernel.** There is one formula per kind (`hardware/kernel_times/`), with at most
   20 coefficients per GPU and dtype, fitted to measured kernels. A matrix product takes the time of
   the fastest of several tile shapes, in waves over the SMs, overlapped with its bytes over the
   bandwidth; attention and experts are similar. Elementwise kernels take their bytes over the
   bandwidth, plus the time of the shortest kernel. Weights always come from device memory; a step
   touches the expected number of experts, `E (1 - (1 - k/E)^tokens)`. No kernel takes less than its
   necessary FLOPs at the peak, or than its bytes at the bandwidth of device memory, except for
   bytes that L2 may still hold. `of peak` and `of bandwidth` are these two limits over the predicted
   seconds: what L2 serves is no part of them.
3. **One stream.** A kernel starts when the host has issued it and the previous one has ended. Under
   `eager`, every launch costs host time, and whenever the host waits for a value, the GPU runs dry;
   inside a CUDA graph, launches cost nothing.
4. **Many pages.** Under `serving`, a closed loop of C clients: each page is prepared on the CPU,
   waits for its prefill pass, and is decoded together with the others; a prefill pass runs between
   decode steps and advances them by one token. The throughput X is the one at which C pages take
   C / X seconds. A page alone is this loop with one client, and a decode step is that of the mean
   length. Under `eager`, a batch is filled and runs until its longest page has ended.
5. **The band.** Each kind has the 90th percentile of its error on sizes that the fit never saw.
   Errors of the same kind add up, those of different kinds are independent; the host's error is
   assumed to be 50 %. If a kind was not measured on a GPU, the coefficients of another GPU are used
   with this GPU's own peaks, and the error is doubled ("extrapolated").

Not included: the network, PDF rendering, sampling beyond the largest logit, and other jobs on the
machine.

## Comparison with measurements

`dsocr-analyze calibrate` measures the local device and writes a profile of it. A GPU's profile has the
coefficients of the formulas above, and the host's times. A CPU has no separate host, so its time is a
plain sum: each kernel's time is a sum of sizes times coefficients (for a product, the
multiply-accumulates, split by its number of rows, its inputs, outputs and weights; for any other
operator, the bytes it reads and writes), fitted by non-negative least squares on relative errors; Python
adds a constant per operator. Every family of kernels states its error on sizes held out of the fit.

A CPU's kernels are measured twice: alone, over many sizes, and within passes of a shallow network with
the published widths, where caches, threads and memory are in the state that the previous kernels left.
From those passes the fastest run of each stage is used, just as `measure` uses the fastest of its
repeats. Rounds of both kinds alternate, so that a disturbance in one is gone in the next. Freed memory
stays with the process meanwhile: with the C library's defaults, every large tensor would be returned to
the system and mapped again page by page, which takes up to half of a pass and depends on what the
machine did before.

Before it begins, `calibrate` states on stderr the time and the memory that it takes, and it keeps both
on any machine. The time is that of `--seconds` (300 by default): rounds are repeated until it is used
up, on a slow or busy machine each covers fewer sizes, and a pass that is still running at the end is
given up; if even so too little was measured, it says so. On a CPU, the process takes at most 3.2 GB, or
1.1 GB with less than 90 s, which is too little for passes; calls too long for the time are left out. On
a GPU the time is an upper bound, since there the kernels to measure may be done earlier, and tensors are
held to a share of the stated 6 GB of its memory. Where the machine, a control group or a limit of the
process leaves less memory than stated, one line says so and the exit code is 2. While it runs, a line
every ten seconds says what is being measured, or a live line on a terminal.

`dsocr-analyze measure` runs the real passes and compares them with that prediction, and
`time --from-benchmark` reads a server's own benchmark: it multiplies the time to the first token and
the time per later token by measured over predicted time, and states this in every later output.
"""


def seconds_page() -> str:
    """The page as Markdown; every figure on it is computed here."""
    workload = DEFAULT.plan(page=_PAGE, max_new_tokens=_TOKENS)
    dimensions = DEFAULT.forms.dimensions(ModelDirectory.read(DEFAULT.reference).config)
    gpu = device(_GPU)
    model = TimedModel(DEFAULT, dimensions, BFLOAT16, False, gpu)
    prepared = estimated_preprocessing(DEFAULT, workload)

    def predicted(host: Host) -> PagePrediction:
        assumptions = Assumptions(host, OutputLengths.fixed(_TOKENS), prepared, True)
        return predict(model, workload, assumptions, (1, 4, 16))

    served = ServedModel(DEFAULT, dimensions, BFLOAT16, gpu, SERVERS["vllm"])
    parts = [
        _METHOD.strip(),
        "## Fusions of the serving engines",
        table(("kernel", "replaces"),
              ((f"`{operator}`", what) for operator, what in FUSIONS.items())),
        f"## One page worked through\n\nA4 at 150 dpi in the default mode ({workload.seq_len} prompt"
        f" tokens, {_TOKENS} new tokens), bfloat16, {gpu.gpu.title}, `serving`."
        f"\n\nOne decode step of one sequence over {workload.seq_len + 1} keys:",
        _kernels(served.step_kernels(1, workload.seq_len + 1), gpu),
        "The prompt through the decoder:",
        _kernels(served.prompt_kernels(workload.seq_len, workload.visual_tokens), gpu),
        "The stages, and the page:",
        _stages(predicted(SERVERS["vllm"])),
        "The same page under `eager`:",
        _stages(predicted(EAGER)),
        "## Errors on sizes held out of the fit",
        "Median / 90th percentile in percent, bfloat16, over whole groups of sizes held out of the fit.",
        _errors(),
        "## Hosts",
        table(("server", "what it is", "per step", "per sequence", "source"), map(_host, SERVERS.values())),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _kernels(kernels: Sequence[Kernel], gpu: Device) -> str:
    """One row per kernel, and their sum."""
    priced = kernel_seconds(kernels, gpu)
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
