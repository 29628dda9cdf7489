"""Published pages against the prediction under the same assumptions.

    python benchmarks/bench_published.py [--sentence]

DeepSeek-OCR: its README (about 2,500 tokens/s, PDF, one A100 40 GB, vLLM) and its paper (more
than 200,000 pages a day on one A100 40 GB, so 2.31 pages/s; about 1,080 tokens a page).

Taken over from the published script (run_dpsk_ocr_pdf.py and config.py at commit e4ac34e): vLLM
0.8.5 with its V0 engine, CUDA graphs, at most 100 sequences, a Python processor against repeated
n-grams per sequence, pages rendered at 144 dpi and cut into tiles (base size 1024, image size 640),
and phases that follow one another: all pages are rendered, each by way of a PNG; all are made into
tensors; only then the GPU starts. CPU milliseconds per page, none of them fitted to the result:

    10.9  rendering (PyMuPDF, pdfboss pull 91: 91.9 pages/s)
    57.5  writing a page of text of 1191 x 1684 pixels as PNG (Pillow 13, one thread of an EPYC)
    26.8  reading it back (the same)
    and the preprocessing as this program estimates it

The prediction of the GPU's phase alone is printed besides; nobody published what it took.

Unlimited-OCR: one request under SGLang on an H100, with 527 new tokens, in two modes (sglang pull
29186). The page is not stated: A4 at 150 dpi is assumed. `Host.cpu_factor` was chosen with these
rows in view.

Jina OCR, which is DeepSeek-OCR with other weights, under SGLang on an RTX PRO 6000 (sglang pull
40112): seven pages at three sizes in turn, 1, 4 and 16 at a time, streamed; of the largest size,
16 at a time is not at hand. Predicted is a steady state. Of 56 requests with 16 at a time, 16 are
sent at once, so that their first tokens come late: these are printed, and have no limit. Nothing
was fitted to this grid; why 16 at a time were too slow led to what SGLang hashes (docs/seconds.md).

DeepSeek-OCR-2's decoder under SGLang on an H200, with text prompts (sglang's
docs_new/cookbook/autoregressive/DeepSeek/DeepSeek-OCR-2.mdx): time per token of one at a time, and
the median with 100 at a time, of which 87 run on average. The latter has no limit: an MI300X took
as long under the same load (4.62 ms, DeepSeek-OCR.mdx), so something beside the GPU sets the pace,
such as the streaming of 19,000 tokens a second, which is not predicted.

DeepSeek-OCR's own code on an RTX 5090 (github.com/CodeGandee/llm-perf-opt, reports/20251107-dsocr/
nsys): the GPU's kernels by Nsight Systems, of one page with six local views and of 64 tokens, and
the time of a token over 20 pages where the profiler had stopped early, in 3 runs. It runs under
autocast, whose casts are not predicted; the page is taken for A4 at 150 dpi. Products with one row
run in cuBLAS's `gemv`, which is faster than in the tables.

Exits with 1 where a prediction misses its limit. `--sentence` prints what docs/pricing.md says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from statistics import median
from typing import TypeAlias

from conditions import print_environment

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import BFLOAT16
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths, estimated_preprocessing
from dsocr_analyze.timing.kernel_seconds import kernel_seconds
from dsocr_analyze.timing.predict import predict, times_of
from dsocr_analyze.timing.runtimes import EAGER, SERVERS
from dsocr_analyze.timing.serving import ServedModel, TimedModel
from dsocr_analyze.workload import parse_page

SGLANG_TOKENS = 527
SGLANG = {"tiny": (0.068, 0.69), "base": (0.110, 0.75)}
"""Seconds to the first token, and of the page, by mode."""
SGLANG_LIMITS = {"first token": 0.35, "page": 0.15}
Figures: TypeAlias = tuple[float, float, float]
GRID_FIGURES = ("pages/s", "ms a token", "first token s")
GRID: dict[tuple[int, int], tuple[int, dict[int, Figures]]] = {
    (612, 792): (640, {1: (0.91, 1.35, 0.24), 4: (2.07, 2.51, 0.25), 16: (4.24, 4.87, 0.33)}),
    (850, 1100): (638, {1: (0.95, 1.33, 0.20), 4: (2.18, 2.49, 0.17), 16: (4.23, 4.93, 0.33)}),
    (1275, 1650): (612, {1: (0.97, 1.32, 0.24), 4: (2.22, 2.46, 0.20)}),
}
"""By page in pixels: tokens, and these figures by pages at a time."""
GRID_LIMITS = (0.08, 0.20, 0.35)
"""Of `grid_errors`."""
PROFILED = {"sam, local views": 21.90, "clip, local views": 3.42, "prefill pass": 65.69,
            "a token": 2.80}  # fmt: skip
"""Milliseconds of kernels on the RTX 5090."""
PROFILED_LIMITS = {"sam, local views": 0.25, "clip, local views": 0.25, "prefill pass": 0.25}
EAGER_TOKEN = 9.9
"""Milliseconds."""
TEXT = {1: (197, 278, 1.18), 87: (302, 188, 4.64)}
"""By sequences running: mean prompt tokens, new tokens, and milliseconds per token."""
TEXT_LIMIT = 0.08
PUBLISHED = {"pages per second": 200_000 / 86_400, "tokens per second": 2_500.0}
TOKENS, CONCURRENCY, PAGE = 1_080, 100, "a4@144"
PDF_SECONDS = 0.0109 + 0.0575 + 0.0268
LIMIT = 0.25


def said(pages: Iterable[tuple[float, float]]) -> str:
    """Milliseconds to the first token, and seconds of the page."""
    first, whole = zip(*pages, strict=True)
    tokens = " and ".join(f"{1e3 * each:.0f}" for each in first)
    return f"{tokens} ms to the first token, {' and '.join(f'{e:.2f}' for e in whole)} s"


def under_sglang(mode: str) -> tuple[float, float]:
    """Predicted seconds to the first token, and of the page."""
    unlimited = ARCHITECTURES["unlimited-ocr"]
    dimensions = unlimited.forms.dimensions(ModelDirectory.read(unlimited.reference).config)
    model = TimedModel(unlimited, dimensions, BFLOAT16, False, device("h100-sxm"))
    sizes = unlimited.modes[mode]
    page = unlimited.plan(
        page=parse_page("a4"), base_size=sizes.base_size, image_size=sizes.image_size,
        crop_mode=sizes.crop_mode, max_new_tokens=SGLANG_TOKENS,
    )  # fmt: skip
    found = predict(model, page, Assumptions(SERVERS["sglang"]))
    return found.ttft_seconds, found.page_seconds


def served_grid() -> Iterator[tuple[tuple[int, int, int], Figures, Figures]]:
    """Each row of the grid, by page and pages at a time, as published and as predicted."""
    dimensions = DEFAULT.forms.dimensions(ModelDirectory.read(DEFAULT.reference).config)
    model = TimedModel(DEFAULT, dimensions, BFLOAT16, False, device("rtx-pro-6000"))
    for (width, height), (tokens, measured) in GRID.items():
        page = DEFAULT.plan(page=(width, height), max_new_tokens=tokens)
        found = predict(model, page, Assumptions(SERVERS["sglang"]), [*measured])
        for load in found.throughput:
            figures = load.pages_per_second, 1e3 * load.tpot_seconds, load.ttft_seconds
            yield (width, height, load.concurrency), measured[load.concurrency], figures


def profiled() -> tuple[dict[str, float], float]:
    """Predicted milliseconds of kernels of the model's own code, and of a token with launches."""
    dimensions = DEFAULT.forms.dimensions(ModelDirectory.read(DEFAULT.reference).config)
    model = TimedModel(DEFAULT, dimensions, BFLOAT16, True, device("rtx-5090"))
    page = DEFAULT.plan(page=parse_page("a4"), max_new_tokens=64)
    local, _ = page.views
    views = DEFAULT.forms.served.views(local, dimensions, BFLOAT16)
    alone = times_of(model, page, Assumptions(EAGER)).alone
    *prefill, step = (sum(each.kinds.values()) for each in alone.stages.values())
    seconds = {
        f"{stage}, local views": kernel_seconds(views[stage], model.device).duration().seconds
        for stage in ("sam", "clip")
    } | {"prefill pass": sum(prefill), "a token": step}
    token = alone.decode.seconds / (page.max_new_tokens - 1)
    return {name: 1e3 * float(each) for name, each in seconds.items()}, 1e3 * float(token)


