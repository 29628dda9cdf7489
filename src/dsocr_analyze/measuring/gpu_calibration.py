"""Measure a CUDA GPU's kernels and its host, fit formulas to them, and write a profile.

Experts have none of their own: those of a serving engine, in the shipped profiles, are other ones.
"""

import contextlib
import datetime as dt
import functools
import math
import statistics
import subprocess
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Final

import numpy as np
import torch

from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware import coefficients as records, profile
from dsocr_analyze.hardware.devices import Gpu, catalogue_name, gpu_catalogue, plain_name
from dsocr_analyze.hardware.kernel_times.fitting import (
    SEED,
    MeasuredRows,
    check_can_fit,
    first_guess,
    fit_errors,
    fitted,
    held_out_groups,
)
from dsocr_analyze.hardware.timed_device import MeasuredHost
from dsocr_analyze.interruption import safe_point
from dsocr_analyze.kernels import Gemm
from dsocr_analyze.measuring.calibration_needs import GPU_BYTES
from dsocr_analyze.measuring.machine import timer_of
from dsocr_analyze.measuring.samples import (
    KernelsAlone,
    MeasuredKernel,
    Run,
    cpu_seconds,
    gpu_samples,
)
from dsocr_analyze.model.forward import is_out_of_memory
from dsocr_analyze.model.process_settings import exclusive, quiet_transformers, replaced
from dsocr_analyze.model.torch_calls import Arguments, DispatchMode, Keywords, Operator, Value
from dsocr_analyze.timing.kernel_seconds import kind_of

_SHARE_OF_FITS: Final = 0.15
_SHARE_OF_TENSORS: Final = 0.8
"""Of the stated memory; CUDA and its libraries take the rest."""
_WARM_UP_SECONDS: Final = 1.0

Say = Callable[[str], None]


def calibrated_gpu(device: torch.device, *, on_progress: Say, budget_seconds: float) -> str:
    """The text of a profile of a CUDA device and its host, measured in so many seconds.

    Raises:
        DeviceError: There is no such GPU, its memory is in use, or scipy is not installed.
    """
    end = time.monotonic() + (1 - _SHARE_OF_FITS) * budget_seconds
    check_can_fit()
    if device.type != "cuda" or not torch.cuda.is_available():
        raise DeviceError(f"device {device} is not a CUDA GPU; give cuda:0", arguments=["device"])
    has_bfloat16 = torch.version.hip or torch.cuda.get_device_capability(device) >= (8, 0)
    dtype = "bfloat16" if has_bfloat16 else "float16"
    try:
        with (
            exclusive(), torch.cuda.device(device), torch.random.fork_rng([device]),
            torch.cuda.stream(torch.cuda.Stream(device)),
        ):  # fmt: skip
            total = torch.cuda.get_device_properties(device).total_memory
            share = min(1.0, _SHARE_OF_TENSORS * GPU_BYTES / total)
            torch.cuda.set_per_process_memory_fraction(share, device)
            alone = KernelsAlone(
                device, gpu_samples(getattr(torch, dtype)), GraphClock(device).seconds
            )
            on_progress("warming up the clocks")
            alone.run(time.monotonic() + _WARM_UP_SECONDS, lambda _: None)
            on_progress("the host")
            host = _host_figures(device)
            alone.run(end, on_progress)
            measured = alone.kernels()
            return profile_text(detect_gpu(device, dtype, measured), host, measured, on_progress)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise DeviceError(
                f"{device} has too little free memory for calibration; stop other programs on it"
            ) from error
        first_line = (str(error).splitlines() or [""])[0]
        raise DeviceError(f"{device} could not be calibrated: {first_line}") from error
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()


# --- the clock -------------------------------------------------------------------------------


_MOST_CALLS: Final = 32
_GRAPH_SECONDS: Final = 5e-4
"""About the time of a graph."""
_REPEATS: Final = 5
_FLUSH_L2S: Final = 4
_FLUSH_BYTES: Final = 1 << 29


