"""Seconds of kernel records on a GPU, with what bounds each and how well it is known.

Sizes may be arrays, one element per workload, so every result is `[kernels, workloads]`. They
may also broadcast, `[1, B]` and `[K, 1]`, so that what depends on one alone is not priced B x K
times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.figures import expected_experts
from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.hardware.kernel_times.machine import Floats
from dsocr_analyze.hardware.timed_device import Device, product_types
from dsocr_analyze.kernels import Attention, Convolution, Dimensions, Experts, Gemm, Kernel
from dsocr_analyze.timing.runtimes import NATIVE, Precision

if TYPE_CHECKING:
    from dsocr_analyze.hardware.cpu_kernels import CpuKernels

__all__ = [
    "ACTIVATION_PRODUCTS",
    "UNQUANTIZED",
    "KernelSeconds",
    "KindError",
    "kernel_seconds",
    "kind_of",
    "product_of",
    "weight_bytes",
]

ACTIVATION_PRODUCTS: Final = frozenset({"matmul", "bmm", "baddbmm", "einsum"})
"""Products without weights: their inputs were just written, and may still be in L2."""

UNQUANTIZED: Final = frozenset({"router", "last_logits"})
"""Products of a served decoder that keep 16-bit weights when others are quantized."""

_CACHED: Final = "paged_attention"
"""The operator that reads a served decoder's cache."""

_RECORDED_SIZE: Final = 2
"""Bytes of a weight in records of products in 16 bits."""

_FLOAT32_SHARE: Final = 0.5
"""Share of the fp32 rate that a product in fp32 reaches; assumed if the profile has no figure."""

_MASKED_SHARE: Final = 0.33
"""Share of the `mma.sync` rate that attention with a bias tensor reaches on whole blocks; used if
the profile has no such kernels.

Measured once: `fmha_cutlassF_bf16_aligned_64x64` on SAM's windows, 160.7 us on an RTX 5090
(github.com/CodeGandee/llm-perf-opt, reports/20251107-dsocr).
"""
_MASKED_BLOCK: Final = 64


class KindError(NamedTuple):
    """How accurate the times of a kernel kind are.

    Attributes:
        kind: Kernel kind of the device profile, with its data type.
        median: Median relative error.
        p90: 90th percentile of the relative error.
        extrapolated: Whether the coefficients come from another GPU.
        assumed: Whether the error is assumed instead of measured.
    """

    kind: str
    median: float
    p90: float
    extrapolated: bool
    assumed: bool


_FLOAT32_ERROR: Final = KindError("gemm.float32", 0.25, 0.5, extrapolated=False, assumed=True)
_MASKED_ERROR: Final = KindError("masked_attention", 0.25, 0.5, extrapolated=False, assumed=True)
"""Assumed, since a single size was measured."""


@dataclass(frozen=True)
class KernelSeconds:
    """Kernels and their times.

    Attributes:
        kernels: The records, `calls` each.
        seconds: Seconds per call, `[kernels, workloads]`.
        is_memory: Whether bytes over bandwidth exceed FLOPs over peak, same shape.
        errors: Accuracy of each kernel's kind, `[kernels]`.
        moved: Bytes read and written per call, `[kernels, workloads]`: the record's, the weights of
            the experts that are touched, less what weights of fewer bits save.
        least_compute: Seconds per call that the necessary matrix FLOPs take at the peak of their
            type, `[kernels, workloads]`; `seconds` are no less.
        least_memory: Seconds per call that the bytes which L2 does not serve take at the bandwidth
            of device memory, same shape; `seconds` are no less.
    """

    kernels: Sequence[Kernel]
    seconds: Floats
    is_memory: NDArray[np.bool_]
    errors: Sequence[KindError]
    moved: Floats
    least_compute: Floats
    least_memory: Floats

    def summed(self, per_call: Floats, numbers: Sequence[int] | slice = slice(None)) -> Floats:
        """The sum over all calls of some kernels, `[workloads]`; default: of all kernels."""
        calls = np.array([kernel.calls for kernel in self.kernels], dtype=np.float64)
        every = per_call * calls.reshape(-1, *[1] * (per_call.ndim - 1))
        total: Floats = every[numbers].sum(axis=0)
        return total


