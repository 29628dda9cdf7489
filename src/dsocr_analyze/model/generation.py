"""The passes of a generation as `generate` runs them: prefill, then steps over its cache.

Without closed forms, transformers' own `generate` is stopped right before its first pass, when it
has made the cache and chosen every argument. Later passes get theirs from the model's functions.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ClassVar, Final, Generic, TypeVar

import torch
import transformers

from dsocr_analyze.architectures.architecture import (
    Architecture,
    CacheStep,
    GrowingCache,
    KeyValueCache,
    Prompt,
    zeros_like,
)
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.forking import undone
from dsocr_analyze.model.described_model import confined
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import LoadedModel
from dsocr_analyze.model.process_settings import Keywords, Value, Values, replaced
from dsocr_analyze.workload import AnyWorkload

Record = TypeVar("Record")
"""What is recorded of a pass."""


class Generation(Generic[Record]):
    """The passes of a generation, run one by one.

    `begin` is called right before each pass and returns its record, `on_progress` with its name.

    Attributes:
        kv_cache_bytes: After the prefill pass.
        steps: By number of a decode step that has run, its record, and the cache's bytes then.
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
        if model.directory.of_transformers is not None:
            _fit(inputs, model.module, architecture)
        self.inputs_bytes = _bytes_of(inputs)
        self.kv_cache_bytes = 0
        self.steps: dict[int, tuple[Record, int]] = {}
        self.goes_back = False
        self._calls: ForwardCalls | GenerateCalls
        if architecture.generate is None:
            self._calls = ForwardCalls(model, workload, architecture, inputs)
        else:
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
        if self._calls.grows_otherwise:
            for skipped in range(self._calls.ready, number):
                self.step(skipped)
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
            self._restore_first = _restorer(self._model.module.modules())
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

    grows_otherwise: ClassVar = False

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


# --- of `generate` itself ------------------------------------------------------------------------

_PREPARE: Final = "prepare_inputs_for_generation"
_OF_ONE_PASS: Final = ("next_sequence_length", "is_first_iteration")
"""Arguments of `_PREPARE` in transformers 5 for one pass alone."""

_CACHES: Final = ("past_key_values", "cache_params", "state", "mems", "past_buckets_states")
"""Models' names for the cache that `generate` keeps."""