class GraphClock:
    """Times calls on a GPU's current stream: several of them in a CUDA graph, however short.

    Before it, L2 is emptied, and a call brings back what is the same in every call.
    """

    def __init__(self, device: torch.device) -> None:
        self._timer = timer_of(device)
        properties = torch.cuda.get_device_properties(device)
        wanted = max(_FLUSH_BYTES, _FLUSH_L2S * properties.L2_cache_size)
        flushed = min(wanted, properties.total_memory // 16)
        self._flushed = torch.empty(flushed, dtype=torch.uint8, device=device)

    @torch.no_grad()
    def seconds(self, call: Run, *_limits: float) -> float:
        """Of one call, the median of some graphs."""
        call()  # libraries load and select kernels on their first calls
        once = self._timed(call, call)
        calls = max(1, min(_MOST_CALLS, round(_GRAPH_SECONDS / max(once, 1e-9))))
        graph = torch.cuda.CUDAGraph()
        self._timer.wait()
        graph.capture_begin()
        try:
            for _ in range(calls):
                call()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # repeats that the capture failed
                graph.capture_end()
            raise
        graph.capture_end()
        graph.replay()
        found = [self._timed(graph.replay, call) / calls for _ in range(_REPEATS)]
        return statistics.median(found)

    def _timed(self, run: Callable[[], Value], before: Run) -> float:
        """Seconds of what `run` issues, behind a flush that keeps the GPU busy."""
        self._flushed.zero_()
        before()
        return self._timer.time(run)


# --- the profile -----------------------------------------------------------------------------


_OF_ATTENTION: Final = ("batch", "queries", "keys", "heads", "head_dim", "kv_heads")
_COLUMNS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "gemm": (("m", "n", "k", "batch"), ("batch", "n", "k")),
    "encoder_attention": (_OF_ATTENTION, ("heads", "head_dim")),
    "context_attention": (_OF_ATTENTION, ("heads", "head_dim")),
    "generation_attention": (_OF_ATTENTION, ("heads", "head_dim")),
    "masked_attention": (_OF_ATTENTION, ("heads", "keys", "head_dim")),
    "movement": (("moved",), ("moved",)),
}
"""Sizes that a kind's formula reads, and those of a group, which is held out as a whole."""


def profile_text(
    gpu: Gpu, host: MeasuredHost, measured: Iterable[MeasuredKernel], on_progress: Say
) -> str:
    """The text of a GPU's profile.

    Raises:
        DeviceError: Too little was measured of every kind.
    """
    kinds: dict[tuple[str, str], list[MeasuredKernel]] = defaultdict(list)
    for each in measured:
        of = "float32" if each.kernel.dtype == "float32" else "bfloat16"  # its own 16-bit type
        kinds[kind_of(each.kernel.dimensions), of].append(each)
    parts = []
    for (kind, dtype), members in kinds.items():
        name = f"{kind} in {dtype if dtype == 'float32' else '16 bits'}"
        rows = rows_of(kind, members)
        held_out = int(rows.held_out.sum())
        if held_out < _LEAST_HELD_OUT or len(members) - held_out < _LEAST_ROWS:
            on_progress(f"{name}: too few measurements; left out")
            continue
        coefficients = _coefficients(kind, dtype, rows.taken(~rows.held_out), gpu)
        errors = fit_errors(kind, rows, gpu, dtype, coefficients)
        on_progress(
            f"{name}: {len(members)} kernels measured;"
            f" median error {100 * errors.held_out_median:.1f} % on kernels held out of the fit"
        )
        parts.append(profile.kind_text(kind, dtype, coefficients, errors, rows.version))
    if not parts:
        raise DeviceError(
            f"too few kernels of {gpu.title} could be measured; give it more time or more free"
            " memory"
        )
    head = profile.top_text(name=gpu.name, source=gpu.source)
    own = [] if gpu.name in gpu_catalogue() else [profile.gpu_text(gpu)]
    return "\n".join([head, *own, profile.host_text(host), *parts])


