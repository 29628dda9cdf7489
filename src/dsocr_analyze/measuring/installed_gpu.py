"""The installed GPU, from the catalogue or with measured peaks, and its host."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import shutil
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.devices import Gpu, catalogue_name, gpu_catalogue, plain_name
from dsocr_analyze.hardware.timed_device import MeasuredHost
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.kernels import Elements, Gemm
from dsocr_analyze.measuring.gpu_cases import KernelCase
from dsocr_analyze.measuring.stage_clock import timer_of
from dsocr_analyze.model.process_settings import quiet_transformers, replaced
from dsocr_analyze.model.torch_calls import Arguments, Keywords, Operator, Value

if TYPE_CHECKING:
    from torch.cuda import _CudaDeviceProperties
    from transformers import LlamaForCausalLM

    from dsocr_analyze.measuring.gpu_kernels import GpuKernels

__all__ = [
    "StepTimes",
    "described_gpu",
    "detect_gpu",
    "host_figures",
    "step_times",
]


_LIKE: Final = (
    (12, "rtx-pro-6000"), (10, "b200"), (9, "h100-sxm"), (8.1, "l40s"), (0, "a100-80gb-sxm"),
)  # fmt: skip
"""GPU that fills in for unmeasured kinds, by least compute capability."""
_LIKE_ROCM: Final = "h100-sxm"
_LEAST_MEMORY: Final = 0.85
"""Least fraction of its memory that a whole GPU reports; a slice has less."""
_SQUARES: Final = (4096, 8192)
_STREAMED: Final = 1 << 27
"""Elements copied to measure the bandwidth."""


def detect_gpu(device: torch.device, dtype: str, timer: GpuKernels) -> Gpu:
    """The GPU of a CUDA device, as of today's driver and libraries.

    The catalogue's if it is all of one; others, and slices, have a name of their own and peaks that
    the timer measures.
    """
    properties, catalogue = torch.cuda.get_device_properties(device), gpu_catalogue()
    hip = getattr(torch.version, "hip", None)
    made_with = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}"
    source = (
        f"measured {dt.datetime.now(tz=dt.UTC).date()} on {properties.name}:"
        f" {_driver()}torch {torch.__version__}, {made_with}"
    )
    with contextlib.suppress(DeviceError):
        gpu = catalogue[catalogue_name(properties.name, catalogue)]
        if (
            properties.multi_processor_count == gpu.sms
            and properties.total_memory >= _LEAST_MEMORY * gpu.memory_bytes
        ):
            return replace(gpu, source=source)
    return described_gpu(properties, dtype, source, timer)


def _driver() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"driver {said.split()[0]}, " if said.split() else ""


def described_gpu(
    properties: _CudaDeviceProperties, dtype: str, source: str, timer: GpuKernels
) -> Gpu:
    """A GPU that the catalogue lacks, with its 16-bit type and measured peaks."""
    capability = float(f"{properties.major}.{properties.minor}")
    target = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    rocm = target if target.startswith("gfx") else ""
    like = next(name for least, name in _LIKE if capability >= least)
    streamed = KernelCase("movement", Elements(_STREAMED), operator="clone")
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


def _own_name(properties: _CudaDeviceProperties) -> str:
    name = plain_name(properties.name)
    try:
        catalogue_name(name, gpu_catalogue())
    except DeviceError:
        return name
    return f"{name}-{properties.multi_processor_count}-sms"


def _tflops(timer: GpuKernels, dtype: str) -> float:
    products = (KernelCase("gemm", Gemm(1, size, size, size), dtype=dtype) for size in _SQUARES)
    return max(2 * each.macs / timer.seconds(each) for each in products) / 1e12


# --- the host --------------------------------------------------------------------------------


_REPEATS: Final = 200
_LEAST_US: Final = 0.01
"""Least of figures that noise makes smaller."""
_COPIED: Final = 1 << 26
"""Bytes per copy to the GPU."""
_PROMPT: Final = 512
"""Prompt tokens, which `infer()` searches for repeated n-grams."""
_NGRAM: Final = 35
_STEPS: Final = 40
_FIRST_STEPS: Final = 8
"""Discarded while caches and allocators settle."""
_NO_KERNEL: Final = frozenset({
    "alias", "detach", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty",
    "_unsafe_view", "_reshape_alias", "_local_scalar_dense",
})  # fmt: skip
"""Operators besides views that launch nothing."""


def host_figures(device: torch.device) -> MeasuredHost:
    """Measure the host of a CUDA device."""
    with torch.cuda.device(device):
        steps = step_times(device)
        tiny = torch.zeros(64, device=device)
        issued = _seconds(lambda: tiny.add_(1).sum(), device, _REPEATS)
        waited = _seconds(lambda: tiny.add_(1).sum().item(), device, _REPEATS)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.graph(graph):
            tiny.add_(1)
        started = _seconds(graph.replay, device, _REPEATS)
    pageable = torch.ones(_COPIED, dtype=torch.uint8)
    return MeasuredHost(
        launch_us=steps.launch_us,
        sync_us=max(_LEAST_US, 1e6 * (waited - issued)),
        step_us=steps.between_us,
        graph_us=max(_LEAST_US, 1e6 * started),
        link_gb_s=_COPIED / _seconds(lambda: pageable.to(device), device, 1) / 1e9,
    )


def _seconds(run: Callable[[], Value], device: torch.device, repeats: int) -> float:
    """Seconds per run: the median of some rounds, after a first one."""
    timer, found = timer_of(device), []
    for _ in range(6):
        timer.wait()
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        timer.wait()
        found.append((time.perf_counter() - start) / repeats)
    return statistics.median(found[1:])


class StepTimes(NamedTuple):
    """Times of `generate` steps, inside the model and between its calls."""

    operators: int
    """Launched per step."""
    inside_us: float
    """Per call of the model."""
    between_us: float
    """From the end of one call to the start of the next."""

    @property
    def launch_us(self) -> float:
        """Microseconds per operator, including the Python around it."""
        return self.inside_us / self.operators


def step_times(device: torch.device) -> StepTimes:
    """Run `generate` like `infer()`, on a decoder so small that only the host matters."""
    model = _small_decoder(device)
    counts: list[int] = []
    spans: list[tuple[float, float]] = []

    def counted(run: Callable[[], Value]) -> Value:
        with _Launches() as launches:
            result = run()
        counts.append(launches.count)
        return result

    def timed(run: Callable[[], Value]) -> Value:
        safe_point()
        start = time.perf_counter()
        result = run()
        spans.append((start, time.perf_counter()))
        return result

    _generate(model, 3, counted)
    _generate(model, _FIRST_STEPS + _STEPS, timed)
    steps = spans[_FIRST_STEPS:]
    inside = [end - start for start, end in steps]
    between = [start - end for (_, end), (start, _) in pairwise(steps)]
    return StepTimes(counts[-1], 1e6 * statistics.median(inside), 1e6 * statistics.median(between))


def _small_decoder(device: torch.device) -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_PROMPT + 2, hidden_size=64, intermediate_size=128, num_hidden_layers=6,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=4096,
        attn_implementation="eager",
    )  # fmt: skip
    return LlamaForCausalLM(config).to(device).eval()


def _generate(
    model: LlamaForCausalLM, steps: int, around: Callable[[Callable[[], Value]], Value]
) -> None:
    tokens = torch.arange(2, _PROMPT + 2, device=model.device)[None]
    forward = model.forward

    @functools.wraps(forward)
    def watched(*args: Value, **kwargs: Value) -> Value:
        return around(functools.partial(forward, *args, **kwargs))

    with (
        replaced(model, "forward", watched), torch.no_grad(), quiet_transformers(),
        warnings.catch_warnings(),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=steps,
            min_new_tokens=steps, do_sample=False, use_cache=True, eos_token_id=1,
            pad_token_id=0, no_repeat_ngram_size=_NGRAM,
        )  # fmt: skip


class _Launches(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated in torch
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Operator,
        types: Iterable[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Value:
        if not func.is_view and func.overloadpacket.__name__ not in _NO_KERNEL:
            self.count += 1
        return func(*args, **(kwargs or {}))
