"""Seconds of kernel records on a GPU, with what bounds each and how well it is known.

Sizes may be arrays, one element per workload, so every result is `[kernels, workloads]`. They
may also broadcast, `[1, B]` and `[K, 1]`, so that what depends on one alone is not priced B x K
times.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.weight_types import product_types
from dsocr_analyze.kernels import Attention, Convolution, Experts, Gemm, Kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.hardware.cpu_kernels import CpuKernels
    from dsocr_analyze.hardware.devices import Gpu
    from dsocr_analyze.hardware.profile import Fitted
    from dsocr_analyze.hardware.timed_device import Device, Seconds

    Floats = NDArray[np.float64]

__all__ = [
    "ACTIVATION_PRODUCTS",
    "NATIVE",
    "UNQUANTIZED",
    "KernelSeconds",
    "KindError",
    "Precision",
    "kernel_seconds",
    "weight_bytes",
]

ACTIVATION_PRODUCTS: Final = frozenset({"matmul", "bmm", "baddbmm", "einsum"})
"""Products without weights: their inputs were just written, and may still be in L2."""

UNQUANTIZED: Final = frozenset({"router", "last_logits"})
"""Products of a served decoder that keep 16-bit weights when others are quantized."""

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
_MASKED_ERROR: Final = (0.25, 0.5)
"""Its median and 90th percentile error; assumed, since a single size was measured."""

_FLOAT32_ERROR: Final = (0.25, 0.5)


class Precision(NamedTuple):
    """Types of a served decoder's weights and cache; None for the model's own type."""

    weights: str | None = None
    cache: str | None = None


NATIVE: Final = Precision()
"""Weights and cache in the model's own type."""


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


@dataclass(frozen=True)
class KernelSeconds:
    """Kernels and their times.

    Attributes:
        kernels: The records, `calls` each.
        seconds: Seconds per call, `[kernels, workloads]`.
        is_memory: Whether bytes over bandwidth exceed FLOPs over peak, same shape.
        errors: Accuracy of each kernel's kind, `[kernels]`.
        more_bytes: Bytes of weights missing from the records: those of experts, which depend on
            how many are touched, less what weights of fewer bits save, `[workloads]`.
        least_compute: Seconds per call that the necessary matrix FLOPs take at the peak of their
            type, `[kernels, workloads]`; `seconds` are no less.
        least_memory: Seconds per call that the bytes which L2 does not serve take at the bandwidth
            of device memory, same shape; `seconds` are no less.
    """

    kernels: Sequence[Kernel]
    seconds: Floats
    is_memory: NDArray[np.bool_]
    errors: Sequence[KindError]
    more_bytes: Floats
    least_compute: Floats
    least_memory: Floats

    @property
    def calls(self) -> Floats:
        """Calls of each kernel, `[kernels, 1]`, with as many axes as `seconds`."""
        import numpy as np

        calls = np.array([kernel.calls for kernel in self.kernels], dtype=np.float64)
        return calls.reshape(-1, *[1] * (self.seconds.ndim - 1))

    @property
    def total(self) -> Floats:
        """Seconds of all calls of all kernels, `[workloads]`."""
        return self.summed(self.seconds)

    @property
    def memory_total(self) -> Floats:
        """The part of `total` in memory-bound kernels, `[workloads]`."""
        return self.summed(self.seconds * self.is_memory)

    def summed(self, per_call: Floats) -> Floats:
        """The sum over all calls of all kernels, `[workloads]`."""
        return _sum(per_call * self.calls)

    def by_kind(self) -> dict[KindError, Floats]:
        """Seconds of all calls by kind, `[workloads]` each."""
        rows: dict[KindError, list[int]] = {}
        for number, error in enumerate(self.errors):
            rows.setdefault(error, []).append(number)
        seconds = self.seconds * self.calls
        return {error: _sum(seconds[numbers]) for error, numbers in rows.items()}


def _sum(values: Floats) -> Floats:
    total: Floats = values.sum(axis=0)
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
    places: dict[Hashable, int] = {}
    try:
        alike = [places.setdefault(_what(kernel), len(places)) for kernel in kernels]
    except TypeError:  # arrays are not hashable; such records are few
        return _priced(kernels, device, precision, cold=cold)
    firsts = dict(zip(reversed(alike), reversed(kernels), strict=True))
    priced = _priced([firsts[place] for place in range(len(places))], device, precision, cold=cold)
    return KernelSeconds(
        kernels,
        priced.seconds[alike],
        priced.is_memory[alike],
        [priced.errors[place] for place in alike],
        _more_bytes(kernels, device, precision),
        priced.least_compute[alike],
        priced.least_memory[alike],
    )


