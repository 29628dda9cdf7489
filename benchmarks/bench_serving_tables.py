"""A second witness of served pages: the same kernels, interpolated from measured tables.

    pip install 'dsocr-analyze[profiles]'
    python benchmarks/bench_serving_tables.py [--data DIR] [--kernels] [--save | --sentence]

The page: DeepSeek-OCR's reference network, A4 at 144 dpi in gundam mode, 1,024 new tokens: its
prefill pass, and its share of decode steps of 1 and of 16 sequences over a cache of mean length.
Host and waits are left out. Every kernel is priced by the fitted formulas, and once more, without
them, from the tables of `aiconfigurator-core` where these surround its sizes. What is interpolated
is the log of measured seconds over what the peaks and the table's shortest kernel say, linearly in
the logs of the sizes:

- Products (one at a time, with weights): between the measured m, n and k on both sides.
- CLIP's attention: its heads and head size were measured; between batches and tokens. SAM's has a
  bias, which no flash kernel of the tables takes: not covered.
- Attention over the prompt: between batches, tokens and numbers of heads, as many key heads.
- Attention of decode steps: tables have at most 8 key heads, so 10 heads of B sequences are read as
  8 heads of 10/8 B sequences, between batches and cache lengths; kernels read whole blocks of 128
  keys (`Flash_fwd_kernel_traits<128, 64, 128, 4>`), of which the tables' powers of two waste none.
- Grouped experts: 1280 x 896 is no measured shape, and the tables' least width is 2048. Gated
  experts of models whose matrices are at most 6 times longer or wider than ours, and which have a
  quarter to four times as many, are points of the elements of a matrix, in all touched experts
  and in one, and of rows per touched expert. Of the nearest seven the median is taken, which one
  row does not move: on an RTX PRO 6000, vLLM's table has 230 us for 4 tokens and 256 experts of
  2048 x 512, where TensorRT-LLM's has 154 for the same kernels, SGLang's 148, and vLLM's own with
  skewed choices 156. FlashInfer tries its tiles out in every process, and may keep a slow one.
- What only moves bytes: between the bytes of measured kernels, a median for each eighth of an
  octave.
- Router (n = 64), head (n = 129,280), convolutions, and sums that SAM reads at a stride, where the
  tables' elementwise kernels read one byte after the other: not covered by any table.
- Kernels that move between half and twice what L2 holds are not covered, of products six weights in
  turn: there the tables' times depend on what their own repeats left in the cache, which is not
  what a page leaves there.

Tables are measured with warm caches, of products with six weights in turn, and a page's weights are
cold. So the formulas are asked for such kernels, too, and compared with the tables like with like;
shares are of the page as predicted.

Prints for each GPU and concurrency which share of the page is covered, and over that part by how
much the tables differ from the formulas: signed in sum, and in absolute terms kernel by kernel.
Then the two factors of the signed difference: by how much tables and formulas differ at the
measured sizes around the page's, and by how much the formulas themselves change where they are
interpolated between these instead of asked for the page's own. Below that, how well interpolation
does on rows that were measured and left out, median / 90th percentile, at sizes like the page's;
their gaps are twice those around the page's sizes. Exits with 1 where a signed difference is above
5 %.

The last line is what docs/pricing.md says. `--save` keeps the figures behind it in
`benchmarks/measured/serving_tables.json`, and `--sentence` prints it from there, without tables.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

from conditions import print_environment
from kernel_tables import OTHERS, SYSTEMS, MeasuredRows, data_directory, predicted, read_rows
from serving_cases import LIMIT, SAVED, Case, save, saved_cases, sentence

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.figures import expected_experts
from dsocr_analyze.hardware import Device, device
from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.kernels import BFLOAT16, Attention, Elements, Experts, Gemm, Kernel, Rows
from dsocr_analyze.timing.kernel_seconds import kernel_seconds, strided_elements
from dsocr_analyze.timing.runtimes import SERVERS
from dsocr_analyze.timing.serving import ServedModel, TimedModel
from dsocr_analyze.workload import ViewBatch

NEW_TOKENS = 1024
PAGE = (1191, 1684)
KEY_HEADS = 8
KEY_BLOCK = 128
"""Most key heads in tables of decode steps."""
OWN_SHAPE, OWN_EXPERTS = 1280 / 896, 64
SHAPES_WITHIN, EXPERTS_WITHIN = 6, 4
"""How much longer or wider than ours an expert's matrix may be, and how many more or fewer experts.

