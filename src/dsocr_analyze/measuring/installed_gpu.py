"""The installed GPU: its catalogue name or measured peaks, and the figures of its host.

The host: launches, values it waits for, steps of `generate`, copies.
"""

from __future__ import annotations

import datetime as dt
import functools
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.devices import Gpu, catalogue_name, gpu_catalogue, plain_name
from dsocr_analyze.hardware.timed_device import MeasuredHost
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.kernels import Elements, Gemm
from dsocr_analyze.measuring.gpu_cases import Case
from dsocr_analyze.measuring.stage_clock import timer_of
from dsocr_analyze.model.process_settings import quiet_transformers
from dsocr_analyze.model.torch_calls import Arguments, Keywords, Operator, Value

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

__all__ = [
    "FoundGpu",
    "KernelTimer",
    "Properties",
    "StepTimes",
    "described_gpu",
    "found_gpu",
    "host_figures",
    "step_times",
]


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
    name = plain_name(properties.name)
    try:
        catalogue_name(name, gpu_catalogue())
    except DeviceError:
        return name
    return f"{name}-{properties.multi_processor_count}-sms"


def _tflops(timer: KernelTimer, dtype: str) -> float:
    products = (Case("gemm", Gemm(1, size, size, size), dtype=dtype) for size in _SQUARES)
    return max(2 * each.macs / timer.seconds(each) for each in products) / 1e12


# --- the host --------------------------------------------------------------------------------


_REPEATS: Final = 200
_LEAST_US: Final = 0.01
"""Lower bound for figures that noise makes smaller."""
_COPIED: Final = 1 << 26
"""Bytes per copy to the GPU."""
_PROMPT: Final = 512
"""Prompt tokens before the steps; `infer()` searches them for repeated n-grams."""
_NGRAM: Final = 35
_STEPS: Final = 40
_FIRST_STEPS: Final = 8
"""Steps that are discarded while caches and allocators settle."""
_NO_KERNEL: Final = frozenset({
    "alias", "detach", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty",
    "_unsafe_view", "_reshape_alias", "_local_scalar_dense",
})  # fmt: skip
"""Operators that launch nothing, in addition to views."""


def host_figures(device: torch.device) -> MeasuredHost:
    """Measure the host of a GPU.

    Args:
        device: A CUDA device.
    """
    with torch.cuda.device(device):
        steps = step_times(device)
        tiny = torch.zeros(64, device=device)
        issued = _microseconds(lambda: tiny.add_(1).sum(), device)
        waited = _microseconds(lambda: tiny.add_(1).sum().item(), device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.graph(graph):
            tiny.add_(1)
        started = _microseconds(graph.replay, device)
    return MeasuredHost(
        launch_us=steps.launch_us,
        sync_us=max(_LEAST_US, waited - issued),
        step_us=steps.between_us,
        graph_us=max(_LEAST_US, started),
        link_gb_s=_link_gb_s(device),
    )


def _microseconds(run: Callable[[], Value], device: torch.device) -> float:
    """Microseconds per run of many consecutive ones."""
    timer = timer_of(device)
    found = []
    for _ in range(5):
        timer.wait()
        start = time.perf_counter()
        for _ in range(_REPEATS):
            run()
        timer.wait()
        found.append((time.perf_counter() - start) / _REPEATS)
    return 1e6 * statistics.median(found)


def _link_gb_s(device: torch.device) -> float:
    """Rate of a copy to the GPU from memory that is not pinned, GB/s."""
    there = torch.ones(_COPIED, dtype=torch.uint8)
    timer = timer_of(device)
    found = []
    for _ in range(6):
        timer.wait()
        start = time.perf_counter()
        there.to(device)
        timer.wait()
        found.append(time.perf_counter() - start)
    return _COPIED / statistics.median(found[1:]) / 1e9


@dataclass(frozen=True)
class StepTimes:
    """Times of `generate` steps, inside the model and between its calls.

    Attributes:
        operators: Operators launched per step.
        inside_us: Microseconds per call of the model.
        between_us: Microseconds from the end of one call to the start of the next.
    """

    operators: int
    inside_us: float
    between_us: float

    @property
    def launch_us(self) -> float:
        """Microseconds per operator, including the Python around it."""
        return self.inside_us / self.operators


def step_times(device: torch.device) -> StepTimes:
    """Run `generate` as `infer()` does, on a decoder so small that only the host matters.

    Args:
        device: The device to run on.
    """
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
    """A decoder with tensors so small that any GPU finishes before the next launch."""
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
    """Generate tokens, with every call of the model made by `around`."""
    tokens = torch.arange(2, _PROMPT + 2, device=model.device)[None]
    forward = model.forward

    @functools.wraps(forward)
    def watched(*args: Value, **kwargs: Value) -> Value:
        return around(functools.partial(forward, *args, **kwargs))

    model.forward = watched
    try:
        with torch.no_grad(), quiet_transformers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.generate(
                tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=steps,
                min_new_tokens=steps, do_sample=False, use_cache=True, eos_token_id=1,
                pad_token_id=0, no_repeat_ngram_size=_NGRAM,
            )  # fmt: skip
    finally:
        model.forward = forward


class _Launches(TorchDispatchMode):
    """Counts operators that launch a kernel."""

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
