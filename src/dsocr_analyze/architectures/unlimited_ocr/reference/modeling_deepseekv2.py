"""Unlimited-OCR's own part of the decoder: attention over a window of generated tokens.

The cache holds the prompt and, in a ring buffer, the last W generated tokens. In shapes: B batch, T
new tokens, K keys, H heads, D head size, d width.
"""

from typing import Any, ClassVar, Final

from torch import Tensor

from dsocr_analyze.architectures.deepseek_ocr.reference import modeling_deepseekv2 as shared
from dsocr_analyze.architectures.deepseek_ocr.reference.configuration_deepseek_v2 import (
    DeepseekV2Config,
)

__all__ = ["ATTENTION_CLASSES", "DeepseekV2DecoderLayer", "SlidingWindowLlamaAttention"]


class _Ring:
    """The keys and values that one layer keeps: the prompt's, then the last W generated ones.

    State on the cache, as published: by layer, the prompt's length and the slot to overwrite next.
    """

    def __init__(self, cache: Any, layer_idx: int, window: int) -> None:
        self._cache, self._layer, self._window = cache, layer_idx, window
        self._prompts: dict[int, int] = vars(cache).setdefault("_prefill_length", {})
        self._slots: dict[int, int] = vars(cache).setdefault("_ring_pos", {})

    def note_prompt(self) -> None:
        """Takes what is held for the prompt, unless its length is known."""
        if self.held:
            self._prompts.setdefault(self._layer, self.held)

    @property
    def held(self) -> int:
        """Number of tokens in the layer's cache."""
        return int(self._cache.get_seq_length(self._layer))

    @property
    def is_full(self) -> bool:
        """Whether the next token overwrites another one."""
        prompt = self._prompts.get(self._layer)
        return prompt is not None and self.held >= prompt + self._window

    def overwrite(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Overwrites the oldest with `[B, heads, T, D]`; returns all of the layer, uncopied."""
        keys, values = _tensors_of(self._cache, self._layer)
        prompt, slot = self._prompts[self._layer], self._slots.get(self._layer, 0)
        for token in range(key.shape[-2]):
            place = prompt + slot
            keys[:, :, place : place + 1] = key[:, :, token : token + 1]
            values[:, :, place : place + 1] = value[:, :, token : token + 1]
            slot = (slot + 1) % self._window
        self._slots[self._layer] = slot
        return keys, values


def _tensors_of(cache: Any, layer_idx: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a layer of the cache, `[B, heads, K, D]` each."""
    layers = getattr(cache, "layers", None)  # attribute of transformers' caches since 4.54
    if layers is not None:
        return layers[layer_idx].keys, layers[layer_idx].values
    keys, values = cache[layer_idx]
    return keys, values


class SlidingWindowLlamaAttention(shared.LlamaAttention):
    """`LlamaAttention` whose queries see the prompt and the last W generated tokens.

    W is `config._ring_window`, read on every call. Without it or a cache, this is `LlamaAttention`.
    Decode step k attends to S + min(k, W) keys, its own among them: after step W it overwrites the
    oldest generated slot. Keys keep the rotation of their position.
    """

    def __init__(self, config: DeepseekV2Config, layer_idx: int | None = None) -> None:
        super().__init__(config, layer_idx)
        self.config = config

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_value: shared.Cache | None = None,
        output_attentions: bool = False,
        use_cache: bool = False,
        cache_position: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, shared.Cache | None]:
        """As `LlamaAttention`, without weights; in a full ring, queries see all keys."""
        ring = self._ring(past_key_value)
        if ring is not None and hidden_states.shape[1] == 1:
            ring.note_prompt()  # the cache's length before its first decode step
        if ring is not None and ring.is_full:
            query, key, value, *_tables = self._heads(
                hidden_states, position_ids, None, position_embeddings
            )
            keys, values = ring.overwrite(key, value)
            attention_mask = None
        else:
            query, keys, values, *_tables = self._heads(
                hidden_states, position_ids, past_key_value, position_embeddings
            )
            if ring is not None:
                ring.note_prompt()
        every_key = shared.repeat_kv(keys, self.num_key_value_groups)
        every_value = shared.repeat_kv(values, self.num_key_value_groups)
        heads, _weights = self._attended(query, every_key, every_value, attention_mask)
        return self.o_proj(heads.reshape(*hidden_states.shape[:2], -1)), None, past_key_value

    def _ring(self, cache: shared.Cache | None) -> _Ring | None:
        """The layer's ring, if there are a window and a cache."""
        window: int | None = getattr(self.config, "_ring_window", None)
        if window is None or cache is None:
            return None
        return _Ring(cache, shared.place_in_cache(self.layer_idx), window)


ATTENTION_CLASSES: Final[shared.AttentionClasses] = {
    "mha_eager": SlidingWindowLlamaAttention,
    "mla_eager": shared.DeepseekV2Attention,
    "mla_flash_attention_2": shared.DeepseekV2FlashAttention2,
}
"""Plain attention is eager only: the published code has no other form of the window."""


class DeepseekV2DecoderLayer(shared.DeepseekV2DecoderLayer):
    """DeepSeek-OCR's layer with the attention of this module; ValueError if it has none."""

    attention_classes: ClassVar[shared.AttentionClasses] = ATTENTION_CLASSES