Chosen by the errors on rows left out, which are larger without bounds; narrower ones leave few.
"""
NEAREST, WEIGHTS = 7, (1.0, 0.5, 0.5)
"""Rows whose median is taken, and how much the log of each of their sizes counts in what is near.

Chosen in the same way. All GPUs together, they are 2.2 / 13.0 % off, and lines on a triangulation
3.0 / 13.6 %.
"""
MEASURED = frozenset({"linear", "merged_linear", "addmm"})

Work: TypeAlias = Callable[..., tuple[Any, Any]]
"""FLOPs and bytes of a kernel from the sizes that are interpolated."""


# --- interpolation ---------------------------------------------------------------------------


class Found(NamedTuple):
    """Seconds of a kernel between measured sizes: as measured there, and as the formula says there.

    That the latter differs from the formula at the kernel's own sizes is the interpolation's doing.
    """

    measured: float
    formula: float


class Trend:
    """What a kernel takes at the peaks, and the shortest measured kernel on top.

    Nothing of it is fitted. Log seconds bend where kernels change from launches to bytes, which a
    line between far sizes would cut; the ratio of measured seconds to this bends less.
    """

    def __init__(self, work: Work, gpu: Gpu, measured: np.ndarray) -> None:
        self.work, self.gpu, self.shortest = work, gpu, float(measured.min())

    def log(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        flops, nbytes = self.work(*columns)
        peaks = flops / (self.gpu.tensor_tflops * 1e12) + nbytes / (self.gpu.bandwidth_gb_s * 1e9)
        return np.log(self.shortest + peaks)


class Grid:
    """Log ratios to a trend on a grid of sizes."""

    def __init__(self, columns: Sequence[np.ndarray], seconds: np.ndarray, trend: Trend) -> None:
        self.trend = trend
        ratios = np.log(seconds) - trend.log(columns)
        rows = zip(*columns, strict=True)
        self.points = {tuple(map(float, at)): each for at, each in zip(rows, ratios.T, strict=True)}
        self.axes = [np.unique(column) for column in columns]

    def find(self, *at: float, without: tuple[float, ...] = ()) -> Found | None:
        """Between the nearest measured sizes on both sides of every size; None beyond them.

        Args:
            at: Sizes.
            without: Sizes, one an axis, that are taken for not measured; 0 for none.
        """
        corners: list[list[tuple[float, float]]] = []
        for axis, size, out in zip(self.axes, at, without or (0.0,) * len(at), strict=True):
            known = axis[axis != out]
            below, above = known[known <= size], known[known >= size]
            if not len(below) or not len(above):
                return None
            low, high = below[-1], above[0]
            part = np.log(size / low) / np.log(high / low) if high > low else 0.0
            corners.append([(low, 1 - part), (high, part)] if high > low else [(low, 1.0)])
        ratios = np.zeros(2)
        for corner in itertools.product(*corners):
            values = self.points.get(tuple(float(size) for size, _ in corner))
            if values is None:
                return None
            ratios += values * np.prod([weight for _, weight in corner])
        return self.at(ratios, *at)

    def at(self, ratios: np.ndarray, *sizes: float) -> Found:
        return Found(*map(float, np.exp(ratios + self.trend.log(np.array(sizes, dtype=float)))))


class Cloud(Grid):
    """The same at scattered sizes: the median of the nearest rows, in logs of the sizes.

    Not a line between them, since single rows may be far off (see the experts above).
    """

    def __init__(self, columns: Sequence[np.ndarray], seconds: np.ndarray, trend: Trend) -> None:
        self.trend, self.columns = trend, np.stack(columns)
        self.ratios = np.log(seconds) - trend.log(columns)

    def find(self, *at: float, without: tuple[float, ...] = ()) -> Found | None:
        """At some sizes; None beyond the smallest and largest."""
        away = np.log(self.columns / np.reshape(at, (-1, 1)))
        if (away.min(axis=1) > 0).any() or (away.max(axis=1) < 0).any():
            return None
        far = np.linalg.norm(away * np.reshape(WEIGHTS, (-1, 1)), axis=0)
        nearest = np.argsort(far, kind="stable")[:NEAREST]
        return self.at(np.median(self.ratios[:, nearest], axis=1), *at)


# --- one GPU's tables ------------------------------------------------------------------------


@dataclass
class Tables:
    """Measured kernels of a GPU in bfloat16."""

    data: Path
    timed: Device

    def rows(self, kind: str) -> MeasuredRows | None:
        # Where one engine has no table, its kernels are the other's.
        engine = self.timed.kinds[kind, "bfloat16"].framework.partition(" ")[0] or "vllm"
        return read_rows(self.data, self.timed.gpu.name, kind, "bfloat16", engine)

    def both(self, kind: str, rows: MeasuredRows) -> np.ndarray:
        """Seconds as measured, and as the formula says, `[2, rows]`."""
        fitted = self.timed.kinds[kind, "bfloat16"]
        formula = predicted(kind, rows, self.timed.gpu, "bfloat16", fitted.coefficients)
        return np.stack([rows.seconds, formula])

    def grid(
        self, kind: str, names: Sequence[str], work: Work, **chosen: float | str
    ) -> Grid | None:
        """Rows in which some columns have a value, or that of another column."""
        rows = self.rows(kind)
        if rows is None:
            return None
        which = np.ones(len(rows.seconds), dtype=bool)
        for name, value in chosen.items():
            other = rows.sizes[value] if isinstance(value, str) else value
            which &= rows.sizes[name] == other
        some = rows.taken(which)
        if not which.any():
            return None
        columns = [some.sizes[name] for name in names]
        trend = Trend(work, self.timed.gpu, some.seconds)
        return Grid(columns, self.both(kind, some), trend)

    @cached_property
    def products(self) -> Grid | None:
        def work(m: Any, n: Any, k: Any) -> tuple[Any, Any]:
            return 2 * m * n * k, 2 * (m * n + m * k + n * k)

        return self.grid("gemm", ("m", "n", "k"), work)

    @cached_property
    def contexts(self) -> Grid | None:
        names = ("batch", "queries", "heads")

        def work(batch: Any, queries: Any, heads: Any) -> tuple[Any, Any]:
            return 2 * batch * heads * queries**2 * 128, 8 * batch * heads * queries * 128

        return self.grid("context_attention", names, work, head_dim=128, kv_heads="heads",
                         keys="queries")  # fmt: skip

    @cached_property
    def steps(self) -> Grid | None:
        def work(batch: Any, keys: Any) -> tuple[Any, Any]:
            return 4 * batch * KEY_HEADS * keys * 128, 4 * batch * KEY_HEADS * keys * 128

        return self.grid("generation_attention", ("batch", "keys"), work, head_dim=128,
                         heads=KEY_HEADS, kv_heads=KEY_HEADS)  # fmt: skip

    @cached_property
    def encoders(self) -> dict[int, Grid | None]:
        names = ("batch", "queries")

        def work_of(heads: int) -> Work:
            return lambda batch, queries: (
                4 * batch * heads * queries**2 * 64, 8 * batch * heads * queries * 64
            )  # fmt: skip

        return {heads: self.grid("encoder_attention", names, work_of(heads), head_dim=64,
                                 heads=heads)
                for heads in (12, 16)}  # fmt: skip

    @cached_property
    def movements(self) -> Grid | None:
        rows = self.rows("movement")
        if rows is None:
            return None
        octaves = np.round(8 * np.log2(rows.sizes["moved"])).astype(int)
        both = self.both("movement", rows)
        bins = np.unique(octaves)
        medians = np.array([np.median(both[:, octaves == each], axis=1) for each in bins]).T
        columns = [2.0 ** (bins / 8)]
        trend = Trend(lambda moved: (0 * moved, moved), self.timed.gpu, medians[0])
        return Grid(columns, medians, trend)

    @cached_property
    def gated_experts(self) -> MeasuredRows | None:
        rows = self.rows("experts")
        if rows is None:
            return None
        longer = rows.sizes["hidden"] / rows.sizes["inter"] / OWN_SHAPE
        more = rows.sizes["experts"] / OWN_EXPERTS
        alike = (longer <= SHAPES_WITHIN) & (longer >= 1 / SHAPES_WITHIN)
        alike &= (more <= EXPERTS_WITHIN) & (more >= 1 / EXPERTS_WITHIN)
        return rows.taken((rows.sizes["gated"] > 0) & (rows.sizes["fallback"] == 0) & alike)

    def cloud(self, rows: MeasuredRows) -> Cloud:
        def work(elements: Any, of_one: Any, each: Any) -> tuple[Any, Any]:
            return 6 * elements * each, 6 * elements

        trend = Trend(work, self.timed.gpu, rows.seconds)
        return Cloud(expert_points(rows), self.both("experts", rows), trend)

    @cached_property
    def experts(self) -> Cloud | None:
        return self.cloud(self.gated_experts) if self.gated_experts else None

    def find(self, kernel: Kernel) -> Found | None:
        """Seconds of a kernel; None where no table covers it."""
        sizes = kernel.dimensions
        if strided_elements(kernel):
            return None
        if isinstance(sizes, Elements | Rows):
            return self.movements and self.movements.find(kernel.work.bytes_moved)
        if kernel.dtype != "bfloat16":
            return None
        if isinstance(sizes, Gemm) and sizes.batch == 1 and kernel.operator in MEASURED:
            return self.products and self.products.find(sizes.m, sizes.n, sizes.k)
        if isinstance(sizes, Experts):
            given = (sizes.tokens, sizes.experts, sizes.top_k)
            touched = float(expected_experts(*(np.array(float(each)) for each in given)))
            each, elements = sizes.tokens * sizes.top_k / touched, sizes.hidden * sizes.inter
            return self.experts and self.experts.find(touched * elements, elements, each)
        if isinstance(sizes, Attention) and not sizes.masked:
            return self.attention(sizes)
        return None

    def attention(self, sizes: Attention) -> Found | None:
        batch, heads, kv_heads, queries, keys, head_dim, *_ = sizes
        if heads != kv_heads:
            return None
        if queries == 1 and head_dim == 128:
            read = KEY_BLOCK * -(-keys // KEY_BLOCK)
            return self.steps and self.steps.find(batch * heads / KEY_HEADS, read)
        if sizes.skippable_scores and head_dim == 128 and queries == keys:
            return self.contexts and self.contexts.find(batch, queries, heads)
        if not sizes.skippable_scores and head_dim == 64 and queries == keys:
            grid = self.encoders.get(heads)
            return grid and grid.find(batch, queries)
        return None


def expert_points(rows: MeasuredRows) -> list[np.ndarray]:
    """Elements of a matrix of all touched experts, and of one; rows per touched expert."""
    size = rows.sizes
    elements = size["hidden"] * size["inter"]
    return [size["touched"] * elements, elements, size["tokens"] * size["top_k"] / size["touched"]]


# --- how well interpolation does -------------------------------------------------------------


def left_out_products(tables: Tables) -> Iterator[tuple[float, float]]:
    """Of m as a page has it, with the row's n and k taken out of the grid: found and measured."""
    grid = tables.products
    for m, n, k in grid.points if grid else ():
        if m in (1, 16, 256, 1024) and 768 <= n <= 8192 and 768 <= k <= 8192:
            found = grid.find(m, n, k, without=(0.0, n, k))
            if found is not None:
                yield found.measured, grid.find(m, n, k).measured


