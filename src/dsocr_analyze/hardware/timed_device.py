"""Kernel times of a GPU: `device("h100-sxm").gemm_seconds(m, n, k)`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.figures import expected_experts
from dsocr_analyze.hardware.cpu_kernels import CpuKernels
from dsocr_analyze.hardware.devices import (
    NBYTES,
    STORED_BITS,
    WEIGHT_ONLY_ERROR,
    Gpu,
    ProductTypes,
    catalogue_name,
    dtype_name,
    product_types,
)
from dsocr_analyze.hardware.kernel_times import coefficients as records
from dsocr_analyze.hardware.profile import EXTRAPOLATED_BAND, Fitted, Profile, all_profiles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.hardware.kernel_times.machine import Floats, Machine

    Sizes: TypeAlias = int | float | NDArray[np.int64] | Floats
    Seconds: TypeAlias = float | Floats

__all__ = ["Device", "device", "dtype_name"]

_CACHE_NBYTES: Final = {**NBYTES, **{name: bits / 8 for name, bits in STORED_BITS.items()}}
"""Bytes per cached element, by the type of cached keys and values."""
_ACTIVATIONS: Final = {"silu": False, "relu2": False, "gelu": True}
"""Activations of experts, and whether libraries on Blackwell fall back to a second kernel."""


def device(name: str, *, profiles: Iterable[Path] = ()) -> Device:
    """The GPU with this name or alias, with its profile.

    Args:
        name: Catalogue name, alias, or the name that torch reports; case does not matter.
        profiles: Files with the user's own profiles.

    Raises:
        DeviceError: There is no such GPU (the message names close matches), or a file is wrong.
    """
    known = all_profiles(profiles)
    return Device(known[catalogue_name(name, known)])


@dataclass(frozen=True)
class Device:
    """A GPU and its profile.

    Sizes are integers or arrays that broadcast; seconds are a float if all sizes are integers,
    else an array. `cold=True` reads every byte from device memory, like the weights in a decode
    step that has read more than fits in L2 since it last used them.
    """

    profile: Profile

    @property
    def gpu(self) -> Gpu:
        """The GPU as sold."""
        return self.profile.gpu

    @property
    def name(self) -> str:
        """Its name in the catalogue."""
        return self.gpu.name

    @property
    def cpu(self) -> CpuKernels | None:
        """Measured kernel families if it is a CPU, which no other formula applies to; else None."""
        return self.profile.cpu

    def is_measured(self, kind: str, dtype: str = "bfloat16") -> bool:
        """Whether its profile has a kernel kind in a data type, its own or another GPU's."""
        return (kind, "bfloat16" if dtype == "float16" else dtype) in self.profile.fitted

    def fitted(
        self,
        kind: str,
        dtype: str = "bfloat16",
        *,
        weights_dtype: str | None = None,
        kv_dtype: str | None = None,
    ) -> Fitted:
        """Coefficients, origin and error of a kernel kind in a data type.

        Args:
            kind: A key of `COEFFICIENTS`.
            dtype: Data type.
            weights_dtype: Type of a product's weights (gemm, experts); None for `dtype`. For int8
                and int4 the coefficients are those of 16 bits and the error is assumed.
            kv_dtype: Type of cached keys and values, if not `dtype`.

        Raises:
            DeviceError: The GPU lacks a type, or the kind was not measured in it or has no weights.
        """
        if weights_dtype is not None and kind not in WEIGHT_ONLY_ERROR:
            raise DeviceError(f"{kind} has no weights; leave weights_dtype out")
        in_float8 = kv_dtype is not None and self._is_float8_cache(dtype_name(kv_dtype))
        if in_float8 and self.is_measured(kind, "float8"):
            return self.profile.fitted[kind, "float8"]
        types = self._types(kind, dtype, weights_dtype)
        # Both 16-bit types run at the same rate.
        stored = "bfloat16" if types.dtype == "float16" else types.dtype
        found = self.profile.fitted.get((kind, stored))
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

    def _types(self, kind: str, dtype: str, weights_dtype: str | None = None) -> ProductTypes:
        """The types of a kind; products in float32 only if they were measured."""
        is_float32 = (kind, dtype, weights_dtype) == ("gemm", "float32", None)
        if is_float32 and self.is_measured(kind, dtype):
            return ProductTypes(dtype, 4, weight_only=False)
        return product_types(self.gpu, dtype, weights_dtype)

    def _is_float8_cache(self, cached: str) -> bool:
        """Whether the cache is in float8, whose attention may have been measured."""
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
        return cached == "float8"

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

        In float8, includes quantizing the `m` rows, and `batch` must be 1.

        Args:
            m: Rows.
            n: Columns.
            k: Inner size.
            batch: Products.
            dtype: Data type.
            weights_dtype: Type of the `[k, n]` weights; default `dtype`. float8 also quantizes the
                rows; int8 and int4 are multiplied in 16 bits (weight-only) and not measured, see
                the error of `fitted`.
            cold: Read everything from device memory.

        Raises:
            DeviceError: The GPU lacks a type, or the two types cannot be multiplied.
            WorkloadError: A size is below 1.
        """
        from dsocr_analyze.hardware.kernel_times import products

        c = self.fitted("gemm", dtype, weights_dtype=weights_dtype).coefficients
        types = self._types("gemm", dtype, weights_dtype)
        M, N, K, count = _arrays(m=m, n=n, k=k, batch=batch)
        machine = self._machine(types.dtype, cold)
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

        Args:
            batch: Sequences.
            queries: Queries per sequence.
            keys: Keys per sequence.
            heads: Heads.
            head_dim: Elements per head.
            moved: Bytes read and written, including the bias.

        Raises:
            DeviceError: This kind was not measured.
            WorkloadError: A size is below 1.
        """
        from dsocr_analyze.hardware.kernel_times import attention

        found = self.fitted("masked_attention", self.gpu.tensor_dtype)
        B, Q, K, H, D, nbytes = _arrays(batch=batch, queries=queries, keys=keys, heads=heads,
                                        head_dim=head_dim, moved=moved)  # fmt: skip
        seconds = attention.masked_attention_seconds(
            attention.AttentionSizes(B, Q, K, H, D, H), nbytes,
            self._machine(self.gpu.tensor_dtype, cold=False),
            cast("records.MaskedCoefficients", found.coefficients),
        )  # fmt: skip
        return _like(seconds)

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
            queries: Queries per sequence.
            keys: Keys per sequence, including those of the queries.
            heads: Query heads.
            head_dim: Elements per head.
            kv_heads: Key heads; default `heads`.
            causal: Whether later keys are masked.
            dtype: Data type.
            kv_dtype: Type of cached keys and values: float8, int8 or int4; default `dtype`. Only
                generation is measured in float8; otherwise the 16-bit kernel is assumed to read
                fewer bytes.
            cold: Read everything from device memory.

        Raises:
            DeviceError: The GPU or the kind lacks a type.
            WorkloadError: A size is impossible: below 1, more queries than keys under a causal
                mask, or heads that are not a multiple of `kv_heads`.
        """
        from dsocr_analyze.hardware.kernel_times import attention

        sizes = attention.AttentionSizes(*_arrays(
            batch=batch, queries=queries, keys=keys, heads=heads, head_dim=head_dim,
            kv_heads=heads if kv_heads is None else kv_heads,
        ))  # fmt: skip
        if causal and (sizes.queries > sizes.keys).any():
            raise WorkloadError("causal attention cannot have more queries than keys")
        if (sizes.heads % sizes.kv_heads).any():
            raise WorkloadError("heads must be a multiple of kv_heads")
        one = sizes.queries == 1
        if causal and one.any() and not one.all():
            raise WorkloadError("queries must be all 1 or all above 1 in one call")
        kind = "encoder_attention"
        if causal:
            kind = "generation_attention" if one.all() else "context_attention"
        c = self.fitted(kind, dtype, kv_dtype=kv_dtype).coefficients
        nbytes = _CACHE_NBYTES[dtype_name(kv_dtype or dtype)]
        # Cached keys of fewer bits are multiplied in 16 bits.
        machine = self._machine(self.gpu.tensor_dtype, cold)
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
            tokens: Tokens.
            hidden: Width of a token.
            inter: Width within an expert.
            experts: Routed experts in the layer.
            top_k: Experts per token.
            touched: Experts with at least one token; default: the expected number,
                E (1 - (1 - k/E)^tokens).
            gated: Whether an expert has a gate (SwiGLU).
            activation: silu, relu2 or gelu; some libraries have a slower kernel for gelu.
            dtype: Data type.
            weights_dtype: Type of the experts' weights; as for `gemm_seconds`.
            cold: Read everything from device memory.

        Raises:
            DeviceError: The GPU or the kind lacks a type, or the two types cannot be multiplied.
            WorkloadError: A size is impossible, such as `top_k` above `experts`, or the activation
                is unknown.
        """
        from dsocr_analyze.hardware.kernel_times import products

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
        with_tokens = expected_experts(T, E, k) if touched is None else _arrays(touched=touched)[0]
        sizes = products.ExpertSizes(
            T, d, width, E, k, with_tokens, gated, _ACTIVATIONS[activation]
        )
        c = cast("records.ExpertsCoefficients", fitted.coefficients)
        machine = self._machine(types.dtype, cold)
        return _like(products.experts_seconds(sizes, machine, c, weight_bytes=types.weight_bytes))

    def elementwise_seconds(self, bytes_moved: Sizes, *, cold: bool = False) -> Seconds:
        """Seconds of a kernel that moves bytes: elementwise, normalization, copy.

        Args:
            bytes_moved: Bytes read and written.
            cold: Read everything from device memory.
        """
        from dsocr_analyze.hardware.kernel_times.machine import movement_seconds

        native = self.gpu.tensor_dtype
        c = cast("records.MovementCoefficients", self.fitted("movement", native).coefficients)
        [moved] = _arrays(bytes_moved=bytes_moved)
        return _like(movement_seconds(moved, self._machine(native, cold), c))

    def is_in_l2(self, nbytes: Sizes, *, cold: bool = False) -> NDArray[np.bool_]:
        """Whether so many bytes may still be in L2; never if they are `cold`."""
        return self._machine(self.gpu.tensor_dtype, cold).in_l2(nbytes)

    def _machine(self, dtype: str, cold: bool) -> Machine:
        from dsocr_analyze.hardware.kernel_times.machine import Machine

        return Machine.of(self.gpu, dtype, cold=cold)


def _arrays(**sizes: Sizes) -> list[Floats]:
    """Sizes as arrays of floats; raises WorkloadError for one that is below 1 or not finite."""
    import numpy as np

    arrays = [np.asarray(size, dtype=np.float64) for size in sizes.values()]
    for name, array in zip(sizes, arrays, strict=True):
        if not (np.isfinite(array).all() and (array >= 1).all()):
            wrong = array[~(array >= 1)]
            shown = float(wrong.flat[0]) if wrong.size else float("inf")
            raise WorkloadError(f"{name} {shown:g} is out of range; give 1 or more")
    return arrays


def _like(seconds: Floats) -> Seconds:
    """A float if all sizes were numbers, else the array."""
    return float(seconds) if seconds.ndim == 0 else seconds
