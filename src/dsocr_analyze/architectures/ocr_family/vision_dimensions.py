"""Dimensions of the two encoders, read from `vision_config` of a `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from dsocr_analyze.architectures.config_keys import LARGEST_WIDTH, MOST_LAYERS, ConfigKeys

__all__ = ["ClipDimensions", "SamDimensions"]

_SAM_PATCH: Final = 16
_LARGEST_IMAGE: Final = 16_384


@dataclass(frozen=True, slots=True)
class SamDimensions:
    """SAM encoder (`ImageEncoderViT`), `vision_config.width.sam_vit_b` and `vision_config`.

    Attributes:
        width: Features per patch token.
        layers: Blocks.
        heads: Attention heads per block.
        global_attn_indexes: Blocks that attend over the whole grid; the others in windows.
        downsample_channels: Output channels of the two stride-2 convolutions after the neck.
        image_size: Pixels per side for which the learned position table is made.
        patch: Pixels per side of one patch (fixed in `_build_sam`).
        window: Tokens per side of an attention window (fixed in `_build_sam`).
        mlp_ratio: MLP width over `width` (fixed in `_build_sam`; the `mlp_ratio` of
            `vision_config` belongs to another model and is not read).
        neck: Channels of the neck (fixed in `_build_sam`).
    """

    width: int
    layers: int
    heads: int
    global_attn_indexes: tuple[int, ...]
    downsample_channels: tuple[int, int]
    image_size: int
    patch: int = _SAM_PATCH
    window: int = 14
    mlp_ratio: int = 4
    neck: int = 256

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SamDimensions:
        """Reads the encoder's keys from a whole `config.json`.

        Raises:
            ConfigError: A key is absent, or no encoder can be built from its value.
        """
        vision = ConfigKeys(config).section("vision_config")
        keys = vision.section("width").section("sam_vit_b")
        width = keys.integer("width", most=LARGEST_WIDTH)
        heads = keys.integer("heads")
        keys.check_divides("heads", heads, "width", width)
        layers = keys.integer("layers", most=MOST_LAYERS)
        global_blocks = keys.integers("global_attn_indexes", least=0, most=layers - 1)
        if any(left >= right for left, right in pairwise(sorted(global_blocks))):
            raise keys.refusal("global_attn_indexes", "each block once")
        channels = keys.integers("downsample_channels", most=LARGEST_WIDTH)
        if len(channels) != 2:
            raise keys.refusal("downsample_channels", "two whole numbers, e.g. [512, 1024]")
        image_size = vision.integer("image_size", least=_SAM_PATCH, most=_LARGEST_IMAGE)
        if image_size % _SAM_PATCH:
            raise vision.refusal("image_size", f"a multiple of {_SAM_PATCH}, the patch size")
        return cls(
            width=width,
            layers=layers,
            heads=heads,
            global_attn_indexes=tuple(sorted(global_blocks)),
            downsample_channels=(channels[0], channels[1]),
            image_size=image_size,
        )

    @property
    def head_dim(self) -> int:
        """Features per attention head."""
        return self.width // self.heads

    @property
    def mlp(self) -> int:
        """Hidden width of a block's MLP."""
        return self.mlp_ratio * self.width

    @property
    def position_grid(self) -> int:
        """Entries per side of the learned position table."""
        return self.image_size // self.patch

    @property
    def out_channels(self) -> int:
        """Channels of the encoder's output."""
        return self.downsample_channels[-1]

    def is_global(self, layer_index: int) -> bool:
        """Whether block `layer_index` attends over the whole grid."""
        return layer_index in self.global_attn_indexes


@dataclass(frozen=True, slots=True)
class ClipDimensions:
    """CLIP encoder (`VitModel`), `vision_config.width["clip-l-14-224"]`.

    Attributes:
        width: Features per token.
        layers: Blocks.
        heads: Attention heads per block.
        image_size: Pixels per side for which the learned position table is made.
        patch_size: Pixels per side of a patch of its own convolution, which never runs.
    """

    width: int
    layers: int
    heads: int
    image_size: int
    patch_size: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ClipDimensions:
        """Reads the encoder's keys from a whole `config.json`.

        Raises:
            ConfigError: A key is absent, or no encoder can be built from its value.
        """
        vision = ConfigKeys(config).section("vision_config")
        keys = vision.section("width").section("clip-l-14-224")
        width = keys.integer("width", most=LARGEST_WIDTH)
        heads = keys.integer("heads")
        keys.check_divides("heads", heads, "width", width)
        image_size = keys.integer("image_size", most=_LARGEST_IMAGE)
        patch_size = keys.integer("patch_size")
        if patch_size > image_size:
            raise keys.refusal("patch_size", f"at most {image_size}, the 'image_size' beside it")
        return cls(
            width=width,
            layers=keys.integer("layers", most=MOST_LAYERS),
            heads=heads,
            image_size=image_size,
            patch_size=patch_size,
        )

    @property
    def head_dim(self) -> int:
        """Features per attention head."""
        return self.width // self.heads

    @property
    def mlp(self) -> int:
        """Hidden width of a block's MLP: four times `width` (`vit_model_cfg`)."""
        return 4 * self.width

    @property
    def positions(self) -> int:
        """Rows of the learned position table, including the class token's."""
        return (self.image_size // self.patch_size) ** 2 + 1