def left_out_steps(tables: Tables) -> Iterator[tuple[float, float]]:
    """Decode attention of a page's sizes, with the row's batch and keys taken out of the grid."""
    grid = tables.steps
    for batch, keys in grid.points if grid else ():
        if batch in (2, 16, 32) and 512 <= keys <= 4096:
            found = grid.find(batch, keys, without=(batch, keys))
            if found is not None:
                yield found.measured, grid.find(batch, keys).measured


def left_out_experts(tables: Tables) -> Iterator[tuple[float, float]]:
    """Gated experts of sizes like the page's, one model at a time from all others."""
    gated = tables.gated_experts
    for group in np.unique(gated.group, axis=0) if gated else ():
        one = (gated.group == group).all(axis=1)
        cloud, left_out = tables.cloud(gated.taken(~one)), gated.taken(one)
        for *at, measured in zip(*expert_points(left_out), left_out.seconds, strict=True):
            elements, of_one, each = at
            if elements <= 64 * of_one and 5e5 <= of_one <= 4e6 and each <= 4:
                found = cloud.find(*at)
                if found is not None:
                    yield found.measured, measured


def interpolation_errors(pairs: Iterator[tuple[float, float]]) -> str:
    errors = np.array([found / measured - 1 for found, measured in pairs])
    if not len(errors):
        return "no row"
    median, ninety = np.percentile(np.abs(errors), [50, 90])
    return f"{median:.1%} / {ninety:.1%}, {errors.mean():+.1%} on average ({len(errors)} rows)"


