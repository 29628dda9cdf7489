"""Kernels to measure on a GPU: those that pages of the known models launch, and random others.

A kind's cases are in a fixed random order, so that any first part is a fair sample.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.figures import expected_experts
from dsocr_analyze.hardware.kernel_times import Floats
from dsocr_analyze.hardware.kernel_times.fitting import SEED, MeasuredRows, held_out_groups
from dsocr_analyze.kernels import Attention, Elements, Experts, Gemm, Kernel
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.timing.kernel_seconds import ACTIVATION_PRODUCTS, kind_of, product_of

__all__ = ["MOVED_BYTES", "KernelCase", "gpu_cases", "rows_of"]

CaseSizes: TypeAlias = Gemm | Attention | Experts | Elements

MOVED_BYTES: Final = {"mul": 6, "silu": 4, "clone": 4, "float": 6, "layer_norm": 4}
"""Bytes that operators read and write per 16-bit element."""

_PAGE: Final = (1654, 2339)
"""A4 at 200 dpi."""
_SEQUENCES: Final = 8
"""Sequences in the decode steps that kernels are taken from."""
_MOST_BYTES: Final = 1 << 30
_MOST_ELEMENTS: Final = _MOST_BYTES >> 3
"""Limit for the largest tensor in a call of attention."""
_MOST_MACS: Final = 1 << 42
_ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_EACH: Final = 10
"""Rows, batches or lengths to measure per group of sizes."""
_EACH_KNOWN: Final = 20
"""The same for groups that occur in a model."""
_OTHERS: Final = {"gemm": 90, "float32": 12, "attention": 36, "experts": 14}
"""Groups of sizes besides those of the models."""


class KernelCase(NamedTuple):
    """One kernel, or one layer's experts, in 16 bits unless `dtype` is float32."""

    kind: str
    """As in a device profile."""
    sizes: CaseSizes
    cold: bool = False
    """Whether weights, or cached keys and values, come from device memory."""
    dtype: str = "bfloat16"
    """Of a device profile, where `bfloat16` is the GPU's own 16-bit type."""
    operator: str = ""
    """For movement: a key of `MOVED_BYTES`."""

    @property
    def _figures(self) -> tuple[int, int, tuple[int, ...]]:
        size, s = 4 if self.dtype == "float32" else 2, self.sizes
        match s:
            case Gemm(batch, m, n, k):
                return batch * m * n * k, size * batch * (m * k + n * k + m * n), (n, k)
            case Attention():
                scores = s.heads * s.queries * s.keys
                rows = 2 * s.heads * s.queries + 2 * s.kv_heads * s.keys
                nbytes = size * s.batch * (rows * s.head_dim + (scores if s.masked else 0))
                group = s.heads, s.head_dim, s.kv_heads, s.keys if s.masked else 0
                return 2 * s.batch * scores * s.head_dim, nbytes, group
            case Experts(tokens, hidden, inter, experts, top_k):
                moved = 3 * experts * hidden * inter + tokens * top_k * (hidden + 3 * inter)
                group = hidden, inter, top_k, experts
                return 3 * tokens * top_k * hidden * inter, size * moved, group
            case Elements(elements):
                return 0, MOVED_BYTES[self.operator] * elements, (elements,)

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self._figures[0]

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self._figures[1]

    @property
    def group(self) -> tuple[int, ...]:
        """Sizes of its group, which is held out of a fit as a whole."""
        return self._figures[2]


def gpu_cases(kind: str, dtype: str = "bfloat16") -> list[KernelCase]:
    """The cases to measure for a kernel kind, in order."""
    draw = random.Random(f"{SEED} {kind} {dtype}")
    makers = {
        "gemm": _float32_products if dtype == "float32" else _products,
        "masked_attention": _masked, "experts": _experts, "movement": _movement,
    }  # fmt: skip
    made = makers[kind](draw) if kind in makers else _unmasked(draw, kind)
    cases = [each for each in dict.fromkeys(made)
             if each.nbytes <= _MOST_BYTES and each.macs <= _MOST_MACS]  # fmt: skip
    draw.shuffle(cases)
    return cases