class GenerateCalls:
    """The passes that `generate` runs for `inputs`, its keyword arguments, and a number of tokens.

    Raises ConfigError if the model cannot generate.
    """

    STATE: Final = ("_before", "_kwargs", "ready")
    """Keywords before and after the last pass, and the next step's number."""

    def __init__(
        self, model: torch.nn.Module, inputs: Keywords, new_tokens: int, use: Prompt
    ) -> None:
        if not getattr(model, "can_generate", bool)():
            raise ConfigError(
                f"transformers' generate() cannot run {type(model).__name__}; give a 'class' that"
                " it can, or leave out the stage with the role 'decode' to count one pass"
            )
        self._model, self._inputs = model, dict(inputs)
        self._new_tokens, self._use = new_tokens, use
        self._owner: Any = model
        self._ids = torch.empty(0)
        self._one_pass: Keywords = {}
        self._kwargs: Keywords = {}
        self._before: Keywords = {}
        self._prefilled: dict[int, int] = {}
        self._besides: list[torch.Size] = []
        self.ready = 0

    @property
    def cache(self) -> Any:
        """The cache as it is now; None without one."""
        kept = map(self._kwargs.get, _CACHES)
        return next((cache for cache in kept if cache is not None), None)

    @property
    def grows_otherwise(self) -> bool:
        """Whether steps cannot be skipped, since the cache grows in ways that are not known."""
        return _sizes_besides(self.cache) != self._besides

    def prefill(self) -> None:
        """Runs all up to the first token's logits; possible once."""
        inputs = self._stopped_generate()
        self._returned(self._owner(**inputs, return_dict=True))
        self._prefilled = lengths_of(self.cache)
        self._besides = _sizes_besides(self.cache)

    def prepare(self, number: int) -> Callable[[], None]:
        """A decode step, ready to run, no earlier than the last; skipped ones leave zeros."""
        if number > 0 == self.ready:
            self.prepare(0)()  # shows what grows, and where
        missing = number - self.ready
        if missing:
            self._kwargs = {
                name: _continued(self._before.get(name), value, missing)
                for name, value in self._kwargs.items()
            }
            lengthen(self.cache, missing, self._prefilled)
            self.ready = number
        new = self._ids.new_full((len(self._ids), number + 1), self._use.fill)
        length = 1 if self._kwargs["use_cache"] else None
        of_pass = {"next_sequence_length": length} if self._one_pass else {}
        inputs = self._arguments(torch.cat([self._ids, new], dim=1), of_pass)
        return partial(self._step, inputs)

    def _step(self, inputs: Keywords) -> None:
        # transformers 5 runs other kernels for experts than in a prefill pass.
        optimized = getattr(self._owner, "_optimize_model_for_decode", contextlib.nullcontext)
        with optimized():
            output = self._owner(**inputs, return_dict=True)
        self.ready += 1
        self._returned(output)

    def _stopped_generate(self) -> Keywords:
        """Runs `generate` up to its first pass, whose arguments are returned."""

        class FirstPass(BaseException):
            """Ends it before a pass of a module over some ids with other keywords, its `args`."""

        def stop_of(owner: torch.nn.Module) -> Callable[..., None]:
            @wraps(getattr(owner, _PREPARE))  # `generate` looks at its signature
            def stop(input_ids: torch.Tensor, **kwargs: Any) -> None:
                raise FirstPass(owner, input_ids, kwargs)

            return stop

        given, self._inputs = self._inputs, {}
        generate: Any = self._model.generate
        start = given.get("decoder_input_ids")
        if start is not None:
            # Some models' own accepts no prompt for the decoder and makes one of a fixed length.
            # The first token starts the decoder already: another one would be put before it.
            generate = partial(
                transformers.GenerationMixin.generate,
                self._model,
                decoder_start_token_id=int(start[0, 0]),
            )
        with contextlib.ExitStack() as stack:
            # A model within another one may be what generates, such as BLIP-2's language model.
            for module in self._model.modules():
                if hasattr(module, _PREPARE):
                    stack.enter_context(replaced(module, _PREPARE, stop_of(module)))
            try:
                generate(**given, max_new_tokens=self._new_tokens, do_sample=False, num_beams=1)
            except FirstPass as stopped:
                self._owner, self._ids, kwargs = stopped.args
            else:
                raise ConfigError(
                    f"generate() of {type(self._model).__name__} is a loop of its own, whose passes"
                    " cannot be told apart; leave out the stage with the role 'decode' to count"
                    " one pass"
                )
        self._one_pass = {name: kwargs.pop(name) for name in _OF_ONE_PASS if name in kwargs}
        self._kwargs = kwargs
        return self._arguments(self._ids, self._one_pass)

    def _arguments(self, ids: torch.Tensor, of_pass: Keywords) -> Keywords:
        """Arguments of forward for a pass."""
        made = getattr(self._owner, _PREPARE)(ids, **of_pass, **self._kwargs)
        return {name: value for name, value in made.items() if name not in self._use.without}

    def _returned(self, output: Any) -> None:
        """Keeps what `generate` keeps after a pass."""
        self._before = self._kwargs
        self._kwargs = self._owner._update_model_kwargs_for_generation(
            output, dict(self._kwargs), is_encoder_decoder=self._owner.config.is_encoder_decoder
        )


def _continued(before: Any, after: Any, times: int) -> Any:
    """A value once its change from `before` to `after` has occurred some more times.

    Integers change by the same difference. A tensor that has grown grows on, its last entries
    changing like the last two.
    """
    if type(after) in (tuple, list) and type(before) is type(after):
        return type(after)(map(partial(_continued, times=times), before, after))
    if times <= 0 or not isinstance(after, torch.Tensor) or not isinstance(before, torch.Tensor):
        return after
    is_whole = not after.is_floating_point() and after.dtype != torch.bool
    if before.shape == after.shape:
        return after + (after - before) * times if is_whole else after
    dim = next(dim for dim, size in enumerate(before.shape) if size != after.shape[dim])
    last = after.narrow(dim, -1, 1)
    steps = torch.arange(1, times + 1, device=after.device)
    steps = steps.view([-1 if each == dim else 1 for each in range(after.dim())])
    change = last - before.narrow(dim, -1, 1) if is_whole else torch.zeros_like(last)
    return torch.cat([after, (last + change * steps).to(after.dtype)], dim=dim)


