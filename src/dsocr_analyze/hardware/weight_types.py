"""Element types of products, and weights of fewer bits than what they are multiplied with."""

from __future__ import annotations

from typing import Final, NamedTuple

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.devices import Gpu

__all__ = [
    "NBYTES",
    "STORED_BITS",
    "WEIGHT_ONLY_ERROR",
    "ProductTypes",
    "dtype_name",
    "product_types",
]

NBYTES: Final = {"bfloat16": 2, "float16": 2, "float8": 1}
"""Bytes of an element that is multiplied."""
STORED_BITS: Final = {"float8": 8, "int8": 8, "int4": 4}
"""Bits of a weight, scales aside, or of a cached element in a type of fewer bits than 16."""

_ALIASES: Final = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp8": "float8"}
_SCALE_BYTES: Final = 2 / 128
"""A scale of two bytes for every 128 weights."""
_WEIGHT_ONLY_BYTES: Final = {
    name: STORED_BITS[name] / 8 + _SCALE_BYTES for name in ("int8", "int4")
}

WEIGHT_ONLY_ERROR: Final = {"gemm": (0.25, 0.6), "experts": (0.4, 1.3)}
"""Median and 90th percentile assumed for products with weight-only integers.

Their times are not fitted: they are those of 16-bit weights with fewer bytes to stream, as if
turning integers into 16 bits cost nothing. What that misses, where libraries were measured
(aiconfigurator-core 0.12.0; `benchmarks/bench_kernel_times.py` prints it): TensorRT-LLM 1.0.0's
products on A100 18 / 56 % in int8 and 24 / 57 % in int4, measured times longer by a third up to 4
rows, by three quarters at 16 to 64 and by a tenth beyond 1,000. SGLang 0.5.6's int8 products on
H100 take three to four times as long and lie outside. Experts in int4, mostly one model's sizes:
vLLM 0.24.0's Marlin kernels on eight GPUs 14 to 42 / 53 to 83 %, where thousands of tokens take two
to three times as long on Hopper and Blackwell; SGLang's on A100 29 / 132 %.
"""


class ProductTypes(NamedTuple):
    """What a product multiplies and what its weights are stored in."""

    dtype: str
    """In which it multiplies."""
    weight_bytes: float
    """Of a weight, scales included."""
    weight_only: bool
    """Whether weights are integers that become 16 bits on their way."""


def dtype_name(name: str) -> str:
    """The full name of an element type: `bfloat16` for `bf16`."""
    return _ALIASES.get(name.lower(), name.lower())


def product_types(gpu: Gpu, dtype: str, weights_dtype: str | None) -> ProductTypes:
    """What a product of `dtype` with weights of `weights_dtype` comes down to.

    Args:
        gpu: The GPU.
        dtype: Type of the activations.
        weights_dtype: Type of the weights; None for that of the activations.

    Raises:
        DeviceError: The GPU lacks a type, or the two cannot be multiplied.
    """
    own = dtype_name(dtype)
    usable = [each for each in gpu.dtypes if each in NBYTES]
    if own not in usable:
        raise DeviceError(
            f"{gpu.title} has no {dtype}; use dtype {' or '.join(usable)}", arguments=["dtype"]
        )
    weights = own if weights_dtype is None else dtype_name(weights_dtype)
    if weights not in gpu.weight_dtypes:
        raise DeviceError(
            f"{gpu.title} has no weights in {weights_dtype};"
            f" use weights_dtype {' or '.join(gpu.weight_dtypes)}"
        )
    if weights == "float8":
        return ProductTypes("float8", NBYTES["float8"], weight_only=False)
    if own == "float8":
        raise DeviceError(
            f"activations in float8 are not multiplied with weights in {weights_dtype};"
            " use weights_dtype float8, or dtype " + gpu.tensor_dtype
        )
    if weights in _WEIGHT_ONLY_BYTES:
        return ProductTypes(own, _WEIGHT_ONLY_BYTES[weights], weight_only=True)
    return ProductTypes(own, NBYTES[weights], weight_only=False)
