"""Published speeds of SAM's encoder against the prediction, with each row's own conditions.

    pip install 'dsocr-analyze[profiles]'
    python benchmarks/bench_sam.py

`measured/sam.toml` has the rows and their sources. The kernels are those of this package's own
encoders, with what the conditions change: autocast keeps the residual in fp32 and casts what
products read; a compiled model fuses everything between products; and attention runs the kernel
that `biased_kernel` names, which is a list of products and of passes over the scores where nothing
is fused. CLIP (ViT-L/14 at 224 pixels) is the control: products run at the rate that its compiled
and eager rows show on the GPU, at most at the peak, so that what is left is SAM's.

Fitted to all rows: the time of a pass over the scores and of products of scores, relative to the
profile's; seconds per element read at a stride; milliseconds of the mask decoder in rows of
segment-anything-fast; and the time of the memory-efficient kernel, relative to the prediction's.
Prints every row, and the error on each GPU if its rows are left out; of the A100, on which alone
the decoder and the memory-efficient kernel were measured, the rows with this kernel. `attention` is
the same error if attention is to blame for all of it: the band of the prediction. Exits with 1
where a limit is missed.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from conditions import print_environment
from scipy.optimize import least_squares

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family.dimensions import SamDimensions
from dsocr_analyze.architectures.ocr_family.vision import sam
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.hardware import device
from dsocr_analyze.kernels import Attention, Elements, Gemm, Kernel, Work, merged
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape import Tape
from dsocr_analyze.timing.kernel_seconds import kernel_seconds, kind_of
from dsocr_analyze.timing.sam_kernels import STRIDED_PS, biased_kernel, strided_elements

ROWS = Path(__file__).parent / "measured/sam.toml"
SAMS = {
    "samvit_base_patch16": (768, 12, 12, (2, 5, 8, 11), 1024),
    "samvit_large_patch16": (1024, 24, 16, (5, 11, 17, 23), 1024),
    "samvit_huge_patch16": (1280, 32, 16, (7, 15, 23, 31), 1024),
    "samvit_base_patch16_224": (768, 12, 12, (2, 5, 8, 11), 224),
}
"""Width, blocks, heads, global blocks and pixels per side."""
CLIP = "vit_large_patch14_clip_224"
NEVER_IN_L2 = 10**10
FITTED = {
    "scores": (1.0, 0.05), "matmul": (1.0, 0.05), "masked_attention": (1.0, 0.3),
    "strided": (STRIDED_PS, 0.3), "decoder": (4.0, 0.05),
}  # fmt: skip
"""Coefficients before the fit, and how much it holds on to them: some matter to few rows."""
ATTENTION = "scores", "matmul", "masked_attention"
CONDITIONS = "gpu", "torch", "precision", "layout", "code", "compiled"
LIMITS = {"median": 0.08, "90th percentile": 0.16, "attention, 90th percentile": 0.5}


class Row(NamedTuple):
    """A network under the conditions of its series, and milliseconds per image."""

    series: dict[str, Any]
    network: str
    batch: int
    published: float


def rows() -> Iterator[Row]:
    for each in tomllib.loads(ROWS.read_text(encoding="utf-8"))["series"]:
        for network, speeds in each["rows"].items():
            yield from (Row(each, network, batch, 1e3 / speed) for batch, speed in speeds)


# --- kernels under a row's conditions --------------------------------------------------------


@cache
def encoder(network: str, batch: int) -> list[Kernel]:
    """Of this package's forwards, in 16 bits."""
    if network == CLIP:
        config = ModelDirectory.read(DEFAULT.reference).config
        views = DEFAULT.forms.served.views(batch, 1024, DEFAULT.forms.dimensions(config), BFLOAT16)
        return [each for each in views["clip"] if each.operator != "mul"]  # timm's GELU is one
    *of, pixels = SAMS[network]
    tape = Tape(BFLOAT16, stage="sam")
    c = SamDimensions(*of, (512, 1024), pixels)
    sam(tape, tape.input(batch * 3 * pixels**2, BFLOAT16), batch, pixels, c)
    return [*merged(each for each in tape.kernels if not each.path.startswith("net_"))]