def text_prompts(running: int) -> float:
    """Predicted milliseconds per token of text alone."""
    model = ARCHITECTURES["deepseek-ocr-2"]
    dimensions = model.forms.dimensions(ModelDirectory.read(model.reference).config)
    timed = TimedModel(model, dimensions, BFLOAT16, False, device("h200-sxm"))
    prompt, new, _ = TEXT[running]
    served = ServedModel(timed, SERVERS["sglang"])
    return 1e3 * float(served.step(running, prompt + new // 2).seconds)


def print_profiled() -> int:
    """Print the profile beside its prediction; returns how many limits are missed."""
    kernels, token = profiled()
    missed = 0
    for name, theirs in PROFILED.items():
        error, most = kernels[name] / theirs - 1, PROFILED_LIMITS.get(name)
        missed += most is not None and abs(error) > most
        limit = "no limit" if most is None else f"at most {most:.0%}"
        print(
            f"eager, rtx-5090, kernels of {name:17} profiled {theirs:5.2f} ms, predicted"
            f" {kernels[name]:5.2f}  {error:+.1%}  ({limit})"
        )
    print(
        f"eager, rtx-5090, a token: measured {EAGER_TOKEN:.1f} ms, predicted {token:.1f}"
        f"  {token / EAGER_TOKEN - 1:+.1%}  (no limit: launches depend on the CPU)"
    )
    return missed


def print_text() -> int:
    """The same of text prompts."""
    missed = 0
    for running, (*_, theirs) in TEXT.items():
        error = text_prompts(running) / theirs - 1
        missed += running == 1 and abs(error) > TEXT_LIMIT
        limit = f"at most {TEXT_LIMIT:.0%}" if running == 1 else "no limit"
        print(
            f"deepseek-ocr-2, text, {running:2} running: published {theirs:.2f} ms a token,"
            f" predicted {text_prompts(running):.2f}  {error:+.1%}  ({limit})"
        )
    return missed


def grid_errors() -> tuple[float, float, float]:
    """Of pages/s and times per token the median and the worst; the worst limited first token."""
    steady, first = [], []
    for (*_, at_a_time), published, found in served_grid():
        pairs = zip(found, published, strict=True)
        *loop, token = (abs(ours / theirs - 1) for ours, theirs in pairs)
        steady += loop
        if at_a_time < 16:
            first.append(token)
    return median(steady), max(steady), max(first)


def main() -> int:
    print_environment()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentence", action="store_true")
    is_sentence = parser.parse_args().sentence
    workload = DEFAULT.plan(page=parse_page(PAGE))
    dimensions = DEFAULT.forms.dimensions(ModelDirectory.read(DEFAULT.reference).config)
    model = TimedModel(DEFAULT, dimensions, BFLOAT16, False, device("a100-40gb"))
    cpu_seconds = PDF_SECONDS + estimated_preprocessing(DEFAULT, workload)

    lengths = OutputLengths.fixed(TOKENS)

    def predicted(seconds: float) -> dict[str, float]:
        assumptions = Assumptions(SERVERS["vllm-v0"], lambda _: lengths, seconds, is_offline=True)
        [load] = predict(model, workload, assumptions, [CONCURRENCY]).throughput
        rates = load.pages_per_second, load.tokens_per_second
        return dict(zip(PUBLISHED, rates, strict=True))

    missed = 0
    whole = predicted(cpu_seconds)
    if is_sentence:
        published, found = (each["pages per second"] for each in (PUBLISHED, whole))
        middle, worst, first = grid_errors()
        kernels, token = profiled()
        print(
            f"Published for one A100 40 GB: {published:.2f} pages/s. Predicted under the script's"
            f" own assumptions, its CPU phases among them: {found:.2f}. Published for Unlimited-OCR"
            f" on one H100 under SGLang, in modes {' and '.join(SGLANG)}:"
            f" {said(SGLANG.values())} per page. Predicted for A4 pages:"
            f" {said(map(under_sglang, SGLANG))}; the CPU's share was chosen with these in view."
            " Published for Jina OCR, the same network, under SGLang on an RTX PRO 6000, with 1 to"
            " 16 pages at a time: predicted pages/s and times per token are"
            f" {100 * middle:.0f} % off in the median and {100 * worst:.0f} % at most, and first"
            f" tokens of up to 4 pages {100 * first:.0f} %. Published for text prompts on"
            f" DeepSeek-OCR-2 under SGLang on an H200, one at a time: {TEXT[1][-1]:.2f} ms a token;"
            f" predicted: {text_prompts(1):.2f}. A profile of the model's own code on an RTX 5090:"
            f" kernels of the prefill pass {PROFILED['prefill pass']:.1f} ms, of SAM's six local"
            f" views {PROFILED['sam, local views']:.1f}, and {EAGER_TOKEN:.1f} ms a token;"
            f" predicted: {kernels['prefill pass']:.1f}, {kernels['sam, local views']:.1f} and"
            f" {token:.1f} (`benchmarks/bench_published.py`)."
        )
        return 0
    gpu_alone = predicted(0.0)
    print(f"{1e3 * cpu_seconds:.1f} ms of CPU per page before the GPU starts")
    for name, published in PUBLISHED.items():
        error = whole[name] / published - 1
        missed += abs(error) > LIMIT
        print(
            f"{name:18} published {published:8.2f}  predicted {whole[name]:8.2f}  {error:+.1%}"
            f"  (at most {LIMIT:.0%})  GPU's phase alone {gpu_alone[name]:8.2f}"
        )
    for mode, published in SGLANG.items():
        for (name, limit), theirs, ours in zip(
            SGLANG_LIMITS.items(), published, under_sglang(mode), strict=True
        ):
            missed += abs(ours / theirs - 1) > limit
            print(
                f"unlimited-ocr {mode} {name:11} published {1e3 * theirs:7.0f} ms  predicted"
                f" {1e3 * ours:7.0f}  {ours / theirs - 1:+.1%}  (at most {limit:.0%})"
            )
    for (width, height, at_a_time), published, found in served_grid():
        told = "".join(
            f"  {name} {theirs:5.2f} {ours:5.2f} {ours / theirs - 1:+4.0%}"
            for name, theirs, ours in zip(GRID_FIGURES, published, found, strict=True)
        )
        print(f"jina-ocr {width:4} x {height:4}, {at_a_time:2} at a time{told}")
    for name, error, limit in zip(
        ("pages/s and ms a token, median", "worst", "first token, 1 and 4 at a time, worst"),
        grid_errors(), GRID_LIMITS, strict=True,
    ):  # fmt: skip
        missed += error > limit
        print(f"jina-ocr {name}: {error:.1%} off (at most {limit:.0%})")
    missed += print_profiled() + print_text()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
