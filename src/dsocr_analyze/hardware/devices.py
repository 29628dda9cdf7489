"""The GPU catalogue, `devices.toml`, and what a GPU lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import compress
from typing import Any, Final, TypeAlias

from dsocr_analyze.errors import DeviceError, did_you_mean, is_slip
from dsocr_analyze.kernels import FLOAT32, Dtype
from dsocr_analyze.package_data import package_toml

BFLOAT16_CAPABILITY: Final = 8.0
"""The first compute capability with bfloat16, and with kernels of FlashAttention-2."""
_FLASH_TARGETS: Final = ("gfx90a", "gfx942", "gfx950")
"""What else FlashAttention-2 has kernels for, by its README: MI200, MI300 and MI350."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as sold; `devices.toml` explains the figures, of which 0 is unsupported or unknown.

    Attributes:
        name: Its name in the catalogue.
        title: Its name for readers.
        tensor_tflops: Dense rate of products in `tensor_dtype`, TFLOP/s.
        memory_gb: Memory as sold, GB.
        memory_mib: Memory as the driver reports it, MiB.
        tensor_dtype: A GPU with float16 has no bfloat16.
        weak: Figures that are poorly sourced.
        sms: Streaming multiprocessors (compute units).
        float8_tflops: Dense rate of float8 products, TFLOP/s.
        int8_tops: Dense rate of int8 products, 10^12 operations/s.
        float32_tflops: Rate of fp32 outside the tensor units, TFLOP/s.
        mma_share: Fraction of `tensor_tflops` that kernels for Ampere reach.
        like: GPU whose measured kernel times this one, or a profile of it, takes over.
    """

    name: str
    title: str
    tensor_tflops: float = 0
    bandwidth_gb_s: float = 0
    memory_gb: float = 0
    source: str = ""
    memory_mib: int = 0
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
    xe_target: str = ""
    like: str = ""

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Data types that its matrix units support."""
        eight = compress(("float8", "int8"), (self.float8_tflops, self.int8_tops))
        return *dict.fromkeys((self.tensor_dtype, "float16")), *eight

    @cached_property
    def weight_dtypes(self) -> tuple[str, ...]:
        """Types of stored weights; integers are multiplied in 16 bits."""
        return tuple(dict.fromkeys((*self.dtypes, "int8", "int4")))

    @property
    def has_flash_attention(self) -> bool | None:
        """Whether FlashAttention-2 has kernels for it; None if that is unknown."""
        if self.compute_capability:
            return self.compute_capability >= BFLOAT16_CAPABILITY
        target = self.rocm_target or self.xe_target
        return target in _FLASH_TARGETS if target else None

    def tflops(self, dtype: str) -> float:
        """Dense rate of a supported data type, 10^12 operations/s."""
        others = {
            "float8": self.float8_tflops, "int8": self.int8_tops, "float32": self.float32_tflops
        }  # fmt: skip
        return others.get(dtype, self.tensor_tflops)

    @property
    def ridge_flops_per_byte(self) -> float:
        """FLOPs per byte above which it is compute-bound."""
        return self.tensor_tflops * 1e12 / (self.bandwidth_gb_s * 1e9)

    @property
    def has_rates(self) -> bool:
        """Whether more than its memory is known."""
        return self.tensor_tflops > 0

    @property
    def unmeasured(self) -> str:
        """Why there are no kernel times of it, if there are none."""
        known = "no measured kernel times cover it"
        return known if self.has_rates else "only its memory is known"

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory: as the driver reports it if that is known, else as sold."""
        return self.memory_mib << 20 or round(self.memory_gb * 10**9)


@cache
def gpu_catalogue() -> dict[str, Gpu]:
    """All GPUs by name."""
    entries = package_toml(__package__, "devices.toml", dict[str, dict[str, Any]])
    return {name: Gpu(name=name, **entry) for name, entry in entries.items()}


def rated_gpus() -> list[str]:
    """Names of those whose rates are known."""
    return [name for name, gpu in gpu_catalogue().items() if gpu.has_rates]


@cache
def gpu_aliases() -> dict[str, str]:
    """Catalogue names by alias, as `_spelled` spells it."""
    tables = package_toml(__package__, "aliases.toml", dict[str, dict[str, str]])
    return {_spelled(alias): name for table in tables.values() for alias, name in table.items()}


def catalogue_name(name: str, known: Mapping[str, object], where: str = "") -> str:
    """The key of `known` that a name or alias means; raises DeviceError if there is none.

    The message begins with `where` the name is from.
    """
    typed = _spelled(name)
    meant = dict(zip(map(_spelled, known), known, strict=True))
    for alias, each in gpu_aliases().items():
        if each in known:
            meant.setdefault(alias, each)
    plain = typed.replace("-", "")
    for spelled, each in meant.items():
        if spelled.replace("-", "") in (plain, f"rtx{plain}"):
            return each
    near = did_you_mean(typed, (), dict(_like(typed, meant))).rstrip()
    memory = _MEMORY.fullmatch(plain)
    if not near:
        near = (
            "dsocr-analyze calibrate measures this machine's"
            if plain == "cpu"
            else f"for a card of that memory, use fit with memory_gb={memory[1]}"
            if memory
            else "dsocr-analyze devices lists all; for any other card, use fit with memory_gb=GB,"
            " or give a profile of it"
        )
    raise DeviceError(f"{where}no GPU {name!r} in the catalogue; {near}", arguments=["memory_gb"])


_MAKERS: Final = re.compile(r"(?:(?:nvidia|geforce|tesla|amd|instinct|intel)-?)+")
_MEMORY: Final = re.compile(r"(\d+(?:\.\d+)?)g(?:i?b)?")
_MODEL: Final = re.compile(r"(?P<letters>[a-z-]*)(?P<number>\d+)")


def _spelled(name: str) -> str:
    """Lower case, without makers, with one hyphen for what separates letters and digits."""
    return _MAKERS.sub("", re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-"))


def _model(spelled: str) -> tuple[str, str]:
    """The letters before a model's number, and this; empty if there is none."""
    found = _MODEL.match(spelled)
    return (found["letters"].replace("-", ""), found["number"]) if found else ("", "")


