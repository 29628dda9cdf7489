"""Unlimited-OCR without its head."""

from __future__ import annotations

from dsocr_analyze.knowledge.families import window
from dsocr_analyze.knowledge.families.model import (
    CLIP_AND_SAM_FEATURES,
    clip_and_sam_diagram,
    model_page,
)
from dsocr_analyze.knowledge.families.whole_model import WholeModel
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.pages import ImageEncoderViT, MlpProjector, VitModel

__all__ = ["model", "page"]


def model(facts: Facts, *, head: bool) -> WholeModel:
    """The model, with or without its head."""
    vision = [ImageEncoderViT.page(facts), VitModel.page(facts), MlpProjector.page(facts)]
    return window.whole_model(facts, vision, head=head)


def page(facts: Facts) -> Page:
    """The page."""
    decoder = facts.decoder
    attention = facts.class_at("model.layers.0.self_attn").__name__
    return model_page(
        model(facts, head=False),
        what="DeepSeek-OCR's vision side together with a decoder with a window. SAM, CLIP, the"
        " projector and the layout of a page are those of `DeepseekOCRModel`; pages are cut into"
        " more local views. One prompt may contain several pages: none of them is cut, the vision"
        " side processes them one at a time, and their tokens are concatenated. The decoder"
        f" is `DeepseekV2Model` with `{attention}` in its layers; a decode step has no mask, and the"
        " state of the window is stored on the cache.",
        diagram=clip_and_sam_diagram(
            facts, f"the decoder: {decoder.layers} layers<br/>with {attention}"
        ),
        pseudo_code="""x = embed_tokens(input_ids)
if T > 1 and images and images.global_view.sum() != 0:
    if images.local_views.sum() != 0:
        parts = [rows(features(local_views), grid), rows(features(global_view)), view_seperator]
    else:                                                # pages of one prompt, one by one
        parts = [(rows(features(page)), view_seperator) for page in images.global_view]
    x.masked_scatter_(images_seq_mask, cat(parts))
mask = causal_mask(T, K) if T > 1 or no cache else None
return decoder(inputs_embeds=x, mask, cache)""",
        features=CLIP_AND_SAM_FEATURES,
        flops_notes=window.steps_note(facts),
        memory_notes=(window.bound_note(facts),),
        related=(
            "UnlimitedOCRForCausalLM",
            "UnlimitedOCRConfig",
            "SlidingWindowLlamaAttention",
            "DeepseekOCRModel",
            "DeepseekV2Model",
            "ImageEncoderViT",
            "VitModel",
            "MlpProjector",
        ),
        references=("unlimitedocr", "deepseekocr"),
    )
