"""The passes of a generation as `generate` runs them: prefill, then steps over its cache."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

import torch
import transformers

from dsocr_analyze.architectures.architecture import (
    Architecture,
    CacheStep,
    GrowingCache,
    KeyValueCache,
)
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.forking import undone
from dsocr_analyze.model.described_model import confined
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import LoadedModel
from dsocr_analyze.model.torch_calls import Keywords, Value, Values, modules_in
from dsocr_analyze.workload import AnyWorkload

if TYPE_CHECKING:
    from dsocr_analyze.model.generate_calls import GenerateCalls

__all__ = [
    "Generation",
    "empty_cache",
    "flash_attention",
    "left_as_it_was",
]

Record = TypeVar("Record")
"""What is recorded of a pass."""


_Table: TypeAlias = dict[Any, Any]
"""What a module keeps: attributes, buffers or hooks."""


class Generation(Generic[Record]):
    """The passes of a generation, run one by one.

    `begin` is called right before each pass and returns its record, `on_progress` with its name.

    Attributes:
        inputs_bytes: Of the prefill pass's inputs.
        kv_cache_bytes: After the prefill pass.
        steps: By number of each decode step that has run, its record, and the cache's bytes then.
        goes_back: Whether a step may run after a later one.
    """

    def __init__(
        self,
        model: LoadedModel,
        workload: AnyWorkload,
        architecture: Architecture,
        begin: Callable[[], Record],
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._model, self._begin, self._on_progress = model, begin, on_progress
        self._decodes = architecture.decode is not None
        inputs = architecture.prefill_inputs(model.device, model.dtype, workload)
        if model.directory.described is not None:
            _fit(inputs, model.module, architecture)
        self.inputs_bytes = _bytes_of(inputs)
        self.kv_cache_bytes = 0
        self.steps: dict[int, tuple[Record, int]] = {}
        self.goes_back = False
        self._calls: ForwardCalls | GenerateCalls
        if architecture.generate is None:
            self._calls = ForwardCalls(model, workload, architecture, inputs)
        else:
            from dsocr_analyze.model.generate_calls import GenerateCalls  # which few runs need

            self._calls = GenerateCalls(
                model.module, inputs, workload.max_new_tokens, architecture.generate
            )
        self._first_state: Any = None
        self._restore_first: Callable[[], None] = lambda: None

    def prefill(self) -> Record:
        """Runs the prefill pass; possible once."""
        self._on_progress("prefill pass")
        record = self._begin()
        with confined(self._model.directory):
            self._calls.prefill()
        if self._decodes:
            # Without numbers such as a window's length.
            self.kv_cache_bytes = _bytes_of(self._calls.cache, torch.Tensor.is_floating_point)
        return record

    def step(self, number: int) -> Record:
        """The record of a decode step, numbered from 0, which runs if it has not yet."""
        if number in self.steps:
            return self.steps[number][0]
        self._on_progress(f"decode step {number + 1}")
        self._begin()  # a record to discard
        if number < self._calls.ready:
            vars(self._calls).update(copy.deepcopy(self._first_state))
            self._restore_first()
        if number > self._calls.ready and self.goes_back:
            # For its side effects on the model, such as rotary angles.
            self._call(partial(self._calls.prepare, number - 1))
        record = self._call(partial(self._calls.prepare, number))
        if number == 0 and self.goes_back:
            self._begin()  # another record to discard
            state = {name: vars(self._calls)[name] for name in self._calls.STATE}
            self._first_state = copy.deepcopy(state)
            self._restore_first = _restorer(self._model.module)
        self.steps[number] = record, _bytes_of(self._calls.cache, torch.Tensor.is_floating_point)
        return record

    def longer_step(self) -> Record:
        """The record of a step over one more cached token than the last step.

        It runs as the first step after a longer prompt, for which even a full sliding window grows.
        """
        assert isinstance(self._calls, ForwardCalls), "generate makes its own steps"
        self._on_progress("decode step over a longer cache")
        self._begin()  # a record to discard
        return self._call(self._calls.prepare_longer)

    def _call(self, prepare: Callable[[], Callable[[], None]]) -> Record:
        """Runs a step over the cache as the preceding steps would leave it."""
        with confined(self._model.directory):
            run = prepare()
            record = self._begin()
            run()
        return record


def _fit(inputs: Keywords, module: torch.nn.Module, architecture: Architecture) -> None:
    """Leaves out inputs that forward does not name; ConfigError for the stages file's."""
    parameters = inspect.signature(module.forward).parameters.values()
    collected = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [each.name for each in parameters if each.kind not in collected]
    for name in architecture.left_out_where_unknown - set(named):
        inputs.pop(name, None)
    unknown = inputs.keys() - set(named)
    if architecture.generate is None and named and unknown:  # some take and ignore any
        raise ConfigError(
            f"forward of {type(module).__name__} takes no {min(unknown)!r}; leave it out"
            f" of the stages file, or name one of {', '.join(named)}"
        )


