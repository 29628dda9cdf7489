"""Data types, and kernel records: the cost of an operator, over which every figure is a sum.

A trace and a forward on a tape make the same records, which are compared one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from dsocr_analyze.errors import DeviceError, did_you_mean, in_any_case

# --- data types ------------------------------------------------------------------------------


class Dtype(NamedTuple):
    """A data type."""

    name: str
    nbytes: int
    """Bytes per element."""


BFLOAT16: Final = Dtype("bfloat16", 2)
FLOAT16: Final = Dtype("float16", 2)
FLOAT32: Final = Dtype("float32", 4)
"""Type in which softmax, norms, routing and interpolation compute."""
UINT8: Final = Dtype("uint8", 1)
INT32: Final = Dtype("int32", 4)
INT64: Final = Dtype("int64", 8)
"""Type of token ids, positions and expert indices."""
BOOL: Final = Dtype("bool", 1)

MODEL_DTYPES: Final = {"bfloat16": BFLOAT16, "float16": FLOAT16, "float32": FLOAT32}
"""Types that a model's weights and activations can have, by name."""

_ALIASES: Final = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
}


def dtype_named(name: str) -> Dtype:
    """The model type called `name`, in any case; raises DeviceError if there is none."""
    found = in_any_case(str(name), [*MODEL_DTYPES, *_ALIASES])
    if found is None:
        near = did_you_mean(str(name), MODEL_DTYPES, _ALIASES)
        raise DeviceError(
            f"dtype {name!r} is unknown; {near}use {', '.join(MODEL_DTYPES)}", arguments=["dtype"]
        )
    return MODEL_DTYPES[_ALIASES.get(found, found)]


# --- what a kernel costs ---------------------------------------------------------------------


class Work(NamedTuple):
    """Exact integer counts."""

    macs: int = 0
    """Multiply-accumulates of matrix operators."""
    vector_flops: int = 0
    """FLOPs of all other operators."""
    activations: int = 0
    """Output elements of matrix operators."""
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def matrix_flops(self) -> int:
        """Two per multiply-accumulate."""
        return 2 * self.macs

    @property
    def flops(self) -> int:
        """All FLOPs."""
        return 2 * self.macs + self.vector_flops

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    def plus(self, other: Work) -> Work:
        """The sum."""
        return Work(
            self.macs + other.macs,
            self.vector_flops + other.vector_flops,
            self.activations + other.activations,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )

    def times(self, factor: int) -> Work:
        """`factor` times this work (negative for differences)."""
        return Work(
            factor * self.macs,
            factor * self.vector_flops,
            factor * self.activations,
            factor * self.bytes_read,
            factor * self.bytes_written,
        )

    def minus(self, other: Work) -> Work:
        """The difference."""
        return self.plus(other.times(-1))


NO_WORK = Work()

# --- what a kernel is ------------------------------------------------------------------------

Kind = Literal[
    "gemm",
    "attention",
    "convolution",
    "normalization",
    "softmax",
    "activation",
    "elementwise",
    "reduction",
    "routing",
    "interpolation",
    "pooling",
    "movement",
]

KINDS: tuple[Kind, ...] = get_args(Kind)

KernelDevice = Literal["cuda", "cpu"]
"""Kind of device whose kernels are known."""


class Gemm(NamedTuple):
    """`batch` matrix products `[m, k] x [k, n]`."""

    batch: int
    m: int
    n: int
    k: int


