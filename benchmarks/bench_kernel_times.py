"""Error of predicted kernel times on the groups held out of the fit, against the limits.

    pip install 'dsocr-analyze[profiles]'
    python benchmarks/bench_kernel_times.py [--data DIR]

Prints a line per GPU, serving engine, kind and data type: median and 90th percentile of the
relative error of the shipped coefficients on rows of `aiconfigurator-core`. Exits with 1 where a
limit is missed. Errors are of the kernel that a page runs: where no group held out ran it, as
experts on Blackwell, they are those that the profile states of each group left out in turn. Below,
these for all experts, and the error of times derived for integer weights, on all rows that were
measured anywhere.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

from conditions import print_environment
from kernel_tables import (
    KINDS,
    SYSTEMS,
    data_directory,
    predicted,
    read_rows,
    weight_only_rows,
)

from dsocr_analyze.hardware import device
from dsocr_analyze.hardware.timed_device import ENGINES

PROFILES = Path(__file__).parent.parent / "src/dsocr_analyze/hardware/profiles"
GEMM = (
    dict.fromkeys(("h100-sxm", "h200-sxm", "b200", "gb200", "gb300"), (0.055, 0.16))
    | dict.fromkeys(("a100-80gb-sxm", "b300", "rtx-pro-6000"), (0.06, 0.18))
    | {"l40s": (0.10, 0.26)}
)
MEDIAN = {
    "encoder_attention": 0.08,
    "context_attention": 0.10,
    "generation_attention": 0.12,
    "experts": 0.06,
}
FLOAT8_GEMM = ("h100-sxm", "h200-sxm", "b200", "l40s")


def limits(gpu: str, kind: str, dtype: str) -> tuple[float | None, float | None]:
    """Most that the median and the 90th percentile may be; None for no limit."""
    if dtype == "float8":
        return (0.08 if kind == "gemm" and gpu in FLOAT8_GEMM else None), None
    return GEMM[gpu] if kind == "gemm" else (MEDIAN.get(kind), None)


def left_out() -> None:
    """Errors of experts across training groups, as the profiles state them."""
    for gpu in SYSTEMS:
        text = (PROFILES / f"{gpu}.toml").read_text(encoding="utf-8")
        table = tomllib.loads(text)
        for engine, found in (("vllm", table), ("sglang", table["sglang"])):
            for dtype, entry in found.get("experts", {}).items():
                median, p90 = entry["left_out_median"], entry["left_out_p90"]
                print(f"{gpu:14} {engine:6} experts, left out {dtype:9} {median:6.1%} / {p90:6.1%}")


def weight_only(data: Path) -> None:
    """Errors of products with integer weights, which are derived and not fitted."""
    for gpu, kind, weights in product(SYSTEMS, ("gemm", "experts"), ("int8", "int4")):
        rows = weight_only_rows(data, gpu, kind, weights)
        if rows is None:
            continue
        timed, size = device(gpu), rows.taken(rows.within).sizes
        if kind == "gemm":
            seconds = timed.gemm_seconds(size["m"], size["n"], size["k"], weights_dtype=weights)
        else:
            seconds = timed.grouped_experts_seconds(
                size["tokens"], size["hidden"], size["inter"], size["experts"], size["top_k"],
                touched=size["touched"], weights_dtype=weights,
            )  # fmt: skip
        error = np.abs(seconds / rows.seconds[rows.within] - 1)
        assumed = timed.fitted(kind, weights_dtype=weights)
        print(
            f"{gpu:14} {kind + ', weight-only':21} {weights:9} {np.median(error):6.1%} /"
            f" {np.percentile(error, 90):6.1%}  (assumed {assumed.median:.0%} / {assumed.p90:.0%};"
            f" {rows.version}, {len(error)} rows)"
        )


def main() -> int:
    print_environment()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of the tables (systems/data)")
    data = data_directory(parser.parse_args().data)
    missed = 0
    for gpu, engine, kind, dtype in product(SYSTEMS, ENGINES, KINDS, ("bfloat16", "float8")):
        timed = device(gpu).under(engine)
        fitted = timed.kinds.get((kind, dtype))
        if fitted is None or not fitted.framework.startswith(engine) or fitted.gpu != gpu:
            continue
        rows = read_rows(data, gpu, kind, dtype, engine)
        assert rows is not None
        held = rows.taken(rows.held_out & rows.within)
        if not len(held.seconds):
            figures, how = (fitted.median, fitted.p90), "each group left out in turn"
        else:
            seconds = predicted(kind, held, timed.gpu, dtype, fitted.coefficients)
            error = np.abs(seconds / held.seconds - 1)
            figures = float(np.median(error)), float(np.percentile(error, 90))
            how = "held out"
        bounds = limits(gpu, kind, dtype) if engine == "vllm" else (None, None)
        over = [b is not None and f > b for f, b in zip(figures, bounds, strict=True)]
        missed += any(over)
        verdict = "MISSED" if any(over) else "ok" if any(bounds) else "no limit"
        stated = " / ".join("-" if b is None else f"{b:.1%}" for b in bounds)
        print(
            f"{gpu:14} {engine:6} {kind:21} {dtype:9} {figures[0]:6.1%} / {figures[1]:6.1%}"
            f"  {how} (at most {stated})  {verdict}"
        )
    left_out()
    weight_only(data)
    print(f"{missed} limits missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
