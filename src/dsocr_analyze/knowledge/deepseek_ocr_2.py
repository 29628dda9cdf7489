"""DeepSeek-OCR-2's pages."""

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
from dsocr_analyze.knowledge.qwen_encoder import encoder_of, encoder_pages
from dsocr_analyze.knowledge.vision_clip import Projected, projector_pages
from dsocr_analyze.knowledge.vision_sam import sam_pages
from dsocr_analyze.knowledge.whole_model import WholeModel

__all__ = ["deepseek_ocr_2_pages"]


def deepseek_ocr_2_pages(facts: Facts) -> list[Page]:
    """Every page, in reading order."""
    vision = [*sam_pages(facts), *encoder_pages(facts), *projector_pages(facts, _projected)]
    return [
        config_page(facts, "deepseekocr2"),
        _model(facts, vision),
        _causal_lm(facts, vision),
        *vision,
        *decoder_pages(facts),
        *decoder_parts(facts),
        *preprocessing_pages(facts),
    ]


def _projected(facts: Facts) -> Projected:
    width = encoder_of(facts).width
    return Projected(
        "What it gets is what the encoder makes of its queries, and nothing of SAM beside it.",
        f'  joined["answers of the queries [N, q q, {width}]"]',
        "x = qwen2_model(sam_model(view))                                  # by the model",
        r"y = f(x_{encoder})",
    )


def _model(facts: Facts, vision: Sequence[Page]) -> Page:
    decoder, workload = facts.decoder, facts.workload
    views = " and ".join(f"{N} of {count(R)} pixels a side" for _, N, R in facts.views)
    unassigned = facts.analytic.parameters.unassigned
    sides = [(label, N, facts.token_side(R) ** 2) for label, N, R in facts.views]
    tokens = ", ".join(f"{count(N * n)} of the {label}" for label, N, n in sides)
    return model_page(
        WholeModel(facts, vision, head=False, multiplies_grid=False),
        what="The decoder with its vision side on top. Where a pass brings images, it runs SAM, the"
        " Qwen2 encoder and the projector over the local views as one batch and over the global"
        " view as another, and writes what comes out over the placeholders of the prompt: local"
        " views in row-major order, each as its own tokens, then the global view, then a learned"
        f" separator. There are no newlines: {tokens}, and {len(unassigned)}. A decode step is the"
        " decoder alone, which is DeepSeek-OCR's.",
        parameters=vision_parameters(facts),
        diagram=f"""flowchart TB
  ids["input_ids [B, T]"] --> embed["embed_tokens"]
  views["views: {views}"] --> sam["sam_model: ImageEncoderViT"]
  sam --> qwen["qwen2_model: Qwen2Decoder2Encoder"]
  qwen --> proj["projector: MlpProjector"]
  proj --> row["one view behind the other,<br/>view_seperator at the end"]
  row --> scatter["masked_scatter_ over the placeholders:<br/>{count(workload.visual_tokens)} visual tokens"]
  embed --> scatter
  scatter --> decoder["DeepseekV2Model: {decoder.layers} layers"]
  decoder --> y["hidden states [B, T, {decoder.hidden_size}]"]""",
        pseudo_code="""x = embed_tokens(input_ids)
if T > 1 and images and images.global_view.sum() != 0:
    parts = []
    if images.local_views.sum() != 0:
        parts.append(features(local_views).view(-1, d))
    parts += [features(global_view).view(-1, d), view_seperator]
    x.masked_scatter_(images_seq_mask, cat(parts))
return decoder(inputs_embeds=x, cache)

features(v) = projector(qwen2_model(sam_model(v)))""",
        mathematics=r"z(v) = W\, \mathrm{qwen}(\mathrm{sam}(v)) + b,"
        r" \quad x_t = \begin{cases} z_t & t \text{ is a placeholder} \\ W_e[t] &"
        r" \text{otherwise} \end{cases}",
        flops_notes=(PIXELS_NOTE,),
        memory_notes=(
            f"{count(sum(unassigned.values()))} parameters are the separator embedding, which no"
            " stage owns.",
        ),
        related=(
            "DeepseekOCR2ForCausalLM",
            "DeepseekOCR2Config",
            "ImageEncoderViT",
            "Qwen2Decoder2Encoder",
            "MlpProjector",
            "DeepseekV2Model",
            "DeepseekOCRModel",
        ),
        references=("deepseekocr2",),
    )


def _causal_lm(facts: Facts, vision: Sequence[Page]) -> Page:
    tile = facts.workload.image_size
    return causal_lm_page(
        WholeModel(facts, vision, head=True, multiplies_grid=False),
        what="The whole model: `DeepseekOCR2Model` and the head over the vocabulary. Against"
        " DeepSeek-OCR, a Qwen2 encoder with learned queries stands in the place of CLIP, SAM's"
        " last convolution has the encoder's width, views have other sizes, and there are no"
        " newlines; the decoder and the head are the same. (The vendor's class also has `infer()`;"
        f" its tiles have {tile} pixels a side whatever `image_size` says, so the planner of this"
        " project refuses any other in crop mode.)",
        related=(
            "DeepseekOCR2Model",
            "DeepseekOCR2Config",
            "DeepseekV2ForCausalLM",
            "DeepseekOCRForCausalLM",
            "NoEOSTextStreamer",
            "BasicImageTransform",
        ),
        references=("deepseekocr2",),
    )
