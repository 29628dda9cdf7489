"""Qwen3-VL: a vision transformer with a learned and a rotary position, mergers at several layers.

Source: `Qwen3VLVisionModel` and its parts of transformers 5.23; DeepStack (Meng et al. 2024).
"""

import math
from dataclasses import replace
from typing import Final

from dsocr_analyze.architectures.config_file import ConfigKeys
from dsocr_analyze.architectures.neighbours.neighbour import ImageFeatures, Neighbour
from dsocr_analyze.architectures.neighbours.vision import (
    ImageGrid,
    LayerKind,
    VisionTransformer,
    patch_embed,
    resampled,
    resampling,
    rotary_positions,
    vision_layer,
)
from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import layer_norm, mlp

_PRODUCTS: Final = "linear_fc1", "act_fn", "linear_fc2"
_LAYER: Final = LayerKind(layer_norm, mlp=_PRODUCTS)
"""`Qwen3VLVisionBlock`."""


class Qwen3Vl(Neighbour):
    """Qwen3-VL, base of several OCR models."""

    def read_decoder(self, keys: ConfigKeys) -> DecoderDimensions:
        """Reads a whole `config.json`; raises ConfigError."""
        inner = len(_deepstack(keys.section("vision_config")))
        keys.section("text_config").integer("num_hidden_layers", least=max(1, inner))
        return replace(super().read_decoder(keys), deepstack=inner)

    def read_vision(self, keys: ConfigKeys, out_width: int) -> VisionTransformer:
        """Reads the vision model's keys; raises ConfigError."""
        vision, keys = super().read_vision(keys, out_width), keys.section("vision_config")
        places = keys.integer("num_position_embeddings")
        side = math.isqrt(places)
        keys.check(side * side == places, "num_position_embeddings", "a square, e.g. 2304")
        return replace(vision, side=side, deepstack=_deepstack(keys))

    def visual(self, t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
        """`Qwen3VLVisionModel`; features before they are merged stay alive."""
        indices, weights = resampling(t, images, has_corners=True)
        x = t.call("patch_embed", patch_embed, images, c)
        learned = resampled(t, "pos_embed", indices, weights, c.side, c.width)
        x = t.map("add", x, t.cast(learned, t.dtype))
        cos, sin, *held = rotary_positions(t, images, c)
        deepstack: list[Operand] = []
        for index in range(c.layers):
            x = t.again(f"blocks.{index}", vision_layer, x, cos, sin, images.runs, c, _LAYER)
            if index in c.deepstack:
                name = f"deepstack_merger_list.{len(deepstack)}"
                deepstack.append(t.call(name, _merger, x, c, c.unit))
        tokens = t.call("merger", _merger, x, c, 1)
        return t.hold(ImageFeatures(tokens, tuple(deepstack), (x,)), learned, *held)


def _deepstack(keys: ConfigKeys) -> tuple[int, ...]:
    """`deepstack_visual_indexes`, in order."""
    layers = keys.integers("deepstack_visual_indexes", least=0, most=keys.integer("depth") - 1)
    keys.check(
        list(layers) == sorted(set(layers)),
        "deepstack_visual_indexes",
        "each layer once, in order",
    )
    return layers


def _merger(t: Tape, x: Operand, c: VisionTransformer, together: int) -> Operand:
    """Patches of a token side by side through a norm and an MLP (`Qwen3VLVisionPatchMerger`).

    As many as are `together` are normed as one.
    """
    d, joined = c.width * together, c.width * c.unit
    x = t.call("norm", layer_norm, x, x.n // d, d)
    return mlp(t, x, _PRODUCTS, (joined, joined, c.out_width))


QWEN3_VL: Final = Qwen3Vl("qwen3-vl")
