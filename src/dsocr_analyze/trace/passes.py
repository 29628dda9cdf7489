"""The two passes that a page takes: one prefill, then decode steps over the KV cache."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.key_value_cache import GrowingCache
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.running.exclusive import exclusive
from dsocr_analyze.running.failures import blamed_on
from dsocr_analyze.running.forward import running
from dsocr_analyze.running.loading import LoadedModel
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.recorder import Recorder
from dsocr_analyze.trace.repetition import Alike
from dsocr_analyze.workload import AnyWorkload, DecodeStep

__all__ = [
    "PassTraces",
    "RunStep",
    "empty_cache",
    "flash_attention",
    "recorded_flash_attention",
    "run_prefill",
    "trace_passes",
]


RunStep = Callable[[int], Trace]
"""Runs the decode step of a number, where it has not run, and returns its trace."""


@dataclass(frozen=True)
class PassTraces:
    """Traces of the passes of a page.

    Attributes:
        prefill: The prefill pass.
        decode_steps: Decode steps, in the order of `step_numbers`.
        step_numbers: Which steps they are; step i runs over a cache of `seq_len + i` tokens.
        kv_cache_bytes: What the cache holds after the prefill pass.
        inputs_bytes: What the prefill pass is called with.
        step_cache_bytes: What the cache holds after each step.
    """

    prefill: Trace
    decode_steps: tuple[Trace, ...]
    step_numbers: tuple[int, ...]
    kv_cache_bytes: int
    inputs_bytes: int
    step_cache_bytes: tuple[int, ...] = ()


def trace_passes(
    model: LoadedModel,
    workload: AnyWorkload,
    architecture: Architecture,
    *,
    step_numbers: Sequence[int] = (0,),
    explore: Callable[[RunStep], object] | None = None,
    repeats: Alike | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> PassTraces:
    """Runs the workload's prefill pass and some decode steps under the recorder.

    Args:
        model: Any loaded model; on `meta` nothing is computed.
        workload: The page, the text and the batch.
        architecture: The model's architecture, which knows how its forward is called.
        step_numbers: Decode steps to run, from 0 and ascending; step i finds in the cache what i
            steps before it leave there, in zeros where they do not run. None of them runs where the
            model does not decode.
        explore: Runs further steps, in any order: which, is up to what those before it showed.
        repeats: Which of the model's modules are alike, where that is declared: on `meta`, equal
            calls of alike modules are recorded once. None runs every module.
        on_progress: Told what starts.

    Raises:
        ModelCodeError: The model's code raised.
        DeviceError: The device ran out of memory.
    """
    recorder = Recorder(
        model.module,
        repeats if model.device.type == "meta" else None,
        kernels_of=model.kernels_of,
    )
    flash = recorded_flash_attention(recorder)
    with (
        exclusive(),
        blamed_on(model.directory, f"failed on {model.device}", str(model.device)),
        _left_as_it_was(model.module),
        running(model.device, flash, has_weights=model.has_weights),
    ):
        passes = _Passes(model, workload, architecture, recorder, on_progress)
        with recorder:
            prefill = passes.prefill()
            if architecture.decode is not None:
                passes.goes_back = explore is not None
                for number in step_numbers:
                    passes.step(number)
                if explore is not None:
                    explore(passes.step)
    steps = dict(sorted(passes.steps.items()))
    return PassTraces(
        prefill,
        tuple(step.trace for step in steps.values()),
        tuple(steps),
        passes.kv_cache_bytes,
        passes.inputs_bytes,
        tuple(step.cache_bytes for step in steps.values()),
    )


class _Step(NamedTuple):
    """A decode step that has run."""

    trace: Trace
    cache_bytes: int


class _Passes:
    """The passes of a generation, run one by one under a recorder.

    Args:
        model: The model.
        workload: What is asked of it.
        architecture: Its architecture.
        recorder: Records the passes; it is active while they run.
        on_progress: Told what starts.
    """

    def __init__(
        self,
        model: LoadedModel,
        workload: AnyWorkload,
        architecture: Architecture,
        recorder: Recorder,
        on_progress: Callable[[str], None],
    ) -> None:
        self._model, self._workload, self._architecture = model, workload, architecture
        self._recorder, self._on_progress = recorder, on_progress
        # Before the recorder puts its own in the forward's place.
        self._named = _named_arguments(model.module)
        inputs = architecture.prefill_inputs(model.device, model.dtype, workload)
        self._inputs: dict[str, Any] | None = self._accepted(inputs)
        self.inputs_bytes = _bytes_of(self._inputs)
        self.kv_cache_bytes = 0
        self.steps: dict[int, _Step] = {}
        """Steps that have run, by number."""
        self.goes_back = False
        """Whether a step may run after a later one: then what the first one left is kept."""
        self._first_cache: Any = None
        self._restore_first: Callable[[], None] = lambda: None
        self._cache: Any = None
        self._carried: dict[str, Any] = {}
        self._ran = 0

    def prefill(self) -> Trace:
        """The prefill pass; it runs once."""
        inputs, self._inputs = self._inputs, None
        assert inputs is not None, "it runs once"
        use = self._architecture.cache
        decodes = self._architecture.decode is not None
        if decodes and use.is_given:
            config = getattr(self._model.module, "config", None)
            inputs[use.argument] = empty_cache(self._model.directory, config)
        self._on_progress("prefill pass")
        trace = self._recorder.begin()
        output = self._model.module(**inputs)
        if decodes:
            self._cache = _part_of(output, use.output)
            self.kv_cache_bytes = _cache_bytes(self._cache)
            self._carried = {
                argument: _part_of(output, named)
                if isinstance(named, str)
                else tuple(_part_of(output, name) for name in named)
                for argument, named in use.carried.items()
            }
        return trace

    def step(self, number: int) -> Trace:
        """Decode step of a number, from 0, if it has not run; its trace."""
        if number not in self.steps:
            self.steps[number] = self._run(number)
        return self.steps[number].trace

    def _run(self, number: int) -> _Step:
        self._on_progress(f"decode step {number + 1}")
        self._recorder.begin()  # of a trace that nobody keeps
        if number < self._ran:
            self._cache, self._ran = copy.deepcopy(self._first_cache), 1
            self._restore_first()
        if number > self._ran and self.goes_back:
            # What it leaves on the model may count as well: rotary angles, say.
            self._call(number - 1)
        trace = self._call(number)
        if number == 0 and self.goes_back:
            self._recorder.begin()  # of another that nobody keeps
            self._first_cache = copy.deepcopy(self._cache)
            self._restore_first = _restorer(self._model.module)
        return _Step(trace, _cache_bytes(self._cache))

    def _call(self, number: int) -> Trace:
        """Runs a step over the cache as the steps before it leave it."""
        model, architecture = self._model, self._architecture
        step = DecodeStep(self._workload.seq_len, number + 1, model.sliding_window)
        if number > self._ran:
            self._cache = architecture.decode_cache(self._cache, step)
        inputs = self._accepted(
            architecture.decode_inputs(model.device, self._workload, step.position)
        )
        inputs |= {**self._carried, architecture.cache.argument: self._cache}
        self._ran = number + 1
        trace = self._recorder.begin()
        self._cache = _part_of(model.module(**inputs), architecture.cache.output)
        return trace

    def _accepted(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs without those that are left out where the model's forward names them not."""
        optional = self._architecture.left_out_where_unknown - self._named
        return {name: value for name, value in inputs.items() if name not in optional}