def _on_cpu(kernels: Sequence[Kernel], cpu: CpuKernels, peaks: Gpu) -> KernelSeconds:
    """Seconds on a CPU, where they do not depend on what ran before."""
    import numpy as np

    from dsocr_analyze.hardware.cpu_kernels import CACHED_BYTES

    families = [cpu.family(kernel) for kernel in kernels]
    seconds = np.array([[cpu.seconds(kernel)] for kernel in kernels])
    flops = np.array([2.0 * kernel.work.macs for kernel in kernels])
    rates = np.array([_cpu_flops_per_second(peaks, kernel.dtype) for kernel in kernels])
    moved = np.array([float(kernel.work.bytes_moved) for kernel in kernels])
    errors = [
        KindError(f"{name}.{dtype}", cpu.families[name, dtype].median,
                  cpu.families[name, dtype].p90, False, False)
        for name, dtype in families
    ]  # fmt: skip
    compute, memory = flops / rates, moved / (peaks.bandwidth_gb_s * 1e9)
    # The peaks are the highest rates among measured kernels: whatever is faster is at the peak.
    streamed = np.where(moved > CACHED_BYTES, memory, 0.0)
    least = (np.minimum(each[:, None], seconds) for each in (compute, streamed))
    is_memory = (memory > compute)[:, None]
    return KernelSeconds(kernels, seconds, is_memory, errors, np.zeros(1), *least)


def _cpu_flops_per_second(peaks: Gpu, dtype: str) -> float:
    return 1e12 * (peaks.float32_tflops if dtype == "float32" else peaks.tensor_tflops)


def weight_bytes(kernels: Iterable[Kernel]) -> int:
    """Bytes of the weights of some kernels in 16 bits."""
    total = 0
    for kernel in kernels:
        sizes = kernel.dimensions
        if isinstance(sizes, Gemm) and kernel.operator not in ACTIVATION_PRODUCTS:
            total += 2 * kernel.calls * sizes.n * sizes.k
        elif isinstance(sizes, Convolution):
            total += 2 * kernel.calls * sizes.out_channels * sizes.in_channels * sizes.taps
        elif isinstance(sizes, Experts):
            total += 6 * kernel.calls * sizes.experts * sizes.hidden * sizes.inter
    return total


def _what(kernel: Kernel) -> tuple[Hashable, ...]:
    """The record without its call count and path."""
    return (kernel.operator, kernel.dimensions, kernel.dtype, kernel.work, kernel.stage)


def _priced(
    kernels: Sequence[Kernel], device: Device, precision: Precision, *, cold: bool
) -> KernelSeconds:
    import numpy as np

    shape = (len(kernels), *_shape(kernels))
    seconds, compute, memory = (np.zeros(shape) for _ in range(3))
    is_memory = np.zeros(shape, dtype=bool)
    errors: list[KindError | None] = [None] * len(kernels)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, kernel in enumerate(kernels):
        groups.setdefault(_group(kernel), []).append(number)
    for (price, *_), numbers in groups.items():
        members = [kernels[number] for number in numbers]
        width = _shape(members)
        fitted, error = price(members, device, precision, width, cold)
        is_memory[numbers], least = _least(members, device, precision, width, cold)
        compute[numbers], memory[numbers] = least
        seconds[numbers] = np.maximum(fitted, np.maximum(*least))
        for number in numbers:
            errors[number] = error
    known = [each for each in errors if each]
    more = _more_bytes(kernels, device, precision)
    return KernelSeconds(kernels, seconds, is_memory, known, more, compute, memory)


Shape = tuple[int, ...]


def _shape(kernels: Sequence[Kernel]) -> Shape:
    """Shape to which all sizes of the kernels broadcast; `(1,)` for plain integers."""
    import numpy as np

    sizes = (np.shape(count) for each in kernels for count in (*each.dimensions, *each.work))
    return np.broadcast_shapes((1,), *{size for size in sizes if size})


