"""Seconds of kernel records on a GPU, what bounds each, and what they add up to on a stream.

Sizes are integers, or arrays that broadcast to workloads: what depends on `[1, B]` or `[K, 1]`
alone is not priced B x K times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import chain, count
from operator import add, attrgetter, mul
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.figures import expected_experts
from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.hardware.kernel_times import ATTENTION_SIZES
from dsocr_analyze.hardware.machine import Floats, Machine
from dsocr_analyze.hardware.timed_device import CpuKernels, Device, product_types
from dsocr_analyze.kernels import (
    Attention,
    Convolution,
    Dimensions,
    Elements,
    Experts,
    Gemm,
    Kernel,
    Rows,
    Work,
)
from dsocr_analyze.tape import Size
from dsocr_analyze.timing import Bound, Interval
from dsocr_analyze.timing.runtimes import NATIVE, Precision

Figure: TypeAlias = "float | Floats"
"""A float, or an array of workloads."""

_ACTIVATION_PRODUCTS: Final = frozenset({"matmul", "bmm", "baddbmm", "einsum"})
"""Products without weights; their inputs may still be in L2."""

UNQUANTIZED: Final = frozenset({"router", "last_logits"})
"""Products of a served decoder that are never quantized."""

_CACHED: Final = "paged_attention"
"""Reads a served decoder's cache."""

_RECORDED_SIZE: Final = 2
"""Bytes of a weight in records in 16 bits."""

_FLOAT32_SHARE: Final = 0.5
"""Of the fp32 rate; assumed for products in fp32 that the profile lacks."""

_MASKED_SHARE: Final = 0.38
"""Of the `mma.sync` rate; of attention with a bias tensor on whole blocks that the profile lacks.

Fitted by `benchmarks/bench_sam.py` to published times on an A100. By a profile, 0.32 on an RTX 5090
at its base clock, 84 % of the boost clock: `fmha_cutlassF_bf16_aligned_64x64` on SAM's windows in
six views, 160.7 us (github.com/CodeGandee/llm-perf-opt, reports/20251107-dsocr).
"""
_MASKED_BLOCK: Final = 64
_BIAS_ALIGNED: Final = 8
_PADDED_BYTES: Final = 6
"""Per score whose row has another length: filled, read and written (attention.cpp: `pad_bias`)."""

STRIDED_PS: Final = 8.0
"""Picoseconds per `strided_elements`, fitted by `benchmarks/bench_sam.py`.

From a profile: `add` of six views of 640 pixels, 94.9 us on an RTX 5090 at its base clock, is 9.5
ps beyond the bandwidth's share (github.com/CodeGandee/llm-perf-opt, reports/20251107-dsocr).
"""


class KindError(NamedTuple):
    """How accurate the times of a kernel kind are."""

    kind: str
    """With the data type."""
    p90: float
    """90th percentile of the relative error."""
    extrapolated: bool
    """From another GPU's coefficients."""
    assumed: bool
    """Not measured."""
    is_lent: bool = False
    """From another serving engine's coefficients on the same GPU."""


_FLOAT32_ERROR: Final = KindError("gemm.float32", 0.5, extrapolated=False, assumed=True)
HOST_ERROR: Final = KindError("host", 0.5, extrapolated=False, assumed=True)
"""Accuracy of the host's time, assumed."""
_MASKED_ERROR: Final = KindError("masked_attention", 1.0, extrapolated=False, assumed=False)
"""As wide as published rows of one GPU are apart, up to 4 times: the version of PyTorch and the
caller decide which kernel runs, and a prediction does not know them. With its conditions known, a
row is within 0.25 (`benchmarks/bench_sam.py`, a GPU left out, all of it laid to attention)."""
_UNLIKE_AMPERE: Final = KindError("masked_attention", 1.0, extrapolated=True, assumed=True)
"""Where kernels for Ampere fall short of the peak: none was measured, and cuDNN's may run."""


