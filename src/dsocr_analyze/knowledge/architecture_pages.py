"""The pages of each architecture, in reading order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.pages import (
    AddAuxiliaryLoss,
    Attention,
    BaseTransform,
    BasicImageTransform,
    Block,
    CLIPVisionEmbeddings,
    CustomQwen2Decoder,
    CustomQwen2ModelInner,
    DeepseekOCR2Config,
    DeepseekOCR2ForCausalLM,
    DeepseekOCR2Model,
    DeepseekOCRConfig,
    DeepseekOCRForCausalLM,
    DeepseekOCRModel,
    DeepseekV2Attention,
    DeepseekV2DecoderLayer,
    DeepseekV2DynamicNTKScalingRotaryEmbedding,
    DeepseekV2FlashAttention2,
    DeepseekV2ForCausalLM,
    DeepseekV2ForSequenceClassification,
    DeepseekV2LinearScalingRotaryEmbedding,
    DeepseekV2MLP,
    DeepseekV2Model,
    DeepseekV2MoE,
    DeepseekV2RMSNorm,
    DeepseekV2RotaryEmbedding,
    DeepseekV2YarnRotaryEmbedding,
    ImageEncoderViT,
    LayerNorm2d,
    LayerNormfp32,
    MLPBlock,
    MlpProjector,
    MoEGate,
    NoEOSTextStreamer,
    NoTPAttention,
    NoTPFeedForward,
    NoTPTransformer,
    NoTPTransformerBlock,
    PatchEmbed,
    Qwen2Decoder2Encoder,
    Qwen2DecoderLayer,
    Qwen2MLP,
    Qwen2RMSNorm,
    Qwen2RotaryEmbedding,
    Qwen2SdpaAttention,
    SlidingWindowLlamaAttention,
    UnlimitedOCRConfig,
    UnlimitedOCRForCausalLM,
    UnlimitedOCRModel,
    VitModel,
    add_decomposed_rel_pos,
    get_abs_pos,
    get_abs_pos_sam,
    repeat_kv,
)

__all__ = ["PAGES", "pages_of"]

Pages = tuple[Callable[[Facts], Page], ...]

_SAM: Final[Pages] = (
    ImageEncoderViT.page,
    Block.page,
    Attention.page,
    add_decomposed_rel_pos.page,
    MLPBlock.page,
    LayerNorm2d.page,
    PatchEmbed.page,
    get_abs_pos_sam.page,
)
_CLIP: Final[Pages] = (
    VitModel.page,
    CLIPVisionEmbeddings.page,
    NoTPTransformer.page,
    NoTPTransformerBlock.page,
    NoTPAttention.page,
    NoTPFeedForward.page,
    LayerNormfp32.page,
    get_abs_pos.page,
)
_QWEN2: Final[Pages] = (
    Qwen2Decoder2Encoder.page,
    CustomQwen2Decoder.page,
    CustomQwen2ModelInner.page,
    Qwen2DecoderLayer.page,
    Qwen2SdpaAttention.page,
    Qwen2MLP.page,
    Qwen2RMSNorm.page,
    Qwen2RotaryEmbedding.page,
)
_LAYER: Final[Pages] = (
    DeepseekV2Attention.page,
    DeepseekV2FlashAttention2.page,
    DeepseekV2DecoderLayer.page,
)
_STACK: Final[Pages] = (
    DeepseekV2Model.page,
    DeepseekV2ForCausalLM.page,
    DeepseekV2ForSequenceClassification.page,
)
"""Pages of the decoder alone; with a window it exists only together with the vision side."""
_PARTS: Final[Pages] = (
    DeepseekV2RMSNorm.page,
    DeepseekV2RotaryEmbedding.page,
    DeepseekV2LinearScalingRotaryEmbedding.page,
    DeepseekV2DynamicNTKScalingRotaryEmbedding.page,
    DeepseekV2YarnRotaryEmbedding.page,
    DeepseekV2MLP.page,
    MoEGate.page,
    DeepseekV2MoE.page,
    AddAuxiliaryLoss.page,
    repeat_kv.page,
)
_PREPROCESSING: Final[Pages] = (
    BaseTransform.page,
    BasicImageTransform.page,
    NoEOSTextStreamer.page,
)

PAGES: Final[Mapping[str, Pages]] = {
    "deepseek-ocr": (
        DeepseekOCRConfig.page,
        DeepseekOCRModel.page,
        DeepseekOCRForCausalLM.page,
        *_SAM,
        *_CLIP,
        MlpProjector.page,
        *_LAYER,
        *_STACK,
        *_PARTS,
        *_PREPROCESSING,
    ),
    "deepseek-ocr-2": (
        DeepseekOCR2Config.page,
        DeepseekOCR2Model.page,
        DeepseekOCR2ForCausalLM.page,
        *_SAM,
        *_QWEN2,
        MlpProjector.page,
        *_LAYER,
        *_STACK,
        *_PARTS,
        *_PREPROCESSING,
    ),
    "unlimited-ocr": (
        UnlimitedOCRConfig.page,
        UnlimitedOCRModel.page,
        UnlimitedOCRForCausalLM.page,
        *_SAM,
        *_CLIP,
        MlpProjector.page,
        SlidingWindowLlamaAttention.page,
        *_LAYER,
        *_PARTS,
        *_PREPROCESSING,
    ),
}
"""Pages by the architecture's name, including those that it shares with others."""


def pages_of(facts: Facts) -> list[Page]:
    """An architecture's pages, in reading order.

    Raises:
        WorkloadError: The architecture has no pages.
    """
    name = facts.architecture.name
    if name not in PAGES:
        raise WorkloadError(
            f"{name} has no pages; {', '.join(PAGES)} have", arguments=["architecture"]
        )
    return [page(facts) for page in PAGES[name]]