def _more_bytes(kernels: Sequence[Kernel], device: Device, precision: Precision) -> Floats:
    import numpy as np

    total: Floats = np.zeros(1)
    for dimensions in (Experts, Gemm) if precision.weights else (Experts,):
        members = [each for each in kernels if isinstance(each.dimensions, dimensions)]
        if members:
            more = _weight_bytes_besides(members, device, precision, _shape(members))
            calls = np.array([each.calls for each in members], dtype=np.float64)
            total = total + _sum(calls.reshape(-1, *[1] * (more.ndim - 1)) * more)
    return total


def _weight_bytes_besides(
    members: Sequence[Kernel], device: Device, precision: Precision, width: Shape
) -> Floats:
    """Bytes of weights of each kernel in addition to its record's, `[kernels, *width]`."""
    import numpy as np

    if isinstance(members[0].dimensions, Experts):
        return _weight_size(members[0], device, precision) * _expert_weights(members, width)
    if precision.weights is None or not isinstance(members[0].dimensions, Gemm):
        return np.zeros((len(members), *width))
    fewer = [
        0.0 if each.operator in ACTIVATION_PRODUCTS
        else _weight_size(each, device, precision) - _RECORDED_SIZE
        for each in members
    ]  # fmt: skip
    n, k = _columns(members, width, "n", "k")
    besides: Floats = np.array(fewer).reshape(-1, *[1] * len(width)) * n * k
    return besides


def _weight_size(kernel: Kernel, device: Device, precision: Precision) -> float:
    """Stored bytes per weight, scales included."""
    if precision.weights is None or kernel.operator in UNQUANTIZED:
        return _RECORDED_SIZE
    return product_types(device.gpu, kernel.dtype, precision.weights).weight_bytes


def _group(kernel: Kernel) -> tuple[Any, ...]:
    """The pricing function, followed by what kernels priced together must share."""
    dimensions = kernel.dimensions
    if isinstance(dimensions, Gemm | Convolution) and kernel.dtype == "float32":
        return _float32_product, type(dimensions), kernel.operator in ACTIVATION_PRODUCTS
    if isinstance(dimensions, Gemm):
        has_weights = kernel.operator not in ACTIVATION_PRODUCTS
        return _product, kernel.dtype, has_weights, kernel.operator in UNQUANTIZED, kernel.stage
    if isinstance(dimensions, Convolution):
        return _convolution, kernel.dtype
    if isinstance(dimensions, Experts):
        return _experts, kernel.dtype
    if isinstance(dimensions, Attention):
        one = _is_integer(dimensions.queries, 1)
        causal = one or not _is_integer(dimensions.skippable_scores, 0)
        price = _masked_attention if dimensions.masked else _attention
        return price, kernel.dtype, causal, one, kernel.operator
    return (_movement,)


def _columns(members: Sequence[Kernel], width: Shape, *names: str) -> list[Floats]:
    """Dimensions of some kernels, `[kernels, *width]` each, or `[kernels, 1, ...]` for integers."""
    import numpy as np

    def column(name: str) -> Floats:
        sizes = [getattr(each.dimensions, name) for each in members]
        shape = (1,) * len(width) if all(isinstance(size, int) for size in sizes) else width
        return np.asarray([np.broadcast_to(size, shape) for size in sizes], np.float64)

    return [column(name) for name in names]


def _bytes(members: Sequence[Kernel], width: Shape) -> Floats:
    import numpy as np

    moved = [np.broadcast_to(each.work.bytes_moved, width) for each in members]
    return np.asarray(moved, dtype=np.float64)


def _least(
    members: Sequence[Kernel], device: Device, precision: Precision, width: Shape, cold: bool
) -> tuple[NDArray[np.bool_], tuple[Floats, Floats]]:
    """Whether memory bounds kernels, and the least seconds of compute and memory; all broadcast."""
    import numpy as np

    moved = _bytes(members, width) + _weight_bytes_besides(members, device, precision, width)
    first, bandwidth = members[0], device.gpu.bandwidth_gb_s * 1e9
    is_in_l2 = device.is_in_l2(moved, cold=_reads_memory(first, cold))
    memory: Floats = np.where(is_in_l2, 0.0, moved) / bandwidth
    if not isinstance(first.dimensions, Gemm | Convolution | Attention | Experts):
        return np.ones(1, np.bool_), (np.zeros(1), memory)
    macs = np.asarray([np.broadcast_to(each.work.macs, width) for each in members], np.float64)
    rate = _flops_per_second(device, _computed_in(first, device, precision))
    is_memory: NDArray[np.bool_] = moved / bandwidth > 2 * macs / rate
    if isinstance(first.dimensions, Attention) and not first.dimensions.masked:
        skipped, *sizes = _columns(members, width, "skippable_scores", "head_dim", "value_dim")
        macs -= skipped * sum(sizes)
    return is_memory, (2 * macs / rate, memory)


