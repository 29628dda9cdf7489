"""Kernel times of a GPU, `device("h100-sxm").gemm_seconds(m, n, k)`, its types, and a CPU's times.

Times of a CPU's kernels are sums of sizes times fitted coefficients. A cost that depends on a size
is split between nodes of it: `macs@64` gets most of a product of 70 rows, `macs@256` the rest.
Coefficients are microseconds per call, or per million multiply-accumulates, elements or bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, cast

from dsocr_analyze.errors import DeviceError, WorkloadError, refuse
from dsocr_analyze.figures import expected_experts
from dsocr_analyze.hardware.coefficients import Coefficients, Fitted, ScaledGemmCoefficients
from dsocr_analyze.hardware.devices import Gpu
from dsocr_analyze.kernels import Attention, Convolution, Gemm, Kernel, Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.hardware.machine import Floats

    Sizes: TypeAlias = int | float | NDArray[np.int64] | Floats
    Seconds: TypeAlias = float | Floats

# --- a CPU's kernels -------------------------------------------------------------------------


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
        return "product" if kernel.operator in ("linear", "addmm", "mm") else "batched_product"
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


# --- a device and its types -------------------------------------------------------------------


EXTRAPOLATED_BAND: Final = 2.0
"""Factor by which errors widen for a kind taken from another GPU or serving engine."""

Engine: TypeAlias = Literal["vllm", "sglang"]
ENGINES: Final[tuple[Engine, ...]] = ("vllm", "sglang")
"""Serving engines with kernels of their own."""

STORED_BITS: Final = {"float8": 8, "int8": 8, "int4": 4}
"""Bits per weight, without scales, or cached element in types below 16 bits."""
_CACHE_NBYTES: Final = {"bfloat16": 2, "float16": 2, "float8": 1, "int8": 1, "int4": 0.5}
_SCALE_BYTES: Final = 2 / 128
"""A scale of two bytes per 128 integer weights."""
_WEIGHT_ONLY_BYTES: Final = {"int8": 1 + _SCALE_BYTES, "int4": 0.5 + _SCALE_BYTES}
_WEIGHT_BYTES: Final = {"bfloat16": 2, "float16": 2, "float8": 1, **_WEIGHT_ONLY_BYTES}
_MULTIPLIED: Final = ("bfloat16", "float16", "float8")
_ALIASES: Final = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp8": "float8"}
_ACTIVATIONS: Final = {"silu": False, "relu2": False, "gelu": True}
"""Whether Blackwell's libraries need a second kernel, by the experts' activation."""

WEIGHT_ONLY_ERROR: Final = {"gemm": (0.25, 0.6), "experts": (0.4, 1.3)}
"""Median and 90th percentile of the error assumed for weight-only integers.

