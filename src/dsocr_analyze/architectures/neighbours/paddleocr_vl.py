"""PaddleOCR-VL: a vision transformer with a learned and a rotary position, and a projector.

Source: `PaddleOCRVisionModel`, `PaddleOCRProjector` and their parts of transformers 5.23.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

from dsocr_analyze.architectures.config_file import ConfigKeys, Harmless
from dsocr_analyze.architectures.neighbours.neighbour import (
    ImageFeatures,
    Neighbour,
    ProcessedTensor,
    in_patches,
)
from dsocr_analyze.architectures.neighbours.vision import (
    CHANNELS,
    ImageGrid,
    VisionTransformer,
    axial_tables,
    patch_pixels,
    patch_positions,
    resampled,
    resampling,
    rotary_attention,
    sequence_ends,
    vision_layer,
)
from dsocr_analyze.architectures.ocr_family.config_table import Rules
from dsocr_analyze.architectures.ocr_family.dimensions import LARGEST_IMAGE
from dsocr_analyze.kernels import INT64, Convolution, Rows
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import convolution, layer_norm, mlp
from dsocr_analyze.workload import PageWorkload


class PaddleOcrVl(Neighbour):
    """PaddleOCR-VL."""

    never_guessed = (("text_config", "head_dim"), *Neighbour.never_guessed)
    options: ClassVar[Mapping[str, Any]] = {
        "rotary": "sections",
        "mrope_section": (16, 24, 24),
    }
    vision_keys = ("num_hidden_layers", "num_attention_heads", "intermediate_size")
    is_tied = True
    asks_decoder = True
    reads_flat = True
    own_keys: ClassVar[Rules] = {
        "vision_config.temporal_patch_size": Harmless("the model's class does not read it")
    }

    def read_vision(self, keys: ConfigKeys, out_width: int) -> VisionTransformer:
        """Reads the vision model's keys; raises ConfigError."""
        vision = super().read_vision(keys, out_width)
        image = keys.integer("image_size", least=vision.patch_size, most=LARGEST_IMAGE)
        return replace(vision, frames=1, side=image // vision.patch_size)

    def inputs(self, workload: PageWorkload) -> Mapping[str, ProcessedTensor]:
        """A page in square patches."""
        side = self.dimensions.vision.patch_size
        return in_patches(workload, side, (CHANNELS, side, side))

    def encode(self, t: Tape, images: ImageGrid, c: VisionTransformer) -> ImageFeatures:
        """`[n, 3 taps] -> [n / m^2, d_out]`."""
        features = t.call("model.visual", _visual, images, c)
        tokens = t.call("model.projector", _projector, features, images, c)
        return ImageFeatures(tokens, kept=(features,))


def _visual(t: Tape, images: ImageGrid, c: VisionTransformer) -> Operand:
    """`PaddleOCRVisionModel`."""
    return t.call("vision_model", _vision_model, images, c)


def _vision_model(t: Tape, images: ImageGrid, c: VisionTransformer) -> Operand:
    """`PaddleOCRVisionTransformer`."""
    embedded = t.call("embeddings", _embeddings, images, c)
    x = t.call("encoder", _encoder, embedded, images, c)
    return t.hold(t.call("post_layernorm", layer_norm, x, images.total, c.width), embedded)


def _embeddings(t: Tape, images: ImageGrid, c: VisionTransformer) -> Operand:
    """Patches and a learned position of each (`PaddleOCRVisionEmbeddings`)."""
    shape = Convolution(images.total, 1, CHANNELS, c.width, c.taps)
    x = t.call("patch_embedding", convolution, patch_pixels(t, images, c), shape, bias=True)
    indices, weights = resampling(t, images, has_corners=False)
    learned = resampled(t, "position_embedding", indices, weights, c.side, c.width)
    return t.map("add", x, t.cast(learned, t.dtype))


def _encoder(t: Tape, x: Operand, images: ImageGrid, c: VisionTransformer) -> Operand:
    """`PaddleOCRVisionEncoder`."""
    positions = patch_positions(t, images)
    ends = sequence_ends(t, images)
    cos, sin = t.call("rotary_pos_emb", axial_tables, positions, c.head_dim)
    for index in range(c.layers):
        x = t.again(f"layers.{index}", _layer, x, cos, sin, images, c)
    return t.hold(x, ends)


def _layer(
    t: Tape, x: Operand, cos: Operand, sin: Operand, images: ImageGrid, c: VisionTransformer
) -> Operand:
    """`PaddleOCRVisionEncoderLayer`."""
    products, widths = ("q_proj", "k_proj", "v_proj", "out_proj"), (c.width, c.mlp_width, c.width)
    attend = partial(
        rotary_attention, cos=cos, sin=sin, runs=images.runs, H=c.heads, names=products,
        keeps_weights=True,
    )  # fmt: skip
    feed = partial(mlp, names=("fc1", "activation_fn", "fc2"), widths=widths, act=c.hidden_act)
    names = "layer_norm1", "self_attn", "layer_norm2", "mlp"
    return vision_layer(t, x, c.width, layer_norm, attend, feed, names)


def _projector(t: Tape, x: Operand, images: ImageGrid, c: VisionTransformer) -> Operand:
    """Patches of a token side by side through an MLP (`PaddleOCRProjector`)."""
    N, n, d = images.count, images.patches, c.width
    t.rows("reduction", "prod", t.input(3 * N, INT64), Rows(N, 3), (N, INT64), flops=3 * N)
    joined = d * c.unit
    parts: list[Operand] = []
    for _ in range(N):
        one = t.input(1, INT64)
        part = t.call("pre_norm", layer_norm, t.view(x, n * d), n, d)
        for _ in range(2):
            t.map("floor_divide", one)
        for _ in range(2):
            t.map("mul", one, one)
        if 1 < c.merge < images.width:
            part = t.move("clone", part)
        names, widths = ("linear_1", "act", "linear_2"), (joined, joined, c.out_width)
        parts.append(mlp(t, part, names, widths))
    return t.cat(*parts)


PADDLEOCR_VL: Final = PaddleOcrVl(__file__)
