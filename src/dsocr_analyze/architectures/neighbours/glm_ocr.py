"""GLM-OCR: a vision transformer whose head norms its queries and keys, a convolution, a merger.

Source: `GlmOcrVisionModel` and its parts of transformers 5.23.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final

from dsocr_analyze.architectures.config_file import Fixed, Harmless
from dsocr_analyze.architectures.neighbours.neighbour import ImageFeatures, Neighbour
from dsocr_analyze.architectures.neighbours.vision import (
    ImageGrid,
    VisionTransformer,
    axial_tables,
    patch_embed,
    patch_positions,
    rotary_attention,
    sequence_ends,
    vision_layer,
)
from dsocr_analyze.architectures.ocr_family.attention import swiglu
from dsocr_analyze.architectures.ocr_family.config_table import Rules
from dsocr_analyze.kernels import Convolution
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import ACTIVATIONS, convolution, layer_norm, linear, rms_norm


class GlmOcr(Neighbour):
    """GLM-OCR."""

    options: ClassVar[Mapping[str, Any]] = {
        "rotary": "neighbours",
        "mrope_section": (8, 12, 12),
        "output_norms": True,
    }
    asks_decoder = True
    has_videos = True
    own_keys: ClassVar[Rules] = {
        "vision_config.image_size": Harmless("no table of positions is made for it"),
        "vision_config.attention_bias": Fixed((True,), "it leaves out biases"),
    }

    def encode(self, t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
        """`[n, 3 taps] -> [n / m^2, d_out]`."""
        return t.call("model.visual", _visual, images, c)


def _visual(t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
    """`GlmOcrVisionModel`; features before they are merged stay alive."""
    positions = patch_positions(t, images)
    ends = sequence_ends(t, images)
    x = t.call("patch_embed", patch_embed, images, c)
    cos, sin = t.call("rotary_pos_emb", axial_tables, positions, c.head_dim)
    for index in range(c.layers):
        x = t.again(f"blocks.{index}", _block, x, cos, sin, images, c)
    x = t.call("post_layernorm", rms_norm, x, images.total, c.width)
    shape = Convolution(images.total // c.unit, 1, c.width, c.out_width, c.unit)
    x = t.call("downsample", convolution, x, shape, bias=True)
    merged = t.call("merger", _merger, x, shape.images, c)
    return t.hold(ImageFeatures(merged, kept=(x,)), ends, cos, sin)


def _block(
    t: Tape, x: Operand, cos: Operand, sin: Operand, images: ImageGrid, c: VisionTransformer
) -> Operand:
    """`GlmOcrVisionBlock`."""
    attend = partial(
        rotary_attention, cos=cos, sin=sin, runs=images.runs, H=c.heads, head_norms=True
    )
    n, d, f = images.total, c.width, c.mlp_width
    feed = partial(swiglu, n=n, d=d, f=f, act=c.hidden_act, bias=True)
    return vision_layer(t, x, d, rms_norm, attend, feed)


def _merger(t: Tape, x: Operand, n: int, c: VisionTransformer) -> Operand:
    """`GlmOcrVisionPatchMerger`."""
    d = c.out_width
    x = t.call("proj", linear, x, n, d, d)
    x = t.call("act1", ACTIVATIONS["gelu"], t.call("post_projection_norm", layer_norm, x, n, d))
    return swiglu(t, x, n, d, 3 * d, c.hidden_act)


GLM_OCR: Final = GlmOcr(__file__)
