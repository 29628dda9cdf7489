"""Qwen3-VL: a vision transformer with a learned and a rotary position, mergers at several layers.

Source: `Qwen3VLVisionModel` and its parts of transformers 5.23; DeepStack (Meng et al. 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dsocr_analyze.architectures.config_file import Config, ConfigKeys
from dsocr_analyze.architectures.neighbours.decoder import DenseDecoder, Rotary
from dsocr_analyze.architectures.neighbours.neighbour import ImageFeatures, Neighbour
from dsocr_analyze.architectures.neighbours.vision import (
    ImageGrid,
    VisionTransformer,
    axial_tables,
    mlp,
    patch_embed,
    patch_pixels,
    patch_positions,
    resampled,
    resampling,
    rotary_attention,
    sequence_ends,
    transformer_sizes,
)
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import layer_norm

_PRODUCTS: Final = ("linear_fc1", "act_fn", "linear_fc2")


@dataclass(frozen=True, slots=True)
class Qwen3Vision(VisionTransformer):
    """Dimensions of `Qwen3VLVisionModel`.

    Attributes:
        side: Of its table of positions.
        deepstack: Layers whose features are merged for the decoder's first layers.
    """

    side: int
    deepstack: tuple[int, ...]


class Qwen3Vl(Neighbour[Qwen3Vision]):
    """Qwen3-VL, base of several OCR models."""

    has_videos = True

    def read_decoder(self, config: Config) -> DenseDecoder:
        """Reads a whole `config.json`; raises ConfigError."""
        return DenseDecoder.from_config(
            ConfigKeys(config).section("text_config"),
            is_tied=ConfigKeys(config).boolean("tie_word_embeddings", False),
            rotary=Rotary.TURNS,
            mrope_section=(24, 20, 20),
            head_norms=True,
            deepstack=len(_deepstack(config)),
        )

    def read_vision(self, config: Config, out_width: int) -> Qwen3Vision:
        """Reads a whole `config.json`; raises ConfigError."""
        keys = ConfigKeys(config).section("vision_config")
        places = keys.integer("num_position_embeddings")
        side = math.isqrt(places)
        keys.check(side * side == places, "num_position_embeddings", "a square, e.g. 2304")
        sizes = transformer_sizes(config, out_width)
        return Qwen3Vision(**sizes, side=side, deepstack=_deepstack(config))

    def encode(self, t: Tape, images: ImageGrid, c: Qwen3Vision) -> ImageFeatures:
        """`[n, 3 taps] -> [n / m^2, d_out]`, of the last and of inner layers."""
        pixels = patch_pixels(t, images, c)
        tokens, before, deepstack = t.call("model.visual", _visual, pixels, images, c)
        return ImageFeatures(tokens, tuple(deepstack), (before,))


def _deepstack(config: Config) -> tuple[int, ...]:
    """`deepstack_visual_indexes`, in order."""
    keys = ConfigKeys(config).section("vision_config")
    layers = keys.integers("deepstack_visual_indexes", least=0, most=keys.integer("depth") - 1)
    keys.check(
        list(layers) == sorted(set(layers)),
        "deepstack_visual_indexes",
        "each layer once, in order",
    )
    return layers


def _visual(
    t: Tape, pixels: Operand, images: ImageGrid, c: Qwen3Vision
) -> tuple[Operand, Operand, list[Operand]]:
    """`Qwen3VLVisionModel`: tokens, features before they are merged, tokens of inner layers."""
    n, d = images.total, c.width
    indices, weights = resampling(t, images, has_corners=True)
    positions = patch_positions(t, images)
    ends = sequence_ends(t, images)
    x = t.call("patch_embed", patch_embed, pixels, n, c)
    learned = resampled(t, "pos_embed", indices, weights, c.side, d)
    x = t.map("add", x, t.cast(learned, t.dtype))
    cos, sin = t.call("rotary_pos_emb", axial_tables, positions, c.head_dim)
    deepstack: list[Operand] = []
    for index in range(c.layers):
        x = t.again(f"blocks.{index}", _block, x, cos, sin, images, c)
        if index in c.deepstack:
            name = f"deepstack_merger_list.{len(deepstack)}"
            deepstack.append(t.call(name, _merger, x, n, c, c.unit))
    tokens = t.call("merger", _merger, x, n, c, 1)
    t.hold(learned, ends)
    return tokens, x, deepstack


def _block(
    t: Tape, x: Operand, cos: Operand, sin: Operand, images: ImageGrid, c: Qwen3Vision
) -> Operand:
    """`y = x + attention(norm(x))`, `y + mlp(norm(y))` (`Qwen3VLVisionBlock`)."""
    n, d = images.total, c.width
    residual = x
    x = t.call("norm1", layer_norm, x, n, d)
    x = t.call("attn", rotary_attention, x, cos, sin, images.runs, c.heads)
    residual = x = t.map("add", residual, x)
    x = t.call("norm2", layer_norm, x, n, d)
    x = t.call("mlp", mlp, x, _PRODUCTS, n, (d, c.mlp_width, d), c.hidden_act)
    return t.map("add", residual, x)


def _merger(t: Tape, x: Operand, n: int, c: Qwen3Vision, together: int) -> Operand:
    """Patches of a token side by side through a norm and an MLP (`Qwen3VLVisionPatchMerger`).

    As many as are `together` are normed as one.
    """
    joined = c.width * c.unit
    x = t.call("norm", layer_norm, x, n // together, c.width * together)
    return mlp(t, x, _PRODUCTS, n // c.unit, (joined, joined, c.out_width))


QWEN3_VL: Final = Qwen3Vl(__file__)
