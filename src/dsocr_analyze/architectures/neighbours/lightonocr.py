"""LightOnOCR: Pixtral, which masks attention between images, and Mistral 3's projector.

Source: `PixtralVisionModel`, `Mistral3MultiModalProjector` and their parts of transformers 5.23.
"""

from dsocr_analyze.architectures.neighbours.vision import (
    ImageFeatures,
    ImageGrid,
    VisionTransformer,
    axial_tables,
    patch_embed,
    patch_positions,
    sides_of_images,
    vision_layer,
)
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import layers, linear, mlp, rms_norm


def visual(t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
    """`PixtralVisionModel`."""
    n, D = images.total, c.head_dim
    patches = patch_embed(
        t, images, c, child="patch_conv", operator="conv2d", bias=False, together=images.patches
    )
    sides_of_images(t, divided=2 * images.count)
    x = t.cat(patches)
    x = t.call("ln_pre", rms_norm, x, n, c.width)
    positions, *expanded = patch_positions(t, images, repeats=False)
    tables = t.call("patch_positional_embedding", axial_tables, positions, D, D // 2, t.dtype)
    mask = None if t.is_served else _mask(t, images)
    x = t.call("transformer", layers, x, c.layers, vision_layer, c, (n,), *tables, mask)
    return t.hold(ImageFeatures(x), patches, *expanded)


def project(t: Tape, x: Operand, images: ImageGrid, c: VisionTransformer) -> Operand:
    """`Mistral3MultiModalProjector`."""
    x = t.call("norm", rms_norm, x, images.total, c.width)
    x = t.call("patch_merger", _patch_merger, x, images, c)
    return mlp(
        t, x, ("linear_1", "act", "linear_2"), (c.width, c.out_width, c.out_width), bias=False
    )


def _mask(t: Tape, images: ImageGrid) -> Operand:
    """Zero within an image, the lowest number elsewhere (`generate_block_attention_mask`)."""
    mask = t.move("full", n=images.total**2, dtype=t.dtype)
    for _ in t.turns(images.count):
        zero = t.move("scalar_tensor", n=1, dtype=t.dtype)
        t.move("copy", zero, n=images.patches**2, into=mask)
    return mask


def _patch_merger(t: Tape, x: Operand, images: ImageGrid, c: VisionTransformer) -> Operand:
    """Patches of a token side by side through one product (`Mistral3PatchMerger`)."""
    sides_of_images(t, divided=2 * images.count, multiplied=images.count)
    image = t.view(x, images.patches * c.width)
    parts: list[Operand] = []
    for skipped in t.turns(images.count):
        if skipped:
            parts.append(t.empty(skipped * image.n, t.dtype))
        parts.append(t.move("im2col", image))
    n, joined = images.total // c.unit, c.width * c.unit
    return t.call("merging_layer", linear, t.cat(*parts), n, joined, c.width)