def passed(operator: str, calls: int, elements: int, read: float, written: float) -> Kernel:
    """A kernel that reads and writes so many bytes per element."""
    work = Work(bytes_read=int(read * elements), bytes_written=int(written * elements))
    return Kernel("movement", operator, Elements(elements), *2 * ["bfloat16"], work, calls)


def product(calls: int, batch: int, m: int, n: int, k: int) -> Kernel:
    work = Work(batch * m * n * k, 0, 0, 2 * batch * (m + n) * k, 2 * batch * m * n)
    return Kernel("gemm", "matmul", Gemm(batch, m, n, k), *2 * ["bfloat16"], work, calls)


def attention(series: dict[str, Any], calls: int, a: Attention) -> Iterator[Kernel]:
    """The kernels of attention with a bias where none does it all."""
    each, keys = a.batch * a.heads, a.keys
    scores, features = each * a.queries * keys, each * a.queries * a.head_dim
    major, minor = map(int, series["torch"].split("."))
    in_fp32 = biased_kernel((major, minor), 3, 8.0) == "math in fp32"
    size, times = (4, 2 * calls) if in_fp32 else (2, calls)  # TF32 takes twice as long
    yield product(times, each, a.queries, keys, a.head_dim)
    yield product(times, each, a.queries, a.head_dim, keys)
    if series["compiled"]:  # bias, softmax and casts are one kernel
        yield passed("scores", calls, scores, size, size)
    elif series["code"] == "explicit":  # adds rows, adds columns, softmax
        yield passed("scores", 3 * calls, scores, 2, 2)
    else:  # queries and keys are scaled, the bias is added in place
        yield passed("scale", 2 * calls, features, size, size)
        passes = [(size + 2, size), (size, size)]
        if in_fp32:  # casts; `_safe_softmax`: eq, all, where
            yield passed("casts", 3 * calls, features, 2, 4)
            passes += [(4, 1), (1, 0), (4, 4), (4, 2)]
        yield from (passed("scores", calls, scores, *moved) for moved in passes)


def kernels(row: Row) -> Iterator[Kernel]:
    """All of a pass."""
    series, is_compiled = row.series, row.series["compiled"]
    is_amp, is_fused = series["precision"].startswith("amp"), series["code"] == "sdpa"
    residual = 2 + 2 * is_amp
    for each in encoder(row.network, row.batch):
        operator, calls, work, sizes = each.operator, each.calls, each.work, each.dimensions
        elements, is_inside = work.bytes_written // 2, ".attn" in each.path or ".mlp" in each.path
        if isinstance(sizes, Attention) and sizes.masked and not is_fused:
            yield from attention(series, calls, sizes)
        elif kind_of(sizes) != "movement" or operator in {"gelu", "sigmoid"}:
            yield each
        elif operator == "add" and elements > work.bytes_read:  # the bias, from rows and columns
            if is_fused or (series["code"] == "timm" and not is_compiled):
                yield each
        elif operator == "native_layer_norm":  # compiled, a sum and its norm are one kernel
            written = residual + 2 * is_compiled
            yield passed(operator, calls, elements, written, written)
            if is_amp and not is_compiled:
                yield passed("cast", calls, elements, 4, 2)
        elif is_compiled:
            if operator == "clone" and is_inside:
                yield each
        elif operator == "clone" and "norm" in each.path:
            if series["layout"] == "nchw":
                yield passed(operator, calls, elements, residual, residual)
        else:  # padded and partitioned, windows have the residual's type; merged, that of products
            is_wider = is_amp and not is_inside and row.network != CLIP
            scale = is_wider * {"add": 2 / 3, "constant_pad_nd": 1, "clone": 1 / 3}.get(operator, 0)
            yield passed(operator, calls, work.bytes_moved, 1 + scale, 0)


