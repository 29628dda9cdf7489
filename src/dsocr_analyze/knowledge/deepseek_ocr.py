"""DeepSeek-OCR's pages."""

from __future__ import annotations

from collections.abc import Sequence

from dsocr_analyze.knowledge.decoder import decoder_pages
from dsocr_analyze.knowledge.decoder_parts import decoder_parts
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.ocr import (
    PIXELS_NOTE,
    causal_lm_page,
    config_page,
    model_page,
    preprocessing_pages,
    vision_parameters,
)
from dsocr_analyze.knowledge.vision_clip import clip_pages, projector_pages
from dsocr_analyze.knowledge.vision_sam import sam_pages
from dsocr_analyze.knowledge.whole_model import WholeModel

__all__ = ["clip_and_sam_diagram", "deepseek_ocr_pages"]


def deepseek_ocr_pages(facts: Facts) -> list[Page]:
    """Every page, in reading order."""
    vision = [*sam_pages(facts), *clip_pages(facts), *projector_pages(facts)]
    return [
        config_page(facts, "deepseekocr"),
        _model(facts, vision),
        _causal_lm(facts, vision),
        *vision,
        *decoder_pages(facts),
        *decoder_parts(facts),
        *preprocessing_pages(facts),
    ]


def clip_and_sam_diagram(facts: Facts, decoder: str) -> str:
    """How views become tokens of the prompt where CLIP takes SAM's features.

    Args:
        facts: The model.
        decoder: The decoder's class and layers.
    """
    views = " and ".join(f"{N} of {count(R)} pixels a side" for _, N, R in facts.views)
    return f"""flowchart TB
  ids["input_ids [B, T]"] --> embed["embed_tokens"]
  views["views: {views}"] --> sam["sam_model: ImageEncoderViT"]
  sam --> clip["vision_model: VitModel"]
  views --> clip
  sam --> cat["concatenate"]
  clip --> cat
  cat --> proj["projector: MlpProjector"]
  proj --> rows["rows, image_newline behind each,<br/>view_seperator at the end"]
  rows --> scatter["masked_scatter_ over the placeholders:<br/>{count(facts.workload.visual_tokens)} visual tokens"]
  embed --> scatter
  scatter --> decoder["{decoder}"]
  decoder --> y["hidden states [B, T, {facts.decoder.hidden_size}]"]"""


def _model(facts: Facts, vision: Sequence[Page]) -> Page:
    unassigned = sum(facts.analytic.parameters.unassigned.values())
    return model_page(
        WholeModel(facts, vision, head=False),
        what="The decoder with its vision side on top. Where a pass brings images, it runs SAM,"
        " CLIP and the projector over the local views as one batch and over the global view as"
        " another, lays the features out in rows with a learned newline embedding behind each and a"
        " learned separator at the end, and writes them over the placeholders of the prompt. A"
        " decode step is the decoder alone.",
        parameters=vision_parameters(facts),
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
        flops_notes=(PIXELS_NOTE,),
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


def _causal_lm(facts: Facts, vision: Sequence[Page]) -> Page:
    return causal_lm_page(
        WholeModel(facts, vision, head=True),
        what="The whole model: `DeepseekOCRModel` and the head over the vocabulary. Its forward"
        " takes images beside the decoder's arguments. (The vendor's class also has `infer()`,"
        " which cuts the page, builds the prompt and generates; the workload planner of this"
        " project works the same sizes out without it.)",
        related=(
            "DeepseekOCRModel",
            "DeepseekOCRConfig",
            "DeepseekV2ForCausalLM",
            "NoEOSTextStreamer",
            "BasicImageTransform",
        ),
        references=("deepseekocr",),
    )
