"""Qwen3-VL: a vision transformer with a learned and a rotary position, mergers at several layers.

Source: `Qwen3VLVisionModel` and its parts of transformers 5.23; DeepStack (Meng et al. 2024).
"""

from dsocr_analyze.architectures.neighbours.vision import (
    ImageFeatures,
    ImageGrid,
    VisionTransformer,
    patch_embed,
    resampled,
    resampling,
    rotary_positions,
    vision_layer,
)
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import layer_norm, mlp


def visual(t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
    """`Qwen3VLVisionModel`; features before they are merged stay alive."""
    indices, weights = resampling(t, images, has_corners=True)
    x = t.call("patch_embed", patch_embed, images, c)
    learned = resampled(t, "pos_embed", indices, weights, c)
    x = t.map("add", x, t.cast(learned, t.dtype))
    cos, sin, *held = rotary_positions(t, images, c)
    deepstack: list[Operand] = []
    for index in range(c.layers):
        x = t.again(f"blocks.{index}", vision_layer, x, c, images.lengths, cos, sin)
        if index in c.deepstack:
            name = f"deepstack_merger_list.{len(deepstack)}"
            deepstack.append(t.call(name, _merger, x, c, c.unit))
    tokens = t.call("merger", _merger, x, c, 1)
    return t.hold(ImageFeatures(tokens, tuple(deepstack), (x,)), learned, *held)


def _merger(t: Tape, x: Operand, c: VisionTransformer, together: int) -> Operand:
    """Patches of a token side by side through a norm and an MLP (`Qwen3VLVisionPatchMerger`).

    As many as are `together` are normed as one.
    """
    d, joined = c.width * together, c.width * c.unit
    x = t.call("norm", layer_norm, x, x.n // d, d)
    return mlp(t, x, ("linear_fc1", "act_fn", "linear_fc2"), (joined, joined, c.out_width))
