"""Identify the installed GPU: by its catalogue name, or described with measured peaks."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.devices import Gpu, catalogue_name, gpu_catalogue
from dsocr_analyze.kernels import Elements, Gemm
from dsocr_analyze.measuring.gpu_cases import Case

__all__ = ["FoundGpu", "KernelTimer", "Properties", "described_gpu", "found_gpu"]


class KernelTimer(Protocol):
    """Times the kernels of a device."""

    def seconds(self, case: Case) -> float:
        """Seconds of one call of a kernel."""

    def framework(self, kind: str) -> str:
        """What launches the kernels of a kind, with its version."""

    def can_launch(self, kind: str) -> bool:
        """Whether kernels of a kind are available."""


class Properties(Protocol):
    """The part of `torch.cuda.get_device_properties()` used here."""

    @property
    def name(self) -> str:
        """The driver's name for the GPU."""

    @property
    def multi_processor_count(self) -> int:
        """Streaming multiprocessors; of the slice if the GPU is partitioned."""

    @property
    def total_memory(self) -> int:
        """Bytes; of the slice if the GPU is partitioned."""

    @property
    def L2_cache_size(self) -> int:  # noqa: N802 - torch's name
        """Bytes of level-2 cache."""

    @property
    def major(self) -> int:
        """Major number of the compute capability."""

    @property
    def minor(self) -> int:
        """Minor number of the compute capability."""


@dataclass(frozen=True)
class FoundGpu:
    """An installed GPU.

    Attributes:
        gpu: Its description.
        is_catalogued: Whether it is in the catalogue.
        source: Date, driver and library versions.
    """

    gpu: Gpu
    is_catalogued: bool
    source: str


_LIKE: Final = (
    (12, "rtx-pro-6000"), (10, "b200"), (9, "h100-sxm"), (8.1, "l40s"), (0, "a100-80gb-sxm"),
)  # fmt: skip
"""GPU whose kernel times fill in for unmeasured kinds, by minimum compute capability."""
_LIKE_ROCM: Final = "h100-sxm"
_LEAST_MEMORY: Final = 0.85
"""Smallest fraction of its memory as sold that a whole GPU reports; a slice reports less."""
_SQUARES: Final = (4096, 8192)
_STREAMED: Final = 1 << 27
"""Elements copied to measure the bandwidth."""


def found_gpu(device: torch.device, dtype: str, timer: KernelTimer) -> FoundGpu:
    """The GPU of a device.

    Args:
        device: A CUDA device.
        dtype: Its 16-bit type.
        timer: Times its kernels if it is not in the catalogue.
    """
    properties = torch.cuda.get_device_properties(device)
    hip = getattr(torch.version, "hip", None)
    made_with = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}"
    source = (
        f"measured {dt.datetime.now(tz=dt.UTC).date()} on {properties.name}:"
        f" {_driver()}torch {torch.__version__}, {made_with}"
    )
    known = _catalogued(properties)
    if known is not None:
        return FoundGpu(known, True, source)
    return FoundGpu(described_gpu(properties, dtype, source, timer), False, source)


def _driver() -> str:
    """The driver's version from nvidia-smi, or an empty string."""
    import shutil
    import subprocess

    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"driver {said.split()[0]}, " if said.split() else ""


def _catalogued(properties: Properties) -> Gpu | None:
    """The catalogue entry if this is the whole GPU; a slice counts as a GPU of its own."""
    catalogue = gpu_catalogue()
    try:
        gpu = catalogue[catalogue_name(properties.name, catalogue)]
    except DeviceError:
        return None
    is_whole = (
        properties.multi_processor_count == gpu.sms
        and properties.total_memory >= _LEAST_MEMORY * gpu.memory_bytes
    )
    return gpu if is_whole else None


def described_gpu(properties: Properties, dtype: str, source: str, timer: KernelTimer) -> Gpu:
    """Describe a GPU that is not in the catalogue, with measured peaks.

    Args:
        properties: The driver's properties of it.
        dtype: Its 16-bit type.
        source: Date and versions.
        timer: Times its kernels.
    """
    capability = float(f"{properties.major}.{properties.minor}")
    target = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    rocm = target if target.startswith("gfx") else ""
    like = next(name for least, name in _LIKE if capability >= least)
    streamed = Case("movement", Elements(_STREAMED), operator="clone")
    return Gpu(
        name=_own_name(properties),
        title=properties.name,
        tensor_tflops=_tflops(timer, "bfloat16"),
        bandwidth_gb_s=streamed.nbytes / timer.seconds(streamed) / 1e9,
        memory_gb=max(1, properties.total_memory // 10**9),
        source=source,
        tensor_dtype=dtype,
        sms=properties.multi_processor_count,
        l2_mb=properties.L2_cache_size / 1e6,
        float32_tflops=_tflops(timer, "float32"),
        compute_capability=0 if rocm else capability,
        rocm_target=rocm,
        like=_LIKE_ROCM if rocm else like,
    )


def _own_name(properties: Properties) -> str:
    """A name that does not match any GPU of the catalogue."""
    name = re.sub(r"[\s_-]+", "-", properties.name.strip()).lower()
    try:
        catalogue_name(name, gpu_catalogue())
    except DeviceError:
        return name
    return f"{name}-{properties.multi_processor_count}-sms"


def _tflops(timer: KernelTimer, dtype: str) -> float:
    products = (Case("gemm", Gemm(1, size, size, size), dtype=dtype) for size in _SQUARES)
    return max(2 * each.macs / timer.seconds(each) for each in products) / 1e12
