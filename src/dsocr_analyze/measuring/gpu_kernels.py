"""Kernels to measure on a GPU: which ones, how they are launched, and how long they take.

Each is captured several times in a CUDA graph, however short; cold ones use other weights in each
call, none of which is in L2 when the graph starts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import random
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.nn import functional as F

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.figures import expected_experts
from dsocr_analyze.hardware.kernel_times.fitting import SEED, MeasuredRows, held_out_groups
from dsocr_analyze.kernels import Attention, Elements, Experts, Gemm
from dsocr_analyze.measuring.machine import timer_of
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.torch_calls import Value
from dsocr_analyze.timing.kernel_seconds import kind_of, product_of

__all__ = [
    "MOVED_BYTES",
    "Call",
    "GpuKernels",
    "KernelCalls",
    "KernelCase",
    "gpu_cases",
    "rows_of",
]

CaseSizes: TypeAlias = Gemm | Attention | Experts | Elements

MOVED_BYTES: Final = {"mul": 6, "silu": 4, "clone": 4, "float": 6, "layer_norm": 4}
"""Bytes moved per 16-bit element, by operator."""

_LOADS: Final[dict[str, tuple[str, ...]]] = {
    "gemm": ("m",),
    "encoder_attention": ("batch", "queries", "keys"),
    "context_attention": ("batch", "queries", "keys"),
    "generation_attention": ("batch", "queries", "keys"),
    "masked_attention": ("batch",),
    "experts": ("tokens",),
    "movement": (),
}
"""Sizes that vary within a group, which is held out as a whole, by kind."""


class KernelCase(NamedTuple):
    """One kernel, or one layer's experts, in 16 bits unless `dtype` is float32."""

    kind: str
    sizes: CaseSizes
    cold: bool = False
    """Whether weights, or cached keys and values, are not in L2."""
    dtype: str = "bfloat16"
    """As in a profile, where `bfloat16` is the GPU's own 16-bit type."""
    operator: str = ""
    """For movement: a key of `MOVED_BYTES`."""

    @property
    def group(self) -> Any:
        """Its sizes at the least load."""
        sizes: Any = self.sizes
        return sizes._replace(**dict.fromkeys(_LOADS[self.kind], 1))

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self._work[0]

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self._work[1]

    @property
    def _work(self) -> tuple[int, int]:
        size, s = 4 if self.dtype == "float32" else 2, self.sizes
        match s:
            case Gemm(batch, m, n, k):
                return batch * m * n * k, size * batch * (m * k + n * k + m * n)
            case Attention():
                scores = s.heads * s.queries * s.keys
                rows = 2 * s.heads * s.queries + 2 * s.kv_heads * s.keys
                nbytes = size * s.batch * (rows * s.head_dim + (scores if s.masked else 0))
                return 2 * s.batch * scores * s.head_dim, nbytes
            case Experts(tokens, hidden, inter, experts, top_k):
                moved = 3 * experts * hidden * inter + tokens * top_k * (hidden + 3 * inter)
                return 3 * tokens * top_k * hidden * inter, size * moved
            case Elements(elements):
                return 0, MOVED_BYTES[self.operator] * elements


def rows_of(cases: Sequence[KernelCase], seconds: Sequence[float], version: str) -> MeasuredRows:
    """Measured cases of a kind as columns of its formula; `version` launched them."""
    groups = [tuple(map(int, case.group)) for case in cases]
    if isinstance(cases[0].sizes, Elements):
        columns = {"moved": np.array([case.nbytes for case in cases], float)}
    else:
        names = [each for each in cases[0].sizes._fields if each not in _NO_COLUMN]
        values = np.array([[getattr(case.sizes, name) for name in names] for case in cases], float)
        columns = dict(zip(names, values.T, strict=True))
        columns["cold"] = np.array([case.cold for case in cases], float)
    if isinstance(cases[0].sizes, Experts):
        tokens, experts, top_k = (columns[name] for name in ("tokens", "experts", "top_k"))
        columns["touched"] = np.asarray(expected_experts(tokens, experts, top_k))
        columns |= {"gated": np.ones(len(cases)), "fallback": np.zeros(len(cases))}
    return MeasuredRows(
        columns, np.array(seconds), held_out_groups(groups), np.ones(len(cases), bool),
        np.array(groups, dtype=np.int64), version,
    )  # fmt: skip