def rows_of(cases: Sequence[KernelCase], seconds: Sequence[float], version: str) -> MeasuredRows:
    """Measured cases of one kind as columns of its formula; `version` launched the kernels."""
    groups = [case.group for case in cases]
    return MeasuredRows(
        _columns(cases), np.array(seconds), held_out_groups(groups), np.ones(len(cases), bool),
        np.array(groups, dtype=np.int64), version,
    )  # fmt: skip


def _columns(cases: Sequence[KernelCase]) -> dict[str, Floats]:
    if isinstance(cases[0].sizes, Elements):
        return {"moved": np.array([case.nbytes for case in cases], float)}
    columns = {
        name: np.array([getattr(case.sizes, name) for case in cases], float)
        for name in cases[0].sizes._fields
        if name not in _NO_COLUMN
    }
    columns["cold"] = np.array([case.cold for case in cases], float)
    if isinstance(cases[0].sizes, Experts):
        tokens, experts, top_k = (columns[name] for name in ("tokens", "experts", "top_k"))
        columns["touched"] = np.asarray(expected_experts(tokens, experts, top_k))
        columns |= {"gated": np.ones(len(cases)), "fallback": np.zeros(len(cases))}
    return columns


_NO_COLUMN: Final = ("value_dim", "masked", "skippable_scores")


# --- kernels of the models -------------------------------------------------------------------


@cache
def _launched() -> tuple[Kernel, ...]:
    """Kernels of a page in every mode of every known model, by its own code and served."""
    found: dict[Kernel, None] = {}
    for architecture in ARCHITECTURES.values():
        forms = architecture.forms
        dimensions = ModelDirectory.read(architecture.reference).dimensions()
        for mode in architecture.modes.values():
            workload = architecture.plan(
                page=_PAGE, text_tokens=architecture.text_tokens, max_new_tokens=2,
                base_size=mode.base_size, image_size=mode.image_size, crop_mode=mode.crop_mode,
            )  # fmt: skip
            T, visual = workload.seq_len, workload.visual_tokens
            stages = forms.compose(dimensions, workload, BFLOAT16, False).stages.values()
            for kernels in (
                *(stage.kernels for stage in stages),
                *(kernels for view in workload.views for kernels in
                  forms.served.views(view.count, view.resolution, dimensions, BFLOAT16).values()),
                forms.served.prompt(T, T, visual, dimensions, BFLOAT16, 16),
                forms.served.step(_SEQUENCES, T, dimensions, BFLOAT16, 16),
            ):  # fmt: skip
                found.update(dict.fromkeys(each._replace(path="", calls=1) for each in kernels))
    return tuple(found)


def _launched_products(dtype: str) -> list[tuple[Gemm, bool]]:
    found = (
        (product_of(each.dimensions), each.operator not in ACTIVATION_PRODUCTS)
        for each in _launched()
        if each.dtype == dtype
    )
    return [*dict.fromkeys((sizes, weights) for sizes, weights in found if isinstance(sizes, Gemm))]


def _launched_attention(*, masked: bool) -> list[Attention]:
    found = (each.dimensions for each in _launched())
    return [*dict.fromkeys(
        each for each in found if isinstance(each, Attention) and each.masked == masked
    )]  # fmt: skip


# --- cases by kind ---------------------------------------------------------------------------


def _between(draw: random.Random, low: int, high: int, step: int = 1) -> int:
    """A random multiple of `step` from `low` to `high`, log-uniform."""
    value = math.exp(draw.uniform(math.log(low), math.log(high)))
    return max(step, round(value / step) * step)