def _reads_memory(kernel: Kernel, cold: bool) -> bool:
    """Whether it is priced as reading device memory even if all its bytes would fit in L2."""
    sizes = kernel.dimensions
    if isinstance(sizes, Attention):
        return not sizes.masked and _is_integer(sizes.queries, 1)
    if isinstance(sizes, Gemm):
        return cold and kernel.operator not in ACTIVATION_PRODUCTS
    return cold and isinstance(sizes, Convolution | Experts)


def _computed_in(kernel: Kernel, device: Device, precision: Precision) -> str:
    """Data type of its multiplications."""
    is_quantized = isinstance(kernel.dimensions, Gemm | Experts) and precision.weights
    if not is_quantized or kernel.operator in ACTIVATION_PRODUCTS | UNQUANTIZED:
        return kernel.dtype
    return product_types(device.gpu, kernel.dtype, precision.weights).dtype


def _flops_per_second(device: Device, dtype: str) -> float:
    gpu = device.gpu
    if dtype != "float32":
        return gpu.tflops(dtype) * 1e12
    if not gpu.float32_tflops:
        raise DeviceError(f"the profile of {gpu.title} lacks gpu.float32_tflops; add it")
    return gpu.float32_tflops * 1e12


def _expert_weights(members: Sequence[Kernel], width: Shape) -> Floats:
    """Weights of the experts that the tokens touch, in expectation."""
    from dsocr_analyze.figures import expected_experts

    tokens, hidden, inter, experts, top_k = _columns(
        members, width, "tokens", "hidden", "inter", "experts", "top_k"
    )
    touched: Floats = expected_experts(tokens, experts, top_k) * 3 * hidden * inter
    return touched


def _error(kind: str, dtype: str, fitted: Fitted) -> KindError:
    name = f"{kind}.{dtype}"
    return KindError(name, fitted.median, fitted.p90, fitted.extrapolated, fitted.assumed)


def _product(
    members: Sequence[Kernel], device: Device, precision: Precision, width: Shape, cold: bool
) -> tuple[Seconds, KindError]:
    first = members[0]
    has_weights = first.operator not in ACTIVATION_PRODUCTS
    weights = precision.weights if has_weights and first.operator not in UNQUANTIZED else None
    batch, m, n, k = _columns(members, width, "batch", "m", "n", "k")
    seconds = device.gemm_seconds(
        m, n, k, batch=batch, dtype=first.dtype, weights_dtype=weights, cold=has_weights and cold
    )
    fitted = device.fitted("gemm", first.dtype, weights_dtype=weights)
    return seconds, _error("gemm", weights or first.dtype, fitted)


def _convolution(
    members: Sequence[Kernel], device: Device, precision: Precision, width: Shape, cold: bool
) -> tuple[Seconds, KindError]:
    """Priced as the equivalent GEMM: one row per output position, one column per channel."""
    images, positions, channels, outputs, taps = _columns(
        members, width, "images", "positions", "in_channels", "out_channels", "taps"
    )
    seconds = device.gemm_seconds(
        images * positions, outputs, channels * taps, dtype=members[0].dtype, cold=cold
    )
    return seconds, _error("gemm", members[0].dtype, device.fitted("gemm", members[0].dtype))


def _float32_product(
    members: Sequence[Kernel], device: Device, precision: Precision, width: Shape, cold: bool
) -> tuple[Seconds, KindError]:
    """Measured times if there are any; else a share of the fp32 rate plus the time of the bytes."""
    import numpy as np

    if device.is_measured("gemm", "float32"):
        has_weights = members[0].operator not in ACTIVATION_PRODUCTS
        return _measured_float32_product(members, device, width, has_weights and cold)
    macs = np.asarray([np.broadcast_to(each.work.macs, width) for each in members], np.float64)
    rate = _FLOAT32_SHARE * _flops_per_second(device, "float32")
    moved = device.elementwise_seconds(_bytes(members, width), cold=cold)
    return moved + 2 * macs / rate, KindError("gemm.float32", *_FLOAT32_ERROR, False, True)


