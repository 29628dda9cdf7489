"""Write `src/dsocr_analyze/hardware/profiles/*.toml` from measured kernel tables.

    pip install 'dsocr-analyze[profiles]'
    python scripts/fit_profiles.py [--data DIR] [--only h100-sxm ...] [--kinds gemm ...]
    python scripts/fit_profiles.py [--data DIR] --sample

Coefficients are fitted on the training groups only, by least squares on log time with a robust
loss from several starts, and those are what is shipped; the error stated beside them is of the
groups held out. Of experts that a page runs with another kernel than the groups held out were
measured with, each group is left out in turn instead. The same tables give the same files.

Rows used: the last tables of vLLM, and of SGLang with the kernels that it takes by default;
products with m up to 16384 and n, k from 256 (errors up to 16384 each); attention without a window
and head sizes up to 256; experts with balanced choices and all experts on one GPU, their width
split over 1 to 32 GPUs, under SGLang those whose tile was not tuned for the GPU. Peaks are those of
devices.toml.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import tomllib
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from kernel_fits import (
    SCALE,
    SEED,
    FitErrors,
    MeasuredRows,
    first_guess,
    fit_errors,
    fitted,
    predicted,
)
from kernel_tables import KINDS, SYSTEMS, data_directory, read_rows
from numpy.typing import NDArray

from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware.devices import Gpu, gpu_catalogue
from dsocr_analyze.hardware.kernel_times import (
    AS_BY_TOKENS,
    BEST_64,
    BEST_128,
    BY_EXPERTS,
    BY_ROWS,
    BY_TOKENS,
    BY_TOKENS_8,
    GROUPS,
    IDLE,
    TILES,
)

PROFILES: Final = Path(__file__).parent.parent / "src/dsocr_analyze/hardware/profiles"
SAMPLE: Final = Path(__file__).parent.parent / "tests/data/kernel_times_sample.json"
SAMPLED: Final = 8
"""Rows of the sample a GPU and kind."""
SOURCE: Final = "aiconfigurator-core 0.12.0"
LICENCE: Final = "tables: Apache-2.0, NVIDIA CORPORATION & AFFILIATES; fitted here, not copied"
DTYPES: Final = {
    "gemm": ("bfloat16", "float8"),
    "encoder_attention": ("bfloat16",),
    "context_attention": ("bfloat16",),
    "generation_attention": ("bfloat16", "float8"),
    "experts": ("bfloat16", "float8"),
    "movement": ("bfloat16",),
}
MOVEMENT_OF: Final = {"a100-80gb-sxm": "h100-sxm"}
"""Whose elementwise kernels a GPU takes that was not measured with any."""
PREFIXES: Final = {"vllm": "", "sglang": "sglang."}
"""What the names of a profile's tables begin with, by serving engine."""
SHARED: Final = ("encoder_attention", "movement")
"""Kinds for which vLLM's table stands under every engine: encoders run the model's own code, and
SGLang's only table of elementwise kernels is of one that it launches in three times the time."""
_FLASH2: Final = ("a100-80gb-sxm", "l40s", "rtx-pro-6000")
_BLACKWELL: Final = ("b200", "b300", "gb200", "gb300")
_HOPPER: Final = ("h100-sxm", "h200-sxm")

LEAST_ERROR: Final = 1e-4
"""Floor for stated errors: 0 would look as if nothing had been held out."""
STARTS: Final = {"encoder_attention": 6, "experts": 6}
"""Of a fit, by kind; 3 elsewhere. Of these, the first three may all miss the best coefficients."""
OUR_ROWS: Final = 2
"""How often rows of such products are taken besides."""
_FEW_ROWS: Final = 8
_EVERY: Final = 2**20
"""More queries than any row has."""
_WHOLE_WAVES: Final = 3
"""Weight of whole waves where they are certain."""
_ONE_WIDTH: Final = 0.5
"""How tiles grow with the size of a head where all heads have the same: about as elsewhere."""
_CLEARLY: Final = 0.975
"""Factor by which a slow kernel must reduce the error."""
_SLOW_COLUMNS: Final = (1536, 2048, 2560, 3072, 4096, 5120)
_SLOW_DEPTHS: Final = (1536, 2048, 2560, 3584, 4096)
SECOND_KERNEL: Final[dict[str, Any]] = {
    "fallback_movement": 1.0, "fallback_us": 1e-6, "fallback_tile_us": 1e-6
}  # fmt: skip
"""Of experts where every row was measured with the same kernel: unused."""


