"""The GPU catalogue: `devices.toml`, read once."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from dsocr_analyze.errors import DeviceError

__all__ = ["Gpu", "gpu_catalogue", "gpu_named"]


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
    """

    name: str
    title: str
    tensor_tflops: float
    bandwidth_gb_s: float
    memory_gb: int
    source: str
    tensor_dtype: str = "bfloat16"
    weak: str = ""

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory as sold."""
        return self.memory_gb * 10**9


@cache
def gpu_catalogue() -> dict[str, Gpu]:
    """All GPUs by name."""
    text = resources.files(__package__).joinpath("devices.toml").read_text(encoding="utf-8")
    return {name: Gpu(name=name, **entry) for name, entry in tomllib.loads(text).items()}


def gpu_named(name: str) -> Gpu:
    """The GPU called exactly `name`; raises DeviceError naming those there are."""
    gpu = gpu_catalogue().get(name.lower())
    if gpu is None:
        raise DeviceError(f"no GPU {name!r} in the catalogue; give {', '.join(gpu_catalogue())}")
    return gpu
