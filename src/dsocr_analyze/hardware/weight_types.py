"""Data types of products, and weights stored in fewer bits than they are multiplied in."""

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
"""Bytes per multiplied element."""
STORED_BITS: Final = {"float8": 8, "int8": 8, "int4": 4}
"""Bits per weight (without scales) or cached element, in types below 16 bits."""

_ALIASES: Final = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp8": "float8"}
_SCALE_BYTES: Final = 2 / 128
"""A scale of two bytes per 128 weights."""
_WEIGHT_ONLY_BYTES: Final = {
    name: STORED_BITS[name] / 8 + _SCALE_BYTES for name in ("int8", "int4")
}

WEIGHT_ONLY_ERROR: Final = {"gemm": (0.25, 0.6), "experts": (0.4, 1.3)}
"""Median and 90th percentile error assumed for products with weight-only integers.

Their times are not fitted: they are those of 16-bit weights with fewer bytes to stream, as if
converting integers to 16 bits were free. Errors against measured libraries (median / 90th
percentile; aiconfigurator-core 0.12.0, printed by `benchmarks/bench_kernel_times.py`):

- TensorRT-LLM 1.0.0's products on A100: 18 / 56 % in int8 and 24 / 57 % in int4; measured times are
  a third longer up to 4 rows, three quarters longer at 16 to 64 and a tenth beyond 1,000.
- SGLang 0.5.6's int8 products on H100 take three to four times as long, outside the band.
- Experts in int4, mostly one model's sizes: vLLM 0.24.0's Marlin kernels on eight GPUs 14 to 42 /
  53 to 83 %, with thousands of tokens taking two to three times as long on Hopper and Blackwell;
  SGLang's on A100 29 / 132 %.
"""


class ProductTypes(NamedTuple):
    """The type that a product is computed in, and how its weights are stored."""

    dtype: str
    """Type of the multiplication."""
    weight_bytes: float
    """Bytes per weight, scales included."""
    weight_only: bool
    """Whether weights are integers that are converted to 16 bits for the product."""


def dtype_name(name: str) -> str:
    """The full name of a data type: `bfloat16` for `bf16`."""
    return _ALIASES.get(name.lower(), name.lower())


def product_types(gpu: Gpu, dtype: str, weights_dtype: str | None) -> ProductTypes:
    """The types in which a product of `dtype` with weights of `weights_dtype` is computed.

    Args:
        gpu: The GPU.
        dtype: Type of the activations.
        weights_dtype: Type of the weights; None for the activations' type.

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
            f"activations in float8 cannot be multiplied with weights in {weights_dtype};"
            " use weights_dtype float8, or dtype " + gpu.tensor_dtype
        )
    if weights in _WEIGHT_ONLY_BYTES:
        return ProductTypes(own, _WEIGHT_ONLY_BYTES[weights], weight_only=True)
    return ProductTypes(own, NBYTES[weights], weight_only=False)