def rows_of(kind: str, measured: Sequence[MeasuredKernel]) -> MeasuredRows:
    """Measured kernels of a kind as columns of its formula."""
    kernels = [each.kernel for each in measured]
    sizes = [kernel.dimensions._asdict() | {"moved": kernel.work.bytes_moved} for kernel in kernels]
    names, of_group = _COLUMNS[kind]
    columns = {name: np.array([each[name] for each in sizes], float) for name in names}
    # Weights and caches are never in L2, other tensors may be.
    cold = [kind == "generation_attention" or each.operator == "linear" for each in kernels]
    groups = [tuple(int(each[name]) for name in of_group) for each in sizes]
    library = " scaled_dot_product_attention" if kind.endswith("attention") else ""
    return MeasuredRows(
        columns | {"cold": np.array(cold, float)}, np.array([each.seconds for each in measured]),
        held_out_groups(groups), np.ones(len(kernels), bool), np.array(groups, dtype=np.int64),
        f"torch {torch.__version__}{library}",
    )  # fmt: skip


# --- the fit ---------------------------------------------------------------------------------


_PREFILL: Final[dict[str, tuple[int, ...]]] = {
    "tile_queries": (64, 128, 192, 256), "tile_keys": (64, 128), "slots": (1, 2),
    "head_step": (32,), "splits": (0, 1),
}  # fmt: skip
_CHOICES: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "gemm": {},
    "encoder_attention": _PREFILL,
    "context_attention": _PREFILL,
    "generation_attention": {
        "tile_heads": (64,), "tile_keys": (64, 128), "slots": (1, 2), "split_needs_groups": (0,),
    },
    "masked_attention": {"tile_queries": (32, 64, 128), "tile_keys": (64, 128)},
    "movement": {},
}  # fmt: skip
"""Integer coefficients to try."""

_FEW: Final = 150
"""Rows that try them."""
_LEAST_ROWS: Final = 24
_LEAST_HELD_OUT: Final = 8


def _coefficients(kind: str, dtype: str, training: MeasuredRows, gpu: Gpu) -> records.Coefficients:
    choices, guess = _CHOICES[kind], first_guess(kind, dtype)
    tried = [
        replace(guess, **dict(zip(choices, values, strict=True)))  # type: ignore[arg-type]  # integers
        for values in product(*choices.values())
    ]
    first = tried[0]
    if len(tried) > 1:
        order = np.random.default_rng(SEED).permutation(len(training.seconds))
        few = training.taken(order[:_FEW])
        costs = [fitted(kind, few, gpu, dtype, each, starts=1, evaluations=12) for each in tried]
        first = min(costs, key=lambda pair: pair[1])[0]
    return fitted(kind, training, gpu, dtype, first, starts=3, evaluations=50)[0]


# --- the GPU ---------------------------------------------------------------------------------


_LIKE: Final = (
    (12, "rtx-pro-6000"), (10, "b200"), (9, "h100-sxm"), (8.1, "l40s"), (0, "a100-80gb-sxm"),
)  # fmt: skip
"""What fills in for unmeasured kinds, by least compute capability."""
_LIKE_ROCM: Final = "h100-sxm"
_LEAST_MEMORY: Final = 0.85
"""Of its memory that a whole GPU reports; a slice has less."""
_LONGEST: Final = 5
"""Streams that show the bandwidth."""


