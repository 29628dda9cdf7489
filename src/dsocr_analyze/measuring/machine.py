"""A device's name, versions and free memory, and its profile."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.devices import catalogue_name
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.measuring.calibration_needs import free_memory_bytes
from dsocr_analyze.measuring.cpu_calibration import CPU_NAME, cpu_title

__all__ = ["device_title", "free_bytes", "matching_device", "versions"]


def device_title(device: torch.device) -> str:
    """The device's name for readers."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_title()}, {torch.get_num_threads()} threads"


def versions(device: torch.device) -> dict[str, str]:
    """Versions of the libraries that affect its speed."""
    found = {"torch": str(torch.__version__)}
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
    return found


def free_bytes(device: torch.device) -> int:
    """Bytes that can be allocated now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return free_memory_bytes()


def matching_device(device: torch.device, known: Mapping[str, Device]) -> Device | None:
    """The device with its profile; None if there is no profile for exactly this device.

    A CPU's profile must be for the same CPU with the same number of threads.

    Args:
        device: The device.
        known: Profiles by name.
    """
    if device.type == "meta":
        return None
    if device.type == "cpu":
        profile = known.get(CPU_NAME)
        if profile is None or profile.gpu.title != device_title(device):
            return None
        return profile
    try:
        name = catalogue_name(torch.cuda.get_device_name(device), known)
    except DeviceError:
        return None
    return known[name]
