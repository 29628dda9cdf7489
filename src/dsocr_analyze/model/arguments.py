"""Arguments of a model's forward, described from their names and the config.

They are what a processor would return for a picture or recording of the model's usual size, and the
ids of a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import transformers

from dsocr_analyze.architectures.any_model.description import (
    MODEL_DTYPE,
    TOKENS,
    Input,
    PlacedValue,
    Size,
    TensorInput,
)

__all__ = [
    "DESCRIBED",
    "PICTURE_OR_SOUND",
    "TOKENS_AROUND",
    "alternatives",
    "first_id",
    "ids_of",
    "media_token",
    "tensor",
    "text_id",
]


_PICTURE_PIXELS: Final = 448
"""Pixels a side where the config sets none, rounded down to whole patches."""

_AUDIO_FRAMES: Final = 1000
_AUDIO_SAMPLES: Final = 160_000
"""Ten seconds, where the config sets no length."""

_OF_PICTURES: Final = ("vision_config", "vq_config", "encoder", "backbone_config")
_OF_SOUND: Final = ("audio_config", "audio_encoder_config", "encoder_config", "encoder")

DESCRIBED: Final = frozenset(
    {"input_ids", "decoder_input_ids", "pixel_values", "input_features", "input_values",
     "image_grid_thw", "image_sizes", "pixel_attention_mask", "image_attention_mask",
     "spatial_shapes", "aspect_ratio_ids", "aspect_ratio_mask", "cross_attention_mask",
     "feature_attention_mask", "input_features_mask", "qformer_input_ids", "bbox",
     "mm_token_type_ids", "image_embeds_position_mask", "flattened_patches", "attention_mask"}
)  # fmt: skip
"""Arguments that have a rule here or are made of the prompt."""

PICTURE_OR_SOUND: Final = re.compile(
    "pixel_values|input_features|input_values|patches|visual_embeds|visual_feats|audio_values"
)
"""In the names of arguments that hold a picture, a film or a recording."""


class _Config:
    """A config and configs of its parts, with the first key that is set."""

    def __init__(self, *parts: transformers.PretrainedConfig | None) -> None:
        self._parts = [part for part in parts if part is not None]

    def part(self, names: tuple[str, ...]) -> _Config:
        """The first of these parts, then the config itself."""
        top = self._parts[-1]
        found = [getattr(top, name, None) for name in names]
        return _Config(*[each for each in found if hasattr(each, "to_dict")][:1], top)

    def first(self, *keys: str) -> Any:
        """The first value that is set."""
        found = (getattr(part, key, None) for part in self._parts for key in keys)
        return next((value for value in found if value is not None), None)

    def number(self, *keys: str, default: int) -> int:
        """The same, if it is a whole number or a list of them, whose first it is."""
        value = self.first(*keys)
        value = value[0] if isinstance(value, list | tuple) and value else value
        return value if isinstance(value, int) and value > 0 else default

    def sides(self, *keys: str, default: int) -> tuple[int, int]:
        """Height and width."""
        value = self.first(*keys)
        if isinstance(value, dict):
            value = [value.get("height"), value.get("width")]
        if isinstance(value, list | tuple) and len(value) == 2 and all(value):
            return int(value[0]), int(value[1])
        one = self.number(*keys, default=default)
        return one, one


def tensor(
    *shape: Size,
    fill: float = 1,
    dtype: str = MODEL_DTYPE,
    placed: tuple[PlacedValue, ...] = (),
    repeated: bool = False,
) -> TensorInput:
    """A filled tensor."""
    return TensorInput(shape, None, dtype, fill, placed, repeated)


def _values(*rows: list[int]) -> TensorInput:
    """Whole numbers: a row for the picture of each prompt."""
    return TensorInput(None, rows, "int64", 1, (), True)


def alternatives(
    names: frozenset[str], config: transformers.PretrainedConfig, submodules: frozenset[str]
) -> list[dict[str, Input]]:
    """Inputs besides the prompt, likeliest first.

    `names` are the arguments of the model's forward, `submodules` those of its modules' forwards.
    """
    top = _Config(config)
    pictures = top.part(_OF_PICTURES)
    if "pixel_values" in names:
        found = list(_pictures(names, pictures, submodules))
    elif "input_features" in names or "input_values" in names:
        found = list(_sounds(names, top.part(_OF_SOUND)))
    elif "flattened_patches" in names:
        # A row per patch, which begins with the numbers of its row and column.
        width = pictures.number("patch_embed_hidden_size", default=768)
        patches = pictures.number("seq_len", default=2048)
        found = [{"flattened_patches": tensor("batch", patches, 2 + width, fill=1)}]
    else:
        found = [{}]
    others: dict[str, Input] = {
        "qformer_input_ids": tensor("batch", 32, fill=1, dtype="int64"),
        "bbox": tensor("batch", TOKENS, 4, fill=0, dtype="int64"),
    }
    given = {name: rule for name, rule in others.items() if name in names}
    return [{**each, **given} for each in found]


def _pictures(
    names: frozenset[str], config: _Config, submodules: frozenset[str]
) -> Iterator[dict[str, Input]]:
    channels = config.number("num_channels", "in_channels", "in_chans", default=3)
    height, width = config.sides("image_size", "img_size", "input_size", "resolution", default=0)
    patch = config.number("patch_size", "spatial_patch_size", default=14)
    if not height:
        height = width = _PICTURE_PIXELS // (2 * patch) * 2 * patch or 2 * patch
    if "image_grid_thw" in names:
        merged = config.number("spatial_merge_size", default=2)
        rows, columns = (max(side // (patch * merged), 1) * merged for side in (height, width))
        frames = config.number("temporal_patch_size", default=2)
        whole = channels * patch**2
        for numbers in ([frames * whole], [whole], [channels, patch, patch]):
            pixels = tensor(rows * columns, *numbers, fill=0.5, repeated=True)
            yield {"pixel_values": pixels, "image_grid_thw": _values([1, rows, columns])}
        return
    picture = (channels, height, width)
    if "spatial_shapes" in names:
        rows, columns = height // patch, width // patch
        yield {
            "pixel_values": tensor("batch", rows * columns, channels * patch**2, fill=0.5),
            "pixel_attention_mask": tensor("batch", rows * columns, dtype="int64"),
            "spatial_shapes": _values([rows, columns]),
        }
    if "aspect_ratio_ids" in names:
        yield _tiles(picture, config)
    points = config.first("image_grid_pinpoints")
    if "image_sizes" in names and isinstance(points, list | tuple) and points:
        most = max(points, key=lambda point: point[0] * point[1])
        views = 1 + (most[0] // height) * (most[1] // width)
        yield {
            "pixel_values": tensor("batch", views, *picture, fill=0.5),
            "image_sizes": _values([*most]),
        }
    masks: dict[str, Input] = {}
    if "pixel_attention_mask" in names:
        masks["pixel_attention_mask"] = tensor("batch", 1, height, width, dtype="int64")
    if "image_attention_mask" in names:
        masks["image_attention_mask"] = tensor("batch", TOKENS, 1, dtype="int64")
    if masks:
        yield {"pixel_values": tensor("batch", 1, *picture, fill=0.5), **masks}
    ways: list[dict[str, Input]] = [{"pixel_values": tensor("batch", *picture, fill=0.5)}]
    if "image_sizes" in names:
        ways.append({**ways[0], "image_sizes": _values([height, width])})
    yield from reversed(ways) if "image_sizes" in submodules else ways
    frames = config.number("num_frames", default=1)
    yield {"pixel_values": tensor("batch", frames, *picture, fill=0.5)}


def _tiles(picture: tuple[int, ...], config: _Config) -> dict[str, Input]:
    """A picture of as many tiles as the model takes."""
    tiles = config.number("max_num_tiles", default=4)
    ratios = config.first("supported_aspect_ratios") or [[1, 1]]
    wide, high = max(ratios, key=lambda ratio: ratio[0] * ratio[1])
    here = PlacedValue(1, 0, wide * high)
    return {
        "pixel_values": tensor("batch", 1, tiles, *picture, fill=0.5),
        "aspect_ratio_ids": tensor("batch", 1, fill=1 + ratios.index([wide, high]), dtype="int64"),
        "aspect_ratio_mask": tensor("batch", 1, tiles, fill=0, dtype="int64", placed=(here,)),
        "cross_attention_mask": tensor("batch", TOKENS, 1, tiles, dtype="int64"),
    }


def _sounds(names: frozenset[str], config: _Config) -> Iterator[dict[str, Input]]:
    bands = config.number(
        "num_mel_bins", "feature_size", "input_feat_per_channel", "feature_projection_input_dim",
        "input_feat_size", "input_dim", default=80,
    )  # fmt: skip
    if "input_values" in names:
        frames = config.number("max_length", default=_AUDIO_FRAMES)
        spectrogram = tensor("batch", frames, bands, fill=0.5)
        samples = tensor("batch", _AUDIO_SAMPLES, fill=0.5)
        ways = [spectrogram, samples] if config.first("num_mel_bins") else [samples, spectrogram]
        ways.append(tensor("batch", 1, _AUDIO_SAMPLES, fill=0.5))
        for each in ways:
            yield {"input_values": each}
        return
    positions = config.number("max_source_positions", default=0)
    for shape, frames in (
        ((bands, 2 * positions), 2 * positions),
        ((_AUDIO_FRAMES, bands), _AUDIO_FRAMES),
        ((bands, _AUDIO_FRAMES), _AUDIO_FRAMES),
    ):
        if frames:
            masks: dict[str, Input] = {
                name: tensor("batch", frames, dtype="int64")
                for name in ("feature_attention_mask", "input_features_mask")
                if name in names
            }
            yield {"input_features": tensor("batch", *shape, fill=0.5), **masks}


# --- prompts ---------------------------------------------------------------------------------


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
    config: transformers.PretrainedConfig, token: int | None, count: int, *, has_picture: bool
) -> tuple[tuple[PlacedValue, ...], int]:
    """The ids of a prompt that are not text, and its length.

    The `token`, if any, stands `count` times for parts of a picture or recording.
    """
    text = _text_config(config)
    if token is None:
        longest = text.number(*_LENGTHS, default=2 * _TEXT)
        tokens = _TEXT if longest >= 2 * _TEXT else max(longest // 2, 1)
        end = text.number("eos_token_id", default=0)
        # CLIP's text model looks for the end of the text.
        return ((PlacedValue(end, tokens - 1, 1),) if has_picture and end else ()), tokens
    runs, start, whole = list[PlacedValue](), _BEFORE, _Config(config)
    first, last = whole.first(*_BEGINS), whole.first(*_ENDS)
    known = range(text.number("vocab_size", default=2**31))  # a default may lie beyond them
    if first in known:
        runs.append(PlacedValue(first, start, 1))
        start += 1
    runs.append(PlacedValue(token, start, count))
    if last in known:
        runs.append(PlacedValue(last, start + count, 1))
    return tuple(runs), count + TOKENS_AROUND


def media_token(config: transformers.PretrainedConfig, inputs: Iterable[str]) -> int | None:
    """The id that stands for a part of the inputs' picture or recording, if any."""
    kinds = {"pixel_values": "image", "input_features": "audio", "input_values": "audio"}
    kind = next((kinds[name] for name in inputs if name in kinds), None)
    keys = (f"{kind}_token_id", f"{kind}_token_index", f"{kind}_soft_token_id")
    found = _Config(config).first(*keys)
    return found if isinstance(found, int) else None


def first_id(module: transformers.PreTrainedModel) -> int:
    """The id with which a decoder starts."""
    own, config = getattr(module, "generation_config", None), _text_config(module.config)
    for key in ("decoder_start_token_id", "bos_token_id"):
        found = getattr(own, key, None)
        found = config.first(key) if found is None else found
        if isinstance(found, int) and found >= 0:
            return found
    return 0


def text_id(config: transformers.PretrainedConfig) -> int:
    """An id that stands for text: the first with no other meaning in the config."""
    values, taken = config.to_dict(), set[int]()
    for part in (values, *(each for each in values.values() if isinstance(each, dict))):
        for key, value in part.items():
            if str(key).endswith(("token_id", "token_index")):
                taken.update(value if isinstance(value, list) else [value])
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _text_config(config: transformers.PretrainedConfig) -> _Config:
    part = getattr(config, "text_config", None) or getattr(config, "decoder", None)
    return _Config(part if hasattr(part, "to_dict") else None, config)
