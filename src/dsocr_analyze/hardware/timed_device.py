"""Kernel times of a GPU: `device("h100-sxm").gemm_seconds(m, n, k)`; how it multiplies types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.figures import expected_experts
from dsocr_analyze.hardware import coefficients as records
from dsocr_analyze.hardware.coefficients import Fitted
from dsocr_analyze.hardware.devices import Gpu

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.hardware.cpu_kernels import CpuKernels
    from dsocr_analyze.hardware.kernel_times import Floats

    Sizes: TypeAlias = int | float | NDArray[np.int64] | Floats
    Seconds: TypeAlias = float | Floats

__all__ = [
    "EXTRAPOLATED_BAND",
    "STORED_BITS",
    "WEIGHT_ONLY_ERROR",
    "Device",
    "MeasuredHost",
    "dtype_name",
    "product_types",
]

EXTRAPOLATED_BAND: Final = 2.0
"""Factor by which errors widen for a kind taken from another GPU."""

_NBYTES: Final = {"bfloat16": 2, "float16": 2, "float8": 1}
"""Bytes per multiplied element."""
STORED_BITS: Final = {"float8": 8, "int8": 8, "int4": 4}
"""Bits per weight (without scales) or cached element, in types below 16 bits."""
_CACHE_NBYTES: Final = {"bfloat16": 2, "float16": 2, "float8": 1, "int8": 1, "int4": 0.5}
"""Bytes per cached element, by the type of cached keys and values."""
_ALIASES: Final = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp8": "float8"}
_SCALE_BYTES: Final = 2 / 128
"""A scale of two bytes per 128 weights."""
_WEIGHT_ONLY_BYTES: Final = {"int8": 1 + _SCALE_BYTES, "int4": 0.5 + _SCALE_BYTES}
_ACTIVATIONS: Final = {"silu": False, "relu2": False, "gelu": True}
"""Activations of experts, and whether libraries on Blackwell fall back to a second kernel."""

WEIGHT_ONLY_ERROR: Final = {"gemm": (0.25, 0.6), "experts": (0.4, 1.3)}
"""Median and 90th percentile error assumed for products with weight-only integers.

Their times are those of 16-bit weights with fewer bytes to stream, as if converting integers were
free. Errors against measured libraries (aiconfigurator-core 0.12.0, printed by
`benchmarks/bench_kernel_times.py`):

- TensorRT-LLM 1.0.0's products on A100: 18 / 56 % in int8, 24 / 57 % in int4; a third longer up to
  4 rows, three quarters longer at 16 to 64 and a tenth beyond 1,000.
- SGLang 0.5.6's int8 products on H100 take three to four times as long, outside the band.
- Experts in int4: vLLM 0.24.0's Marlin kernels on eight GPUs 14 to 42 / 53 to 83 %, two to three
  times as long for thousands of tokens on Hopper and Blackwell; SGLang's on A100 29 / 132 %.