class KernelSeconds(NamedTuple):
    """Kernels and their times, per call, `[kernels, *workloads]`.

    Attributes:
        seconds: No less than either of the least seconds, by `Device.seconds`.
        is_memory: Whether bytes over bandwidth exceed FLOPs over peak.
        errors: Accuracy of each kernel's kind.
        moved: Bytes read and written: the record's, and the weights of touched experts, less what
            weights of fewer bits save.
        least_compute: Seconds of the necessary matrix FLOPs at peak.
        least_memory: Seconds of the bytes that L2 does not serve, at memory's bandwidth.
    """

    kernels: Sequence[Kernel]
    seconds: Floats
    is_memory: NDArray[np.bool_]
    errors: Sequence[KindError]
    moved: Floats
    least_compute: Floats
    least_memory: Floats

    def between(self, start: int, end: int) -> KernelSeconds:
        """Some of the kernels."""
        some: list[Any] = [each[start:end] for each in self]
        return KernelSeconds(*some)

    def duration(self, *, launches: Figure = 0.0, host: Figure = 0.0) -> Duration:
        """All calls one after the other, and seconds in which the GPU waits."""
        calls = np.array([*map(attrgetter("calls"), self.kernels)], np.float64)
        calls = calls.reshape(-1, *[1] * (self.seconds.ndim - 1))
        seconds, numbers = self.seconds * calls, dict[KindError, list[int]]()
        for number, error in enumerate(self.errors):
            numbers.setdefault(error, []).append(number)
        return Duration(
            {error: seconds[rows].sum(axis=0) for error, rows in numbers.items()},
            (seconds * self.is_memory).sum(axis=0), launches, host,
            (self.moved * calls).sum(axis=0), (self.least_compute * calls).sum(axis=0),
            (self.least_memory * calls).sum(axis=0),
        )  # fmt: skip


def notes_on_lent(gpu: Gpu, kinds: Iterable[KindError]) -> Iterator[str]:
    """What is said of kinds that were measured under another serving engine only, if any were."""
    if lent := ", ".join(sorted(each.kind for each in kinds if each.is_lent)):
        yield f"on {gpu.name} only another serving engine was measured, so bands are wider: {lent}"


# --- kernels ---------------------------------------------------------------------------------


_TOLD_APART_BY = attrgetter("operator", "dimensions", "dtype", "work", "stage")


def kernel_seconds(
    kernels: Sequence[Kernel],
    device: Device,
    precision: Precision = NATIVE,
    *,
    weights_between: int | None = None,
) -> KernelSeconds:
    """Seconds of each kernel on a device, with a served decoder's types of weights and cache.

    Weights come from device memory unless L2 holds all that are read until the next call, by
    default those of `kernels`; activations may be in L2.

    Raises:
        DeviceError: The GPU lacks a data type.
    """
    if device.cpu is not None:
        return _on_cpu(kernels, device.cpu, device.gpu)
    between = weight_bytes(kernels) if weights_between is None else weights_between
    l2 = Machine.of(device.gpu, device.gpu.tensor_dtype)
    cold = bool(l2.hits(np.asarray(between, np.float64)) <= 0.5)
    keys = [*map(_TOLD_APART_BY, kernels)]
    try:
        known = dict(zip(keys, kernels, strict=True))
        places = dict(zip(known, count(), strict=False))
        distinct, alike = [*known.values()], [*map(places.__getitem__, keys)]
    except TypeError:  # arrays are not hashable; such records are few
        distinct, alike = [*kernels], [*range(len(kernels))]
    together: dict[Hashable, list[int]] = {}
    for number, kernel in enumerate(distinct):
        together.setdefault(_group_of(kernel), []).append(number)
    groups = [
        (_Group([*map(distinct.__getitem__, numbers)], device, precision, cold), numbers)
        for numbers in together.values()
    ]
    shape = (len(distinct), *np.broadcast_shapes(*(group.width for group, _ in groups)))
    seconds, moved, compute, memory = np.zeros((4, *shape))
    is_memory = np.zeros(shape, dtype=bool)
    errors: dict[int, KindError] = {}
    for group, numbers in groups:
        fitted, error = group.fitted()
        moved[numbers] = group.moved
        seconds[numbers] = fitted
        is_memory[numbers], compute[numbers], memory[numbers] = group.least()
        errors |= dict.fromkeys(numbers, error)
    return KernelSeconds(
        kernels, seconds[alike], is_memory[alike], [*map(errors.__getitem__, alike)],
        moved[alike], compute[alike], memory[alike],
    )  # fmt: skip


def _on_cpu(kernels: Sequence[Kernel], cpu: CpuKernels, peaks: Gpu) -> KernelSeconds:
    seconds = np.array([*map(cpu.seconds, kernels)])
    flops = np.array([2.0 * kernel.work.macs for kernel in kernels])
    rates = np.array([1e12 * peaks.tflops(kernel.dtype) for kernel in kernels])
    moved = np.array([float(kernel.work.bytes_moved) for kernel in kernels])
    errors = [
        KindError(".".join(family), cpu.families[family].p90, extrapolated=False, assumed=False)
        for family in map(cpu.family, kernels)
    ]
    compute, memory = flops / rates, moved / (peaks.bandwidth_gb_s * 1e9)
    # The peaks are the highest rates among measured kernels: whatever is faster is at the peak.
    streamed = np.where(moved > cpu.CACHED_BYTES, memory, 0.0)
    return KernelSeconds(
        kernels, seconds, memory > compute, errors, moved,
        np.minimum(compute, seconds), np.minimum(streamed, seconds),
    )  # fmt: skip