# --- the page --------------------------------------------------------------------------------


class Priced(NamedTuple):
    """A kernel of the page: how often it runs, and its seconds three times."""

    kind: str
    kernel: Kernel
    calls: float
    cold: float
    warm: float
    found: Found | None


class Warm(Device):
    """The GPU as tables measured it: L2 has what kernels read, of products all weights or none."""

    def seconds(self, kind: str, sizes: Any, *dtype: str, cold: bool = False, **types: Any) -> Any:
        in_turn = {"others": OTHERS} if kind == "gemm" else {}
        return super().seconds(kind, {**sizes, **in_turn}, *dtype, **types)


def page(timed: Device, sequences: int) -> list[tuple[Kernel, float]]:
    """Kernels of a page, and how often each runs for it."""
    config = json.loads((DEFAULT.reference / "config.json").read_text(encoding="utf-8"))
    mode = DEFAULT.modes["gundam"]
    workload = DEFAULT.plan(
        page=PAGE, base_size=mode.base_size, image_size=mode.image_size, crop_mode=mode.crop_mode
    )
    dimensions = DEFAULT.forms.dimensions(config)
    served_by = TimedModel(DEFAULT, dimensions, BFLOAT16, True, timed)
    model = ServedModel(served_by, SERVERS["vllm"])
    views = [(view.count, view.resolution) for view in workload.views]
    served = DEFAULT.forms.served
    prefill = [
        kernel
        for count, side in views
        for part in served.views(ViewBatch(count, side), dimensions, BFLOAT16).values()
        for kernel in part
    ]
    prefill += model.prompt_kernels(workload.seq_len, workload.visual_tokens)
    share = (NEW_TOKENS - 1) / sequences
    step = model.step_kernels(sequences, workload.seq_len + NEW_TOKENS // 2)
    return [(each, float(each.calls)) for each in prefill] + [
        (each, each.calls * share) for each in step
    ]


def priced(timed: Device, tables: Tables, sequences: int) -> list[Priced]:
    """The page by formulas, cold as it runs and warm as tables are measured, and by tables."""
    kernels = page(timed, sequences)
    records = [kernel for kernel, _ in kernels]
    cold = kernel_seconds(records, timed)
    warm = kernel_seconds(records, Warm(**vars(timed)))
    return [
        Priced(error.kind.split(".")[0], kernel, calls, float(one), float(other),
               None if is_half_cached(kernel, timed) else tables.find(kernel))
        for (kernel, calls), one, other, error in zip(
            kernels, cold.seconds, warm.seconds, cold.errors, strict=True
        )
    ]  # fmt: skip


def is_half_cached(kernel: Kernel, timed: Device) -> bool:
    """Whether what it moves, a product all weights in turn, is about as much as L2 holds."""
    moved, sizes = kernel_seconds([kernel], timed).moved.item(), kernel.dimensions
    if isinstance(sizes, Gemm):
        moved += OTHERS * BFLOAT16.nbytes * sizes.n * sizes.k
    return bool(0.5 < moved / (timed.gpu.l2_mb * 1e6) < 2)


def total(kernels: Sequence[Priced], by: str) -> float:
    return sum(each.calls * getattr(each, by) for each in kernels)


class Difference(NamedTuple):
    """By how much tables are above the formulas over covered kernels, and its two factors."""

    signed: float
    at_measured_sizes: float
    by_interpolating: float

    @classmethod
    def of(cls, kernels: Sequence[Priced]) -> Difference:
        covered = [each for each in kernels if each.found is not None]
        tables = sum(each.calls * each.found.measured for each in covered)
        mesh = sum(each.calls * each.found.formula for each in covered)
        warm = total(covered, "warm")
        return cls(tables / warm - 1, tables / mesh - 1, mesh / warm - 1)


def absolute(covered: Sequence[Priced]) -> float:
    """Differences between tables and formulas without their signs, as a share of the formulas."""
    apart = sum(each.calls * abs(each.found.measured - each.warm) for each in covered)
    return apart / total(covered, "warm")


def case_of(gpu: str, sequences: int, kernels: Sequence[Priced]) -> Case:
    covered = [each for each in kernels if each.found is not None]
    seconds = total(kernels, "cold")
    worst = max(covered, key=lambda each: each.calls * abs(each.found.measured - each.warm))
    return Case(
        gpu, sequences, round(seconds, 6), round(total(covered, "cold") / seconds, 4),
        round(Difference.of(kernels).signed, 4), round(absolute(covered), 4),
        worst.kernel.operator, round(worst.found.measured / worst.warm - 1, 4),
    )  # fmt: skip


def line(kernels: Sequence[Priced], page_seconds: float) -> str:
    covered = [each for each in kernels if each.found is not None]
    share = f"{total(kernels, 'cold') / page_seconds:6.1%} of the page"
    if not covered:
        return f"{share}, not covered"
    signed, there, mesh = Difference.of(kernels)
    return (
        f"{share}, covered {total(covered, 'cold') / page_seconds:6.1%}:"
        f" tables {signed:+6.1%}, kernel by kernel {absolute(covered):5.1%};"
        f" at measured sizes {there:+6.1%}, by interpolating {mesh:+6.1%}"
    )


def report(gpu: str, sequences: int, kernels: Sequence[Priced], every_kernel: bool) -> None:
    seconds = total(kernels, "cold")
    parts: dict[str, list[Priced]] = defaultdict(list)
    for each in kernels:
        parts[each.kind].append(each)
    print(f"{gpu}, {sequences} at a time: {1e3 * seconds:.0f} ms of kernels a page")
    for kind, members in sorted(parts.items(), key=lambda part: -total(part[1], "cold")):
        print(f"    {kind:21}{line(members, seconds)}")
    print(f"    {'all':21}{line(kernels, seconds)}")
    for each in sorted(kernels, key=lambda each: -each.calls * each.cold)[: 30 * every_kernel]:
        off = "-" if each.found is None else f"{each.found.measured / each.warm - 1:+.1%}"
        print(f"      {each.calls * each.cold / seconds:6.1%} {1e6 * each.cold:9.2f} us cold"
              f" {1e6 * each.warm:9.2f} us warm {off:>8}  {each.kernel.operator}"
              f" {tuple(each.kernel.dimensions)}")  # fmt: skip


def main() -> int:
    print_environment()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the tables (systems/data)")
    parser.add_argument("--kernels", action="store_true", help="the costliest kernels one by one")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--save", action="store_true", help=f"keep the figures in {SAVED.name}")
    kept.add_argument("--sentence", action="store_true", help="print the saved result alone")
    arguments = parser.parse_args()
    if arguments.sentence:
        print(sentence(saved_cases()))
        return 0
    data = data_directory(arguments.data)
    found: list[Difference] = []
    cases: list[Case] = []
    for gpu in SYSTEMS:
        timed = device(gpu)
        tables = Tables(data, timed)
        for sequences in (1, 16):
            kernels = priced(timed, tables, sequences)
            report(gpu, sequences, kernels, arguments.kernels)
            found.append(Difference.of(kernels))
            case = case_of(gpu, sequences, kernels)
            cases.append(case)
            print(
                f"    {'ok' if case.is_met else 'MISSED'}: {case.signed:+.1%} over the"
                f" {case.covered:.1%} that tables cover, at most {LIMIT:.0%};"
                f" {case.absolute:.1%} kernel by kernel"
            )
        for what, pairs in (
            ("products", left_out_products(tables)),
            ("decode attention", left_out_steps(tables)),
            ("experts", left_out_experts(tables)),
        ):
            print(f"    left out and interpolated, {what}: {interpolation_errors(pairs)}")
    missed = sum(not case.is_met for case in cases)
    there = sum(abs(each.at_measured_sizes) > LIMIT for each in found)
    print(
        f"{missed} of {len(found)} above {LIMIT:.0%}; at the measured sizes themselves"
        f" {there} of {len(found)}"
    )
    if arguments.save:
        save(cases)
    print(sentence(cases))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
