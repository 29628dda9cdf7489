"""Time single kernels of a GPU, each captured several times in a CUDA graph, however short.

Cold ones use other weights in each call, none of which is in L2 when the graph starts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
from collections.abc import Callable
from importlib import metadata
from typing import Final, TypeAlias

import torch
from torch.nn import functional as F

from dsocr_analyze.kernels import Attention, Elements, Experts, Gemm
from dsocr_analyze.measuring.gpu_cases import KernelCase
from dsocr_analyze.measuring.stage_clock import timer_of
from dsocr_analyze.model.torch_calls import Value

__all__ = ["Call", "GpuKernels", "KernelCalls"]


Call: TypeAlias = Callable[[int], torch.Tensor]
"""Launches a kernel; the argument selects the copy of its weights."""

_MOST_CALLS: Final = 32
"""Most consecutive calls of one kernel."""
_COPIES_BYTES: Final = 1 << 28
"""Bytes of all copies of the weights, unless one alone is larger."""
_LAYER_WIDTH: Final = 1024
"""Row width for normalizations."""
_BY_FLASH: Final = ("context_attention", "generation_attention")


class KernelCalls:
    """Makes calls of kernels on a device, in its 16-bit type.

    The decoder's attention uses flash-attn if it `has_flash`, by default if that is installed.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, *, has_flash: bool | None = None
    ) -> None:
        self._device, self._dtype = device, dtype
        installed = importlib.util.find_spec("flash_attn") is not None
        self._has_flash = installed if has_flash is None else has_flash

    def framework(self, kind: str) -> str:
        """What launches the kernels of a kind, with its version."""
        library = f"torch {torch.__version__}"
        if kind in _BY_FLASH and self._has_flash:
            return f"flash-attn {metadata.version('flash_attn')}, {library}"
        if kind.endswith("attention"):
            return f"{library} scaled_dot_product_attention"
        return f"{library} _grouped_mm" if kind == "experts" else library

    def call_of(self, case: KernelCase) -> tuple[Call, int]:
        """What launches a case's kernel, and the number of copies of its weights."""
        match case.sizes:
            case Gemm():
                return self._product(case.sizes, case)
            case Attention():
                return self._attention(case.sizes, case)
            case Experts():
                return self._experts(case.sizes, case)
            case Elements(elements):
                return self._movement(elements, case.operator), 1

    def _drawn(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Random numbers: products of zeros draw less power and so run faster."""
        return torch.randn(shape, device=self._device, dtype=dtype or self._dtype)

    def _copies(self, case: KernelCase, nbytes: int) -> int:
        return max(1, min(_MOST_CALLS, _COPIES_BYTES // max(1, nbytes))) if case.cold else 1

    def _product(self, sizes: Gemm, case: KernelCase) -> tuple[Call, int]:
        batch, m, n, k = sizes
        dtype = torch.float32 if case.dtype == "float32" else self._dtype
        if batch > 1:
            first = self._drawn(batch, m, k, dtype=dtype)
            second = self._drawn(batch, k, n, dtype=dtype)
            return lambda _: torch.bmm(first, second), 1
        copies = self._copies(case, n * k * dtype.itemsize)
        rows, weights = self._drawn(m, k, dtype=dtype), self._drawn(copies, n, k, dtype=dtype)
        return lambda number: F.linear(rows, weights[number]), copies

    def _attention(self, sizes: Attention, case: KernelCase) -> tuple[Call, int]:
        batch, heads, kv_heads, Q, K, D = sizes[:6]
        causal = case.kind != "encoder_attention" and not sizes.masked
        copies = self._copies(case, 4 * batch * kv_heads * K * D)
        if causal and self._has_flash:
            from flash_attn import flash_attn_func

            rows = self._drawn(batch, Q, heads, D)
            kept = self._drawn(copies, 2, batch, K, kv_heads, D)
            return lambda number: flash_attn_func(rows, *kept[number], causal=True), copies
        query = self._drawn(batch, heads, Q, D)
        cached = self._drawn(copies, 2, batch, kv_heads, K, D)
        bias = self._drawn(batch, heads, Q, K) if sizes.masked else None
        grouped: dict[str, bool] = {"enable_gqa": True} if kv_heads < heads else {}

        def attend(number: int) -> torch.Tensor:
            keys, values = cached[number]
            return F.scaled_dot_product_attention(
                query, keys, values, attn_mask=bias, is_causal=causal and Q > 1, **grouped
            )

        return attend, copies

    def _experts(self, sizes: Experts, case: KernelCase) -> tuple[Call, int]:
        tokens, hidden, inter, experts, top_k = sizes
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

    def _movement(self, elements: int, operator: str) -> Call:
        width = min(_LAYER_WIDTH, elements)
        first = self._drawn(elements // width, width)
        second = self._drawn(elements // width, width) if operator == "mul" else first
        calls: dict[str, Call] = {
            "mul": lambda _: first * second,
            "silu": lambda _: F.silu(first),
            "clone": lambda _: first.clone(),
            "float": lambda _: first.float(),
            "layer_norm": lambda _: F.layer_norm(first, (width,)),
        }
        return calls[operator]


_GRAPH_SECONDS: Final = 5e-4
"""Approximate time of all calls in one graph."""
_REPEATS: Final = 5
_WORKING: Final = 3
"""Free memory that a kernel needs, relative to the bytes that it moves."""
_FLUSH_L2S: Final = 4
_FLUSH_BYTES: Final = 1 << 29


class GpuKernels(KernelCalls):
    """Launches kernels on a GPU, in its 16-bit type, and times them."""

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
        if kind != "experts":
            return True
        if not hasattr(torch, "_grouped_mm"):
            return False
        try:
            self.seconds(KernelCase("experts", Experts(16, 256, 256, 8, 2)))
        except RuntimeError:  # not supported on this GPU
            return False
        return True

    def warm_up(self, seconds: float = 1.0) -> None:
        """Keep the GPU busy until its clocks have settled."""
        factor = torch.randn(4096, 4096, device=self._device, dtype=self._dtype)

        def busy() -> None:
            for _ in range(20):
                factor @ factor

        spent = 0.0
        while spent < seconds:
            spent += self._timer.time(busy)

    @torch.no_grad()
    def seconds(self, case: KernelCase) -> float:
        """Seconds of one call of a kernel.

        Raises:
            OutOfMemoryError: It does not fit into memory.
            RuntimeError: The library has no such kernel for this GPU.
        """
        free, _ = torch.cuda.mem_get_info(self._device)
        if _WORKING * case.nbytes > free:
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info(self._device)
        if _WORKING * case.nbytes > free:
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
        """Seconds of the work that `run` issues, behind a flush that keeps the GPU busy."""
        self._flushed.zero_()
        if before is not None and not cold:
            before(0)
        return self._timer.time(run)
