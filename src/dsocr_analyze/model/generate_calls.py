"""The passes of a model as transformers' own `generate` runs them, one by one.

`generate` is stopped right before its first pass, when it has run an encoder, made the cache and
chosen every argument. Later passes get theirs from the model's own functions, as in `generate`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
import transformers

from dsocr_analyze.architectures.prompt import Prompt
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.model.process_settings import replaced
from dsocr_analyze.model.torch_calls import Keywords

__all__ = ["GenerateCalls", "lengthen", "lengths_of"]


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
        self.ready = 0

    @property
    def cache(self) -> Any:
        """The cache as it is now; None without one."""
        kept = map(self._kwargs.get, _CACHES)
        return next((cache for cache in kept if cache is not None), None)

    def prefill(self) -> None:
        """Runs all up to the first token's logits; possible once."""
        inputs = self._stopped_generate()
        self._returned(self._owner(**inputs, return_dict=True))
        self._prefilled = lengths_of(self.cache)

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
        return functools.partial(self._step, inputs)

    def _step(self, inputs: Keywords) -> None:
        # transformers 5 runs other kernels for experts than in a prefill pass.
        optimized = getattr(self._owner, "_optimize_model_for_decode", contextlib.nullcontext)
        with optimized():
            output = self._owner(**inputs, return_dict=True)
        self.ready += 1
        self._returned(output)

    def _stopped_generate(self) -> Keywords:
        """Runs `generate` up to its first pass, whose arguments are returned."""
        given, self._inputs = self._inputs, {}
        generate: Any = self._model.generate
        start = given.get("decoder_input_ids")
        if start is not None:
            # Some models' own accepts no prompt for the decoder and makes one of a fixed length.
            # The first token starts the decoder already: another one would be put before it.
            generate = functools.partial(
                transformers.GenerationMixin.generate,
                self._model,
                decoder_start_token_id=int(start[0, 0]),
            )
        with contextlib.ExitStack() as stack:
            # A model within another one may be what generates, such as BLIP-2's language model.
            for module in self._model.modules():
                if hasattr(module, _PREPARE):
                    stack.enter_context(replaced(module, _PREPARE, _stop_of(module)))
            try:
                generate(**given, max_new_tokens=self._new_tokens, do_sample=False, num_beams=1)
            except _FirstPass as stopped:
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
    changing like the last two, also in a cache that a model nests itself.
    """
    if type(after) in (tuple, list) and type(before) is type(after):
        return type(after)(map(functools.partial(_continued, times=times), before, after))
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


class _FirstPass(BaseException):
    """Ends `generate` before a pass of a module over some ids with other keywords, its `args`."""


def _stop_of(owner: torch.nn.Module) -> Callable[..., None]:
    @functools.wraps(getattr(owner, _PREPARE))  # `generate` looks at its signature
    def stop(input_ids: torch.Tensor, **kwargs: Any) -> None:
        raise _FirstPass(owner, input_ids, kwargs)

    return stop


# --- the cache -------------------------------------------------------------------------------


def lengths_of(cache: Any) -> dict[int, int]:
    """Tokens by layer of a cache of transformers; empty for any other."""
    own = getattr(cache, "self_attention_cache", cache)
    return {layer: own.get_seq_length(layer) for layer, *_ in _growing_layers(own)}


def lengthen(cache: Any, tokens: int, before: Mapping[int, int]) -> None:
    """Extends a cache of transformers, after a decode step, by tokens that are all zeros.

    A sliding window drops the oldest. One that is allocated as a whole, or holds a state, stays as
    it is. So do layers that have not grown from their lengths `before`, like the keys of an image.
    """
    own = getattr(cache, "self_attention_cache", cache)
    for layer, keys, values in list(_growing_layers(own)):
        if own.get_seq_length(layer) > before.get(layer, 0):
            own.update(_zeros(keys, -2, tokens), _zeros(values, -2, tokens), layer)
    for layer in getattr(own, "layers", ()):
        indexer = getattr(layer, "indexer_keys", None)
        if indexer is not None:
            layer.update_indexer(_zeros(indexer, 1, tokens))


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


def _zeros(held: torch.Tensor, dim: int, tokens: int) -> torch.Tensor:
    """Zeros like a tensor, of some tokens along a dimension."""
    shape = list(held.shape)
    shape[dim] = tokens
    return held.new_zeros(shape)
