"""What the names in a model of transformers and its config tell: its stages, inputs and prompt.

Towers and projectors are recognised by path and class, inputs by the names of forward's arguments:
what a processor would return for a picture or recording of the model's usual size.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch
import transformers

from dsocr_analyze.architectures.architecture import TOKENS, Input, PlacedValue, Size, TensorInput
from dsocr_analyze.figures import StageScope
from dsocr_analyze.kernels import grouped

# --- stages ----------------------------------------------------------------------------------


_KINDS: Final[Mapping[str, re.Pattern[str]]] = {
    "projector": re.compile(
        r"project|connector|aligner|resampler|perceiver|qformer|abstractor|adapter|merger|bridge"
        r"|embed_vision|embed_audio|query_tokens|image_newline|enc_to_dec|image_to_text"
    ),
    "audio": re.compile(r"audio|speech|sound|wav2vec|hubert|conformer|codec"),
    "vision": re.compile(r"vision|visual|image|pixel|vit|siglip|vq_?(model|vae)"),
}
"""In a module's name or class, the most specific first."""

_ORDER: Final = ("vision", "audio", "encoder", "projector")


def stages_of(
    module: transformers.PreTrainedModel, *, has_towers: bool, decodes: bool
) -> tuple[StageScope, ...]:
    """The stages of a model, in the order in which they run.

    It `has_towers` if it takes pictures or sound besides text, or turns them into text.
    """
    head = _path_of(module, module.get_output_embeddings()) if decodes else None
    beside = beside_the_text(module, has_towers=has_towers)
    owned = grouped((kind, path) for path, kind, _ in beside if path != head)
    stages = [StageScope(kind, tuple(owned[kind]), "vision") for kind in _ORDER if kind in owned]
    taken = [head, *(path for paths in owned.values() for path in paths)]
    # The outermost modules and parameters with weights.
    outermost = dict.fromkeys(name.split(".")[0] for name, _ in module.named_parameters())
    rest = tuple(path for path in outermost if path not in taken)
    stages.append(StageScope("prefill" if decodes else "model", rest, "prefill"))
    if decodes:
        stages.append(StageScope("decode", () if head is None else (head,), "decode"))
    return tuple(stages)


def text_embedding(module: transformers.PreTrainedModel) -> torch.nn.Embedding | None:
    """The embedding of the text model's or decoder's tokens, if any."""
    found = None
    with contextlib.suppress(NotImplementedError, AttributeError):
        decoder = module.get_decoder() if module.config.is_encoder_decoder else module
        found = decoder.get_input_embeddings()
    return found if getattr(found, "weight", torch.empty(0)).dim() == 2 else None


def routed_expert_of(module: torch.nn.Module) -> str | None:
    """A pattern of the paths of experts that are modules, if any."""
    found = {
        re.sub(r"\.\d+(?=\.|$)", ".*", path) + ".*"
        for path, each in module.named_modules()
        if path.rpartition(".")[2].endswith("experts")
        and isinstance(each, torch.nn.ModuleList)
        and len(each) > 1
    }
    return min(found) if len(found) == 1 else None


def _path_of(module: torch.nn.Module, wanted: torch.nn.Module | None) -> str | None:
    return next((path for path, each in module.named_modules() if each is wanted), None)


def beside_the_text(
    module: transformers.PreTrainedModel, *, has_towers: bool
) -> Iterator[tuple[str, str, torch.nn.Module | torch.Tensor]]:
    """Path, kind and self of all that is not the text model, from the top down to it."""
    has_encoder = module.config.is_encoder_decoder and hasattr(module, "get_encoder")
    encoder = _path_of(module, module.get_encoder()) if has_encoder else None
    if encoder is not None:
        yield encoder, "encoder", module.get_submodule(encoder)
    if not has_towers:
        return
    embedding = _path_of(module, text_embedding(module)) or ""
    way = embedding.split(".")[:-1]  # from the top to the module that holds the embedding
    inside = [".".join([*way[:depth], ""]) for depth in range(len(way) + 1)]
    for prefix in inside:
        here = module.get_submodule(prefix.rstrip("."))
        for name, part in {**here._parameters, **here._modules}.items():
            path = prefix + name
            if part is None or f"{path}." in inside or name.startswith("text") or path == encoder:
                continue
            # The layers of a text model have classes named after the whole model.
            class_name = "" if prefix == inside[-1] and way else type(part).__name__
            words = f"{name} {class_name}".lower()
            found = next((kind for kind, told in _KINDS.items() if told.search(words)), None)
            if found is not None:
                yield path, found, part


# --- inputs ----------------------------------------------------------------------------------


_PICTURE_PIXELS: Final = 448
"""A side where the config sets none, rounded down to whole patches."""

_AUDIO_FRAMES: Final = 1000
_AUDIO_SAMPLES: Final = 160_000
"""Ten seconds, where the config sets no length."""

_OF_TEXT: Final = ("text_config", "decoder")