def options(kind: str, dtype: str, gpu: str, engine: str) -> list[dict[str, float]]:
    """Whole-numbered coefficients to try, by what the library's kernels are known to do."""
    is_vllm = engine == "vllm"
    choices: dict[str, tuple[float, ...]]
    if kind == "movement":
        return [{}]
    if kind == "gemm":
        if dtype == "float8":
            # A row is quantized by 256 threads that read 8 elements each, in vLLM.
            at_once = 2048 if is_vllm else 1
            return [{"tiles": tiles, "read_at_once": at_once} for tiles in range(len(TILES))]
        return [{}]
    if kind == "experts":
        # vLLM takes Triton's kernels on Ada, CUTLASS's in float8 on Hopper, which are as if they
        # were Triton's, and elsewhere tuned ones. TensorRT-LLM's take multiples of 128.
        tiles: tuple[int, ...] = (BEST_64, BEST_128)
        if not is_vllm:
            tiles = (BY_EXPERTS,)
        elif gpu in _BLACKWELL:
            tiles = (BY_ROWS,)
        elif gpu in _HOPPER:
            tiles = (AS_BY_TOKENS if dtype == "float8" else BY_TOKENS,)
        elif gpu == "l40s":
            tiles = (BY_TOKENS_8 if dtype == "float8" else BY_TOKENS,)
        choices = {"tiles": tiles,
                   "inter_step": (128,) if gpu in _BLACKWELL and is_vllm else (1,)}  # fmt: skip
        if BY_ROWS in tiles:
            # TensorRT-LLM's tiles of few rows are far from where the other fits start.
            choices |= {"rate_16": (4.4,), "rate_32": (5.8,), "rate_64": (12.0,),
                        "wide_memory": (0.9,), "ramp_mb": (25.0,)}  # fmt: skip
    elif kind == "generation_attention":
        choices = {"tile_keys": (64, 128), "slots": (1, 2)}
        if gpu in _FLASH2 and is_vllm and dtype == "bfloat16":
            choices["splits"] = (GROUPS,)  # FlashAttention-2
        elif gpu == "a100-80gb-sxm":
            # FlashAttention-3: its tiles fill an SM each, so that they come in whole waves.
            choices |= {"splits": (IDLE,), "whole_waves": (_WHOLE_WAVES,), "slots": (1,)}
        elif gpu in _FLASH2 and dtype == "bfloat16":
            # FlashInfer, which multiplies without matrix units for up to three heads of 16 bits.
            choices |= {"few_heads": (3,), "tile_keys": (32, 64, 128)}
    else:
        is_trtllm = gpu in _BLACKWELL and kind == "context_attention"
        queries: tuple[int, ...] = (128, 192) if gpu in _HOPPER else (128, 256)
        if gpu in _FLASH2:
            queries = (64, 128)
        elif is_trtllm and is_vllm:
            queries = (256,)
        # FlashAttention-3 and FlashInfer pack the query heads of a key head into a tile, the others
        # those of one query, but for TensorRT-LLM's kernels under SGLang.
        packed = 0 if is_trtllm else _EVERY
        if is_vllm and gpu not in _HOPPER:
            packed = 1
        choices = {"tile_queries": queries, "tile_keys": (64, 128), "head_step": (1, 16, 32),
                   "slots": (1, 2) if gpu in _FLASH2 else (1,),
                   "splits": (0,) if gpu in _FLASH2 and is_vllm else (0, 1)}  # fmt: skip
        if kind == "context_attention":
            choices["packed_queries"] = (packed,)
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


