"""Qwen3-VL: a vision transformer with a learned and a rotary position, mergers at several layers.

Source: `Qwen3VLVisionModel` and its parts of transformers 5.23; DeepStack (Meng et al. 2024).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

from dsocr_analyze.architectures.config_file import ConfigKeys
from dsocr_analyze.architectures.neighbours.decoder import DenseDecoder
from dsocr_analyze.architectures.neighbours.neighbour import ImageFeatures, Neighbour
from dsocr_analyze.architectures.neighbours.vision import (
    ImageGrid,
    VisionTransformer,
    axial_tables,
    patch_embed,
    patch_positions,
    resampled,
    resampling,
    rotary_attention,
    sequence_ends,
    vision_layer,
)
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import layer_norm, mlp

_PRODUCTS: Final = ("linear_fc1", "act_fn", "linear_fc2")


class Qwen3Vl(Neighbour):
    """Qwen3-VL, base of several OCR models."""

    never_guessed = (("text_config", "head_dim"), *Neighbour.never_guessed)
    options: ClassVar[Mapping[str, Any]] = {
        "rotary": "turns",
        "mrope_section": (24, 20, 20),
        "head_norms": True,
    }
    has_videos = True

    def read_decoder(self, keys: ConfigKeys) -> DenseDecoder:
        """Reads a whole `config.json`; raises ConfigError."""
        inner = len(_deepstack(keys.section("vision_config")))
        keys.section("text_config").integer("num_hidden_layers", least=max(1, inner))
        return replace(super().read_decoder(keys), deepstack=inner)

    def read_vision(self, keys: ConfigKeys, out_width: int) -> VisionTransformer:
        """Reads the vision model's keys; raises ConfigError."""
        places = keys.integer("num_position_embeddings")
        side = math.isqrt(places)
        keys.check(side * side == places, "num_position_embeddings", "a square, e.g. 2304")
        vision = super().read_vision(keys, out_width)
        return replace(vision, side=side, deepstack=_deepstack(keys))

    def encode(self, t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
        """`[n, 3 taps] -> [n / m^2, d_out]`, of the last and of inner layers."""
        return t.call("model.visual", _visual, images, c)


def _deepstack(keys: ConfigKeys) -> tuple[int, ...]:
    """`deepstack_visual_indexes`, in order."""
    layers = keys.integers("deepstack_visual_indexes", least=0, most=keys.integer("depth") - 1)
    keys.check(
        list(layers) == sorted(set(layers)),
        "deepstack_visual_indexes",
        "each layer once, in order",
    )
    return layers


def _visual(t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
    """`Qwen3VLVisionModel`; features before they are merged stay alive."""
    indices, weights = resampling(t, images, has_corners=True)
    positions = patch_positions(t, images)
    ends = sequence_ends(t, images)
    x = t.call("patch_embed", patch_embed, images, c)
    learned = resampled(t, "pos_embed", indices, weights, c.side, c.width)
    x = t.map("add", x, t.cast(learned, t.dtype))
    cos, sin = t.call("rotary_pos_emb", axial_tables, positions, c.head_dim)
    deepstack: list[Operand] = []
    for index in range(c.layers):
        x = t.again(f"blocks.{index}", _block, x, cos, sin, images, c)
        if index in c.deepstack:
            name = f"deepstack_merger_list.{len(deepstack)}"
            deepstack.append(t.call(name, _merger, x, c, c.unit))
    tokens = t.call("merger", _merger, x, c, 1)
    return t.hold(ImageFeatures(tokens, tuple(deepstack), (x,)), learned, ends)


def _block(
    t: Tape, x: Operand, cos: Operand, sin: Operand, images: ImageGrid, c: VisionTransformer
) -> Operand:
    """`Qwen3VLVisionBlock`."""
    attend = partial(rotary_attention, cos=cos, sin=sin, runs=images.runs, H=c.heads)
    widths = c.width, c.mlp_width, c.width
    feed = partial(mlp, names=_PRODUCTS, widths=widths, act=c.hidden_act)
    return vision_layer(t, x, c.width, layer_norm, attend, feed)


def _merger(t: Tape, x: Operand, c: VisionTransformer, together: int) -> Operand:
    """Patches of a token side by side through a norm and an MLP (`Qwen3VLVisionPatchMerger`).

    As many as are `together` are normed as one.
    """
    d, joined = c.width * together, c.width * c.unit
    x = t.call("norm", layer_norm, x, x.n // d, d)
    return mlp(t, x, _PRODUCTS, (joined, joined, c.out_width))


QWEN3_VL: Final = Qwen3Vl(__file__)
