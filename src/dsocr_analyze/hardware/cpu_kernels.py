"""Times of a CPU's kernels: sums of sizes times fitted coefficients.

A cost that depends on a size is split between nodes of it: `macs@64` gets most of a product of 70
rows, `macs@256` the rest. Coefficients are microseconds per call, or per million
multiply-accumulates, elements or bytes.
"""

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, cast

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.coefficients import Fitted
from dsocr_analyze.kernels import Attention, Convolution, Gemm, Kernel, Kind

_WEIGHT_PRODUCTS: Final = frozenset({"linear", "addmm", "mm"})
_ROWS: Final = (1, 2, 4, 16, 64, 256, 1024, 4096)
_KEYS: Final = (64, 256, 1024, 4096)
_TAPS: Final = (1, 9, 256)
_BYTES: Final = (10**6, 4 * 10**7)

_STAND_INS: Final[Mapping[Kind, str]] = {
    "elementwise": "mul",
    "activation": "gelu",
    "normalization": "native_layer_norm",
    "softmax": "softmax",
    "reduction": "sum",
    "routing": "topk",
    "interpolation": "clone",
    "pooling": "clone",
    "movement": "clone",
}
"""For unmeasured operators, by kind."""

_PARTS: Final[Mapping[str, tuple[dict[str, tuple[int, ...]], tuple[str, ...]]]] = {
    "product": ({"macs": _ROWS}, ("inputs", "outputs", "weights")),
    "batched_product": ({"macs": _ROWS}, ("inputs", "outputs", "weights")),
    "attention": ({"macs": _KEYS}, ("queries", "bias")),
    "masked_attention": ({"macs": _KEYS}, ("queries", "bias")),
    "convolution": ({"macs": _TAPS}, ("inputs", "outputs")),
}
"""By family, sizes that are split between nodes, and others."""
UNREPLACED: Final = tuple(_PARTS)
"""Families that no other one stands in for."""


def family_of(kernel: Kernel) -> str:
    """What a kernel is measured with."""
    dimensions = kernel.dimensions
    if isinstance(dimensions, Gemm):
        has_weights = kernel.operator in _WEIGHT_PRODUCTS
        return "product" if has_weights else "batched_product"
    if isinstance(dimensions, Attention):
        return "masked_attention" if dimensions.masked else "attention"
    if isinstance(dimensions, Convolution):
        return "convolution"
    return kernel.operator


def measured_family(kernel: Kernel, known: Collection[tuple[str, str]]) -> tuple[str, str] | None:
    """The measured family and type whose coefficients apply to a kernel, if any.

    Its own, or, except for `UNREPLACED`, its operator in another type or its kind's stand-in.
    """
    family = family_of(kernel)
    if (family, kernel.dtype) in known:
        return family, kernel.dtype
    if family in UNREPLACED:
        return None
    by_type = sorted(known, key=lambda each: each[1] != kernel.dtype)
    names = family, _STAND_INS.get(kernel.kind, family)
    return next((each for name in names for each in by_type if each[0] == name), None)


def contributions(kernel: Kernel) -> dict[str, float]:
    """Sizes that make up a call's time, by coefficient."""
    sizes, work = kernel.dimensions, kernel.work
    if isinstance(sizes, Gemm):
        batch, m, n, k = sizes
        weights = batch * n * k if m > 1 else 0  # libraries repack them, but not for one row
        found = _split("macs", work.macs, m, _ROWS)
        found |= {"inputs": batch * m * k, "outputs": batch * m * n, "weights": weights}
    elif isinstance(sizes, Attention):
        rows = sizes.batch * sizes.heads * sizes.queries
        found = _split("macs", work.macs, sizes.keys, _KEYS)
        found |= {"queries": rows, "bias": rows * sizes.keys if sizes.masked else 0}
    elif isinstance(sizes, Convolution):
        outputs = sizes.images * sizes.positions * sizes.out_channels
        inputs = sizes.images * sizes.positions * sizes.in_channels * sizes.taps
        found = _split("macs", work.macs, sizes.taps, _TAPS)
        found |= {"inputs": inputs, "outputs": outputs}
    else:
        found = _split("read", work.bytes_read, work.bytes_read, _BYTES)
        found |= _split("written", work.bytes_written, work.bytes_written, _BYTES)
    return {"call": 1.0} | {name: size / 1e6 for name, size in found.items() if size}


def _split(name: str, amount: int, size: int, nodes: tuple[int, ...]) -> dict[str, float]:
    """An amount, split between the nodes around a size by its logarithm."""
    place = min(max(size, nodes[0]), nodes[-1])
    low, high = next(pair for pair in itertools.pairwise(nodes) if place <= pair[1])
    share = math.log(place / low) / math.log(high / low)
    return {f"{name}@{low}": amount * (1 - share), f"{name}@{high}": amount * share}


def names_of(family: str) -> tuple[str, ...]:
    """Of a family's coefficients."""
    split, others = _PARTS.get(family, ({"read": _BYTES, "written": _BYTES}, ()))
    return ("call", *(f"{name}@{node}" for name in split for node in split[name]), *others)


@dataclass(frozen=True)
class CpuKernels:
    """Kernels of a CPU with a number of threads.

    Attributes:
        operator_us: Microseconds of Python and torch per operator.
        families: By family and data type.
        CACHED_BYTES: More are streamed from memory.
    """

    threads: int
    operator_us: float
    families: Mapping[tuple[str, str], Fitted]

    CACHED_BYTES: ClassVar = 10**8

    def family(self, kernel: Kernel) -> tuple[str, str]:
        """The `measured_family`; raises DeviceError if there is none."""
        found = measured_family(kernel, self.families)
        if found is None:
            types = sorted({dtype for name, dtype in self.families if name == "product"})
            raise DeviceError(
                f"the CPU's profile has no {kernel.operator} in {kernel.dtype}; use dtype"
                f" {' or '.join(types)}, or calibrate again",
                arguments=["dtype"],
            )
        return found

    def seconds(self, kernel: Kernel) -> float:
        """Of one call, without Python's overhead; raises DeviceError like `family`."""
        found = self.families[self.family(kernel)].coefficients
        coefficients, sizes = cast("Mapping[str, float]", found), contributions(kernel)
        return 1e-6 * sum(coefficients.get(name, 0.0) * size for name, size in sizes.items())