_SOUND_MASKS: Final[tuple[str, ...]] = ("feature_attention_mask", "input_features_mask")
DESCRIBED: Final = frozenset(
    {*_SOUND_MASKS, "input_ids", "decoder_input_ids", "pixel_values", "input_features",
     "input_values", "image_grid_thw", "image_sizes", "pixel_attention_mask",
     "image_attention_mask", "spatial_shapes", "aspect_ratio_ids", "aspect_ratio_mask",
     "cross_attention_mask", "qformer_input_ids", "bbox", "mm_token_type_ids",
     "image_embeds_position_mask", "flattened_patches", "attention_mask"}
)  # fmt: skip
"""Arguments that have a rule or are made of the prompt."""

PICTURE_OR_SOUND: Final = re.compile(
    "pixel_values|input_features|input_values|patches|visual_embeds|visual_feats|audio_values"
)
"""In names of arguments that hold a picture, a film or a recording."""


class _Config:
    """Configs, in each of which a key is looked for in turn."""

    def __init__(self, *parts: Any) -> None:
        self._parts = [part for part in parts if part is not None]

    def part(self, names: tuple[str, ...]) -> _Config:
        """The same with the first of these parts of the config, which is last, before it."""
        *before, top = self._parts
        found = [getattr(top, name, None) for name in names]
        return _Config(*before, *[each for each in found if hasattr(each, "to_dict")][:1], top)

    def first(self, *keys: str) -> Any:
        """The first value that is set."""
        found = (getattr(part, key, None) for part in self._parts for key in keys)
        return next((value for value in found if value is not None), None)

    def number(self, *keys: str, default: int) -> int:
        """The same, if it is a whole number or a list of them."""
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


def _signal(*shape: Size) -> TensorInput:
    """Of every prompt, pixels or sound."""
    return TensorInput(("batch", *shape), fill=0.5)


def _marks(*shape: Size, fill: int = 1) -> TensorInput:
    """Of every prompt, equal whole numbers."""
    return TensorInput(("batch", *shape), dtype="int64", fill=fill)


def _numbers(*row: int) -> TensorInput:
    """Of every prompt, some whole numbers."""
    return TensorInput(None, ([*row],), "int64", is_repeated=True)


