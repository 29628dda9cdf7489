"""DeepSeek-OCR without its head."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.model import (
    CLIP_AND_SAM_FEATURES,
    clip_and_sam_diagram,
    model_page,
)
from dsocr_analyze.knowledge.families.whole_model import WholeModel
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.pages import ImageEncoderViT, MlpProjector, VitModel

__all__ = ["model", "page"]


def model(facts: Facts, *, head: bool) -> WholeModel:
    """The model, with or without its head."""
    vision = [ImageEncoderViT.page(facts), VitModel.page(facts), MlpProjector.page(facts)]
    return WholeModel(facts, vision, head=head)


def page(facts: Facts) -> Page:
    """The page."""
    unassigned = sum(facts.analytic.parameters.unassigned.values())
    return model_page(
        model(facts, head=False),
        what="The decoder together with the vision side. If a pass includes images, it runs SAM,"
        " CLIP and the projector over the local views as one batch and over the global view as"
        " another. It arranges the features in rows, with a learned newline embedding after each row"
        " and a learned separator at the end, and writes them over the placeholders in the prompt. A"
        " decode step runs only the decoder.",
        diagram=clip_and_sam_diagram(facts, f"DeepseekV2Model: {facts.decoder.layers} layers"),
        pseudo_code="""x = embed_tokens(input_ids)
if T > 1 and images and images.global_view.sum() != 0:
    parts = []
    if images.local_views.sum() != 0:
        parts.append(rows(features(local_views), grid))
    parts += [rows(features(global_view)), view_seperator]
    x.masked_scatter_(images_seq_mask, cat(parts))
return decoder(inputs_embeds=x, cache)

features(v) = projector(cat([vision_model(v, s)[:, 1:], s.flatten()])) where s = sam_model(v)""",
        features=CLIP_AND_SAM_FEATURES,
        memory_notes=(
            f"{count(unassigned)} parameters are the newline and the separator"
            " embedding, which no stage owns.",
        ),
        related=(
            "DeepseekOCRForCausalLM",
            "DeepseekOCRConfig",
            "ImageEncoderViT",
            "VitModel",
            "MlpProjector",
            "DeepseekV2Model",
        ),
        references=("deepseekocr",),
    )