def _product_of(sizes: Dimensions) -> Dimensions:
    """The product of a row per output position that a convolution is; other sizes as they are."""
    if not isinstance(sizes, Convolution):
        return sizes
    rows = sizes.images * sizes.positions
    return Gemm(1, rows, sizes.out_channels, sizes.in_channels * sizes.taps)


def weight_bytes(kernels: Iterable[Kernel]) -> int:
    """Bytes of the weights of some kernels in 16 bits."""
    total = 0
    for kernel in kernels:
        sizes = _product_of(kernel.dimensions)
        if isinstance(sizes, Gemm) and kernel.operator not in _ACTIVATION_PRODUCTS:
            total += 2 * kernel.calls * sizes.n * sizes.k
        elif isinstance(sizes, Experts):
            total += 6 * kernel.calls * sizes.experts * sizes.hidden * sizes.inter
    return total


def strided_elements(kernel: Kernel) -> Size:
    """Elements that an uncompiled kernel of SAM reads at a stride, 32 bytes for each.

    `PatchEmbed` returns channels first behind a permuted view, and a sum has the layout of its
    first input: every residual sum reads a branch, and the copy before every norm the residual.
    """
    work, sizes = kernel.work, kernel.dimensions
    if kernel.stage != "sam":
        return 0
    if isinstance(sizes, Rows) and kernel.operator == "native_layer_norm":
        return sizes.rows * sizes.width
    # Biases, positions and norms add less than a second whole operand.
    is_sum = isinstance(sizes, Elements) and kernel.operator == "add"
    return sizes[0] * (work.bytes_read == 2 * work.bytes_written) if is_sum else 0


def _shape(kernels: Sequence[Kernel]) -> tuple[int, ...]:
    """Shape to which all sizes broadcast; `()` for integers."""
    sizes = chain.from_iterable(chain(*map(attrgetter("dimensions", "work"), kernels)))
    return np.broadcast_shapes(*{each.shape for each in sizes if not isinstance(each, int)})


# --- kernels that are priced together -------------------------------------------------------


_SIZES: Final = {"gemm": Gemm._fields, "experts": Experts._fields, "movement": ()}
"""What a kind's formula reads; attention's otherwise."""

_KINDS: Final[dict[type[Dimensions], str]] = {
    Gemm: "gemm", Convolution: "gemm", Experts: "experts",
}  # fmt: skip


def kind_of(sizes: Dimensions) -> str:
    """The kernel kind of a device profile."""
    if not isinstance(sizes, Attention):
        return _KINDS.get(type(sizes), "movement")
    if sizes.masked:
        return "masked_attention"
    # Sizes may be arrays, which equal no number.
    if type(sizes.queries) is int and sizes.queries == 1:
        return "generation_attention"
    is_whole = type(sizes.skippable_scores) is int and sizes.skippable_scores == 0
    return "encoder_attention" if is_whole else "context_attention"


def _group_of(kernel: Kernel) -> Hashable:
    kind = kind_of(kernel.dimensions)
    if kind == "movement":
        return kind
    has_weights = kernel.operator not in _ACTIVATION_PRODUCTS
    told_apart = kernel.operator in UNQUANTIZED or kernel.operator == _CACHED
    return kind, type(kernel.dimensions), kernel.dtype, has_weights, told_apart


