"""DeepSeek-OCR-2 without its head."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.model import model_page
from dsocr_analyze.knowledge.families.whole_model import WholeModel
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.page import Page
from dsocr_analyze.knowledge.pages import ImageEncoderViT, MlpProjector, Qwen2Decoder2Encoder

__all__ = ["model", "page"]


def model(facts: Facts, *, head: bool) -> WholeModel:
    """The model, with or without its head."""
    vision = [
        ImageEncoderViT.page(facts),
        Qwen2Decoder2Encoder.page(facts),
        MlpProjector.page(facts),
    ]
    return WholeModel(facts, vision, head=head, multiplies_grid=False)


def page(facts: Facts) -> Page:
    """The page."""
    decoder, workload = facts.decoder, facts.workload
    views = " and ".join(f"{N} of {count(R)} pixels square" for _, N, R in facts.views)
    unassigned = facts.analytic.parameters.unassigned
    sides = [(label, N, facts.token_side(R) ** 2) for label, N, R in facts.views]
    tokens = ", ".join(f"{count(N * n)} of the {label}" for label, N, n in sides)
    return model_page(
        model(facts, head=False),
        what="The decoder together with the vision side. If a pass includes images, it runs SAM, the"
        " Qwen2 encoder and the projector over the local views as one batch and over the global"
        " view as another, and writes the resulting tokens over the placeholders in the prompt:"
        " first the local views in row-major order, one view after the other, then the global view,"
        f" then a learned separator. There are no newlines: the prompt has {tokens}, and"
        f" {len(unassigned)} for the separator. A decode step runs only the decoder, which is the"
        " same as DeepSeek-OCR's.",
        diagram=f"""flowchart TB
  ids["input_ids [B, T]"] --> embed["embed_tokens"]
  views["views: {views}"] --> sam["sam_model: ImageEncoderViT"]
  sam --> qwen["qwen2_model: Qwen2Decoder2Encoder"]
  qwen --> proj["projector: MlpProjector"]
  proj --> row["one view after another,<br/>view_seperator at the end"]
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
        features=r"z(v) = W\, \mathrm{qwen}(\mathrm{sam}(v)) + b",
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
