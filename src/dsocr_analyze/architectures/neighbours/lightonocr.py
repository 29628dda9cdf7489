"""LightOnOCR: Pixtral, which masks attention between images, and Mistral 3's projector.

Source: `PixtralVisionModel`, `Mistral3MultiModalProjector` and their parts of transformers 5.23.
"""

from typing import Final

from dsocr_analyze.architectures.neighbours.neighbour import ImageFeatures, Neighbour
from dsocr_analyze.architectures.neighbours.vision import (
    CHANNELS,
    ImageGrid,
    LayerKind,
    VisionTransformer,
    axial_tables,
    patch_pixels,
    sides_of_images,
    vision_layers,
)
from dsocr_analyze.kernels import INT64, Convolution
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import convolution, linear, mlp, rms_norm


def _visual(t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
    """`PixtralVisionModel`."""
    n, d = images.total, c.width
    shape = Convolution(images.count, images.patches, CHANNELS, d, c.taps)
    patches = t.call("patch_conv", convolution, patch_pixels(t, images, c), shape)
    sides_of_images(t, divided=2 * images.count)
    x = t.cat(patches)
    x = t.call("ln_pre", rms_norm, x, n, d)
    positions, *expanded = _positions(t, images)
    cos, sin = t.call(
        "patch_positional_embedding", axial_tables, positions, c.head_dim, is_shared=False
    )
    mask = None if t.is_served else _mask(t, images)
    x = t.call("transformer", vision_layers, x, (n,), cos, sin, c, _LAYER, mask)
    return t.hold(ImageFeatures(x), patches, *expanded)


def _project(t: Tape, x: Operand, images: ImageGrid, c: VisionTransformer) -> Operand:
    """`Mistral3MultiModalProjector`."""
    x = t.call("norm", rms_norm, x, images.total, c.width)
    x = t.call("patch_merger", _patch_merger, x, images, c)
    names, widths = ("linear_1", "act", "linear_2"), (c.width, c.out_width, c.out_width)
    return mlp(t, x, names, widths, bias=False)


def _positions(t: Tape, images: ImageGrid) -> tuple[Operand, ...]:
    """Row and column of each patch, `[2, n]`, and the last image's rows and columns alone."""
    n = images.patches
    parts: list[Operand] = []
    sides: tuple[Operand, ...] = ()
    for _ in range(images.count):
        rows = t.move("arange", n=images.height, dtype=INT64)
        sides = rows, t.move("arange", n=images.width, dtype=INT64)
        parts.append(t.move("stack", *(t.move("clone", each, n=n) for each in sides), n=2 * n))
    return t.cat(*parts), *sides


def _mask(t: Tape, images: ImageGrid) -> Operand:
    """Zero within an image, the lowest number elsewhere (`generate_block_attention_mask`)."""
    mask = t.move("full", n=images.total**2, dtype=t.dtype)
    for _ in range(images.count):
        zero = t.move("scalar_tensor", n=1, dtype=t.dtype)
        t.move("copy", zero, n=images.patches**2, into=mask)
    return mask


def _patch_merger(t: Tape, x: Operand, images: ImageGrid, c: VisionTransformer) -> Operand:
    """Patches of a token side by side through one product (`Mistral3PatchMerger`)."""
    sides_of_images(t, divided=2 * images.count, multiplied=images.count)
    image = t.view(x, images.patches * c.width)
    parts = [t.move("im2col", image) for _ in range(images.count)]
    n, joined = images.total // c.unit, c.width * c.unit
    return t.call("merging_layer", linear, t.cat(*parts), n, joined, c.width)


_LAYER: Final = LayerKind(
    names=("attention_norm", "attention", "ffn_norm", "feed_forward"),
    products=("q_proj", "k_proj", "v_proj", "o_proj"),
    has_biases=False,
    is_masked=True,
    keeps_weights=True,
)
"""`PixtralAttentionLayer`."""

LIGHTONOCR: Final = Neighbour("lightonocr", _visual, _project)