_NO_COLUMN: Final = ("value_dim", "masked", "skippable_scores")


# --- which kernels ---------------------------------------------------------------------------


_PAGE: Final = (1654, 2339)
"""A4 at 200 dpi."""
_SEQUENCES: Final = 8
"""In decode steps."""
_MOST_BYTES: Final = 1 << 30
_MOST_MACS: Final = 1 << 42
_OTHERS: Final = 60
"""Groups besides those of the models."""
_EACH: Final = 12
"""Loads per group."""
_OF_MOVEMENT: Final = 60
"""Sizes per operator that moves bytes."""
_COLD: Final = {"gemm": 0.6, "experts": 0.6, "generation_attention": 0.75}
"""Share of cold cases, by kind."""


def gpu_cases(kind: str, dtype: str = "bfloat16") -> list[KernelCase]:
    """The cases of a kernel kind in a fixed random order: any first part is a fair sample.

    Sizes are those that pages of the known models launch, and random others.
    """
    draw = random.Random(f"{SEED} {kind} {dtype}")
    if kind == "movement":
        drawn = ((name, _between(draw, 1 << 10, 1 << 27, 1 << 10))
                 for name in MOVED_BYTES for _ in range(_OF_MOVEMENT))  # fmt: skip
        made = [KernelCase(kind, Elements(count), operator=name) for name, count in drawn]
    else:
        sizes = [sizes for *of, sizes in _launched() if of == [kind, dtype]]
        groups = [KernelCase(kind, each).group for each in sizes]
        groups += (_drawn_group(draw, kind, dtype) for _ in range(_OTHERS))
        sizes += (_loaded(draw, kind, each) for each in dict.fromkeys(groups) for _ in range(_EACH))
        made = [KernelCase(kind, each, _is_cold(draw, kind, each), dtype) for each in sizes]
    cases = [each for each in dict.fromkeys(made)
             if each.nbytes <= _MOST_BYTES and each.macs <= _MOST_MACS]  # fmt: skip
    draw.shuffle(cases)
    return cases


@cache
def _launched() -> list[tuple[str, str, Any]]:
    """Kind, type and sizes of a page's kernels in every mode of every known model."""
    found: dict[tuple[str, str, Any], None] = {}
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
                for each in kernels:
                    kind, sizes = kind_of(each.dimensions), product_of(each.dimensions)
                    if isinstance(sizes, Attention):
                        sizes = sizes._replace(skippable_scores=0)
                    found[kind, each.dtype, sizes] = None
    return [*found]


def _between(draw: random.Random, low: int, high: int, step: int = 1) -> int:
    """A random multiple of `step` from `low` to `high`, log-uniform."""
    value = math.exp(draw.uniform(math.log(low), math.log(high)))
    return max(step, round(value / step) * step)


def _drawn_group(draw: random.Random, kind: str, dtype: str) -> CaseSizes:
    if kind == "gemm":
        widest = 2048 if dtype == "float32" else 16384
        return Gemm(1, 1, _between(draw, 64, widest, 64), _between(draw, 64, 8192, 64))
    if kind == "experts":
        experts, top_k = draw.choice((8, 16, 32, 64, 128)), draw.choice((1, 2, 4, 6, 8))
        hidden, inter = _between(draw, 512, 4096, 128), _between(draw, 256, 2048, 64)
        return Experts(1, hidden, inter, experts, top_k)
    heads = draw.choice((4, 6, 8, 10, 12, 14, 16, 20, 24, 32))
    size, masked = draw.choice((64, 80, 96, 128)), kind == "masked_attention"
    length = _between(draw, 49, 4096, draw.choice((1, 8))) if masked else 1
    return Attention(1, heads, heads, length, length, size, size, masked)


def _loaded(draw: random.Random, kind: str, group: Any) -> Any:
    """A group's sizes with a random load."""
    rows = draw.choice((1 << draw.randrange(15), _between(draw, 1, 1 << 14)))
    keys = _between(draw, 32, 4608 if kind == "encoder_attention" else 1 << 14)
    queries = 1 if kind == "generation_attention" else keys
    load = {"m": rows, "tokens": rows, "batch": _between(draw, 1, 128), "queries": queries,
            "keys": keys}  # fmt: skip
    return group._replace(**{name: load[name] for name in _LOADS[kind]})