def _measured_float32_product(
    members: Sequence[Kernel], device: Device, width: Shape, cold: bool
) -> tuple[Seconds, KindError]:
    import numpy as np

    if isinstance(members[0].dimensions, Convolution):
        images, positions, channels, n, taps = _columns(
            members, width, "images", "positions", "in_channels", "out_channels", "taps"
        )
        batch, m, k = np.ones_like(n), images * positions, channels * taps
    else:
        batch, m, n, k = _columns(members, width, "batch", "m", "n", "k")
    seconds = device.float32_gemm_seconds(m, n, k, batch=batch, cold=cold)
    return seconds, _error("gemm", "float32", device.profile.fitted["gemm", "float32"])


def _experts(
    members: Sequence[Kernel], device: Device, precision: Precision, width: Shape, cold: bool
) -> tuple[Seconds, KindError]:
    dtype = members[0].dtype
    sizes = _columns(members, width, "tokens", "hidden", "inter", "experts", "top_k")
    seconds = device.grouped_experts_seconds(
        *sizes, dtype=dtype, weights_dtype=precision.weights, cold=cold
    )
    fitted = device.fitted("experts", dtype, weights_dtype=precision.weights)
    return seconds, _error("experts", precision.weights or dtype, fitted)


def _attention(
    members: Sequence[Kernel], device: Device, precision: Precision, width: Shape, cold: bool
) -> tuple[Seconds, KindError]:
    first = members[0]
    _, _, causal, one, operator = _group(first)
    kind = "encoder_attention" if not causal else "context_attention"
    if one:
        kind = "generation_attention"
    cache = precision.cache if operator == "paged_attention" else None
    sizes = _columns(members, width, "batch", "queries", "keys", "heads", "head_dim")
    [kv_heads] = _columns(members, width, "kv_heads")
    seconds = device.attention_seconds(
        *sizes, kv_heads=kv_heads, causal=causal, dtype=first.dtype, kv_dtype=cache,
        cold=one,
    )  # fmt: skip
    fitted = device.fitted(kind, first.dtype, kv_dtype=cache)
    return seconds, _error(kind, cache or first.dtype, fitted)


def _masked_attention(
    members: Sequence[Kernel], device: Device, precision: Precision, width: Shape, cold: bool
) -> tuple[Seconds, KindError]:
    """Measured times if any; else whole blocks at a share of the peak, or the bytes if slower."""
    import numpy as np

    if device.is_measured("masked_attention"):
        sizes = _columns(members, width, "batch", "queries", "keys", "heads", "head_dim")
        measured = device.masked_attention_seconds(*sizes, moved=_bytes(members, width))
        fitted = device.fitted("masked_attention", members[0].dtype)
        return measured, _error("masked_attention", members[0].dtype, fitted)
    batch, queries, keys, heads, head_dim, value_dim = _columns(
        members, width, "batch", "queries", "keys", "heads", "head_dim", "value_dim"
    )
    padded = _MASKED_BLOCK**2 * np.ceil(queries / _MASKED_BLOCK) * np.ceil(keys / _MASKED_BLOCK)
    flops = 2 * batch * heads * padded * (head_dim + value_dim)
    rate = _MASKED_SHARE * device.gpu.mma_share * _flops_per_second(device, members[0].dtype)
    moved = device.elementwise_seconds(_bytes(members, width))
    seconds: Floats = np.maximum(flops / rate, moved)
    return seconds, KindError("masked_attention", *_MASKED_ERROR, False, True)


def _movement(
    members: Sequence[Kernel], device: Device, precision: Precision, width: Shape, cold: bool
) -> tuple[Seconds, KindError]:
    import numpy as np

    seconds = device.elementwise_seconds(np.maximum(1.0, _bytes(members, width)))
    native = device.gpu.tensor_dtype
    return seconds, _error("movement", native, device.fitted("movement", native))


def _is_integer(size: object, value: int) -> bool:
    """Whether a size is this integer, rather than another one or an array."""
    return isinstance(size, int) and size == value
