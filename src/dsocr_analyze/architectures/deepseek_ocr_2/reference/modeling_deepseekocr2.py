"""DeepSeek-OCR-2 as one model, under the vendor's names; its decoder is DeepSeek-OCR's.

In shapes: N views, d width.
"""

from torch import Tensor

from dsocr_analyze.architectures.deepseek_ocr.reference.configuration_deepseek_v2 import (
    DeepseekV2Config,
)
from dsocr_analyze.architectures.deepseek_ocr.reference.modeling_deepseekocr import (
    BaseTransform,
    BasicImageTransform,
    DeepseekOCRForCausalLM,
    DeepseekOCRModel,
    NoEOSTextStreamer,
    Views,
)

from .deepencoderv2 import MlpProjector, build_qwen2_decoder_as_encoder, build_sam_vit_b

__all__ = [
    "BaseTransform",
    "BasicImageTransform",
    "DeepseekOCR2Config",
    "DeepseekOCR2ForCausalLM",
    "DeepseekOCR2Model",
    "NoEOSTextStreamer",
]


class DeepseekOCR2Config(DeepseekV2Config):
    """The decoder's dimensions plus `vision_config` and `projector_config`."""

    model_type = "DeepseekOCR2"
    # Repeated, since transformers 5 replaces the constructor of a config class without its own.
    __init__ = DeepseekV2Config.__init__


class DeepseekOCR2Model(DeepseekOCRModel):
    """The decoder, with visual tokens in place of the image placeholders.

    A page is its local views, row by row, the global view and the separator, without newlines.
    """

    config_class = DeepseekOCR2Config

    def _build_vision(self, config: DeepseekV2Config) -> None:
        self.sam_model = build_sam_vit_b(config.vision_config)
        self.qwen2_model = build_qwen2_decoder_as_encoder(config.vision_config)
        self.projector = MlpProjector(config.projector_config)
        # The vendor's spelling, which checkpoints use.
        self.view_seperator = self._token_embedding(config)

    def _encode(self, views: Views, pixels: Tensor) -> None:
        """Encodes views `[N, 3, R, R]` to projected features `[N, n, d]`."""
        views.spatial = self.sam_model(pixels)
        views.semantic = self.qwen2_model(views.spatial)
        views.tokens = views.semantic  # frees the previous page's tokens first
        views.tokens = self.projector(views.tokens)

    def _lay_out(self, views: Views, down: int, across: int) -> None:
        """Concatenates views, `[N, n, d]` -> `[N n, d]`, whatever their layout."""
        views.tokens = views.tokens.view(-1, views.tokens.shape[-1])


class DeepseekOCR2ForCausalLM(DeepseekOCRForCausalLM):
    """The whole model: `forward` takes images in addition to the decoder's arguments."""

    config_class = DeepseekOCR2Config
    decoder_class = DeepseekOCR2Model