class Attention(NamedTuple):
    """Fused: queries `[batch, heads, queries, head_dim]` over `keys` keys and values."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    masked: bool = False
    """Whether a mask or bias tensor is added to the scores."""
    skippable_scores: int = 0
    """Scores of all heads and sequences that a causal kernel may skip."""


class Experts(NamedTuple):
    """`tokens` tokens through `top_k` of `experts` gated MLPs each, `hidden -> inter -> hidden`."""

    tokens: int
    hidden: int
    inter: int
    experts: int
    top_k: int


class Convolution(NamedTuple):
    """`images` images, `positions` outputs each, `taps` kernel elements per input channel."""

    images: int
    positions: int
    in_channels: int
    """Input channels that one output channel sees (those of its group)."""
    out_channels: int
    taps: int


class Rows(NamedTuple):
    """`rows` independent rows of `width` elements: norms, softmax, reductions, sorting."""

    rows: int
    width: int


class Elements(NamedTuple):
    """`elements` output elements, each computed independently."""

    elements: int


Dimensions: TypeAlias = Gemm | Attention | Experts | Convolution | Rows | Elements


class Kernel(NamedTuple):
    """One operator, with its number of identical calls.

    In a sweep, counts and dimensions may be integer arrays with one element per workload.
    """

    kind: Kind
    operator: str
    """PyTorch's name, without overload and in-place suffix."""
    dimensions: Dimensions
    dtype: str
    """Data type of the first tensor it reads; of the output if it reads none."""
    output_dtype: str
    work: Work
    """Work of one call."""
    calls: int = 1
    path: str = ""
    """Module whose own forward calls it; empty for the model itself."""
    stage: str = ""

    @property
    def total(self) -> Work:
        """Work of all calls."""
        return self.work if self.calls == 1 else self.work.times(self.calls)

    def at(self, path: str) -> Kernel:
        """The same, called by another module: `_replace(path=path)` in half the time."""
        kind, operator, dimensions, dtype, output_dtype, work, calls, _, stage = self
        return Kernel(kind, operator, dimensions, dtype, output_dtype, work, calls, path, stage)


# --- sums ------------------------------------------------------------------------------------


def total_work(works: Iterable[Work]) -> Work:
    """The sum of several works."""
    listed = list(works)
    if len(listed) == 1:  # as of most modules
        return listed[0]
    return Work(*map(sum, zip(*listed, strict=True))) if listed else NO_WORK


_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def grouped(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    """The items of each key, in order."""
    found: dict[_Key, list[_Item]] = {}
    for key, item in pairs:
        found.setdefault(key, []).append(item)
    return found


def work_by(kernels: Iterable[Kernel], *names: str) -> dict[Any, Work]:
    """Work of all calls by some fields of the records, in order of first occurrence."""
    key_of = attrgetter(*names)
    found = grouped((key_of(kernel), kernel.total) for kernel in kernels)
    return dict(zip(found, map(total_work, found.values()), strict=True))


def calls_of(kernels: Iterable[Kernel]) -> Counter[str]:
    """All calls by operator, in order of first occurrence."""
    found = Counter[str]()
    for kernel in kernels:
        found[kernel.operator] += kernel.calls
    return found


def merged(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Merges equal records, adding up their calls."""
    found: dict[Kernel, Kernel] = {}
    for kernel in kernels:
        single = kernel if kernel.calls == 1 else kernel._replace(calls=1)
        alike = found.get(single)
        if alike is not None:
            kernel = alike._replace(calls=alike.calls + kernel.calls)
        found[single] = kernel
    return tuple(filter(attrgetter("calls"), found.values()))


def with_ancestors(own: Mapping[str, Work]) -> dict[str, Work]:
    """Work at or below every path and its ancestors, parents before children, from own work.

    The empty path is the model itself.
    """
    sums: dict[str, Work] = {}
    for path, work in own.items():
        for above in ancestors(path) if path not in sums else ():
            sums.setdefault(above, NO_WORK)
        sums[path] = work
    # Children come after their parents, so in reverse order each sum is complete when it is added.
    for path in reversed(sums):
        if path:
            parent = path.rpartition(".")[0]
            sums[parent] = sums[parent].plus(sums[path])
    return sums


@lru_cache(maxsize=1 << 16)  # stages and reports have the same modules
def path_order(path: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts parents first, and layer 2 before layer 10."""
    return tuple((int(name), "") if name.isdecimal() else (-1, name) for name in path.split("."))


def ancestors(path: str) -> list[str]:
    """The path and its ancestors, the model itself first."""
    return ["", *accumulate(path.split("."), "{}.{}".format)] if path else [""]
