"""Error of predicted kernel times on the groups held out of the fit, against the limits.

    pip install 'dsocr-analyze[profiles]'
    python benchmarks/bench_kernel_times.py [--data DIR]

Prints a line per GPU, kind and element type: median and 90th percentile of the relative error of
the shipped coefficients on rows of `aiconfigurator-core`. Exits with 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

from kernel_tables import KINDS, SYSTEMS, data_directory, predicted, read_rows

from dsocr_analyze.hardware import device

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
    return GEMM[gpu] if kind == "gemm" else (MEDIAN[kind], None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of the tables (systems/data)")
    data = data_directory(parser.parse_args().data)
    missed = 0
    for gpu in SYSTEMS:
        timed = device(gpu)
        for kind in KINDS:
            for dtype in ("bfloat16", "float8"):
                fitted = timed.profile.fitted.get((kind, dtype))
                if fitted is None or fitted.extrapolated:
                    continue
                rows = read_rows(data, gpu, kind, dtype)
                assert rows is not None
                held = rows.taken(rows.held_out & rows.within)
                seconds = predicted(kind, held, timed.gpu, dtype, fitted.coefficients)
                error = np.abs(seconds / held.seconds - 1)
                figures = float(np.median(error)), float(np.percentile(error, 90))
                bounds = limits(gpu, kind, dtype)
                over = [b is not None and f > b for f, b in zip(figures, bounds, strict=True)]
                missed += any(over)
                verdict = "MISSED" if any(over) else "ok" if any(bounds) else "no limit"
                stated = " / ".join("-" if b is None else f"{b:.1%}" for b in bounds)
                print(
                    f"{gpu:14} {kind:21} {dtype:9} {figures[0]:6.1%} / {figures[1]:6.1%}"
                    f"  (at most {stated})  {verdict}"
                )
    print(f"{missed} limits missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
