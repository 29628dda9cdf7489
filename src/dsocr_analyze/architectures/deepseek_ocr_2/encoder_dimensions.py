"""Dimensions of a DeepSeek-OCR-2 model, read from its `config.json`.

The published file names only the encoder's width. Other values that its code sets may be named too,
which makes small models possible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from dsocr_analyze.architectures.config_keys import LARGEST_WIDTH, MOST_LAYERS, Config, ConfigKeys
from dsocr_analyze.architectures.ocr_family.dimensions import (
    DecoderDimensions,
    ProjectorDimensions,
    RelativeDimensions,
    SamDimensions,
    check_projector,
)
from dsocr_analyze.architectures.ocr_family.views import tokens_per_side

__all__ = ["VIEW_SIZES", "EncoderDimensions", "OCR2Dimensions"]

VIEW_SIZES: Final = (768, 1024)
"""Pixels per side of the views for which the published code has queries."""

_PUBLISHED_CHANNELS: Final = 1024
"""Last of the published `downsample_channels`, which its code replaces by the encoder's width."""


@dataclass(frozen=True, slots=True)
class EncoderDimensions:
    """Qwen2 as an encoder (`Qwen2Decoder2Encoder`), `vision_config.width["qwen2-0-5b"]`.

    Attributes:
        width: Features per token.
        layers: Decoder layers.
        heads: Attention heads.
        kv_heads: Key and value heads.
        intermediate_size: Hidden width of a layer's MLP.
        view_sizes: Pixels per side of the views that have a table of queries.
    """

    width: int
    layers: int
    heads: int
    kv_heads: int
    intermediate_size: int
    view_sizes: tuple[int, ...]

    @classmethod
    def from_config(cls, config: Config) -> EncoderDimensions:
        """Reads the encoder's keys from a whole `config.json`.

        Raises:
            ConfigError: A key is absent, or no encoder can be built from its value.
        """
        keys = ConfigKeys(config).section("vision_config").section("width").section("qwen2-0-5b")
        width = keys.integer("dim", most=LARGEST_WIDTH)
        heads = keys.integer("heads", 14)
        if width % (2 * heads):
            raise keys.refusal("heads", f"a number of heads of even size for a 'dim' of {width}")
        kv_heads = keys.integer("key_value_heads", 2)
        if heads % kv_heads:
            raise keys.refusal("key_value_heads", f"a divisor of {heads}, the number of heads")
        return cls(
            width=width,
            layers=keys.integer("layers", 24, most=MOST_LAYERS),
            heads=heads,
            kv_heads=kv_heads,
            intermediate_size=keys.integer("intermediate_size", 4864, most=LARGEST_WIDTH),
            view_sizes=_view_sizes(keys),
        )

    @property
    def head_dim(self) -> int:
        """Features per attention head."""
        return self.width // self.heads

    @property
    def queries(self) -> tuple[int, ...]:
        """Rows of each table of queries."""
        return tuple(tokens_per_side(size) ** 2 for size in self.view_sizes)


def _view_sizes(keys: ConfigKeys) -> tuple[int, ...]:
    sizes = keys.integers("view_sizes", VIEW_SIZES)
    tokens = [tokens_per_side(size) for size in sizes]
    if len(set(tokens)) < len(tokens):
        raise keys.refusal("view_sizes", "sizes of views that become different numbers of tokens")
    return tuple(sizes)


@dataclass(frozen=True, slots=True)
class OCR2Dimensions(RelativeDimensions):
    """Every dimension of one model; SAM's last convolution has the Qwen2 encoder's width.

    Attributes:
        encoder: Qwen2 as an encoder.
    """

    encoder: EncoderDimensions

    @classmethod
    def from_config(cls, config: Config) -> OCR2Dimensions:
        """Reads a whole `config.json` that is already parsed.

        Raises:
            ConfigError: A key is absent or has a wrong value, or two keys conflict.
        """
        encoder = EncoderDimensions.from_config(config)
        sam = SamDimensions.from_config(config)
        middle, last = sam.downsample_channels
        if last not in (_PUBLISHED_CHANNELS, encoder.width):
            keys = ConfigKeys(config).section("vision_config").section("width")
            raise keys.section("sam_vit_b").refusal(
                "downsample_channels", f"[{middle}, {encoder.width}], the encoder's width at last"
            )
        dimensions = cls(
            sam=replace(sam, downsample_channels=(middle, encoder.width)),
            encoder=encoder,
            projector=ProjectorDimensions.from_config(config),
            decoder=DecoderDimensions.from_config(config),
        )
        check_projector(
            dimensions.projector, encoder.width, "the encoder's width", dimensions.decoder
        )
        return dimensions