class _Group:
    """Kernels that are priced together; weights come from device memory if `cold`."""

    def __init__(
        self, members: Sequence[Kernel], device: Device, precision: Precision, cold: bool
    ) -> None:
        self.members, self.device, self.cold, self.width = members, device, cold, _shape(members)
        self.works = [*map(attrgetter("work"), members)]
        self.sizes = [*map(_product_of, map(attrgetter("dimensions"), members))]
        self.kind, self.dtype = kind_of(members[0].dimensions), members[0].dtype
        self.moved = self.recorded = self.column("bytes_moved")
        operator, of_products = members[0].operator, self.kind in ("gemm", "experts")
        has_weights = of_products and operator not in _ACTIVATION_PRODUCTS
        self.is_cold = self.kind == "generation_attention" or (has_weights and cold)
        self.cache = precision.cache if operator == _CACHED else None
        self.weights = precision.weights if has_weights and operator not in UNQUANTIZED else None
        # Records lack the experts' weights, and have others in 16 bits.
        self.multiplied, size = self.dtype, float(_RECORDED_SIZE)
        if self.weights is not None:
            self.multiplied, size = product_types(device.gpu, self.dtype, self.weights)
        self.named = {name: self.column(name) for name in _SIZES.get(self.kind, ATTENTION_SIZES)}
        if self.kind == "experts":
            tokens, hidden, inter, experts, top_k = self.named.values()
            touched = self.named["touched"] = expected_experts(tokens, experts, top_k)
            self.moved = self.recorded + size * (touched * 3 * hidden * inter)
        elif self.weights is not None:
            extra = (size - _RECORDED_SIZE) * self.named["n"] * self.named["k"]
            self.moved = self.recorded + extra
        self.machine = Machine.of(device.gpu, self.multiplied, cold=self.is_cold)
        macs = self.column("macs")
        if self.kind.endswith("attention") and self.kind != "masked_attention":
            width = self.column("head_dim") + self.column("value_dim")
            macs = macs - self.column("skippable_scores") * width
        self.flops = 2 * macs

    def column(self, name: str) -> Floats:
        """A size or figure of the kernels, `stacked`."""
        sources: Sequence[object] = self.works if hasattr(Work, name) else self.sizes
        return self.stacked([*map(attrgetter(name), sources)])

    def stacked(self, values: Sequence[Size]) -> Floats:
        """Values of the kernels, `[kernels, *width]`; integers `[kernels, 1, ...]`."""
        if {*map(type, values)} <= {int, bool}:
            return np.array(values, np.float64).reshape(-1, *[1] * len(self.width))
        found = np.empty((len(values), *self.width))
        for row, value in zip(found, values, strict=True):
            row[...] = value
        return found

    def rate(self) -> float:
        """FLOPs per second at the peak of the type in which they multiply."""
        if not self.machine.flops_per_second:
            raise DeviceError(
                f"the profile of {self.device.gpu.title} lacks gpu.float32_tflops; add it"
            )
        return self.machine.flops_per_second

    def least(self) -> tuple[NDArray[np.bool_] | bool, Floats, Floats]:
        """Whether memory bounds them, and the least seconds of compute and of memory."""
        is_memory: NDArray[np.bool_] | bool = self.kind == "movement" or (
            self.moved / self.machine.bytes_per_second > 2 * self.column("macs") / self.rate()
        )
        return is_memory, *self.machine.least_seconds(self.flops, self.moved)

    def fitted(self) -> tuple[Floats | float, KindError]:
        """Seconds of each by the formula of the kind, and how accurate that is."""
        device, dtype, kind = self.device, self.dtype, self.kind
        if kind == "gemm" and dtype == "float32":
            moved = device.elementwise_seconds(self.recorded, cold=self.cold)
            rate = _FLOAT32_SHARE * self.rate()
            return moved + 2 * self.column("macs") / rate, _FLOAT32_ERROR
        if kind == "masked_attention":
            error = _MASKED_ERROR if device.gpu.mma_share == 1 else _UNLIKE_AMPERE
            return self._masked_attention(), error
        if kind == "movement":
            dtype = device.gpu.tensor_dtype
        sizes = {
            **self.named, "flops": np.maximum(1.0, self.flops), "moved": np.maximum(1.0, self.moved)
        }  # fmt: skip
        found = device.fitted(kind, dtype, weights_dtype=self.weights, kv_dtype=self.cache)
        seconds = device.seconds(
            kind, sizes, dtype, weights_dtype=self.weights, kv_dtype=self.cache, cold=self.is_cold
        )
        if kind == "movement":
            strided = self.stacked([*map(strided_elements, self.members)])
            seconds = seconds + STRIDED_PS * 1e-12 * strided
        name = f"{kind}.{self.weights or self.cache or dtype}"
        is_lent = found.extrapolated and found.gpu == device.gpu.name
        is_of_another_gpu = found.extrapolated and not is_lent
        return seconds, KindError(name, found.p90, is_of_another_gpu, found.assumed, is_lent)

    def _masked_attention(self) -> Floats:
        batch, queries, keys, heads, head_dim, _ = self.named.values()
        blocks = np.ceil(queries / _MASKED_BLOCK) * np.ceil(keys / _MASKED_BLOCK)
        width = head_dim + self.column("value_dim")
        flops = 2 * batch * heads * _MASKED_BLOCK**2 * blocks * width
        rate = _MASKED_SHARE * self.device.gpu.mma_share * self.rate()
        seconds: Floats = np.maximum(flops / rate, self.device.elementwise_seconds(self.recorded))
        copied = self.device.elementwise_seconds(_PADDED_BYTES * batch * heads * queries * keys)
        return seconds + np.where(keys % _BIAS_ALIGNED, copied, 0.0)


