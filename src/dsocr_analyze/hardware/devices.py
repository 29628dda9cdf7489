"""The GPU catalogue: `devices.toml`, read once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.names import did_you_mean

__all__ = ["Gpu", "catalogue_name", "gpu_aliases", "gpu_catalogue", "gpu_named"]


_FLASH_CAPABILITY: Final = 8.0
_FLASH_TARGETS: Final = ("gfx90a", "gfx942", "gfx950")
"""For which architectures flash-attn 2 has kernels, by its README: Ampere and later, and the MI200,
MI300 and MI350 series."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as sold.

    Attributes:
        name: Its name in the catalogue.
        title: Its name for readers.
        tensor_tflops: Dense rate of `tensor_dtype` matrix products, TFLOP/s.
        tensor_dtype: The type that rate is for; GPUs for which it is float16 have no bfloat16.
        bandwidth_gb_s: Memory bandwidth, GB/s.
        memory_gb: Memory as sold, GB.
        source: Where the figures come from.
        weak: Which of them are poorly sourced; empty for none.
        sms: Streaming multiprocessors (compute units).
        l2_mb: Level-2 cache, MB.
        float8_tflops: Dense rate of float8 matrix products, TFLOP/s; 0 where there is none.
        int8_tops: Dense rate of int8 matrix products, 10^12 operations/s; 0 where there is none.
        float32_tflops: Rate of fp32 outside the tensor units, TFLOP/s; 0 where nobody said.
        mma_share: Part of `tensor_tflops` that kernels written for Ampere can reach.
        compute_capability: NVIDIA's number of its architecture; 0 where it is another vendor's, or
            nobody said.
        rocm_target: AMD's name of its architecture; empty where it is another vendor's.
        like: The GPU whose measured kernel times it takes where it has none; empty for none.
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
        """Element types that its matrix units take."""
        eight = {"float8": self.float8_tflops, "int8": self.int8_tops}
        return (*self._half, *(dtype for dtype, rate in eight.items() if rate))

    @property
    def weight_dtypes(self) -> tuple[str, ...]:
        """Types that weights may have: integers become 16 bits before they are multiplied."""
        eight = ("float8",) if self.float8_tflops else ()
        return (*self._half, *eight, "int8", "int4")

    @property
    def _half(self) -> tuple[str, ...]:
        return ("float16",) if self.tensor_dtype == "float16" else ("bfloat16", "float16")

    @property
    def has_flash_attention(self) -> bool | None:
        """Whether FlashAttention-2 has kernels for it; None where its architecture is not known."""
        if self.compute_capability:
            return self.compute_capability >= _FLASH_CAPABILITY
        return self.rocm_target in _FLASH_TARGETS if self.rocm_target else None

    @property
    def flash_attention_needs(self) -> str:
        """What it would have to be for FlashAttention-2, and what it is instead."""
        if self.compute_capability:
            return f"compute capability {_FLASH_CAPABILITY}, not {self.compute_capability}"
        return f"{' or '.join(_FLASH_TARGETS)}, not {self.rocm_target}"

    def tflops(self, dtype: str) -> float:
        """Dense rate of an element type that it has, 10^12 operations/s."""
        others = {
            "float8": self.float8_tflops, "int8": self.int8_tops, "float32": self.float32_tflops
        }  # fmt: skip
        return others.get(dtype, self.tensor_tflops)

    @property
    def ridge_flops_per_byte(self) -> float:
        """FLOPs per byte from which on matrix products bound it: `tensor_tflops` / bandwidth."""
        return self.tensor_tflops * 1e12 / (self.bandwidth_gb_s * 1e9)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory as sold."""
        return self.memory_gb * 10**9


@cache
def gpu_catalogue() -> dict[str, Gpu]:
    """All GPUs by name."""
    text = resources.files(__package__).joinpath("devices.toml").read_text(encoding="utf-8")
    return {name: Gpu(name=name, **entry) for name, entry in tomllib.loads(text).items()}


@cache
def gpu_aliases() -> dict[str, str]:
    """Names in the catalogue by other names: `aliases.toml`, as `_plain` writes them."""
    text = resources.files(__package__).joinpath("aliases.toml").read_text(encoding="utf-8")
    return {
        _plain(alias): name
        for table in tomllib.loads(text).values()
        for alias, name in table.items()
    }


def catalogue_name(name: str, known: Mapping[str, object]) -> str:
    """The name among `known` that `name` or one of its aliases means.

    Raises:
        DeviceError: There is none; the closest are named.
    """
    plain = _plain(name)
    found = plain if plain in known else gpu_aliases().get(plain, "")
    if found in known:
        return found
    aliases = {alias: meant for alias, meant in gpu_aliases().items() if meant in known}
    near = did_you_mean(plain, known, aliases).rstrip() or f"there are {', '.join(known)}"
    raise DeviceError(f"no GPU {name!r} in the catalogue; {near}")


def gpu_named(name: str) -> Gpu:
    """The GPU of the catalogue called `name` or by an alias; raises DeviceError for none."""
    catalogue = gpu_catalogue()
    return catalogue[catalogue_name(name, catalogue)]


def _plain(name: str) -> str:
    """Lower case, with runs of spaces, underscores and hyphens as one hyphen."""
    return re.sub(r"[\s_-]+", "-", name.strip()).lower()
