"""GLM-OCR: a vision transformer whose head norms its queries and keys, a convolution, a merger.

Source: `GlmOcrVisionModel` and its parts of transformers 5.23.
"""

from dsocr_analyze.architectures.neighbours.vision import (
    ImageFeatures,
    ImageGrid,
    VisionTransformer,
    patch_embed,
    rotary_positions,
    vision_layer,
)
from dsocr_analyze.kernels import Convolution
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import (
    ACTIVATIONS,
    convolution,
    layer_norm,
    linear,
    rms_norm,
    swiglu,
)


def visual(t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
    """`GlmOcrVisionModel`; features before they are merged stay alive."""
    x = t.call("patch_embed", patch_embed, images, c)
    cos, sin, *held = rotary_positions(t, images, c)
    for index in range(c.layers):
        x = t.again(f"blocks.{index}", vision_layer, x, c, images.lengths, cos, sin)
    x = t.call("post_layernorm", rms_norm, x, images.total, c.width)
    shape = Convolution(images.total // c.unit, 1, c.width, c.out_width, c.unit)
    x = t.call("downsample", convolution, x, shape, bias=True)
    merged = t.call("merger", _merger, x, shape.images, c)
    return t.hold(ImageFeatures(merged, kept=(x,)), *held)


def _merger(t: Tape, x: Operand, n: int, c: VisionTransformer) -> Operand:
    """`GlmOcrVisionPatchMerger`."""
    d = c.out_width
    x = t.call("proj", linear, x, n, d, d)
    x = t.call("act1", ACTIVATIONS["gelu"], t.call("post_projection_norm", layer_norm, x, n, d))
    return swiglu(t, x, n, d, 3 * d, c.hidden_act)