@dataclass
class ForwardCalls:
    """The passes of an architecture that knows the arguments of its own forward.

    `inputs` are the prefill pass's, until it runs, and `ready` is the next step's number.
    """

    STATE: ClassVar = ("cache", "ready")
    """What changes with every pass."""

    model: LoadedModel
    workload: AnyWorkload
    architecture: Architecture
    inputs: Keywords
    cache: KeyValueCache | None = None
    ready: int = 0

    def prefill(self) -> None:
        """Possible once."""
        inputs, self.inputs = self.inputs, {}
        if self.architecture.decode is None:
            self.model.module(**inputs)
            return
        self.cache = empty_cache(self.model.directory)
        self._step(inputs)

    def prepare(self, number: int) -> Callable[[], None]:
        """A decode step, ready to run, no earlier than the last; skipped ones leave zeros."""
        step = CacheStep(self.workload.seq_len, number + 1, self.model.sliding_window)
        if number > self.ready:
            self.cache = self.architecture.decode_cache(self.cache, step)
        inputs = self.architecture.decode_inputs(self.model.device, self.workload, step.position)
        self.ready = number + 1
        return partial(self._step, inputs)

    def prepare_longer(self) -> Callable[[], None]:
        """A step over all that the last one read and wrote, ready to run."""
        assert self.cache is not None, "the last step left one"
        keys, *_ = next(iter(self.cache))
        step = CacheStep(keys.shape[-2], 1, self.model.sliding_window)
        self.cache = self.architecture.decode_cache(self.cache, step)
        inputs = self.architecture.decode_inputs(self.model.device, self.workload, step.position)
        return partial(self._step, inputs)

    def _step(self, inputs: Keywords) -> None:
        cache, self.cache = self.cache, None
        self.cache = self.model.module(**inputs, past_key_values=cache).past_key_values


def empty_cache(directory: ModelDirectory) -> KeyValueCache:
    """An empty cache, for vendor code of the transformers class that it is written for."""
    return GrowingCache() if directory.is_reference else transformers.DynamicCache()


def left_as_it_was(model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """Undoes what passes change on modules, such as rotary tables."""
    return undone(_restorer(model))


def _restorer(model: torch.nn.Module) -> Callable[[], None]:
    """What restores all modules' current attributes, buffers and hooks."""
    before: list[tuple[_Table, _Table]] = []
    for _, module in modules_in(model):
        # transformers 5 adds hooks to the layers whose outputs a pass asks for.
        tables: list[_Table] = [vars(module), module._buffers, module._forward_hooks]
        before += zip(tables, map(dict, tables), strict=True)

    def restore() -> None:
        for table, content in before:
            table.clear()
            table.update(content)

    return restore


def _bytes_of(value: Any, is_counted: Callable[[torch.Tensor], bool] = torch.is_tensor) -> int:
    """Bytes of all tensors in nested tuples, lists, mappings and objects."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size() if is_counted(value) else 0
    if isinstance(value, type):
        return 0
    table = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    parts: Values = value if isinstance(value, tuple | list) else table.values()
    return sum(map(_bytes_of, parts, repeat(is_counted)))


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Value, **kwargs: Value
) -> torch.Tensor:
    """flash-attn's function, on `meta` a stand-in for it.

    Takes q [B, T, Hq, D], k [B, K, Hk, D] and v [B, K, Hk, Dv]; returns [B, T, Hq, Dv].
    """
    if q.is_meta:
        return q.new_empty((*q.shape[:-1], v.shape[-1]))
    from flash_attn import flash_attn_func

    output: torch.Tensor = flash_attn_func(q, k, v, *args, **kwargs)
    return output