Their times are those of 16-bit weights with fewer bytes to stream. Errors against libraries
(aiconfigurator-core 0.12.0, by `benchmarks/bench_kernel_times.py`): TensorRT-LLM's products on A100
18 / 56 % in int8 and 24 / 57 % in int4; vLLM's experts in int4 on eight GPUs 14 to 42 / 53 to 83 %,
SGLang's on A100 29 / 132 %. SGLang's int8 products on H100 are outside the band: they take three to
four times as long.
"""


def dtype_name(name: str) -> str:
    """The full name of a data type: `bfloat16` for `bf16`."""
    return _ALIASES.get(name.lower(), name.lower())


def product_types(gpu: Gpu, dtype: str, weights_dtype: str | None) -> tuple[str, float]:
    """The type in which `dtype` is multiplied by `weights_dtype`, and bytes per weight with scales.

    Weights have `dtype` by default; integers are converted to 16 bits.

    Raises:
        DeviceError: The GPU lacks a type, or the two cannot be multiplied.
    """
    own = dtype_name(dtype)
    if own not in gpu.dtypes or own not in _MULTIPLIED:
        usable = " or ".join(each for each in gpu.dtypes if each in _MULTIPLIED)
        raise DeviceError(f"{gpu.title} has no {dtype}; use dtype {usable}", arguments=["dtype"])
    weights = own if weights_dtype is None else dtype_name(weights_dtype)
    if weights not in gpu.weight_dtypes:
        raise DeviceError(
            f"{gpu.title} has no weights in {weights_dtype};"
            f" use weights_dtype {' or '.join(gpu.weight_dtypes)}",
            arguments=["weights_dtype"],
        )
    if own == "float8" != weights:
        raise DeviceError(
            f"activations in float8 cannot be multiplied with weights in {weights_dtype};"
            " use weights_dtype float8, or dtype " + gpu.tensor_dtype
        )
    return "float8" if weights == "float8" else own, _WEIGHT_BYTES[weights]


# --- a device ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """A GPU and how long its kernels take.

    Sizes are integers or arrays that broadcast; seconds are a float if all sizes are integers,
    else an array. `cold=True` reads every byte from device memory, not from L2.

    Attributes:
        gpu: As sold; for a CPU, with the rates that it reached.
        source: Of the kernel times.
        kinds: Coefficients by (kind, data type), some of another GPU: vLLM's kernels.
        cpu: Kernel times of a CPU, to which no formula here applies.
        others: `kinds` of other serving engines.
    """

    gpu: Gpu
    source: str
    licence: str
    kinds: Mapping[tuple[str, str], Fitted]
    cpu: CpuKernels | None = None
    others: Mapping[Engine, Mapping[tuple[str, str], Fitted]] = field(default_factory=dict)

    def under(self, engine: Engine) -> Device:
        """The GPU with the kernels of a serving engine."""
        return replace(self, kinds=self.others.get(engine, self.kinds))

    @property
    def extrapolated(self) -> bool:
        """Whether all kernel times are another GPU's."""
        return bool(self.kinds) and all(each.extrapolated for each in self.kinds.values())

    def is_measured(self, kind: str, dtype: str = "bfloat16") -> bool:
        """Whether it has coefficients of a kernel kind."""
        return (kind, "bfloat16" if dtype == "float16" else dtype) in self.kinds

    def fitted(
        self,
        kind: str,
        dtype: str = "bfloat16",
        *,
        weights_dtype: str | None = None,
        kv_dtype: str | None = None,
    ) -> Fitted:
        """Coefficients, origin and error of a kernel kind, a key of `COEFFICIENTS`.

        `weights_dtype` is for gemm and experts; int8 and int4 have the coefficients of 16 bits,
        with an assumed error. `kv_dtype` is for attention.

        Raises:
            DeviceError: The GPU lacks a type, or the kind was not measured in it or has no weights.
        """
        if not self.kinds and self.cpu is None:
            raise DeviceError(
                f"seconds are not predicted on {self.gpu.title}: {self.gpu.unmeasured};"
                " give a profile of it, or use fit, which needs none"
            )
        if weights_dtype is not None and kind not in WEIGHT_ONLY_ERROR:
            raise DeviceError(f"{kind} has no weights; leave weights_dtype out")
        cached, gpu = dtype_name(kv_dtype or "bfloat16"), self.gpu
        if cached not in _CACHE_NBYTES or (cached == "float8" and not gpu.float8_tflops):
            raise DeviceError(
                f"{gpu.title} has no float8; use kv_dtype int8 or {gpu.tensor_dtype}"
                if cached == "float8"
                else f"kv_dtype {cached!r} is unknown; use {', '.join(_CACHE_NBYTES)}",
                arguments=["kv_dtype"],
            )
        if cached == "float8" and self.is_measured(kind, cached):
            return self.kinds[kind, cached]
        computed, _ = product_types(gpu, dtype, weights_dtype)
        # Both 16-bit types run at the same rate.
        found = self.kinds.get((kind, "bfloat16" if computed == "float16" else computed))
        if found is None:
            there = [each for each in gpu.dtypes if self.is_measured(kind, each)]
            raise DeviceError(
                f"{gpu.title} has no {kind} in {dtype}; use dtype {' or '.join(there)}"
                if there else f"the profile of {gpu.title} has no {kind}",
                arguments=["dtype"],
            )  # fmt: skip
        if weights_dtype is None or dtype_name(weights_dtype) not in _WEIGHT_ONLY_BYTES:
            return found
        wider = EXTRAPOLATED_BAND if found.extrapolated else 1.0
        median, p90 = (wider * each for each in WEIGHT_ONLY_ERROR[kind])
        return replace(
            found,
            median=max(median, found.median),
            p90=max(p90, found.p90),
            held_out_rows=0,
            held_out_groups=0,
            derived=f"{kind} in {computed} with fewer bytes per weight",
            assumed=True,
        )

    def seconds(
        self,
        kind: str,
        sizes: Mapping[str, Sizes],
        dtype: str = "bfloat16",
        *,
        weights_dtype: str | None = None,
        kv_dtype: str | None = None,
        cold: bool = False,
        **of_experts: bool,
    ) -> Seconds:
        """Seconds of one kernel of a kind, of the sizes that its formula reads, by name.

        No kernel takes less than its necessary `flops` at the peak, or than the bytes `moved` that
        L2 does not serve at the bandwidth; both follow from the other sizes unless given.
        `of_experts` says whether they are `gated`, and whether a `fallback` kernel runs.

        Raises:
            DeviceError: As `fitted` does.
            WorkloadError: A size is impossible.
        """
        import numpy as np

        from dsocr_analyze.hardware.kernel_times import formula_seconds
        from dsocr_analyze.hardware.machine import Machine

        fitted = self.fitted(kind, dtype, weights_dtype=weights_dtype, kv_dtype=kv_dtype)
        c = cast("Coefficients", fitted.coefficients)
        given: dict[str, Any] = {**_arrays(sizes), **of_experts}
        if isinstance(c, ScaledGemmCoefficients) and (given["batch"] != 1).any():
            raise WorkloadError("batch must be 1 for a product in float8")
        # Attention multiplies in 16 bits, also with cached keys of fewer bits.
        computed, nbytes = (
            self.gpu.tensor_dtype,
            _CACHE_NBYTES.get(dtype_name(kv_dtype or dtype), 2),
        )
        if kind in WEIGHT_ONLY_ERROR:
            computed, nbytes = product_types(self.gpu, dtype, weights_dtype)
        machine = Machine.of(self.gpu, computed, cold=cold)
        seconds = formula_seconds(c, given, machine, nbytes)
        # Rounded up to a trillionth, or noise of the last digit would count as a difference.
        part, exponent = np.frexp(seconds)
        seconds = np.ldexp(np.ceil(part * 2.0**40) / 2.0**40, exponent)
        return float(seconds) if seconds.ndim == 0 else seconds

    def gemm_seconds(
        self,
        m: Sizes,
        n: Sizes,
        k: Sizes,
        *,
        batch: Sizes = 1,
        dtype: str = "bfloat16",
        weights_dtype: str | None = None,
        cold: bool = False,
    ) -> Seconds:
        """Seconds of one kernel with `batch` products `[m, k] x [k, n]`.

        `weights_dtype` is that of `[k, n]`, by default `dtype`. float8 quantizes the `m` rows
        first, with a `batch` of 1; int8 and int4 are multiplied in 16 bits.

        Raises:
            DeviceError: The GPU lacks a type, or the two types cannot be multiplied.
            WorkloadError: A size is below 1.
        """
        sizes = {"m": m, "n": n, "k": k, "batch": batch}
        return self.seconds("gemm", sizes, dtype, weights_dtype=weights_dtype, cold=cold)

    def attention_seconds(
        self,
        batch: Sizes,
        queries: Sizes,
        keys: Sizes,
        heads: Sizes,
        head_dim: Sizes,
        *,
        kv_heads: Sizes | None = None,
        causal: bool = False,
        dtype: str = "bfloat16",
        kv_dtype: str | None = None,
        cold: bool = False,
    ) -> Seconds:
        """Seconds of fused attention without a bias.

        Args:
            batch: Sequences.
            queries: Per sequence; an array is all 1 or all above.
            keys: Per sequence, with those of the queries.
            heads: Query heads.
            head_dim: Elements per head.
            kv_heads: Key heads; default `heads`.
            causal: Whether later keys are masked: a prompt's or, with one query, generation.
            dtype: Of the queries.
            kv_dtype: Of cached keys and values: float8, int8 or int4; default `dtype`. Except for
                generation in float8, the 16-bit kernel reads fewer bytes.
            cold: See `Device`.

        Raises:
            DeviceError: The GPU or the kind lacks a type.
            WorkloadError: A size is impossible.
        """
        sizes = _arrays({
            "batch": batch, "queries": queries, "keys": keys, "heads": heads,
            "head_dim": head_dim, "kv_heads": heads if kv_heads is None else kv_heads,
        })  # fmt: skip
        one, kind = sizes["queries"] == 1, "encoder_attention"
        refuse(
            WorkloadError,
            (causal and (sizes["queries"] > sizes["keys"]).any(),
             "causal attention cannot have more queries than keys"),
            ((sizes["heads"] % sizes["kv_heads"]).any(), "heads must be a multiple of kv_heads"),
            (causal and one.any() and not one.all(),
             "queries must be all 1 or all above 1 in one call"),
        )  # fmt: skip
        if causal:
            kind = "generation_attention" if one.all() else "context_attention"
        return self.seconds(kind, sizes, dtype, kv_dtype=kv_dtype, cold=cold)

    def grouped_experts_seconds(
        self,
        tokens: Sizes,
        hidden: Sizes,
        inter: Sizes,
        experts: Sizes,
        top_k: Sizes,
        *,
        touched: Sizes | None = None,
        gated: bool = True,
        activation: str = "silu",
        dtype: str = "bfloat16",
        weights_dtype: str | None = None,
        cold: bool = False,
    ) -> Seconds:
        """Seconds of a layer's routed experts: routing, both products, activation, sum.

        Args:
            tokens: Number of tokens.
            hidden: Width of a token.
            inter: Width within an expert.
            experts: Routed experts.
            top_k: Experts per token.
            touched: Experts with a token; default: the expected E (1 - (1 - k/E)^tokens).
            gated: Whether an expert has a gate (SwiGLU).
            activation: silu, relu2 or gelu, for which some libraries are slower.
            dtype: Of the tokens.
            weights_dtype: As for `gemm_seconds`.
            cold: See `Device`.

        Raises:
            DeviceError: The GPU or the kind lacks a type.
            WorkloadError: A size is impossible, or the activation unknown.
        """
        if activation not in _ACTIVATIONS:
            raise WorkloadError(
                f"activation {activation!r} is unknown; use {', '.join(_ACTIVATIONS)}"
            )
        sizes = _arrays({
            "tokens": tokens, "hidden": hidden, "inter": inter, "experts": experts, "top_k": top_k
        })  # fmt: skip
        if (sizes["top_k"] > sizes["experts"]).any():
            raise WorkloadError("top_k must be at most experts")
        if touched is None:
            touched = expected_experts(sizes["tokens"], sizes["experts"], sizes["top_k"])
        return self.seconds(
            "experts", {**sizes, "touched": touched}, dtype, weights_dtype=weights_dtype,
            cold=cold, gated=gated, fallback=_ACTIVATIONS[activation],
        )  # fmt: skip

    def elementwise_seconds(self, bytes_moved: Sizes, *, cold: bool = False) -> Seconds:
        """Seconds of a kernel that only moves bytes: elementwise, normalization, copy."""
        sizes = {"moved": _arrays({"bytes_moved": bytes_moved})["bytes_moved"]}
        return self.seconds("movement", sizes, self.gpu.tensor_dtype, cold=cold)


def _arrays(sizes: Mapping[str, Sizes]) -> dict[str, Floats]:
    """Sizes as arrays; raises WorkloadError for one below 1 or not finite."""
    import numpy as np

    arrays = {name: np.asarray(size, dtype=np.float64) for name, size in sizes.items()}
    for name, array in arrays.items():
        if not (array.min(initial=1) >= 1 and array.max(initial=1) < np.inf):
            wrong = array[~(array >= 1)]
            shown = float(wrong.flat[0]) if wrong.size else float("inf")
            raise WorkloadError(f"{name} {shown:g} is out of range; give 1 or more")
    return arrays