def _like(typed: str, meant: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The spelled names that a typed one may be a slip of: those of its family of cards.

    A family has its letters, of which three or more may have a slip, and its first digit. Other
    numbers are other cards, as H800 is no H100: a slip changes the last digit, swaps two, leaves
    one out, or adds one unless cards of these letters have as many, as RTX A1000 is no A100.
    """
    models = {name: _model(name) for name in meant}
    letters, number = _model(typed)
    every = {each for each, _ in models.values()}
    same = {letters, f"rtx{letters}"} & every or {
        each for each in every if len(each) > 2 and is_slip(letters, each)
    }
    family = {name: digits for name, (each, digits) in models.items() if each in same}
    lengths = {len(each) for each in family.values()}
    for name, each in family.items() if number else ():
        longer = len(number) - len(each)
        is_near = (
            len(each) > 2
            and each[0] == number[0]
            and is_slip(number, each)
            and (longer <= 0 or len(number) not in lengths)
            and (longer or each[:-1] == number[:-1] or sorted(each) == sorted(number))
        )
        if each == number or is_near:
            yield name, meant[name]


# --- what a GPU lacks ------------------------------------------------------------------------


Missing: TypeAlias = dict[str, tuple[str, str, str]]
"""By what a GPU lacks: the reason as a clause, what to use instead, and the argument to change."""


def missing_features(gpu: Gpu, dtype: Dtype, *, flash_attention: bool) -> Missing:
    """What a GPU lacks for a model of a data type, whose decoder may run FlashAttention-2.

    Its matrix units decide about types, since torch emulates bfloat16; every GPU has float32.
    """
    lacks: Missing = {}
    if dtype != FLOAT32 and dtype.name not in gpu.dtypes:
        half = "float16" if gpu.tensor_dtype == "float16" else "bfloat16 or float16"
        lacks[dtype.name] = "", f"dtype {half}", "dtype"
    eager = ("flash_attention=False", "flash_attention")
    if flash_attention and dtype == FLOAT32:
        lacks["FlashAttention-2 in float32"] = ", which computes in 16 bits", *eager
    elif flash_attention and gpu.has_flash_attention is False:
        needs = (
            f"compute capability {BFLOAT16_CAPABILITY}, not {gpu.compute_capability}"
            if gpu.compute_capability
            else f"{' or '.join(_FLASH_TARGETS)}, not {gpu.rocm_target or gpu.xe_target}"
        )
        lacks["FlashAttention-2"] = f", which needs {needs}", *eager
    return lacks


def check_features(gpu: Gpu, dtype: Dtype, *, flash_attention: bool) -> None:
    """Raise DeviceError for what `missing_features` finds."""
    lacks = missing_features(gpu, dtype, flash_attention=flash_attention)
    if lacks:
        _, instead, arguments = zip(*lacks.values(), strict=True)
        named = " and no ".join(what + why for what, (why, _, _) in lacks.items())
        raise DeviceError(
            f"{gpu.title} has no {named}; use {' and '.join(instead)}", arguments=arguments
        )
