"""PaddleOCR-VL: a vision transformer with a learned and a rotary position, and a projector.

Source: `PaddleOCRVisionModel`, `PaddleOCRProjector` and their parts of transformers 5.23.
"""

from dsocr_analyze.architectures.neighbours.vision import (
    ImageFeatures,
    ImageGrid,
    VisionTransformer,
    patch_embed,
    resampled,
    resampling,
    rotary_positions,
    sides_of_images,
    vision_layer,
)
from dsocr_analyze.kernels import INT64
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import layer_norm, layers, mlp


def visual(t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
    """`PaddleOCRVisionModel`."""
    return ImageFeatures(t.call("vision_model", _vision_model, images, c))


def project(t: Tape, x: Operand, images: ImageGrid, c: VisionTransformer) -> Operand:
    """Patches of a token side by side through an MLP (`PaddleOCRProjector`)."""
    N, n, d = images.count, images.patches, c.width
    t.reduce("prod", t.input(3 * N, INT64), N, 3)
    joined = d * c.unit
    parts: list[Operand] = []
    for skipped in t.turns(N):
        if skipped:
            parts.append(t.empty(skipped * parts[-1].n, t.dtype))
        part = t.call("pre_norm", layer_norm, t.view(x, n * d), n, d)
        sides_of_images(t, divided=2, multiplied=2)
        if 1 < c.merge < images.width:
            part = t.move("clone", part)
        parts.append(mlp(t, part, ("linear_1", "act", "linear_2"), (joined, joined, c.out_width)))
    return t.cat(*parts)


def _vision_model(t: Tape, images: ImageGrid, c: VisionTransformer) -> Operand:
    """`PaddleOCRVisionTransformer`."""
    embedded = t.call("embeddings", _embeddings, images, c)
    x = t.call("encoder", _encoder, embedded, images, c)
    return t.hold(t.call("post_layernorm", layer_norm, x, images.total, c.width), embedded)


def _embeddings(t: Tape, images: ImageGrid, c: VisionTransformer) -> Operand:
    """Patches and a learned position of each (`PaddleOCRVisionEmbeddings`)."""
    x = patch_embed(t, images, c, child="patch_embedding", operator="conv2d")
    indices, weights = resampling(t, images, has_corners=False)
    learned = resampled(t, "position_embedding", indices, weights, c)
    return t.map("add", x, t.cast(learned, t.dtype))


def _encoder(t: Tape, x: Operand, images: ImageGrid, c: VisionTransformer) -> Operand:
    """`PaddleOCRVisionEncoder`."""
    cos, sin, *held = rotary_positions(t, images, c)
    return t.hold(layers(t, x, c.layers, vision_layer, c, images.lengths, cos, sin), *held)
