"""DeepSeek-OCR-2 under vLLM on an A10 against the prediction, before and after its mask was kept.

    python benchmarks/bench_ocr2_serving.py

The measurement (vLLM pull 49531, vLLM 0.25.1): 100 requests of one image, 10 at a time, one output
token, no caches; 2.36 requests/s before the change and 4.31 after it, TTFT p50 4,193 and 2,283 ms.
Before it the encoder wrote its mask row by row in Python, as the model's own code does; after it
the mask is made once and kept. The image's size is not given: an A4 page at 150 dpi is taken.

The A10 has no kernel table of its own: its times are another GPU's, scaled, with a wider band. The
program takes 10 us to launch any operator; writing to a tensor by indices takes Python far longer,
which is why what is predicted before the change is too fast. Nothing here was fitted to the result.
There is no limit, as the image is not known.
"""

from __future__ import annotations

import argparse
from typing import Any

from conditions import print_environment

from dsocr_analyze.architectures import architecture_named
from dsocr_analyze.architectures.deepseek_ocr_2 import DEEPSEEK_OCR_2
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import BFLOAT16
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.assumptions import Assumptions
from dsocr_analyze.timing.predict import predict
from dsocr_analyze.timing.runtimes import SERVERS
from dsocr_analyze.timing.serving import TimedModel
from dsocr_analyze.workload import parse_page

MEASURED = {"before": (2.36, 4.193), "after": (4.31, 2.283)}
CONCURRENCY, PAGE = 10, "a4"


class Before(type(DEEPSEEK_OCR_2)):  # type: ignore[misc]  # known by its only instance
    """The encoder's mask is written row by row in every call, as the model's own code does."""

    def encode(self, *args: Any, is_served: bool = False) -> None:
        super().encode(*args)


def main() -> None:
    print_environment()
    argparse.ArgumentParser(description=__doc__).parse_args()
    after = architecture_named("deepseek-ocr-2")
    workload = after.plan(page=parse_page(PAGE), max_new_tokens=1)
    dimensions = after.forms.dimensions(ModelDirectory.read(after.reference).config)
    for when, architecture in (("before", Before()), ("after", after)):
        model = TimedModel(architecture, dimensions, BFLOAT16, False, device("a10"))
        assumptions = Assumptions(SERVERS["vllm"])
        [load] = predict(model, workload, assumptions, [CONCURRENCY]).throughput
        rate, band = load.pages_per_second, load.pages_per_second_band
        measured, ttft = MEASURED[when]
        print(
            f"{when:>6}: predicted {rate:.2f} requests/s ({band.low:.2f} to {band.high:.2f}),"
            f" measured {measured:.2f} ({rate / measured - 1:+.0%}); first token"
            f" {load.ttft_seconds:.2f} s, measured {ttft:.2f} s"
        )


if __name__ == "__main__":
    main()