def fit_kind(
    kind: str, rows: MeasuredRows, gpu: Gpu, dtype: str, engine: str
) -> records.Coefficients:
    """The best coefficients on the training groups."""
    training = rows.taken(~rows.held_out)
    random = np.random.default_rng(SEED)
    order = random.permutation(len(training.seconds))
    first: Any = first_guess(kind, dtype)
    choices = options(kind, dtype, gpu.name, engine)
    tried = [dataclasses.replace(first, **choice) for choice in choices]
    beyond = order[~training.within[order]][:500]
    inside = order[training.within[order]]
    chosen = np.concatenate([inside[:5000], beyond])
    if (kind, dtype) == ("gemm", "bfloat16"):
        # All rows; the profiles of A100, L40S and RTX PRO 6000 still have the fit to 5,000 of them.
        # Of a decode step's products, as small decoders have them, a row counts for several.
        ours = np.tile(np.flatnonzero(of_our_steps(training)), OUR_ROWS)
        chosen = np.concatenate([inside, beyond, ours])
    if (kind, dtype) == ("generation_attention", "bfloat16"):
        chosen = np.concatenate([chosen, np.tile(np.flatnonzero(of_our_cache(training)), OUR_ROWS)])
    many = training.taken(chosen)
    # The best few on some rows are tried again on more. Of experts, two are fitted to the end.
    for number, left, evaluations in ((700, 4, 15), (2000, 1 + (kind == "experts"), 25)):
        if len(tried) > left:
            few = training.taken(order[:number])
            costs = [fitted(kind, few, gpu, dtype, each, starts=1, evaluations=evaluations)
                     for each in tried]  # fmt: skip
            tried = [each for each, _ in sorted(costs, key=lambda pair: pair[1])[:left]]
    fits = [fitted(kind, many, gpu, dtype, each, starts=STARTS.get(kind, 3), evaluations=50)
            for each in tried]  # fmt: skip
    found = min(fits, key=lambda pair: pair[1])[0]
    if isinstance(found, records.GemmCoefficients):
        slowed = with_slow_sizes(found, training, gpu)
        found = fitted(kind, many, gpu, dtype, slowed, starts=1, evaluations=50)[0]
    if kind in ("encoder_attention", "generation_attention"):
        found = fitted(kind, many, gpu, dtype, found, starts=1, evaluations=50, scale=SCALE)[0]
    one_width = kind.endswith("attention") and np.ptp(training.sizes["head_dim"]) == 0
    if isinstance(found, records.GenerationCoefficients) and one_width:
        found = dataclasses.replace(found, tile_width=_ONE_WIDTH)
    if isinstance(found, records.ExpertsCoefficients):
        if not training.sizes["fallback"].any():
            found = dataclasses.replace(found, **SECOND_KERNEL)
        if found.tiles in (BEST_64, BEST_128, BY_ROWS):
            found = dataclasses.replace(found, unaligned_ns=1e-6)
    return found


def with_slow_sizes(
    fit: records.GemmCoefficients, training: MeasuredRows, gpu: Gpu
) -> records.GemmCoefficients:
    """The fit with the sizes at which a library has a slow kernel for few rows, if any."""
    few = training.taken(training.sizes["m"] <= _FEW_ROWS)

    def cost(c: records.GemmCoefficients) -> float:
        ratio = np.log(predicted("gemm", few, gpu, "bfloat16", c) / few.seconds)
        return float(np.abs(ratio).mean())

    best, least = fit, _CLEARLY * cost(fit)
    plain = predicted("gemm", few, gpu, "bfloat16", fit)
    for columns, depth in product(_SLOW_COLUMNS, _SLOW_DEPTHS):
        tried = dataclasses.replace(fit, slow_columns=columns, slow_depth=depth, slow=1.0)
        inside = predicted("gemm", few, gpu, "bfloat16", tried) > 1.5 * plain
        if not inside.any():
            continue
        slow = float(np.median(few.seconds[inside] / plain[inside])) - 1
        tried = dataclasses.replace(tried, slow=max(slow, 1e-3))
        if cost(tried) < least:
            best, least = tried, cost(tried)
    return best


def of_our_steps(rows: MeasuredRows) -> NDArray[np.bool_]:
    """Products of few rows with weights of the size that this program's decoders have."""
    m, n, k = (rows.sizes[name] for name in ("m", "n", "k"))
    alike: NDArray[np.bool_] = (
        (m <= 16) & (n >= 768) & (n <= 5120) & (k >= 768) & (k <= 4096)
    )  # fmt: skip
    return alike


