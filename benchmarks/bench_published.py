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

Exits with 1 where a prediction misses its limit. `--sentence` prints what docs/pricing.md says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from conditions import print_environment

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import BFLOAT16
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.assumptions import Assumptions, OutputLengths, estimated_preprocessing
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import server_named
from dsocr_analyze.timing.serving import TimedModel
from dsocr_analyze.workload import parse_page

SGLANG_TOKENS = 527
SGLANG = {"tiny": (0.068, 0.69), "base": (0.110, 0.75)}
"""Seconds to the first token, and of the page, by mode."""
SGLANG_LIMITS = {"first token": 0.35, "page": 0.15}
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
    found = predict(model, page, Assumptions(server_named("sglang")))
    return found.ttft_seconds, found.page_seconds


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
        assumptions = Assumptions(
            server_named("vllm-v0"), lambda _: lengths, seconds, is_offline=True
        )
        [load] = predict(model, workload, assumptions, [CONCURRENCY]).throughput
        rates = load.pages_per_second, load.tokens_per_second
        return dict(zip(PUBLISHED, rates, strict=True))

    missed = 0
    whole = predicted(cpu_seconds)
    if is_sentence:
        published, found = (each["pages per second"] for each in (PUBLISHED, whole))
        print(
            f"Published for one A100 40 GB: {published:.2f} pages/s. Predicted under the script's"
            f" own assumptions, its CPU phases among them: {found:.2f}. Published for Unlimited-OCR"
            f" on one H100 under SGLang, in modes {' and '.join(SGLANG)}:"
            f" {said(SGLANG.values())} per page. Predicted for A4 pages:"
            f" {said(map(under_sglang, SGLANG))}; the CPU's share was chosen with these in view"
            " (`benchmarks/bench_published.py`)."
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
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
