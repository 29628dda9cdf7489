"""The ids of a drafted prompt: text, and tokens that stand for a picture or a recording."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures.any_model.description import Run
from dsocr_analyze.drafting.arguments import Config

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

__all__ = ["TOKENS_AROUND", "first_id", "ids_of", "media_token", "text_id"]

_TEXT: Final = 512
"""Tokens of a prompt of text alone, where the model was trained for twice as many."""

TOKENS_AROUND: Final = 32
"""Tokens of text around a picture."""

_BEFORE: Final = 4
"""How many of these come before it."""

_LENGTHS: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
_BEGINS: Final = (
    "vision_start_token_id", "image_start_token_id", "boi_token_id", "boi_token_index",
)  # fmt: skip
_ENDS: Final = (
    "vision_end_token_id", "image_end_token_id", "eoi_token_id", "eoi_token_index",
)  # fmt: skip


def ids_of(
    config: PretrainedConfig, token: int | None, count: int, *, has_picture: bool
) -> tuple[tuple[Run, ...], int]:
    """The ids of a prompt that are not text, and its length.

    Args:
        config: The model's config.
        token: Id that stands for a part of a picture or recording; None without one.
        count: How many of these there are.
        has_picture: Whether the model also takes a picture.
    """
    text = _text_config(config)
    if token is None:
        longest = text.number(*_LENGTHS, default=2 * _TEXT)
        tokens = _TEXT if longest >= 2 * _TEXT else max(longest // 2, 1)
        end = text.number("eos_token_id", default=0)
        # CLIP's text model looks for the end of the text.
        return ((Run(end, tokens - 1, 1),) if has_picture and end else ()), tokens
    runs, start, whole = list[Run](), _BEFORE, Config(config)
    first, last = whole.first(*_BEGINS), whole.first(*_ENDS)
    known = range(text.number("vocab_size", default=2**31))  # a default may lie beyond them
    if first in known:
        runs.append(Run(first, start, 1))
        start += 1
    runs.append(Run(token, start, count))
    if last in known:
        runs.append(Run(last, start + count, 1))
    return tuple(runs), count + TOKENS_AROUND


def media_token(config: PretrainedConfig, inputs: Iterable[str]) -> int | None:
    """The id that stands for a part of the picture or recording among the inputs, if any."""
    kinds = {"pixel_values": "image", "input_features": "audio", "input_values": "audio"}
    kind = next((kinds[name] for name in inputs if name in kinds), None)
    found = Config(config).first(f"{kind}_token_id", f"{kind}_token_index", f"{kind}_soft_token_id")
    return found if isinstance(found, int) else None


def first_id(module: PreTrainedModel) -> int:
    """The id with which a decoder starts."""
    own, config = getattr(module, "generation_config", None), _text_config(module.config)
    for key in ("decoder_start_token_id", "bos_token_id"):
        found = getattr(own, key, None)
        found = config.first(key) if found is None else found
        if isinstance(found, int) and found >= 0:
            return found
    return 0


def text_id(config: PretrainedConfig) -> int:
    """An id that stands for text: the first with no other meaning in the config."""
    values, taken = config.to_dict(), set[int]()
    for part in (values, *(each for each in values.values() if isinstance(each, dict))):
        for key, value in part.items():
            if str(key).endswith(("token_id", "token_index")):
                taken.update(value if isinstance(value, list) else [value])
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _text_config(config: PretrainedConfig) -> Config:
    part = getattr(config, "text_config", None) or getattr(config, "decoder", None)
    return Config(part if hasattr(part, "to_dict") else None, config)