def alternatives(
    names: frozenset[str], config: transformers.PretrainedConfig, submodules: frozenset[str]
) -> Iterator[dict[str, Input]]:
    """Inputs besides the prompt, likeliest first.

    `names` are the arguments of the model's forward, `submodules` those of its modules' forwards.
    """
    top = _Config(config)
    pictures = top.part(("vision_config", "vq_config", "encoder", "backbone_config"))
    ways: Iterable[dict[str, Input]] = [{}]
    if "pixel_values" in names:
        ways = _pictures(names, pictures, submodules)
    elif "input_features" in names or "input_values" in names:
        ways = _sounds(
            names,
            top.part(("audio_config", "audio_encoder_config", "encoder_config", "encoder")),
        )
    elif "flattened_patches" in names:
        # A row per patch, which begins with the numbers of its row and column.
        width = pictures.number("patch_embed_hidden_size", default=768)
        patches = pictures.number("seq_len", default=2048)
        ways = [{"flattened_patches": TensorInput(("batch", patches, 2 + width))}]
    others = {"qformer_input_ids": _marks(32), "bbox": _marks(TOKENS, 4, fill=0)}
    for way in ways:
        yield way | {name: each for name, each in others.items() if name in names}


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
            pixels = TensorInput((rows * columns, *numbers), fill=0.5, is_repeated=True)
            yield {"pixel_values": pixels, "image_grid_thw": _numbers(1, rows, columns)}
        return
    picture = (channels, height, width)
    if "spatial_shapes" in names:
        rows, columns = height // patch, width // patch
        yield {
            "pixel_values": _signal(rows * columns, channels * patch**2),
            "pixel_attention_mask": _marks(rows * columns),
            "spatial_shapes": _numbers(rows, columns),
        }
    if "aspect_ratio_ids" in names:
        yield _tiles(picture, config)
    points = config.first("image_grid_pinpoints")
    if "image_sizes" in names and isinstance(points, list | tuple) and points:
        most = max(points, key=lambda point: point[0] * point[1])
        views = 1 + (most[0] // height) * (most[1] // width)
        yield {"pixel_values": _signal(views, *picture), "image_sizes": _numbers(*most)}
    masks = {
        "pixel_attention_mask": _marks(1, height, width),
        "image_attention_mask": _marks(TOKENS, 1),
    }
    if names & masks.keys():
        taken = {name: mask for name, mask in masks.items() if name in names}
        yield {"pixel_values": _signal(1, *picture), **taken}
    ways: list[dict[str, Input]] = [{"pixel_values": _signal(*picture)}]
    if "image_sizes" in names:
        ways.append({**ways[0], "image_sizes": _numbers(height, width)})
    yield from reversed(ways) if "image_sizes" in submodules else ways
    yield {"pixel_values": _signal(config.number("num_frames", default=1), *picture)}


def _tiles(picture: tuple[int, ...], config: _Config) -> dict[str, Input]:
    """A picture of as many tiles as the model takes."""
    tiles = config.number("max_num_tiles", default=4)
    ratios = config.first("supported_aspect_ratios") or [[1, 1]]
    wide, high = max(ratios, key=lambda ratio: ratio[0] * ratio[1])
    here = (PlacedValue(1, 0, wide * high),)
    return {
        "pixel_values": _signal(1, tiles, *picture),
        "aspect_ratio_ids": _marks(1, fill=1 + ratios.index([wide, high])),
        "aspect_ratio_mask": TensorInput(("batch", 1, tiles), None, "int64", 0, here),
        "cross_attention_mask": _marks(TOKENS, 1, tiles),
    }


def _sounds(names: frozenset[str], config: _Config) -> Iterator[dict[str, Input]]:
    bands = config.number(
        "num_mel_bins", "feature_size", "input_feat_per_channel", "feature_projection_input_dim",
        "input_feat_size", "input_dim", default=80,
    )  # fmt: skip
    if "input_values" in names:
        spectrogram = _signal(config.number("max_length", default=_AUDIO_FRAMES), bands)
        samples = _signal(_AUDIO_SAMPLES)
        ways = [spectrogram, samples] if config.first("num_mel_bins") else [samples, spectrogram]
        for sound in (*ways, _signal(1, _AUDIO_SAMPLES)):
            yield {"input_values": sound}
        return
    positions = config.number("max_source_positions", default=0)
    for shape, frames in (
        ((bands, 2 * positions), 2 * positions),
        ((_AUDIO_FRAMES, bands), _AUDIO_FRAMES),
        ((bands, _AUDIO_FRAMES), _AUDIO_FRAMES),
    ):
        if frames:
            masks = {name: _marks(frames) for name in _SOUND_MASKS if name in names}
            yield {"input_features": _signal(*shape), **masks}


# --- prompts ---------------------------------------------------------------------------------


_TEXT: Final = 512
"""Tokens of text alone, where the model was trained for twice as many."""

TOKENS_AROUND: Final = 32
"""Tokens of text around a picture."""

_BEFORE: Final = 4
"""Those before it."""


def ids_of(
    config: transformers.PretrainedConfig, token: int | None, count: int, *, has_picture: bool
) -> tuple[tuple[PlacedValue, ...], int]:
    """The ids of a prompt that are not text, among them `count` times a `token`, and its length."""
    text = _Config(config).part(_OF_TEXT)
    if token is None:
        longest = text.number(
            "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", default=2 * _TEXT
        )
        tokens = _TEXT if longest >= 2 * _TEXT else max(longest // 2, 1)
        end = text.number("eos_token_id", default=0)
        # CLIP's text model looks for the end of the text.
        return ((PlacedValue(end, tokens - 1, 1),) if has_picture and end else ()), tokens
    whole = _Config(config)
    first = whole.first(
        "vision_start_token_id", "image_start_token_id", "boi_token_id", "boi_token_index"
    )
    last = whole.first(
        "vision_end_token_id", "image_end_token_id", "eoi_token_id", "eoi_token_index"
    )
    known = range(text.number("vocab_size", default=2**31))  # a default may lie beyond them
    ahead = [PlacedValue(first, _BEFORE, 1)] if first in known else []
    start = _BEFORE + len(ahead)
    behind = [PlacedValue(last, start + count, 1)] if last in known else []
    return (*ahead, PlacedValue(token, start, count), *behind), count + TOKENS_AROUND


def media_token(config: transformers.PretrainedConfig, inputs: Iterable[str]) -> int | None:
    """The id that stands for part of the inputs' picture or recording, if any."""
    kinds = {"pixel_values": "image", "input_features": "audio", "input_values": "audio"}
    kind = next((kinds[name] for name in inputs if name in kinds), None)
    keys = (f"{kind}_token_id", f"{kind}_token_index", f"{kind}_soft_token_id")
    found = _Config(config).first(*keys)
    return found if isinstance(found, int) else None


def first_id(module: transformers.PreTrainedModel) -> int:
    """The id with which a decoder starts."""
    generation = getattr(module, "generation_config", None)
    config = _Config(generation, module.config).part(_OF_TEXT)
    found = (config.first(key) for key in ("decoder_start_token_id", "bos_token_id"))
    return next((each for each in found if isinstance(each, int) and each >= 0), 0)


def text_id(config: transformers.PretrainedConfig) -> int:
    """An id of text: the first with no other meaning in the config."""
    values, taken = config.to_dict(), set[int]()
    for part in (values, *(each for each in values.values() if isinstance(each, dict))):
        for key, value in part.items():
            if str(key).endswith(("token_id", "token_index")):
                taken.update(value if isinstance(value, list) else [value])
    return next(number for number in range(len(taken) + 1) if number not in taken)