def kernel_seconds(
    kernels: Sequence[Kernel],
    device: Device,
    precision: Precision = NATIVE,
    *,
    weights_between: int | None = None,
) -> KernelSeconds:
    """Seconds of each kernel on a device.

    Weights are read from device memory in every call, unless all weights that are read until the
    next call fit in L2; activations may be in L2.

    Args:
        kernels: The records.
        device: The GPU.
        precision: Types of a served decoder's weights and cache.
        weights_between: Bytes of all weights that are read until the same kernel runs again; None
            for those of `kernels`.

    Raises:
        DeviceError: The GPU lacks a data type.
    """
    if device.cpu is not None:
        return _on_cpu(kernels, device.cpu, device.gpu)
    between = weight_bytes(kernels) if weights_between is None else weights_between
    cold = not device.is_in_l2(between)
    distinct, alike = kernels, [*range(len(kernels))]
    with contextlib.suppress(TypeError):  # arrays are not hashable; such records are few
        keys = [(each.operator, each.dimensions, each.dtype, each.work, each.stage)
                for each in kernels]  # fmt: skip
        known = dict(zip(keys, kernels, strict=True))
        places = {key: number for number, key in enumerate(known)}
        distinct, alike = [*known.values()], [places[key] for key in keys]
    shape = (len(distinct), *_shape(distinct))
    seconds, moved, compute, memory = (np.zeros(shape) for _ in range(4))
    is_memory = np.zeros(shape, dtype=bool)
    errors: dict[int, KindError] = {}
    groups: dict[Hashable, list[int]] = {}
    for number, kernel in enumerate(distinct):
        groups.setdefault(_group_of(kernel), []).append(number)
    for numbers in groups.values():
        group = _Group([distinct[number] for number in numbers], device, precision, cold)
        fitted, error = group.fitted()
        moved[numbers] = group.moved
        is_memory[numbers], compute[numbers], memory[numbers] = group.least()
        least = np.maximum(compute[numbers], memory[numbers])
        seconds[numbers] = np.maximum(fitted, least)
        errors |= dict.fromkeys(numbers, error)
    return KernelSeconds(
        kernels, seconds[alike], is_memory[alike], [errors[place] for place in alike],
        moved[alike], compute[alike], memory[alike],
    )  # fmt: skip


def _on_cpu(kernels: Sequence[Kernel], cpu: CpuKernels, peaks: Gpu) -> KernelSeconds:
    """Seconds on a CPU, where they do not depend on what ran before."""
    families = [cpu.family(kernel) for kernel in kernels]
    seconds = np.array([[cpu.seconds(kernel)] for kernel in kernels])
    flops = np.array([2.0 * kernel.work.macs for kernel in kernels])
    rates = np.array([1e12 * peaks.tflops(kernel.dtype) for kernel in kernels])
    moved = np.array([float(kernel.work.bytes_moved) for kernel in kernels])
    errors = [
        KindError(f"{name}.{dtype}", cpu.families[name, dtype].median,
                  cpu.families[name, dtype].p90, False, False)
        for name, dtype in families
    ]  # fmt: skip
    compute, memory = flops / rates, moved / (peaks.bandwidth_gb_s * 1e9)
    # The peaks are the highest rates among measured kernels: whatever is faster is at the peak.
    streamed = np.where(moved > cpu.CACHED_BYTES, memory, 0.0)
    least = (np.minimum(each[:, None], seconds) for each in (compute, streamed))
    return KernelSeconds(
        kernels, seconds, (memory > compute)[:, None], errors, moved[:, None], *least
    )


def product_of(sizes: Dimensions) -> Gemm | None:
    """The product that a kernel of these sizes is, or is equivalent to; None if it is none.

    A convolution has one row per output position and one column per channel.
    """
    if isinstance(sizes, Convolution):
        rows = sizes.images * sizes.positions
        return Gemm(1, rows, sizes.out_channels, sizes.in_channels * sizes.taps)
    return sizes if isinstance(sizes, Gemm) else None


