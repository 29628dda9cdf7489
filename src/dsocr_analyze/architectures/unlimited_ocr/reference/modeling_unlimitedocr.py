"""Unlimited-OCR: DeepSeek-OCR's network with a window of generated tokens; pages go one by one."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from dsocr_analyze.architectures.deepseek_ocr.reference.configuration_deepseek_v2 import (
    DeepseekV2Config,
)
from dsocr_analyze.architectures.deepseek_ocr.reference.modeling_deepseekocr import (
    DeepseekOCRForCausalLM,
    DeepseekOCRModel,
)

from .modeling_deepseekv2 import DeepseekV2DecoderLayer

__all__ = ["UnlimitedOCRConfig", "UnlimitedOCRForCausalLM", "UnlimitedOCRModel"]


class UnlimitedOCRConfig(DeepseekV2Config):
    """The decoder's dimensions plus `vision_config`, `projector_config` and the window.

    That is `sliding_window_size`, or `sliding_window` if this is missing or 0.
    """

    model_type = "unlimited-ocr"

    sliding_window_size: int | None = None
    sliding_window: int | None = None


class UnlimitedOCRModel(DeepseekOCRModel):
    """The decoder, with visual tokens in place of the image placeholders."""

    config_class = UnlimitedOCRConfig
    layer_class: ClassVar[type[DeepseekV2DecoderLayer]] = DeepseekV2DecoderLayer

    def _whole_pages(self, overview: Tensor) -> Sequence[Tensor]:
        """Pages of one prompt `[N, 3, R, R]` one by one, `[1, 3, R, R]` each."""
        return [overview[page : page + 1] for page in range(overview.shape[0])]

    def _mask(
        self, attention_mask: Tensor | None, hidden: Tensor, past_length: int
    ) -> Tensor | None:
        """As in `DeepseekV2Model`, but None in a decode step, where a token sees all."""
        if hidden.shape[1] == 1 and past_length > 0:
            return None
        return super()._mask(attention_mask, hidden, past_length)


class UnlimitedOCRForCausalLM(DeepseekOCRForCausalLM):
    """The whole model: `forward` takes images in addition to the decoder's arguments."""

    config_class = UnlimitedOCRConfig
    decoder_class = UnlimitedOCRModel