# --- time on a stream ------------------------------------------------------------------------


class Duration(NamedTuple):
    """Time on the stream.

    Attributes:
        kinds: Seconds of kernels.
        memory: The part of these in memory-bound kernels.
        launches: Seconds that the GPU waits for launches.
        host: Seconds that it waits for other work of the host.
        nbytes: Bytes read and written, including those that caches serve.
        least_compute: Seconds of the necessary matrix FLOPs at peak.
        least_memory: Seconds of the bytes that L2 does not serve, at memory's bandwidth.
        measured_error: Relative half-width of the band if a server's benchmarks give it.
    """

    kinds: Mapping[KindError, Figure] = MappingProxyType({})
    memory: Figure = 0.0
    launches: Figure = 0.0
    host: Figure = 0.0
    nbytes: Figure = 0.0
    least_compute: Figure = 0.0
    least_memory: Figure = 0.0
    measured_error: float | None = None

    @property
    def seconds(self) -> Figure:
        """Total seconds."""
        return sum(self.kinds.values(), 0.0) + self.launches + self.host

    @property
    def bound(self) -> Bound:
        """What takes most of the time (floats only)."""
        parts: dict[Bound, Figure] = {
            "compute": sum(self.kinds.values(), 0.0) - self.memory,
            "memory": self.memory,
            "launches": self.launches,
            "host": self.host,
        }
        return max(parts, key=parts.__getitem__)

    @property
    def error(self) -> float:
        """Relative half-width of the band: kinds are independent, kernels of a kind are not."""
        if self.measured_error is not None:
            return self.measured_error
        parts = (*self.kinds.items(), (HOST_ERROR, self.launches + self.host))
        squares = sum([(kind.p90 * float(part)) ** 2 for kind, part in parts])
        seconds = float(self.seconds)
        return math.sqrt(squares) / seconds if seconds else 0.0

    def band(self, seconds: float | None = None) -> Interval:
        """The band of seconds of which this is a part, by default all; the rest is exact.

        A measured error is one of all the seconds.
        """
        own, error = float(self.seconds), self.error
        if seconds is None or self.measured_error is not None:
            return Interval.within(own if seconds is None else seconds, error)
        known = seconds - own
        return Interval(low=own / (1 + error) + known, high=own * (1 + error) + known)

    def mapped(self, change: Callable[[Figure], Figure]) -> Duration:
        """A duration with every figure changed."""
        kinds, *figures, error = self
        changed = dict(zip(kinds, map(change, kinds.values()), strict=True))
        return Duration._make([changed, *map(change, figures), error])

    def times(self, factor: Figure) -> Duration:
        """So many times the duration and its work."""
        return self.mapped(partial(mul, factor))

    def corrected(self, factor: float, error: float | None) -> Duration:
        """Seconds times a factor; `error` is the ratio by which benchmarks disagree, if any."""
        duration = self.times(factor)
        # The same work is done, unless it takes longer: then the server was spared some of it.
        return duration._replace(
            nbytes=self.nbytes,
            least_compute=np.minimum(self.least_compute, duration.seconds),
            least_memory=np.minimum(self.least_memory, duration.seconds),
            measured_error=error,
        )

    def plus(self, other: Duration) -> Duration:
        """This duration followed by another."""
        kinds = dict(self.kinds)
        for kind, seconds in other.kinds.items():
            kinds[kind] = kinds.get(kind, 0.0) + seconds
        figures = map(add, self[1:-1], other[1:-1])
        return Duration._make([kinds, *figures, _error_of_both(self, other)])


def _error_of_both(duration: Duration, other: Duration) -> float | None:
    """The measured error of both: absolute errors add up (floats only, if they differ)."""
    if duration.measured_error == other.measured_error:
        return duration.measured_error
    seconds = float(duration.seconds), float(other.seconds)
    errors = duration.error * seconds[0] + other.error * seconds[1]
    return errors / sum(seconds) if any(seconds) else None


def total_duration(durations: Iterable[Duration]) -> Duration:
    """All durations, one after the other."""
    return reduce(Duration.plus, durations, Duration())


def mean_step(step: Callable[[Size], Duration], first: Size, last: Size) -> Duration:
    """Mean of decode steps from one number of cached tokens to another, by Simpson's rule.

    A step's seconds are nearly linear in them.
    """
    ends = step(first).plus(step(last))
    return ends.plus(step((first + last) // 2).times(4)).times(1 / 6)
