"""The GPU catalogue, `devices.toml`, read once; what a GPU lacks, and how it multiplies types."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final, NamedTuple

from dsocr_analyze.dtypes import FLOAT32, Dtype
from dsocr_analyze.errors import DeviceError
from dsocr_analyze.names import did_you_mean

if TYPE_CHECKING:
    from dsocr_analyze.toml_table import Table

__all__ = [
    "NBYTES",
    "STORED_BITS",
    "WEIGHT_ONLY_ERROR",
    "Gpu",
    "MissingFeature",
    "ProductTypes",
    "catalogue_name",
    "check_features",
    "check_keys",
    "check_that",
    "dtype_name",
    "gpu_aliases",
    "gpu_catalogue",
    "gpu_from_entry",
    "gpu_named",
    "is_positive",
    "missing_features",
    "product_types",
]


def is_positive(value: object) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e30


def check_that(is_right: bool, where: str, right: str, value: object) -> None:
    """Raises DeviceError, which begins with `where`, unless the value there is right."""
    if not is_right:
        raise DeviceError(f"{where} must be {right}, not {value!r}")


def check_keys(table: Table, known: Iterable[str], where: str, needed: Iterable[str] = ()) -> None:
    """Raises DeviceError, which begins with `where`, for unknown keys and for missing ones."""
    if unknown := [name for name in table if name not in set(known)]:
        raise DeviceError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(known)}")
    if missing := [name for name in needed if name not in table]:
        raise DeviceError(f"{where} lacks {', '.join(missing)}")


_FLASH_CAPABILITY: Final = 8.0
_FLASH_TARGETS: Final = ("gfx90a", "gfx942", "gfx950")
"""Architectures with kernels in flash-attn 2, from its README: Ampere and later, and the MI200,
MI300 and MI350 series."""

_NEEDED: Final = (
    "title", "tensor_tflops", "bandwidth_gb_s", "memory_gb", "source", "sms", "l2_mb",
)  # fmt: skip
"""Keys of every GPU's entry in a file."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as sold.

    Attributes:
        name: Its name in the catalogue.
        title: Its name shown to readers.
        tensor_tflops: Dense rate of `tensor_dtype` matrix products, TFLOP/s.
        tensor_dtype: Type of that rate; GPUs with float16 here have no bfloat16.
        bandwidth_gb_s: Memory bandwidth, GB/s.
        memory_gb: Memory as sold, GB.
        source: Source of the figures.
        weak: Figures that are poorly sourced; empty for none.
        sms: Streaming multiprocessors (compute units).
        l2_mb: Level-2 cache, MB.
        float8_tflops: Dense rate of float8 matrix products, TFLOP/s; 0 if unsupported.
        int8_tops: Dense rate of int8 matrix products, 10^12 operations/s; 0 if unsupported.
        float32_tflops: Rate of fp32 outside the tensor units, TFLOP/s; 0 if unknown.
        mma_share: Fraction of `tensor_tflops` that kernels written for Ampere can reach.
        compute_capability: NVIDIA's compute capability; 0 for other vendors or if unknown.
        rocm_target: AMD's architecture name; empty for other vendors.
        like: GPU whose measured kernel times are used if this one has none; empty for none.
    """

    name: str
    title: str
    tensor_tflops: float
    bandwidth_gb_s: float
    memory_gb: int
    source: str
    tensor_dtype: str = "bfloat16"
    weak: str = ""
    sms: int = 0
    l2_mb: float = 0
    float8_tflops: float = 0
    int8_tops: float = 0
    float32_tflops: float = 0
    mma_share: float = 1
    compute_capability: float = 0
    rocm_target: str = ""
    like: str = ""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Data types that its matrix units support."""
        eight = {"float8": self.float8_tflops, "int8": self.int8_tops}
        return (*self._half, *(dtype for dtype, rate in eight.items() if rate))

    @property
    def weight_dtypes(self) -> tuple[str, ...]:
        """Types of stored weights; integers are converted to 16 bits before the product."""
        eight = ("float8",) if self.float8_tflops else ()
        return (*self._half, *eight, "int8", "int4")

    @property
    def _half(self) -> tuple[str, ...]:
        return ("float16",) if self.tensor_dtype == "float16" else ("bfloat16", "float16")

    @property
    def has_flash_attention(self) -> bool | None:
        """Whether FlashAttention-2 has kernels for it; None if its architecture is unknown."""
        if self.compute_capability:
            return self.compute_capability >= _FLASH_CAPABILITY
        return self.rocm_target in _FLASH_TARGETS if self.rocm_target else None

    @property
    def flash_attention_needs(self) -> str:
        """The architecture that FlashAttention-2 needs, and the one that this GPU has."""
        if self.compute_capability:
            return f"compute capability {_FLASH_CAPABILITY}, not {self.compute_capability}"
        return f"{' or '.join(_FLASH_TARGETS)}, not {self.rocm_target}"

    def tflops(self, dtype: str) -> float:
        """Dense rate of a supported data type, 10^12 operations/s."""
        others = {
            "float8": self.float8_tflops, "int8": self.int8_tops, "float32": self.float32_tflops
        }  # fmt: skip
        return others.get(dtype, self.tensor_tflops)

    @property
    def ridge_flops_per_byte(self) -> float:
        """FLOPs per byte above which it is compute-bound: `tensor_tflops` / bandwidth."""
        return self.tensor_tflops * 1e12 / (self.bandwidth_gb_s * 1e9)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory as sold."""
        return self.memory_gb * 10**9


@cache
def gpu_catalogue() -> dict[str, Gpu]:
    """All GPUs by name."""
    text = resources.files(__package__).joinpath("devices.toml").read_text(encoding="utf-8")
    return {
        name: gpu_from_entry(name, entry, f"devices.toml: {name}")
        for name, entry in tomllib.loads(text).items()
    }


def gpu_from_entry(name: str, entry: object, where: str) -> Gpu:
    """The GPU that a table of a TOML file describes.

    Args:
        name: Its name.
        entry: The table.
        where: File and table, for messages.

    Raises:
        DeviceError: It is no table, or a key is missing, unknown or impossible.
    """
    types = {field.name: str(field.type) for field in fields(Gpu) if field.name != "name"}
    if not isinstance(entry, dict):
        raise DeviceError(f"{where} must be a table")
    check_keys(entry, types, where, _NEEDED)
    for key, value in entry.items():
        if types[key] == "str":
            check_that(isinstance(value, str), f"{where}.{key}", "a string", value)
        else:
            is_right = is_positive(value) and (types[key] != "int" or isinstance(value, int))
            check_that(is_right, f"{where}.{key}", "a positive number", value)
    if entry.get("tensor_dtype", "bfloat16") not in ("bfloat16", "float16"):
        raise DeviceError(f"{where}.tensor_dtype must be bfloat16 or float16")
    return Gpu(name=name, **entry)


@cache
def gpu_aliases() -> dict[str, str]:
    """Catalogue names by alias, from `aliases.toml`, with aliases normalized by `_plain`."""
    text = resources.files(__package__).joinpath("aliases.toml").read_text(encoding="utf-8")
    return {
        _plain(alias): name
        for table in tomllib.loads(text).values()
        for alias, name in table.items()
    }


def catalogue_name(name: str, known: Mapping[str, object]) -> str:
    """The entry of `known` that `name` or one of its aliases refers to.

    Raises:
        DeviceError: There is none; the message names the closest.
    """
    plain = _plain(name)
    found = plain if plain in known else gpu_aliases().get(plain, "")
    if found in known:
        return found
    aliases = {alias: meant for alias, meant in gpu_aliases().items() if meant in known}
    near = did_you_mean(plain, known, aliases).rstrip() or f"there are {', '.join(known)}"
    raise DeviceError(f"no GPU {name!r} in the catalogue; {near}")


def gpu_named(name: str) -> Gpu:
    """The GPU with this name or alias in the catalogue; raises DeviceError if there is none."""
    catalogue = gpu_catalogue()
    return catalogue[catalogue_name(name, catalogue)]


def _plain(name: str) -> str:
    """Lower case, with each run of spaces, underscores and hyphens replaced by one hyphen."""
    return re.sub(r"[\s_-]+", "-", name.strip()).lower()


# --- what a GPU lacks ------------------------------------------------------------------------


class MissingFeature(NamedTuple):
    """Something that a GPU lacks."""

    what: str
    """`bfloat16`, `FlashAttention-2`."""
    why: str
    """A clause with the reason, or an empty string."""
    instead: str
    """What to use instead, as arguments of the library."""
    argument: str
    """The argument to change."""


def missing_features(
    gpu: Gpu, dtype: Dtype, *, flash_attention: bool
) -> tuple[MissingFeature, ...]:
    """What a GPU lacks for a model.

    Types are checked against its matrix units, since torch emulates a bfloat16 that they lack.
    Every GPU supports float32.

    Args:
        gpu: The GPU.
        dtype: Type of the model's weights and activations.
        flash_attention: Whether its decoder runs FlashAttention-2.
    """
    lacks = []
    if dtype != FLOAT32 and dtype.name not in gpu.dtypes:
        there = " or ".join(each for each in gpu.dtypes if each.endswith("float16"))
        lacks.append(MissingFeature(dtype.name, "", f"dtype {there}", "dtype"))
    eager = ("flash_attention=False", "flash_attention")
    if flash_attention and dtype == FLOAT32:
        why = ", which computes in 16 bits"
        lacks.append(MissingFeature("FlashAttention-2 in float32", why, *eager))
    elif flash_attention and gpu.has_flash_attention is False:
        why = f", which needs {gpu.flash_attention_needs}"
        lacks.append(MissingFeature("FlashAttention-2", why, *eager))
    return tuple(lacks)


def check_features(gpu: Gpu, dtype: Dtype, *, flash_attention: bool) -> None:
    """Raise if a GPU lacks something; arguments as for `missing_features`.

    Raises:
        DeviceError: The GPU lacks the type or the kernel.
    """
    lacks = missing_features(gpu, dtype, flash_attention=flash_attention)
    if lacks:
        raise DeviceError(
            f"{gpu.title} has no {' and no '.join(lack.what + lack.why for lack in lacks)};"
            f" use {' and '.join(lack.instead for lack in lacks)}",
            arguments=[lack.argument for lack in lacks],
        )


# --- types of products ------------------------------------------------------------------------


NBYTES: Final = {"bfloat16": 2, "float16": 2, "float8": 1}
"""Bytes per multiplied element."""
STORED_BITS: Final = {"float8": 8, "int8": 8, "int4": 4}
"""Bits per weight (without scales) or cached element, in types below 16 bits."""

_ALIASES: Final = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp8": "float8"}
_SCALE_BYTES: Final = 2 / 128
"""A scale of two bytes per 128 weights."""
_WEIGHT_ONLY_BYTES: Final = {"int8": 1 + _SCALE_BYTES, "int4": 0.5 + _SCALE_BYTES}

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