def _is_cold(draw: random.Random, kind: str, sizes: CaseSizes) -> bool:
    has_weights = not isinstance(sizes, Gemm) or sizes.batch == 1
    return has_weights and draw.random() < _COLD.get(kind, 0.0)


# --- how they are launched -------------------------------------------------------------------


Call: TypeAlias = Callable[[int], torch.Tensor]
"""Launches a kernel with a copy of its weights, by number."""

_MOST_CALLS: Final = 32
_COPIES_BYTES: Final = 1 << 28
"""Of all copies of the weights, unless one alone is larger."""
_LAYER_WIDTH: Final = 1024
"""Of rows that are normalized."""
_BY_FLASH: Final = ("context_attention", "generation_attention")


class KernelCalls:
    """Makes calls of kernels on a device, in its 16-bit type.

    The decoder's attention uses flash-attn if it `has_flash`, by default if installed.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, *, has_flash: bool | None = None
    ) -> None:
        self._device, self._dtype = device, dtype
        installed = importlib.util.find_spec("flash_attn") is not None
        self._has_flash = installed if has_flash is None else has_flash

    def framework(self, kind: str) -> str:
        """What launches a kind's kernels, with versions."""
        library = f"torch {torch.__version__}"
        if kind in _BY_FLASH and self._has_flash:
            return f"flash-attn {metadata.version('flash_attn')}, {library}"
        if kind.endswith("attention"):
            return f"{library} scaled_dot_product_attention"
        return f"{library} _grouped_mm" if kind == "experts" else library

    def call_of(self, case: KernelCase) -> tuple[Call, int]:
        """A case's call, and the number of copies of its weights."""
        launchers: dict[type[CaseSizes], Callable[..., tuple[Call, int]]] = {
            Gemm: self._product, Attention: self._attention, Experts: self._experts,
            Elements: self._movement,
        }  # fmt: skip
        return launchers[type(case.sizes)](case, *case.sizes)

    def _drawn(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Random numbers: products of zeros draw less power and so run faster."""
        return torch.randn(shape, device=self._device, dtype=dtype or self._dtype)

    def _copies(self, case: KernelCase, nbytes: int) -> int:
        return max(1, min(_MOST_CALLS, _COPIES_BYTES // max(1, nbytes))) if case.cold else 1

    def _product(self, case: KernelCase, batch: int, m: int, n: int, k: int) -> tuple[Call, int]:
        dtype = torch.float32 if case.dtype == "float32" else self._dtype
        if batch > 1:
            first = self._drawn(batch, m, k, dtype=dtype)
            second = self._drawn(batch, k, n, dtype=dtype)
            return lambda _: torch.bmm(first, second), 1
        copies = self._copies(case, n * k * dtype.itemsize)
        rows, weights = self._drawn(m, k, dtype=dtype), self._drawn(copies, n, k, dtype=dtype)
        return lambda number: F.linear(rows, weights[number]), copies

    def _attention(
        self, case: KernelCase, batch: int, heads: int, kv_heads: int, Q: int, K: int, D: int,
        _: int, masked: bool, *__: int,
    ) -> tuple[Call, int]:  # fmt: skip
        causal = case.kind in _BY_FLASH
        copies = self._copies(case, 4 * batch * kv_heads * K * D)
        if causal and self._has_flash:
            from flash_attn import flash_attn_func

            rows = self._drawn(batch, Q, heads, D)
            kept = self._drawn(copies, 2, batch, K, kv_heads, D)
            return lambda number: flash_attn_func(rows, *kept[number], causal=True), copies
        query = self._drawn(batch, heads, Q, D)
        cached = self._drawn(copies, 2, batch, kv_heads, K, D)
        bias = self._drawn(batch, heads, Q, K) if masked else None
        return lambda number: F.scaled_dot_product_attention(
            query, cached[number, 0], cached[number, 1], bias, is_causal=causal and Q > 1
        ), copies  # fmt: skip

    def _experts(
        self, case: KernelCase, tokens: int, hidden: int, inter: int, experts: int, top_k: int
    ) -> tuple[Call, int]:
        copies = self._copies(case, 6 * experts * hidden * inter)
        rows = self._drawn(tokens, hidden)
        scores = self._drawn(tokens, experts, dtype=torch.float32)
        up = self._drawn(copies, experts, 2 * inter, hidden).transpose(-2, -1)
        down = self._drawn(copies, experts, hidden, inter).transpose(-2, -1)
        grouped: Callable[..., torch.Tensor] = torch._grouped_mm

        def layer(number: int) -> torch.Tensor:
            weight, chosen = scores.softmax(-1).topk(top_k, sorted=False)
            order = chosen.flatten().argsort()
            counts = torch.zeros(experts, dtype=torch.int64, device=self._device)
            counts.scatter_add_(0, chosen.flatten(), torch.ones_like(chosen.flatten()))
            ends = counts.cumsum(0).to(torch.int32)
            token = order // top_k
            gate, value = grouped(rows[token], up[number], offs=ends).chunk(2, -1)
            result = grouped(F.silu(gate) * value, down[number], offs=ends)
            weighted = result * weight.flatten()[order, None].to(self._dtype)
            return torch.zeros_like(rows).index_add_(0, token, weighted)

        return layer, copies

    def _movement(self, case: KernelCase, elements: int) -> tuple[Call, int]:
        width = min(_LAYER_WIDTH, elements)
        first = self._drawn(elements // width, width)
        second = self._drawn(elements // width, width) if case.operator == "mul" else first
        calls: dict[str, Call] = {
            "mul": lambda _: first * second,
            "silu": lambda _: F.silu(first),
            "clone": lambda _: first.clone(),
            "float": lambda _: first.float(),
            "layer_norm": lambda _: F.layer_norm(first, (width,)),
        }
        return calls[case.operator], 1


# --- how long they take ----------------------------------------------------------------------


_GRAPH_SECONDS: Final = 5e-4
"""About the time of a graph."""
_REPEATS: Final = 5
_WORKING: Final = 3
"""Free memory that a kernel needs, per byte that it moves."""
_FLUSH_L2S: Final = 4
_FLUSH_BYTES: Final = 1 << 29


class GpuKernels(KernelCalls):
    """Times kernels on a GPU."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self._timer = timer_of(device)
        self._stream = torch.cuda.Stream(device)
        properties = torch.cuda.get_device_properties(device)
        wanted = max(_FLUSH_BYTES, _FLUSH_L2S * properties.L2_cache_size)
        flushed = min(wanted, properties.total_memory // 16)
        self._flushed = torch.empty(flushed, dtype=torch.uint8, device=device)

    def can_launch(self, kind: str) -> bool:
        """Whether kernels of a kind are available."""
        if kind == "experts":
            try:
                self.seconds(KernelCase("experts", Experts(16, 256, 256, 8, 2)))
            except (AttributeError, RuntimeError):  # not in this torch, or not on this GPU
                return False
        return True

    @torch.no_grad()
    def seconds(self, case: KernelCase) -> float:
        """Seconds of one call.

        Raises:
            OutOfMemoryError: It does not fit.
            RuntimeError: The library has no such kernel for this GPU.
        """
        needed = _WORKING * case.nbytes
        if needed > torch.cuda.mem_get_info(self._device)[0]:
            torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self._device)
        if needed > free:
            raise torch.cuda.OutOfMemoryError(f"{case.nbytes} bytes do not fit into {free}")
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            call, copies = self.call_of(case)
            for number in range(2):  # libraries load and select kernels on their first calls
                call(number % copies)
            once = self._timed(lambda: call(0))
            calls = max(1, min(_MOST_CALLS, round(_GRAPH_SECONDS / max(once, 1e-9))))
            graph = self._captured(call, calls, copies)
            found = [self._timed(graph.replay, call, case.cold) / calls for _ in range(_REPEATS)]
        return statistics.median(found)

    def _captured(self, call: Call, calls: int, copies: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        self._stream.synchronize()
        graph.capture_begin()
        try:
            for number in range(calls):
                call(number % copies)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # repeats that the capture failed
                graph.capture_end()
            raise
        graph.capture_end()
        graph.replay()
        return graph

    def _timed(
        self, run: Callable[[], Value], before: Call | None = None, cold: bool = True
    ) -> float:
        """Seconds of what `run` issues, behind a flush that keeps the GPU busy."""
        self._flushed.zero_()
        if before is not None and not cold:
            before(0)
        return self._timer.time(run)