def parts(row: Row) -> Counter[str]:
    """Milliseconds per image by what is fitted, and the least of products with weights."""
    listed, gpu = [each._replace(stage="") for each in kernels(row)], device(row.series["gpu"])
    seconds = kernel_seconds(listed, gpu, weights_between=NEVER_IN_L2).seconds
    found: Counter[str] = Counter()
    for each, each_seconds in zip(listed, seconds, strict=True):
        name = each.operator if each.operator in FITTED else kind_of(each.dimensions)
        found[name] += 1e3 * each.calls * float(each_seconds) / row.batch
        if name == "gemm":
            found["least"] += 2e-9 * each.total.macs / gpu.gpu.tensor_tflops / row.batch
    is_strided = not row.series["compiled"] and row.series["layout"] == "nchw"
    read = sum(k.calls * strided_elements(k) for k in encoder(row.network, row.batch))
    found["strided"] = 1e-9 * is_strided * read / row.batch
    found["decoder"] = row.series["code"] != "timm"
    return found


# --- the fit ---------------------------------------------------------------------------------


class Published:
    """The rows with their parts."""

    def __init__(self) -> None:
        self.rows = [(row, parts(row)) for row in rows()]
        self.sams = [each for each in self.rows if each[0].network != CLIP]
        self.rates = {row.series["gpu"]: 1.0 for row, _ in self.rows}
        for gpu in self.rates:
            own = [each for each in self.rows if each[0].series["gpu"] == gpu]
            shown = [
                (row.published - found["movement"] - found["encoder_attention"]) / found["gemm"]
                for row, found in own
                if row.network == CLIP
            ]
            least = max(found["least"] / found["gemm"] for _, found in own)
            self.rates[gpu] = max(float(np.median(shown or [1.0])), least)

    def predicted(self, row: Row, found: Counter[str], fitted: Sequence[float]) -> float:
        own = found["movement"] + self.rates[row.series["gpu"]] * found["gemm"]
        return own + sum(c * found[name] for name, c in zip(FITTED, fitted, strict=True))

    def fit(self, without: Sequence[Row] = ()) -> Sequence[float]:
        """Coefficients of the other rows."""
        start, weights = np.array([*FITTED.values()]).T
        used = [each for each in self.sams if each[0] not in without]

        def residuals(fitted: Sequence[float]) -> Any:
            errors = [self.predicted(*each, fitted) / each[0].published for each in used]
            return np.append(np.log(errors), (fitted / start - 1) * weights)

        bounds = 0 * start, 4 * start
        return least_squares(residuals, start, bounds=bounds, loss="soft_l1", f_scale=0.1).x


def main() -> int:
    print_environment()
    published, errors, blamed = Published(), [], []
    fitted = published.fit()
    print("fitted: " + ", ".join(f"{n} {c:.2f}" for n, c in zip(FITTED, fitted, strict=True)))
    for row, found in published.sams:
        seconds = published.predicted(row, found, fitted)
        conditions = " ".join(str(row.series[name]) for name in CONDITIONS)
        print(
            f"{row.network:24} {row.batch:4} {conditions}: published {row.published:.2f} ms,"
            f" predicted {seconds:.2f} ({seconds / row.published - 1:+.0%})"
        )
    for gpu, rate in sorted(published.rates.items()):
        kept = [row for row, _ in published.sams
                if row.series["gpu"] == gpu and row.series["code"] != "explicit"]  # fmt: skip
        left = dict(zip(FITTED, published.fit(kept), strict=True))
        for row, found in published.sams:
            if row in kept:
                off = abs(published.predicted(row, found, [*left.values()]) - row.published)
                errors.append(off / row.published)
                blamed.append(off / sum(left[name] * found[name] for name in ATTENTION))
        own = errors[-len(kept) :]
        print(f"left out, {gpu:12} {np.median(own):.1%} / {max(own):.1%}; products {rate:.2f}")
    reached = np.median(errors), np.quantile(errors, 0.9), np.quantile(blamed, 0.9)
    for (name, limit), share in zip(LIMITS.items(), reached, strict=True):
        print(f"left out, {name}: {share:.1%} (at most {limit:.0%})")
    return int(any(np.array(reached) > [*LIMITS.values()]))


if __name__ == "__main__":
    sys.exit(main())