"""


class ProductTypes(NamedTuple):
    """The type that a product is computed in, and how its weights are stored."""

    dtype: str
    weight_bytes: float
    """Per weight, scales included."""
    weight_only: bool
    """Whether weights are integers that are converted to 16 bits for the product."""


def dtype_name(name: str) -> str:
    """The full name of a data type: `bfloat16` for `bf16`."""
    return _ALIASES.get(name.lower(), name.lower())


def product_types(gpu: Gpu, dtype: str, weights_dtype: str | None) -> ProductTypes:
    """The types of a product of `dtype` with weights of `weights_dtype`, None for the same.

    Raises:
        DeviceError: The GPU lacks a type, or the two cannot be multiplied.
    """
    own = dtype_name(dtype)
    if own not in gpu.dtypes or own not in _NBYTES:
        usable = " or ".join(each for each in gpu.dtypes if each in _NBYTES)
        raise DeviceError(f"{gpu.title} has no {dtype}; use dtype {usable}", arguments=["dtype"])
    weights = own if weights_dtype is None else dtype_name(weights_dtype)
    if weights not in gpu.weight_dtypes:
        raise DeviceError(
            f"{gpu.title} has no weights in {weights_dtype};"
            f" use weights_dtype {' or '.join(gpu.weight_dtypes)}"
        )
    if weights == "float8":
        return ProductTypes("float8", _NBYTES["float8"], weight_only=False)
    if own == "float8":
        raise DeviceError(
            f"activations in float8 cannot be multiplied with weights in {weights_dtype};"
            " use weights_dtype float8, or dtype " + gpu.tensor_dtype
        )
    if weights in _WEIGHT_ONLY_BYTES:
        return ProductTypes(own, _WEIGHT_ONLY_BYTES[weights], weight_only=True)
    return ProductTypes(own, _NBYTES[weights], weight_only=False)


# --- a device ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredHost:
    """Measured overhead of the machine around a GPU."""

    launch_us: float
    """Per operator of uncompiled model code, including views and Python around it."""
    sync_us: float
    """Per value that the host waits for."""
    step_us: float
    """Between two decode steps of `generate`."""
    graph_us: float
    """Per launch of a CUDA graph."""
    link_gb_s: float
    """Of copies to the GPU from memory that is not pinned."""


@dataclass(frozen=True)
class Device:
    """A GPU and how long its kernels take.

    Sizes are integers or arrays that broadcast; seconds are a float if all sizes are integers,
    else an array. `cold=True` reads every byte from device memory, like the weights in a decode
    step that has read more than fits in L2 since it last used them.

    Attributes:
        gpu: As sold; for a CPU, with the rates that it reached.
        source: Of the kernel times.
        kinds: Coefficients by (kind, data type), including those taken from another GPU.
        host: None if it was not measured.
        cpu: For a CPU, to which no formula here applies; else None.
    """

    gpu: Gpu
    source: str
    licence: str
    kinds: Mapping[tuple[str, str], Fitted]
    host: MeasuredHost | None = None
    cpu: CpuKernels | None = None

    @property
    def extrapolated(self) -> bool:
        """Whether no kind was measured on this device."""
        return self.cpu is None and all(each.extrapolated for each in self.kinds.values())

    def is_measured(self, kind: str, dtype: str = "bfloat16") -> bool:
        """Whether it has coefficients of a kernel kind, its own or another GPU's."""
        return (kind, "bfloat16" if dtype == "float16" else dtype) in self.kinds

    def fitted(
        self,
        kind: str,
        dtype: str = "bfloat16",
        *,
        weights_dtype: str | None = None,
        kv_dtype: str | None = None,
    ) -> Fitted:
        """Coefficients, origin and error of a kernel kind in a data type.

        `kind` is a key of `COEFFICIENTS`; `weights_dtype` is for products (gemm, experts),
        `kv_dtype` for attention. With int8 or int4 weights they are those of 16 bits, with an
        assumed error.

        Raises:
            DeviceError: The GPU lacks a type, or the kind was not measured in it or has no weights.
        """
        if weights_dtype is not None and kind not in WEIGHT_ONLY_ERROR:
            raise DeviceError(f"{kind} has no weights; leave weights_dtype out")
        if kv_dtype is not None:
            self._check_cache(dtype_name(kv_dtype))
            if dtype_name(kv_dtype) == "float8" and self.is_measured(kind, "float8"):
                return self.kinds[kind, "float8"]
        types = self._types(kind, dtype, weights_dtype)
        # Both 16-bit types run at the same rate.
        stored = "bfloat16" if types.dtype == "float16" else types.dtype
        found = self.kinds.get((kind, stored))
        if found is None:
            there = [each for each in self.gpu.dtypes if self.is_measured(kind, each)]
            raise DeviceError(
                f"{self.gpu.title} has no {kind} in {dtype}; use dtype {' or '.join(there)}"
                if there else f"the profile of {self.gpu.title} has no {kind}",
                arguments=["dtype"],
            )  # fmt: skip
        if not types.weight_only:
            return found
        wider = EXTRAPOLATED_BAND if found.extrapolated else 1.0
        median, p90 = (wider * each for each in WEIGHT_ONLY_ERROR[kind])
        return replace(
            found,
            median=max(median, found.median),
            p90=max(p90, found.p90),
            held_out_rows=0,
            held_out_groups=0,
            derived=f"{kind} in {types.dtype} with fewer bytes per weight",
            assumed=True,
        )

    def _types(self, kind: str, dtype: str, weights_dtype: str | None) -> ProductTypes:
        """The types of a kind; products in float32 only if they were measured."""
        is_float32 = (kind, dtype, weights_dtype) == ("gemm", "float32", None)
        if is_float32 and self.is_measured(kind, dtype):
            return ProductTypes(dtype, 4, weight_only=False)
        return product_types(self.gpu, dtype, weights_dtype)

    def _check_cache(self, cached: str) -> None:
        """Raise DeviceError for a type that cached keys and values cannot have."""
        if cached not in _CACHE_NBYTES:
            raise DeviceError(
                f"kv_dtype {cached!r} is unknown; use {', '.join(_CACHE_NBYTES)}",
                arguments=["kv_dtype"],
            )
        if cached == "float8" and not self.gpu.float8_tflops:
            raise DeviceError(
                f"{self.gpu.title} has no float8; use kv_dtype int8 or {self.gpu.tensor_dtype}",
                arguments=["kv_dtype"],
            )

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

        `weights_dtype` is that of `[k, n]`, by default `dtype`. float8 includes quantizing the `m`
        rows, and `batch` must be 1; int8 and int4 are multiplied in 16 bits.

        Raises:
            DeviceError: The GPU lacks a type, or the two types cannot be multiplied.
            WorkloadError: A size is below 1.
        """
        from dsocr_analyze.hardware.kernel_times import Machine, products

        c = self.fitted("gemm", dtype, weights_dtype=weights_dtype).coefficients
        types = self._types("gemm", dtype, weights_dtype)
        M, N, K, count = _arrays(m=m, n=n, k=k, batch=batch)
        machine = Machine.of(self.gpu, types.dtype, cold=cold)
        if isinstance(c, records.ScaledGemmCoefficients):
            if (count != 1).any():
                raise WorkloadError("batch must be 1 for a product in float8")
            return _like(products.scaled_gemm_seconds(M, N, K, machine, c))
        seconds = products.gemm_seconds(
            M, N, K, types.weight_bytes, machine, cast("records.GemmCoefficients", c), batch=count,
            activation_bytes=max(2, types.weight_bytes),
        )  # fmt: skip
        return _like(seconds)

    def masked_attention_seconds(
        self,
        batch: Sizes,
        queries: Sizes,
        keys: Sizes,
        heads: Sizes,
        head_dim: Sizes,
        *,
        moved: Sizes,
    ) -> Seconds:
        """Seconds of fused attention with a bias tensor added to the scores.

        `queries` and `keys` are per sequence; `moved` bytes are read and written with the bias.

        Raises:
            DeviceError: This kind was not measured.
            WorkloadError: A size is below 1.
        """
        from dsocr_analyze.hardware.kernel_times import Machine, attention

        found = self.fitted("masked_attention", self.gpu.tensor_dtype)
        *sizes, nbytes = _arrays(
            batch=batch, queries=queries, keys=keys, heads=heads, head_dim=head_dim,
            kv_heads=heads, moved=moved,
        )  # fmt: skip
        machine = Machine.of(self.gpu, self.gpu.tensor_dtype)
        c = cast("records.MaskedCoefficients", found.coefficients)
        return _like(attention.masked_attention_seconds(sizes, nbytes, machine, c))

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

        Without `causal`, the kernel of encoders; with it, that of a prompt for several queries and
        that of generation for one. An array of `queries` must not mix the two.

        Args:
            batch: Sequences.
            queries: Per sequence.
            keys: Per sequence, including those of the queries.
            heads: Query heads.
            head_dim: Elements per head.
            kv_heads: Key heads; default `heads`.
            causal: Whether later keys are masked.
            dtype: Of the queries.
            kv_dtype: Of cached keys and values: float8, int8 or int4; default `dtype`. Except for
                generation in float8, the 16-bit kernel is assumed to read fewer bytes.
            cold: See `Device`.

        Raises:
            DeviceError: The GPU or the kind lacks a type.
            WorkloadError: A size is impossible.
        """
        from dsocr_analyze.hardware.kernel_times import Machine, attention

        sizes = _arrays(
            batch=batch, queries=queries, keys=keys, heads=heads, head_dim=head_dim,
            kv_heads=heads if kv_heads is None else kv_heads,
        )  # fmt: skip
        _, Q, K, H, _, G = sizes
        if causal and (Q > K).any():
            raise WorkloadError("causal attention cannot have more queries than keys")
        if (H % G).any():
            raise WorkloadError("heads must be a multiple of kv_heads")
        one = Q == 1
        if causal and one.any() and not one.all():
            raise WorkloadError("queries must be all 1 or all above 1 in one call")
        kind = "encoder_attention"
        if causal:
            kind = "generation_attention" if one.all() else "context_attention"
        c = self.fitted(kind, dtype, kv_dtype=kv_dtype).coefficients
        nbytes = _CACHE_NBYTES[dtype_name(kv_dtype or dtype)]
        # Cached keys of fewer bits are multiplied in 16 bits.
        machine = Machine.of(self.gpu, self.gpu.tensor_dtype, cold=cold)
        if isinstance(c, records.GenerationCoefficients):
            seconds = attention.generation_attention_seconds(
                sizes, machine, c, element_bytes=nbytes
            )
        else:
            seconds = attention.prefill_attention_seconds(
                sizes, machine, cast("records.PrefillCoefficients", c),
                causal=causal, element_bytes=nbytes,
            )  # fmt: skip
        return _like(seconds)

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
        """Seconds of one layer's routed experts: routing, both grouped products, activation, sum.

        Args:
            tokens: Number of tokens.
            hidden: Width of a token.
            inter: Width within an expert.
            experts: Routed experts in the layer.
            top_k: Experts per token.
            touched: Experts with a token; default: the expected E (1 - (1 - k/E)^tokens).
            gated: Whether an expert has a gate (SwiGLU).
            activation: silu, relu2 or gelu; some libraries have a slower kernel for gelu.
            dtype: Of the tokens.
            weights_dtype: As for `gemm_seconds`.
            cold: See `Device`.

        Raises:
            DeviceError: The GPU or the kind lacks a type, or the two cannot be multiplied.
            WorkloadError: A size is impossible, or the activation unknown.
        """
        from dsocr_analyze.hardware.kernel_times import Machine, products

        if activation not in _ACTIVATIONS:
            raise WorkloadError(
                f"activation {activation!r} is unknown; use {', '.join(_ACTIVATIONS)}"
            )
        fitted = self.fitted("experts", dtype, weights_dtype=weights_dtype)
        types = product_types(self.gpu, dtype, weights_dtype)
        T, d, width, E, k = _arrays(tokens=tokens, hidden=hidden, inter=inter, experts=experts,
                                    top_k=top_k)  # fmt: skip
        if (k > E).any():
            raise WorkloadError("top_k must be at most experts")
        [with_tokens] = [expected_experts(T, E, k)] if touched is None else _arrays(touched=touched)
        sizes = products.ExpertSizes(
            T, d, width, E, k, with_tokens, gated, _ACTIVATIONS[activation]
        )
        c = cast("records.ExpertsCoefficients", fitted.coefficients)
        machine = Machine.of(self.gpu, types.dtype, cold=cold)
        return _like(products.experts_seconds(sizes, machine, c, weight_bytes=types.weight_bytes))

    def elementwise_seconds(self, bytes_moved: Sizes, *, cold: bool = False) -> Seconds:
        """Seconds of a kernel that reads and writes bytes: elementwise, normalization, copy."""
        from dsocr_analyze.hardware.kernel_times import Machine, movement_seconds

        native = self.gpu.tensor_dtype
        c = cast("records.MovementCoefficients", self.fitted("movement", native).coefficients)
        [moved] = _arrays(bytes_moved=bytes_moved)
        return _like(movement_seconds(moved, Machine.of(self.gpu, native, cold=cold), c))

    def is_in_l2(self, nbytes: Sizes, *, cold: bool = False) -> NDArray[np.bool_]:
        """Whether so many bytes may still be in L2; never if they are `cold`."""
        from dsocr_analyze.hardware.kernel_times import Machine

        return Machine.of(self.gpu, self.gpu.tensor_dtype, cold=cold).in_l2(nbytes)


def _arrays(**sizes: Sizes) -> list[Floats]:
    """Sizes as arrays of floats; raises WorkloadError for one that is below 1 or not finite."""
    import numpy as np

    arrays = []
    for name, size in sizes.items():
        array = np.asarray(size, dtype=np.float64)
        if not (np.isfinite(array).all() and (array >= 1).all()):
            wrong = array[~(array >= 1)]
            shown = float(wrong.flat[0]) if wrong.size else float("inf")
            raise WorkloadError(f"{name} {shown:g} is out of range; give 1 or more")
        arrays.append(array)
    return arrays


def _like(seconds: Floats) -> Seconds:
    """A float if all sizes were numbers, else the array."""
    return float(seconds) if seconds.ndim == 0 else seconds