def weight_bytes(kernels: Iterable[Kernel]) -> int:
    """Bytes of the weights of some kernels in 16 bits."""
    total = 0
    for kernel in kernels:
        sizes, product = kernel.dimensions, product_of(kernel.dimensions)
        if product is not None and kernel.operator not in ACTIVATION_PRODUCTS:
            total += 2 * kernel.calls * product.n * product.k
        elif isinstance(sizes, Experts):
            total += 6 * kernel.calls * sizes.experts * sizes.hidden * sizes.inter
    return total


def _shape(kernels: Sequence[Kernel]) -> tuple[int, ...]:
    """Shape to which all sizes of the kernels broadcast; `(1,)` for plain integers."""
    sizes = {np.shape(count) for each in kernels for count in (*each.dimensions, *each.work)}
    return np.broadcast_shapes((1,), *sizes)


# --- kernels that are priced together -------------------------------------------------------


def kind_of(sizes: Dimensions) -> str:
    """The kernel kind of a device profile."""
    if isinstance(sizes, Gemm | Convolution):
        return "gemm"
    if isinstance(sizes, Experts):
        return "experts"
    if not isinstance(sizes, Attention):
        return "movement"
    if sizes.masked:
        return "masked_attention"
    # Sizes may be arrays, which equal no number.
    if type(sizes.queries) is int and sizes.queries == 1:
        return "generation_attention"
    is_whole = type(sizes.skippable_scores) is int and sizes.skippable_scores == 0
    return "encoder_attention" if is_whole else "context_attention"


def _group_of(kernel: Kernel) -> Hashable:
    """What kernels that are priced together share."""
    kind = kind_of(kernel.dimensions)
    if kind == "movement":
        return kind
    has_weights = kernel.operator not in ACTIVATION_PRODUCTS
    told_apart = kernel.operator in UNQUANTIZED or kernel.operator == _CACHED
    return kind, type(kernel.dimensions), kernel.dtype, has_weights, told_apart, kernel.stage