def _named_arguments(model: torch.nn.Module) -> frozenset[str]:
    return frozenset(inspect.signature(model.forward).parameters)


def _part_of(output: Any, name: str) -> Any:
    """An attribute of what a model returned.

    Raises:
        ConfigError: There is none.
    """
    found = getattr(output, name, None)
    if found is None:
        there = (
            [key for key, value in output.items() if value is not None]
            if isinstance(output, dict)
            else []
        )
        raise ConfigError(
            f"the model's output, a {type(output).__name__}, has no {name!r}; it has"
            f" {', '.join(there) or 'no named parts'}"
        )
    return found


def empty_cache(directory: ModelDirectory, config: Any = None) -> Any:
    """The cache to begin with: for a vendor's code the one that it was written for, transformers'.

    Args:
        directory: Where the model comes from.
        config: The model's config object; of a model that a stages file describes, it says what
            layers the cache has (a sliding window's, say), as in `generate` of transformers 5.
    """
    if directory.is_reference:
        return GrowingCache()
    from transformers import DynamicCache

    takes_config = "config" in inspect.signature(DynamicCache.__init__).parameters
    if directory.described is None or config is None or not takes_config:
        return DynamicCache()
    return DynamicCache(config=config)


@contextlib.contextmanager
def _left_as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Undoes what a pass keeps on its modules, such as rotary tables: the next starts afresh."""
    restore = _restorer(model)
    try:
        yield
    finally:
        restore()


def _restorer(model: torch.nn.Module) -> Callable[[], None]:
    """Puts attributes and buffers of all modules back to what they are now."""
    before = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]

    def restore() -> None:
        for module, attributes, buffers in before:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)

    return restore


def _bytes_of(value: Any, is_counted: Callable[[Any], bool] = lambda _: True) -> int:
    """Bytes of all tensors in nested tuples, lists and mappings, or objects that hold such."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size() if is_counted(value) else 0
    if isinstance(value, type):
        return 0
    if isinstance(value, tuple | list):
        parts: Iterable[Any] = value
    elif isinstance(value, dict):
        parts = value.values()
    else:
        parts = vars(value).values() if hasattr(value, "__dict__") else ()
    return sum(_bytes_of(part, is_counted) for part in parts)


def _cache_bytes(cache: Any) -> int:
    """Bytes of what a cache keeps: numbers such as a window's length are not among it."""
    return _bytes_of(cache, is_counted=torch.Tensor.is_floating_point)


def run_prefill(model: LoadedModel, workload: AnyWorkload, architecture: Architecture) -> Any:
    """The bare prefill pass, unrecorded: what tracing is measured against."""
    with running(model.device, flash_attention, has_weights=model.has_weights):
        inputs = architecture.prefill_inputs(model.device, model.dtype, workload)
        return model.module(**inputs, past_key_values=empty_cache(model.directory))


def recorded_flash_attention(recorder: Recorder) -> Callable[..., torch.Tensor]:
    """flash-attn's function under the recorder."""

    def flash_attn_func(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        causal = args[2] if len(args) > 2 else kwargs.get("causal", False)
        output: torch.Tensor = recorder.record_whole(
            "flash_attention",
            [q, k, v],
            {"causal": bool(causal)},
            lambda: flash_attention(q, k, v, *args, **kwargs),
        )
        return output

    return flash_attn_func


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """flash-attn's function; on `meta` a stand-in, which needs no such package.

    Args:
        q: Queries [B, T, Hq, D].
        k: Keys [B, K, Hk, D].
        v: Values [B, K, Hk, Dv].
        *args: What else the function takes, such as `causal`.
        **kwargs: The same by keyword.

    Returns:
        Output [B, T, Hq, Dv].
    """
    if q.is_meta:
        return q.new_empty((*q.shape[:-1], v.shape[-1]))
    from flash_attn import flash_attn_func

    output: torch.Tensor = flash_attn_func(q, k, v, *args, **kwargs)
    return output