def of_our_cache(rows: MeasuredRows) -> NDArray[np.bool_]:
    """Attention over the cache of a page, of heads of 128 that share no keys."""
    size = rows.sizes
    keys, is_shared = size["keys"], size["kv_heads"] != size["heads"]
    alike: NDArray[np.bool_] = (
        (size["head_dim"] == 128) & ~is_shared & (keys >= 512) & (keys <= 4096)
    )  # fmt: skip
    return alike


def left_out(
    rows: MeasuredRows, gpu: Gpu, dtype: str, fit: records.Coefficients
) -> tuple[NDArray[np.float64], int]:
    """Errors for each training group of experts under a fit to the others, and how many groups.

    They are of the kernel that a page runs. On some GPUs the groups held out ran another one, so
    that this is all that tells how far the fit carries to sizes that it has not seen.
    """
    training, found = rows.taken(~rows.held_out), []
    for group in np.unique(training.group[training.within], axis=0):
        one = (training.group == group).all(axis=1)
        others, measured = training.taken(~one), training.taken(one & training.within)
        again = fitted("experts", others, gpu, dtype, fit, starts=1, evaluations=15)[0]
        seconds = predicted("experts", measured, gpu, dtype, again)
        found.append(np.abs(seconds / measured.seconds - 1))
    return np.concatenate(found), len(found)


def section(kind: str, dtype: str, rows: MeasuredRows, gpu: Gpu, engine: str, sixteen: str) -> str:
    """The part of a profile about one kind and type; `sixteen` is the one in bfloat16."""
    began = time.perf_counter()
    fit, stated = fit_kind(kind, rows, gpu, dtype, engine), None
    if kind == "experts" and sixteen and not rows.sizes["fallback"][~rows.held_out].any():
        # No training group ran the second kernel in this type: it is as much slower as in 16 bits.
        known = tomllib.loads(sixteen)[kind]["bfloat16"]["coefficients"]
        fit = dataclasses.replace(fit, **{name: known[name] for name in SECOND_KERNEL})
    across = None
    if kind == "experts":
        error, groups = left_out(rows, gpu, dtype, fit)
        across = float(np.median(error)), float(np.percentile(error, 90))
        if not (rows.held_out & rows.within).any():
            own = rows.taken(~rows.held_out & rows.within)
            fits = np.abs(predicted(kind, own, gpu, dtype, fit) / own.seconds - 1)
            stated = FitErrors(len(fits), float(np.median(fits)), len(error), groups, *across)
    stated = stated or fit_errors(kind, rows, gpu, dtype, fit)
    print(f"{gpu.name} {engine} {kind} {dtype}: held out {stated.held_out_median:.1%} /"
          f" {stated.held_out_p90:.1%} (training {stated.training_median:.1%}, left out {across},"
          f" {time.perf_counter() - began:.0f} s)", flush=True)  # fmt: skip
    return kind_text(f"{PREFIXES[engine]}{kind}", dtype, fit, stated, rows.version, across)


