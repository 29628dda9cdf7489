"""Features that a model needs and a GPU lacks: a data type, an attention kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsocr_analyze.dtypes import FLOAT32
from dsocr_analyze.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsocr_analyze.dtypes import Dtype
    from dsocr_analyze.hardware.devices import Gpu

__all__ = ["MissingFeature", "check_features", "missing_features"]


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
    return tuple(_missing_features(gpu, dtype, flash_attention))


def _missing_features(gpu: Gpu, dtype: Dtype, flash_attention: bool) -> Iterator[MissingFeature]:
    if dtype != FLOAT32 and dtype.name not in gpu.dtypes:
        there = " or ".join(each for each in gpu.dtypes if each.endswith("float16"))
        yield MissingFeature(dtype.name, "", f"dtype {there}", "dtype")
    eager = ("flash_attention=False", "flash_attention")
    if flash_attention and dtype == FLOAT32:
        yield MissingFeature("FlashAttention-2 in float32", ", which computes in 16 bits", *eager)
    elif flash_attention and gpu.has_flash_attention is False:
        yield MissingFeature(
            "FlashAttention-2", f", which needs {gpu.flash_attention_needs}", *eager
        )


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
