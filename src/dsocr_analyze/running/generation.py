"""The passes of a generation as `generate` runs them: prefill, then steps over its cache."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.architectures.key_value_cache import GrowingCache
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.forking import undone
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.running.confinement import confined
from dsocr_analyze.running.loading import LoadedModel
from dsocr_analyze.workload import AnyWorkload, DecodeStep

__all__ = [
    "Generation",
    "Step",
    "empty_cache",
    "flash_attention",
    "left_as_it_was",
]

Record = TypeVar("Record")
"""What is recorded of a pass."""


@dataclass(frozen=True)
class Step(Generic[Record]):
    """A decode step that has run.

    Attributes:
        record: What was recorded of it.
        cache_bytes: Bytes of the cache after it.
    """

    record: Record
    cache_bytes: int


class Generation(Generic[Record]):
    """The passes of a generation, run one by one.

    Args:
        model: The model.
        workload: The workload.
        architecture: The model's architecture.
        begin: Called right before each pass; returns the record of the pass.
        on_progress: Called with the name of each pass as it starts.

    Attributes:
        inputs_bytes: Bytes of the prefill pass's inputs.
        kv_cache_bytes: Bytes of the cache after the prefill pass.
        steps: Decode steps that have run, by number.
        goes_back: Whether a step may run after a later one; if so, the state after the first step
            is kept.
    """

    def __init__(
        self,
        model: LoadedModel,
        workload: AnyWorkload,
        architecture: Architecture,
        begin: Callable[[], Record],
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._model, self._workload, self._architecture = model, workload, architecture
        self._begin, self._on_progress = begin, on_progress
        self._named = _named_arguments(model.module)
        inputs = architecture.prefill_inputs(model.device, model.dtype, workload)
        self._inputs: dict[str, Any] | None = self._accepted(inputs)
        self.inputs_bytes = _bytes_of(self._inputs)
        self.kv_cache_bytes = 0
        self.steps: dict[int, Step[Record]] = {}
        self.goes_back = False
        self._first_cache: Any = None
        self._restore_first: Callable[[], None] = lambda: None
        self._cache: Any = None
        self._carried: dict[str, Any] = {}
        self._ran = 0

    def prefill(self) -> Record:
        """Runs the prefill pass, which is possible once."""
        inputs, self._inputs = self._inputs, None
        assert inputs is not None, "it runs once"
        use = self._architecture.cache
        decodes = self._architecture.decode is not None
        if decodes and use.is_given:
            config = getattr(self._model.module, "config", None)
            inputs[use.argument] = empty_cache(self._model.directory, config)
        self._on_progress("prefill pass")
        record = self._begin()
        output = self._output(inputs)
        if decodes:
            self._cache = _part_of(output, use.output)
            self.kv_cache_bytes = _cache_bytes(self._cache)
            self._carried = {
                argument: _part_of(output, named)
                if isinstance(named, str)
                else tuple(_part_of(output, name) for name in named)
                for argument, named in use.carried.items()
            }
        return record

    def step(self, number: int) -> Record:
        """Returns the record of a decode step (numbered from 0), running it if it has not run."""
        if number not in self.steps:
            self.steps[number] = self._run(number)
        return self.steps[number].record

    def _run(self, number: int) -> Step[Record]:
        self._on_progress(f"decode step {number + 1}")
        self._begin()  # a record to discard
        if number < self._ran:
            self._cache, self._ran = copy.deepcopy(self._first_cache), 1
            self._restore_first()
        if number > self._ran and self.goes_back:
            # Its side effects on the model may matter as well, such as rotary angles.
            self._call(number - 1)
        record = self._call(number)
        if number == 0 and self.goes_back:
            self._begin()  # another record to discard
            self._first_cache = copy.deepcopy(self._cache)
            self._restore_first = _restorer(self._model.module)
        return Step(record, _cache_bytes(self._cache))

    def _call(self, number: int) -> Record:
        """Runs a step over the cache as the preceding steps would leave it."""
        model, architecture = self._model, self._architecture
        step = DecodeStep(self._workload.seq_len, number + 1, model.sliding_window)
        if number > self._ran:
            self._cache = architecture.decode_cache(self._cache, step)
        inputs = self._accepted(
            architecture.decode_inputs(model.device, self._workload, step.position)
        )
        inputs |= {**self._carried, architecture.cache.argument: self._cache}
        self._ran = number + 1
        record = self._begin()
        self._cache = _part_of(self._output(inputs), architecture.cache.output)
        return record

    def _output(self, inputs: dict[str, Any]) -> Any:
        with confined(self._model.directory):
            return self._model.module(**inputs)

    def _accepted(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Drops the optional inputs that the model's forward does not name."""
        optional = self._architecture.left_out_where_unknown - self._named
        return {name: value for name, value in inputs.items() if name not in optional}


def _named_arguments(model: torch.nn.Module) -> frozenset[str]:
    return frozenset(inspect.signature(model.forward).parameters)


def _part_of(output: Any, name: str) -> Any:
    """An attribute of a model's output.

    Raises:
        ConfigError: The output has no such attribute.
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
    """An empty cache; for vendor code, of the transformers class it was written for.

    Args:
        directory: The model's directory.
        config: The model's config object; for a model described by a stages file, it determines
            the cache's layers (such as sliding-window ones), like `generate` of transformers 5.
    """
    if directory.is_reference:
        return GrowingCache()
    from transformers import DynamicCache

    takes_config = "config" in inspect.signature(DynamicCache.__init__).parameters
    if directory.described is None or config is None or not takes_config:
        return DynamicCache()
    return DynamicCache(config=config)


@contextlib.contextmanager
def left_as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Undoes what a pass changes on modules, such as rotary tables, so the next starts fresh."""
    with undone(_restorer(model)):
        yield


def _restorer(model: torch.nn.Module) -> Callable[[], None]:
    """Returns a function that restores the current attributes and buffers of all modules."""
    # `model.modules()` passes every module through a generator per level above it.
    found = {model: None}
    waiting = [model]
    while waiting:
        children = [child for child in waiting.pop()._modules.values() if child is not None]
        waiting += [child for child in children if child not in found]
        found.update(dict.fromkeys(children))
    before = [(module, dict(vars(module)), dict(module._buffers)) for module in found]

    def restore() -> None:
        for module, attributes, buffers in before:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)

    return restore


def _bytes_of(value: Any, is_counted: Callable[[Any], bool] = lambda _: True) -> int:
    """Bytes of all tensors in nested tuples, lists and mappings, or objects that hold these."""
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
    """Bytes of a cache's tensors, without numbers such as a window's length."""
    return _bytes_of(cache, is_counted=torch.Tensor.is_floating_point)


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """flash-attn's function; on `meta` a stand-in that does not need the package.

    Args:
        q: Queries [B, T, Hq, D].
        k: Keys [B, K, Hk, D].
        v: Values [B, K, Hk, Dv].
        *args: The function's other arguments, such as `causal`.
        **kwargs: The same as keyword arguments.

    Returns:
        Output [B, T, Hq, Dv].
    """
    if q.is_meta:
        return q.new_empty((*q.shape[:-1], v.shape[-1]))
    from flash_attn import flash_attn_func

    output: torch.Tensor = flash_attn_func(q, k, v, *args, **kwargs)
    return output