def kind_text(
    kind: str,
    dtype: str,
    coefficients: records.Coefficients,
    errors: FitErrors,
    framework: str,
    left_out: tuple[float, float] | None = None,
) -> str:
    """The tables of a kernel kind in a data type, whose kernels `framework` launched.

    `left_out`: median and 90th percentile of the error on training groups under fits to the others.
    """
    median, ninety = (max(LEAST_ERROR, e) for e in (errors.held_out_median, errors.held_out_p90))
    values = dataclasses.asdict(coefficients).items()
    lines = [
        f"[{kind}.{dtype}]", f"framework = {json.dumps(framework)}",
        f"training_rows = {errors.training_rows}",
        f"training_median = {errors.training_median:.4f}",
        f"held_out_rows = {errors.held_out_rows}",
        f"held_out_groups = {errors.held_out_groups}",
        f"held_out_median = {median:.4f}", f"held_out_p90 = {ninety:.4f}",
        *([] if left_out is None
          else [f"left_out_median = {left_out[0]:.4f}", f"left_out_p90 = {left_out[1]:.4f}"]),
        "", f"[{kind}.{dtype}.coefficients]",
        *(f"{name} = {value if isinstance(value, int) else f'{value:.6g}'}"
          for name, value in values),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def movement_of(another: str) -> str:
    """The part of a profile about elementwise kernels where no table has any: another GPU's."""
    text = (PROFILES / f"{another}.toml").read_text(encoding="utf-8")
    values = tomllib.loads(text)["movement"]["bfloat16"]["coefficients"]
    return "\n".join(
        ["[movement.bfloat16]", f'derived = "{another}"', "", "[movement.bfloat16.coefficients]",
         *(f"{name} = {value:.6g}" for name, value in values.items())]
    ) + "\n"  # fmt: skip


def profile(data: Path, name: str, engines: Iterable[str], kinds: Iterable[str]) -> None:
    """Fit some kinds of a GPU and write its profile; other kinds stay as they were."""
    gpu, path = gpu_catalogue()[name], PROFILES / f"{name}.toml"
    parts = dict(_parts(path.read_text(encoding="utf-8"))) if path.exists() else {}
    for engine, kind in product(engines, kinds):
        if engine != "vllm" and kind in SHARED:
            continue
        for dtype in DTYPES[kind]:
            prefix = PREFIXES[engine]
            rows = read_rows(data, name, kind, dtype, engine)
            if rows is None and name in MOVEMENT_OF and kind == "movement" and not prefix:
                parts["movement.bfloat16"] = movement_of(MOVEMENT_OF[name])
            if rows is None or (dtype == "float8" and not gpu.float8_tflops):
                continue
            sixteen = parts[f"{prefix}{kind}.bfloat16"] if dtype == "float8" else ""
            part = section(kind, dtype, rows, gpu, engine, sixteen)
            parts[f"{prefix}{kind}.{dtype}"] = part
    order = product(PREFIXES.values(), records.COEFFICIENTS, ("bfloat16", "float8"))
    names = [f"{prefix}{kind}.{dtype}" for prefix, kind, dtype in order]
    head = (
        "# Written by scripts/fit_profiles.py; do not edit.\n\n"
        f'source = "{SOURCE}"\nlicence = "{LICENCE}"\nsystem = "{SYSTEMS[name]}"\n'
    )
    text = "\n".join([head, *(parts[each] for each in names if each in parts)])
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _parts(text: str) -> list[tuple[str, str]]:
    """Sections of a profile by `kind.dtype`."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("[") and not line.endswith(".coefficients]"):
            found.append((line.strip("[]"), []))
        if found:
            found[-1][1].append(line)
    return [(name, "\n".join(lines).strip() + "\n") for name, lines in found]


def write_sample(data: Path) -> None:
    """Rows held out, drawn blindly, for the tests of a checkout without the tables."""
    sample: list[dict[str, Any]] = []
    for name in SYSTEMS:
        for kind in KINDS:
            rows = read_rows(data, name, kind, "bfloat16")
            if rows is None:
                continue
            held = rows.taken(rows.held_out & rows.within)
            if not len(held.seconds):
                held = rows.taken(rows.held_out)
            drawn = np.random.default_rng(SEED).choice(len(held.seconds), SAMPLED, replace=False)
            for at in sorted(drawn.tolist()):
                sizes = {key: int(column[at]) for key, column in held.sizes.items()}
                sample.append({"gpu": name, "kind": kind, **sizes, "seconds": held.seconds[at]})
    head = {"source": SOURCE, "licence": "Apache-2.0, NVIDIA CORPORATION & AFFILIATES",
            "what": "bfloat16 rows of the tables that the fit reads, of groups held out of it,"
            f" drawn with seed {SEED}; times in seconds instead of milliseconds"}  # fmt: skip
    rows_text = ",\n".join(f"  {json.dumps(row)}" for row in sample)
    opening = json.dumps(head, indent=1)[:-2]
    SAMPLE.write_text(f'{opening},\n "rows": [\n{rows_text}\n ]\n}}\n', encoding="utf-8")


def main() -> int:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of the tables (systems/data)")
    parser.add_argument("--only", nargs="*", choices=[*SYSTEMS], default=[*SYSTEMS])
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=[*KINDS])
    parser.add_argument("--engines", nargs="*", choices=[*PREFIXES], default=[*PREFIXES])
    parser.add_argument("--sample", action="store_true", help="only draw the tests' sample again")
    given = parser.parse_args()
    if given.sample:
        write_sample(data_directory(given.data))
        return 0
    for name in given.only:
        profile(data_directory(given.data), name, given.engines, given.kinds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