# --- caches ----------------------------------------------------------------------------------


def empty_cache(directory: ModelDirectory) -> KeyValueCache:
    """An empty cache, for vendor code of the transformers class that it is written for."""
    return GrowingCache() if directory.is_reference else transformers.DynamicCache()


def lengths_of(cache: Any) -> dict[int, int]:
    """Tokens by layer of a cache of transformers; empty for any other."""
    own = getattr(cache, "self_attention_cache", cache)
    return {layer: own.get_seq_length(layer) for layer, *_ in _growing_layers(own)}


def lengthen(cache: Any, tokens: int, before: Mapping[int, int]) -> None:
    """Extends a cache of transformers, after a decode step, by tokens that are all zeros.

    A sliding window drops the oldest. A cache that is allocated as a whole, or holds a state, stays
    as it is, and so do layers as long as `before`, like the keys of an image.
    """
    own = getattr(cache, "self_attention_cache", cache)
    for layer, keys, values in list(_growing_layers(own)):
        if own.get_seq_length(layer) > before.get(layer, 0):
            own.update(zeros_like(keys, -2, tokens), zeros_like(values, -2, tokens), layer)
    for layer in getattr(own, "layers", ()):
        indexer = getattr(layer, "indexer_keys", None)
        if indexer is not None:
            layer.update_indexer(zeros_like(indexer, 1, tokens))


def _sizes_besides(cache: Any) -> list[torch.Size]:
    """Of what a cache of transformers holds and `lengthen` leaves as it is."""
    if isinstance(cache, torch.Tensor | tuple | list):
        return []
    own = getattr(cache, "self_attention_cache", cache)
    known: list[Any] = [each for _, *pair in _growing_layers(own) for each in pair]
    known += [getattr(layer, "indexer_keys", None) for layer in getattr(own, "layers", ())]
    taken = {*map(id, known)}
    return [each.shape for each in _tensors_in(cache) if id(each) not in taken]


def _growing_layers(cache: Any) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Index, keys and values of every layer that takes tokens."""
    pairs: list[tuple[Any, Any]] = []
    if hasattr(cache, "layers"):  # transformers 5
        pairs = [
            (getattr(each, "keys", None), getattr(each, "values", None)) for each in cache.layers
        ]
    elif isinstance(cache, transformers.DynamicCache):
        pairs = [*zip(cache.key_cache, cache.value_cache, strict=True)]
    for number, (keys, values) in enumerate(pairs):
        if isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) and keys.dim() == 4:
            yield number, keys, values


def _bytes_of(value: Any, is_counted: Callable[[torch.Tensor], bool] = torch.is_tensor) -> int:
    """Bytes of all tensors in nested tuples, lists, mappings and objects, each once."""
    tensors = {id(each): each for each in _tensors_in(value)}
    return sum(each.numel() * each.element_size() for each in filter(is_counted, tensors.values()))


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif not isinstance(value, type):
        table = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        parts: Values = value if isinstance(value, tuple | list) else table.values()
        for part in parts:
            yield from _tensors_in(part)


# --- modules ---------------------------------------------------------------------------------


def left_as_it_was(
    modules: Iterable[torch.nn.Module],
) -> contextlib.AbstractContextManager[None]:
    """Undoes what passes change on modules, such as rotary tables."""
    return undone(_restorer(modules))


def _restorer(modules: Iterable[torch.nn.Module]) -> Callable[[], None]:
    """What restores the modules' current attributes, and what dictionaries among these hold.

    Such are children, buffers, hooks (transformers 5 adds some), and caches of a module's own.
    """
    tables: list[dict[Any, Any]] = [
        table
        for module in modules
        if not isinstance(module, torch.jit.ScriptModule)  # only its own code changes anything
        for table in (vars(module), *vars(module).values())
        if type(table) in (dict, OrderedDict)
    ]
    contents = [table.copy() if table else () for table in tables]

    def restore() -> None:
        for table, content in zip(tables, contents, strict=True):
            if table or content:
                if [*table] != [*content]:  # another order is another, as of hooks
                    table.clear()
                table.update(content)

    return restore


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
