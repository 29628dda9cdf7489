"""Kernel times of a GPU: `device("h100-sxm").gemm_seconds(m, n, k)`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.figures import expected_experts
from dsocr_analyze.hardware.devices import Gpu, catalogue_name
from dsocr_analyze.hardware.kernel_times import coefficients as records
from dsocr_analyze.hardware.profile import (
    EXTRAPOLATED_BAND,
    Fitted,
    MeasuredHost,
    Profile,
    all_profiles,
)
from dsocr_analyze.hardware.weight_types import (
    NBYTES,
    STORED_BITS,
    WEIGHT_ONLY_ERROR,
    dtype_name,
    product_types,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsocr_analyze.hardware.cpu_kernels import CpuKernels
    from dsocr_analyze.hardware.kernel_times.machine import Machine

    Sizes: TypeAlias = int | float | NDArray[np.int64] | NDArray[np.float64]
    Seconds: TypeAlias = float | NDArray[np.float64]

__all__ = ["Device", "device", "dtype_name"]

_CACHE_NBYTES: Final = {**NBYTES, **{name: bits / 8 for name, bits in STORED_BITS.items()}}
_CACHE_DTYPES: Final = tuple(_CACHE_NBYTES)
"""Types of cached keys and values."""
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

    @property
    def host(self) -> MeasuredHost | None:
        """Measurements of the machine around it; None if there are none."""
        return self.profile.host

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
        if kv_dtype is not None:
            return self._cached(kind, dtype, dtype_name(kv_dtype))
        types = product_types(self.gpu, dtype, weights_dtype)
        found = self._fitted(kind, types.dtype, dtype)
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

    def _fitted(self, kind: str, name: str, dtype: str) -> Fitted:
        # Both 16-bit types run at the same rate.
        stored = "bfloat16" if name == "float16" else name
        found = self.profile.fitted.get((kind, stored))
        if found is None:
            there = [each for each in self.gpu.dtypes if self.is_measured(kind, each)]
            raise DeviceError(
                f"{self.gpu.title} has no {kind} in {dtype}; use dtype {' or '.join(there)}"
                if there else f"the profile of {self.gpu.title} has no {kind}",
                arguments=["dtype"],
            )  # fmt: skip
        return found

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
        from dsocr_analyze.hardware.kernel_times.gemm import gemm_seconds, scaled_gemm_seconds

        c = self.fitted("gemm", dtype, weights_dtype=weights_dtype).coefficients
        types = product_types(self.gpu, dtype, weights_dtype)
        M, N, K, products = _arrays(m=m, n=n, k=k, batch=batch)
        machine = self._machine(types.dtype, cold)
        if isinstance(c, records.ScaledGemmCoefficients):
            if (products != 1).any():
                raise WorkloadError("batch must be 1 for a product in float8")
            return _like(scaled_gemm_seconds(M, N, K, machine, c), m, n, k)
        gemm = cast("records.GemmCoefficients", c)
        seconds = gemm_seconds(M, N, K, types.weight_bytes, machine, gemm, batch=products)
        return _like(seconds, m, n, k, batch)

    def float32_gemm_seconds(
        self, m: Sizes, n: Sizes, k: Sizes, *, batch: Sizes = 1, cold: bool = False
    ) -> Seconds:
        """Seconds of one kernel with `batch` products in float32; arguments as for `gemm_seconds`.

        Raises:
            DeviceError: Products in float32 were not measured.
            WorkloadError: A size is below 1.
        """
        from dsocr_analyze.hardware.kernel_times.gemm import gemm_seconds

        found = self.profile.fitted.get(("gemm", "float32"))
        if found is None:
            raise DeviceError(f"the profile of {self.gpu.title} has no gemm in float32")
        M, N, K, products = _arrays(m=m, n=n, k=k, batch=batch)
        c = cast("records.GemmCoefficients", found.coefficients)
        seconds = gemm_seconds(
            M, N, K, 4, self._machine("float32", cold), c, batch=products, activation_bytes=4
        )
        return _like(seconds, m, n, k, batch)

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
        from dsocr_analyze.hardware.kernel_times.attention import (
            AttentionSizes,
            masked_attention_seconds,
        )

        found = self._fitted("masked_attention", "bfloat16", "bfloat16")
        B, Q, K, H, D, nbytes = _arrays(batch=batch, queries=queries, keys=keys, heads=heads,
                                        head_dim=head_dim, moved=moved)  # fmt: skip
        seconds = masked_attention_seconds(
            AttentionSizes(B, Q, K, H, D, H), nbytes,
            self._machine(self.gpu.tensor_dtype, cold=False),
            cast("records.MaskedCoefficients", found.coefficients),
        )  # fmt: skip
        return _like(seconds, batch, queries, keys, heads, head_dim, moved)

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

        given = (batch, queries, keys, heads, head_dim, heads if kv_heads is None else kv_heads)
        arrays = _arrays(batch=batch, queries=queries, keys=keys, heads=heads,
                         head_dim=head_dim, kv_heads=given[5])  # fmt: skip
        sizes = attention.AttentionSizes(*arrays)
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
        return _like(seconds, *given)

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
        import numpy as np

        from dsocr_analyze.hardware.kernel_times import experts as formula

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
        expected = expected_experts(T, E, k)
        with_tokens = expected if touched is None else _arrays(touched=touched)[0]
        c = cast("records.ExpertsCoefficients", fitted.coefficients)
        sizes = formula.ExpertSizes(
            T,
            d,
            width,
            E,
            k,
            with_tokens,
            np.asarray(gated),
            np.asarray(_ACTIVATIONS[activation]),
        )
        seconds = formula.experts_seconds(
            sizes, self._machine(types.dtype, cold), c, weight_bytes=types.weight_bytes
        )
        given = (tokens, hidden, inter, experts, top_k)
        return _like(seconds, *given, *(() if touched is None else (touched,)))

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
        return _like(movement_seconds(moved, self._machine(native, cold), c), bytes_moved)

    def is_in_l2(self, nbytes: Sizes, *, cold: bool = False) -> NDArray[np.bool_]:
        """Whether so many bytes may still be in L2; never if they are `cold`."""
        import numpy as np

        return self._machine(self.gpu.tensor_dtype, cold).in_l2(np.asarray(nbytes, np.float64))

    def _cached(self, kind: str, dtype: str, cached: str) -> Fitted:
        """Coefficients of attention over a cache of another type: float8's if measured."""
        if cached not in _CACHE_DTYPES:
            raise DeviceError(
                f"kv_dtype {cached!r} is unknown; use {', '.join(_CACHE_DTYPES)}",
                arguments=["kv_dtype"],
            )
        if cached == "float8" and not self.gpu.float8_tflops:
            raise DeviceError(
                f"{self.gpu.title} has no float8; use kv_dtype int8 or {self.gpu.tensor_dtype}",
                arguments=["kv_dtype"],
            )
        if cached == "float8" and self.is_measured(kind, cached):
            return self.profile.fitted[kind, cached]
        return self.fitted(kind, dtype)

    def _machine(self, dtype: str, cold: bool) -> Machine:
        from dsocr_analyze.hardware.kernel_times.rows import machine_of

        return machine_of(self.gpu, dtype, cold=cold)


def _arrays(**sizes: Sizes) -> list[NDArray[np.float64]]:
    """Sizes as arrays of floats; raises WorkloadError for one that is below 1 or not finite."""
    import numpy as np

    arrays = []
    for name, size in sizes.items():
        array: NDArray[np.float64] = np.asarray(size, dtype=np.float64)
        if not (np.isfinite(array).all() and (array >= 1).all()):
            wrong = array[~(array >= 1)]
            shown = float(wrong.flat[0]) if wrong.size else float("inf")
            raise WorkloadError(f"{name} {shown:g} is out of range; give 1 or more")
        arrays.append(array)
    return arrays


def _like(seconds: NDArray[np.float64], *given: Sizes) -> Seconds:
    """A float if only numbers were given, else the array."""
    import numpy as np

    return float(seconds) if all(np.ndim(each) == 0 for each in given) else seconds