def detect_gpu(device: torch.device, dtype: str, measured: Sequence[MeasuredKernel]) -> Gpu:
    """The GPU of a CUDA device: the catalogue's if it is all of one.

    Others, and slices, have a name of their own and the highest rates measured.
    """
    properties, catalogue = torch.cuda.get_device_properties(device), gpu_catalogue()
    hip = torch.version.hip
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
    capability = float(f"{properties.major}.{properties.minor}")
    target = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    rocm = target if target.startswith("gfx") else ""
    like = next(name for least, name in _LIKE if capability >= least)
    name = plain_name(properties.name)
    with contextlib.suppress(DeviceError):
        catalogue_name(name, catalogue)  # a slice of a known one
        name = f"{name}-{properties.multi_processor_count}-sms"
    rates = {of: max((2e-12 * kernel.work.macs / seconds for kernel, seconds, *_ in measured
                      if kernel.dtype == of and isinstance(kernel.dimensions, Gemm)), default=0.0)
             for of in (dtype, "float32")}  # fmt: skip
    streams = sorted(
        (kernel.work.bytes_moved, seconds)
        for kernel, seconds, *_ in measured
        if not kernel.work.macs
    )
    longest = streams[-_LONGEST:]  # far more than L2 holds
    return Gpu(
        name=name,
        title=properties.name,
        tensor_tflops=rates[dtype],
        bandwidth_gb_s=max((moved / seconds / 1e9 for moved, seconds in longest), default=0.0),
        memory_gb=max(1, properties.total_memory // 10**9),
        source=source,
        tensor_dtype=dtype,
        sms=properties.multi_processor_count,
        l2_mb=properties.L2_cache_size / 1e6,
        float32_tflops=rates["float32"],
        compute_capability=0 if rocm else capability,
        rocm_target=rocm,
        like=_LIKE_ROCM if rocm else like,
    )


def _driver() -> str:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"driver {said.split()[0]}, " if said.split() else ""


# --- the host --------------------------------------------------------------------------------


_SECONDS_EACH: Final = 0.5
_LEAST_US: Final = 0.01
"""Noise makes figures smaller."""
_COPIED: Final = 1 << 26
"""Bytes."""
_PROMPT: Final = 512
"""Tokens, which `infer()` searches for repeated n-grams."""
_NGRAM: Final = 35
_STEPS: Final = 40
_FIRST_STEPS: Final = 8
"""Discarded; the last of them counts operators."""
_NO_KERNEL: Final = frozenset({
    "alias", "detach", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty",
    "_unsafe_view", "_reshape_alias", "_local_scalar_dense",
})  # fmt: skip
"""Operators besides views that launch nothing."""


def _host_figures(device: torch.device) -> MeasuredHost:
    launch_us, step_us = step_times(device)
    tiny, graph = torch.zeros(64, device=device), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tiny.add_(1)
    pageable = torch.ones(_COPIED, dtype=torch.uint8)
    issued, waited, started, copied = (
        cpu_seconds(run, _SECONDS_EACH, math.inf)
        for run in (
            lambda: tiny.add_(1).sum(), lambda: tiny.add_(1).sum().item(), graph.replay,
            lambda: pageable.to(device),
        )
    )  # fmt: skip
    return MeasuredHost(
        launch_us=launch_us,
        sync_us=max(_LEAST_US, 1e6 * (waited - issued)),
        step_us=step_us,
        graph_us=max(_LEAST_US, 1e6 * started),
        link_gb_s=_COPIED / copied / 1e9,
    )


def step_times(device: torch.device) -> tuple[float, float]:
    """Microseconds per operator launched in a step of `generate`, and between two steps.

    Runs it like `infer()`, on a decoder so small that only the host matters.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_PROMPT + 2, hidden_size=64, intermediate_size=128, num_hidden_layers=6,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=4096,
        attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(device).eval()
    forward, launched, spans = model.forward, list[Operator](), list[tuple[float, float]]()

    def counted(operator: Operator, args: Arguments, kwargs: Keywords) -> Value:
        if not operator.is_view and operator.overloadpacket.__name__ not in _NO_KERNEL:
            launched.append(operator)
        return operator(*args, **kwargs)

    @functools.wraps(forward)
    def watched(*args: Value, **kwargs: Value) -> Value:
        safe_point()
        counts = len(spans) == _FIRST_STEPS - 1
        with DispatchMode(counted) if counts else contextlib.nullcontext():
            start = time.perf_counter()
            result: Value = forward(*args, **kwargs)
            spans.append((start, time.perf_counter()))
        return result

    tokens, steps = torch.arange(2, _PROMPT + 2, device=device)[None], _FIRST_STEPS + _STEPS
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
    timed = spans[_FIRST_STEPS:]
    inside = statistics.median(end - start for start, end in timed)
    between = statistics.median(start - end for (_, end), (start, _) in pairwise(timed))
    return 1e6 * inside / len(launched), 1e6 * between
