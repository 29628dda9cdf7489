"""DeepSeek-OCR without its head."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.model import clip_and_sam_diagram, model_page
from dsocr_analyze.knowledge.families.whole_model import WholeModel
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.pages import ImageEncoderViT, MlpProjector, VitModel

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    vision = [ImageEncoderViT.page(facts), VitModel.page(facts), MlpProjector.page(facts)]
    unassigned = sum(facts.analytic.parameters.unassigned.values())
    return model_page(
        WholeModel(facts, vision, head=False),
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
        mathematics=r"z(v) = W \left[\mathrm{clip}(v, \mathrm{sam}(v));\ \mathrm{sam}(v)\right],"
        r" \quad x_t = \begin{cases} z_t & t \text{ is a placeholder} \\ W_e[t] &"
        r" \text{otherwise} \end{cases}",
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
