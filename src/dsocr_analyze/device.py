"""Finds devices by name, and checks that the attention kernel is available."""

from __future__ import annotations

import importlib.util

import torch

from dsocr_analyze.errors import DeviceError

__all__ = ["parse_device", "require_flash_attention"]


def parse_device(name: str, *, computes: bool = False) -> torch.device:
    """The device `meta`, `cpu` or `cuda:N`; one that `computes` is not `meta`.

    Raises:
        DeviceError: There is no such device.
    """
    kinds = ("cpu",) if computes else ("meta", "cpu")
    kind, _, index = name.partition(":")
    if kind not in (*kinds, "cuda") or (index and not index.isdecimal()):
        wrong = "computes nothing" if computes and name == "meta" else "is unknown"
        raise DeviceError(
            f"device {name!r} {wrong}; use {', '.join(kinds)} or cuda:N", arguments=["device"]
        )
    if kind != "cuda":
        if index:
            raise DeviceError(f"device {name!r} is unknown; use {kind}", arguments=["device"])
        return torch.device(kind)
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= present:
        here = f"{present} here" if present else "no CUDA GPU here"
        raise DeviceError(
            f"device {name!r} does not exist ({here}); use {' or '.join(kinds)}",
            arguments=["device"],
        )
    return torch.device("cuda", int(index or 0))


def require_flash_attention(device: torch.device) -> None:
    """Raises DeviceError if FlashAttention cannot run on the device."""
    if device.type == "meta":
        return
    if device.type == "cpu":
        raise DeviceError(
            "flash_attention=True needs a CUDA device or meta: FlashAttention has no CPU kernel;"
            " flash_attention=False runs eager attention",
            arguments=["flash_attention"],
        )
    if importlib.util.find_spec("flash_attn") is None:
        raise DeviceError(
            f"flash_attention=True on {device} needs flash-attn, which is not installed:"
            " pip install 'dsocr-analyze[flash-attn]'; flash_attention=False runs eager attention",
            arguments=["flash_attention"],
        )