def _several_rows(draw: random.Random, known: Iterable[int] = ()) -> list[int]:
    of_models = sorted(set(known))
    chosen = draw.sample(of_models, min(_EACH_KNOWN // 3, len(of_models)))
    others = (_EACH_KNOWN if of_models else _EACH) - len(chosen)
    return [
        *chosen,
        *draw.sample(_ROWS, others // 2),
        *(_between(draw, 1, _ROWS[-1]) for _ in range(others - others // 2)),
    ]


def _products(draw: random.Random) -> Iterator[KernelCase]:
    weights: dict[tuple[int, int], list[int]] = {}
    for sizes, has_weights in _launched_products("bfloat16"):
        if has_weights:
            weights.setdefault((sizes.n, sizes.k), []).append(sizes.m)
        else:
            yield KernelCase("gemm", sizes)
            for _ in range(2):  # for prompts and windows of other lengths
                m, n, k = (_between(draw, max(1, each // 2), 2 * each) for each in sizes[1:])
                yield KernelCase("gemm", Gemm(sizes.batch, m, n, k))
    for _ in range(_OTHERS["gemm"]):
        weights.setdefault((_between(draw, 64, 16384, 64), _between(draw, 64, 8192, 64)), [])
    for (n, k), known in weights.items():
        for m in _several_rows(draw, known):
            yield KernelCase("gemm", Gemm(1, m, n, k), cold=draw.random() < 0.6)


def _float32_products(draw: random.Random) -> Iterator[KernelCase]:
    known = [sizes for sizes, _ in _launched_products("float32")]
    yield from (KernelCase("gemm", sizes, dtype="float32") for sizes in known)
    groups = dict.fromkeys((sizes.n, sizes.k) for sizes in known)
    for _ in range(_OTHERS["float32"]):
        groups[_between(draw, 16, 2048, 16), _between(draw, 64, 4096, 64)] = None
    for n, k in groups:
        for m in _several_rows(draw):
            yield KernelCase("gemm", Gemm(1, m, n, k), draw.random() < 0.5, "float32")


def _heads(draw: random.Random, known: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    others = (
        (draw.choice((4, 6, 8, 10, 12, 14, 16, 20, 24, 32)), draw.choice((64, 80, 96, 128)))
        for _ in range(_OTHERS["attention"])
    )
    return [*dict.fromkeys((*known, *others))]


def _batch(draw: random.Random, most: int, elements: int) -> int:
    return _between(draw, 1, max(1, min(most, _MOST_ELEMENTS // elements)))


_LENGTHS: Final = {
    "encoder_attention": (32, 4608, 64),
    "context_attention": (32, 16384, 8),
    "generation_attention": (64, 16384, 128),
}
"""Fewest and most keys, and most sequences."""


def _unmasked(draw: random.Random, kind: str) -> Iterator[KernelCase]:
    is_step, (fewest, longest, most) = kind == "generation_attention", _LENGTHS[kind]
    known = [
        each
        for each in _launched_attention(masked=False)
        if kind_of(each) == kind and (kind != "context_attention" or each.queries == each.keys)
    ]
    yield from (KernelCase(kind, each._replace(skippable_scores=0), is_step) for each in known)
    for heads, size in _heads(draw, [(each.heads, each.head_dim) for each in known]):
        for _ in range(_EACH):
            keys = _between(draw, fewest, longest)
            batch = _batch(draw, most, keys * heads * size)
            sizes = Attention(batch, heads, heads, 1 if is_step else keys, keys, size, size)
            yield KernelCase(kind, sizes, cold=is_step and draw.random() < 0.75)


def _masked(draw: random.Random) -> Iterator[KernelCase]:
    known = _launched_attention(masked=True)
    yield from (KernelCase("masked_attention", each) for each in known)
    for heads, size in _heads(draw, [(each.heads, each.head_dim) for each in known]):
        lengths = [each.keys for each in known if each.heads == heads]
        lengths += [_between(draw, 49, 4096), _between(draw, 64, 4096, 8)]
        for length in dict.fromkeys(lengths):
            for _ in range(_EACH // 3):
                batch = _batch(draw, 128, length * heads * (length + size))
                sizes = Attention(batch, heads, heads, length, length, size, size, masked=True)
                yield KernelCase("masked_attention", sizes)


def _experts(draw: random.Random) -> Iterator[KernelCase]:
    found = (each.dimensions for each in _launched())
    layers = dict.fromkeys(each._replace(tokens=1) for each in found if isinstance(each, Experts))
    for _ in range(_OTHERS["experts"]):
        experts = draw.choice((8, 16, 32, 64, 128))
        hidden, inter = _between(draw, 512, 4096, 128), _between(draw, 256, 2048, 64)
        layers[Experts(1, hidden, inter, experts, draw.choice((1, 2, 4, 6, 8)))] = None
    for layer in layers:
        for tokens in _several_rows(draw):
            yield KernelCase("experts", layer._replace(tokens=tokens), cold=draw.random() < 0.6)


def _movement(draw: random.Random) -> Iterator[KernelCase]:
    for operator in MOVED_BYTES:
        for _ in range(6 * _EACH):
            elements = Elements(_between(draw, 1024, 1 << 27, 1024))
            yield KernelCase("movement", elements, operator=operator)