class _Group:
    """Kernels that are priced together.

    Args:
        members: The records.
        device: The GPU.
        precision: Types of a served decoder's weights and cache.
        cold: Whether weights are read from device memory.
    """

    def __init__(
        self, members: Sequence[Kernel], device: Device, precision: Precision, cold: bool
    ) -> None:
        self.members, self.device, self.precision, self.cold = members, device, precision, cold
        self.width = _shape(members)
        self.recorded = self._work("bytes_moved")
        sizes, operator, self.dtype = members[0].dimensions, members[0].operator, members[0].dtype
        self.sizes, self.kind = sizes, kind_of(sizes)
        self.reads_weights = cold and operator not in ACTIVATION_PRODUCTS
        is_quantized = isinstance(sizes, Gemm | Experts) and operator not in (
            ACTIVATION_PRODUCTS | UNQUANTIZED
        )
        self.weights = precision.weights if is_quantized else None
        self.moved = self.recorded + self._weight_bytes_besides()

    def _work(self, name: str) -> Floats:
        """A figure of each kernel's work, `[kernels, *width]`."""
        figures = [np.broadcast_to(getattr(each.work, name), self.width) for each in self.members]
        return np.asarray(figures, np.float64)

    def columns(self, *names: str) -> list[Floats]:
        """Dimensions of the kernels, `[kernels, *width]`, or `[kernels, 1, ...]` for integers."""
        found = []
        for name in names:
            sizes = [getattr(product_of(each.dimensions) or each.dimensions, name)
                     for each in self.members]  # fmt: skip
            is_whole = all(isinstance(size, int) for size in sizes)
            shape = (1,) * len(self.width) if is_whole else self.width
            found.append(np.asarray([np.broadcast_to(each, shape) for each in sizes], np.float64))
        return found

    def rate(self) -> float:
        """FLOPs per second at the peak of the type in which they multiply."""
        gpu, dtype = self.device.gpu, self.dtype
        if self.weights is not None:
            dtype = product_types(gpu, dtype, self.weights).dtype
        if not gpu.tflops(dtype):
            raise DeviceError(f"the profile of {gpu.title} lacks gpu.float32_tflops; add it")
        return gpu.tflops(dtype) * 1e12

    def _weight_bytes_besides(self) -> Floats | float:
        """Bytes of weights of each kernel in addition to its record's, `[kernels, *width]`."""
        size: float = _RECORDED_SIZE
        if self.weights is not None:
            size = product_types(self.device.gpu, self.dtype, self.weights).weight_bytes
        if self.kind == "experts":
            tokens, hidden, inter, experts, top_k = self.columns(*Experts._fields)
            touched: Floats = expected_experts(tokens, experts, top_k) * 3 * hidden * inter
            return size * touched
        if self.weights is None:
            return 0.0
        n, k = self.columns("n", "k")
        return (size - _RECORDED_SIZE) * n * k

    def least(self) -> tuple[NDArray[np.bool_] | bool, Floats | float, Floats]:
        """Whether memory bounds kernels, and the least seconds of compute and of memory."""
        moved, bandwidth = self.moved, self.device.gpu.bandwidth_gb_s * 1e9
        is_cold = self.kind == "generation_attention"
        if self.kind in ("gemm", "experts"):
            is_cold = self.reads_weights
        memory = np.where(self.device.is_in_l2(moved, cold=is_cold), 0.0, moved) / bandwidth
        if self.kind == "movement":
            return True, 0.0, memory
        macs, rate = self._work("macs"), self.rate()
        is_memory: NDArray[np.bool_] = moved / bandwidth > 2 * macs / rate
        if self.kind.endswith("attention") and self.kind != "masked_attention":
            skipped, *sizes = self.columns("skippable_scores", "head_dim", "value_dim")
            macs -= skipped * sum(sizes)
        return is_memory, 2 * macs / rate, memory

    def fitted(self) -> tuple[Floats | float, KindError]:
        """Seconds of each kernel by the formula of its kind, and how accurate they are."""
        device, dtype, kind = self.device, self.dtype, self.kind
        cache = self.precision.cache if self.members[0].operator == _CACHED else None
        if kind == "movement":
            dtype = device.gpu.tensor_dtype
            seconds = device.elementwise_seconds(np.maximum(1.0, self.recorded))
        elif kind == "gemm" and dtype == "float32" and not device.is_measured(kind, dtype):
            moved = device.elementwise_seconds(self.recorded, cold=self.cold)
            rate = _FLOAT32_SHARE * self.rate()
            return moved + 2 * self._work("macs") / rate, _FLOAT32_ERROR
        elif kind == "gemm":
            batch, m, n, k = self.columns(*Gemm._fields)
            seconds = device.gemm_seconds(
                m, n, k, batch=batch, dtype=dtype, weights_dtype=self.weights,
                cold=self.reads_weights,
            )  # fmt: skip
        elif kind == "experts":
            seconds = device.grouped_experts_seconds(
                *self.columns(*Experts._fields), dtype=dtype, weights_dtype=self.weights,
                cold=self.cold,
            )  # fmt: skip
        elif kind == "masked_attention" and not device.is_measured(kind):
            return self._masked_attention(), _MASKED_ERROR
        else:
            sizes = self.columns("batch", "queries", "keys", "heads", "head_dim")
            if kind == "masked_attention":
                seconds = device.masked_attention_seconds(*sizes, moved=self.recorded)
            else:
                [kv_heads] = self.columns("kv_heads")
                seconds = device.attention_seconds(
                    *sizes, kv_heads=kv_heads, causal=kind != "encoder_attention", dtype=dtype,
                    kv_dtype=cache, cold=kind == "generation_attention",
                )  # fmt: skip
        found = device.fitted(kind, dtype, weights_dtype=self.weights, kv_dtype=cache)
        name = f"{kind}.{self.weights or cache or dtype}"
        return seconds, KindError(name, found.median, found.p90, found.extrapolated, found.assumed)

    def _masked_attention(self) -> Floats:
        """Whole blocks at a share of the peak, or the bytes if they take longer."""
        batch, queries, keys, heads, head_dim, value_dim = self.columns(
            "batch", "queries", "keys", "heads", "head_dim", "value_dim"
        )
        blocks = np.ceil(queries / _MASKED_BLOCK) * np.ceil(keys / _MASKED_BLOCK)
        flops = 2 * batch * heads * _MASKED_BLOCK**2 * blocks * (head_dim + value_dim)
        rate = _MASKED_SHARE * self.device.gpu.mma_share * self.rate()
        seconds: Floats = np.maximum(flops / rate, self.device.elementwise_seconds(self.recorded))
        return seconds
