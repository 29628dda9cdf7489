"""GLM-OCR: a vision transformer whose head norms its queries and keys, a convolution, a merger.

Source: `GlmOcrVisionModel` and its parts of transformers 5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsocr_analyze.architectures.config_file import Config, ConfigKeys
from dsocr_analyze.architectures.neighbours.decoder import DenseDecoder, Rotary
from dsocr_analyze.architectures.neighbours.neighbour import ImageFeatures, Neighbour
from dsocr_analyze.architectures.neighbours.vision import (
    ImageGrid,
    VisionTransformer,
    axial_tables,
    patch_embed,
    patch_pixels,
    patch_positions,
    rotary_attention,
    sequence_ends,
    transformer_sizes,
)
from dsocr_analyze.architectures.ocr_family.attention import swiglu
from dsocr_analyze.kernels import Convolution
from dsocr_analyze.tape import Operand, Tape
from dsocr_analyze.tape.modules import ACTIVATIONS, convolution, layer_norm, linear, rms_norm


@dataclass(frozen=True, slots=True)
class GlmVision(VisionTransformer):
    """Dimensions of `GlmOcrVisionModel`; `bias` is that of all products in its blocks."""

    bias: bool


class GlmOcr(Neighbour[GlmVision]):
    """GLM-OCR."""

    has_videos = True

    def read_decoder(self, config: Config) -> DenseDecoder:
        """Reads a whole `config.json`; raises ConfigError."""
        return DenseDecoder.from_config(
            ConfigKeys(config).section("text_config"),
            is_tied=ConfigKeys(config).boolean("tie_word_embeddings", False),
            rotary=Rotary.NEIGHBOURS,
            mrope_section=(8, 12, 12),
            output_norms=True,
        )

    def read_vision(self, config: Config, out_width: int) -> GlmVision:
        """Reads a whole `config.json`; raises ConfigError."""
        keys = ConfigKeys(config).section("vision_config")
        sizes = transformer_sizes(config, out_width)
        return GlmVision(**sizes, bias=keys.boolean("attention_bias", True))

    def encode(self, t: Tape, images: ImageGrid, c: GlmVision) -> ImageFeatures:
        """`[n, 3 taps] -> [n / m^2, d_out]`."""
        pixels = patch_pixels(t, images, c)
        tokens, before = t.call("model.visual", _visual, pixels, images, c)
        return ImageFeatures(tokens, kept=(before,))


def _visual(t: Tape, pixels: Operand, images: ImageGrid, c: GlmVision) -> tuple[Operand, Operand]:
    """`GlmOcrVisionModel`: tokens, and features before they are merged."""
    n, d = images.total, c.width
    positions = patch_positions(t, images)
    ends = sequence_ends(t, images)
    x = t.call("patch_embed", patch_embed, pixels, n, c)
    cos, sin = t.call("rotary_pos_emb", axial_tables, positions, c.head_dim)
    for index in range(c.layers):
        x = t.again(f"blocks.{index}", _block, x, cos, sin, images, c)
    x = t.call("post_layernorm", rms_norm, x, n, d)
    shape = Convolution(n // c.unit, 1, d, c.out_width, c.unit)
    x = t.call("downsample", convolution, x, shape, bias=True)
    merged = t.call("merger", _merger, x, n // c.unit, c)
    t.hold(positions, ends, cos, sin)
    return merged, x


def _block(
    t: Tape, x: Operand, cos: Operand, sin: Operand, images: ImageGrid, c: GlmVision
) -> Operand:
    """`y = x + attention(norm(x))`, `y + mlp(norm(y))` (`GlmOcrVisionBlock`)."""
    n, d = images.total, c.width
    residual = x
    x = t.call("norm1", rms_norm, x, n, d)
    x = t.call(
        "attn", rotary_attention, x, cos, sin, images.runs, c.heads, bias=c.bias, head_norms=True
    )
    residual = x = t.map("add", residual, x)
    x = t.call("norm2", rms_norm, x, n, d)
    x = t.call("mlp", swiglu, x, n, d, c.mlp_width, c.hidden_act, bias=c.bias)
    return t.map("add", residual, x)


def _merger(t: Tape, x: Operand, n: int, c: GlmVision) -> Operand:
    """`GlmOcrVisionPatchMerger`."""
    d = c.out_width
    x = t.call("proj", linear, x, n, d, d)
    x = t.call("act1", ACTIVATIONS["gelu"], t.call("post_projection_norm", layer_norm, x, n, d))
    return swiglu(t, x, n, d, 3 * d, c.hidden_act)


GLM_OCR: Final = GlmOcr(__file__)
