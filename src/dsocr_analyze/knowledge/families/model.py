"""Page templates for the model of every relative, without and with its head."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.knowledge.families.decoder_stack import stack_parameters
from dsocr_analyze.knowledge.families.whole_model import WholeModel
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.page import Page, Parameter
from dsocr_analyze.report.quantities import bytes_text, flops_text

__all__ = [
    "CLIP_AND_SAM_FEATURES",
    "causal_lm_page",
    "clip_and_sam_diagram",
    "group_of",
    "model_page",
]


def group_of(facts: Facts) -> str:
    """Group heading for the pages of a relative's own model."""
    if facts.architecture is DEFAULT:
        return "The OCR model"
    return f"{facts.architecture.title}: the model"


_PIXELS_NOTE: Final = (
    "The vendor's code sums the pixels to tell an image from a blank, which counts one FLOP per"
    " value."
)
_PLACEHOLDERS: Final = (
    r"x_t = \begin{cases} z_t & t \text{ is a placeholder} \\ W_e[t] &"
    r" \text{otherwise} \end{cases}"
)
CLIP_AND_SAM_FEATURES: Final = (
    r"z(v) = W \left[\mathrm{clip}(v, \mathrm{sam}(v));\ \mathrm{sam}(v)\right]"
)
"""Features of a view in models with SAM and CLIP."""


def model_page(
    whole: WholeModel,
    *,
    what: str,
    diagram: str,
    pseudo_code: str,
    features: str,
    related: tuple[str, ...],
    references: tuple[str, ...],
    memory_notes: tuple[str, ...],
    flops_notes: tuple[str, ...] = (),
) -> Page:
    """The page of a model without its head.

    `features` is the LaTeX of a view's features; for the other arguments see `Page`.
    """
    facts = whole.facts
    workload, figures = facts.workload, facts.analytic
    return Page(
        group=group_of(facts),
        subject=facts.class_at("model"),
        what=what,
        blocks=(("prefill", "visual tokens into the prompt"),),
        layer="architectures.ocr_family.composition.compose (without the head)",
        inputs={"input_ids": "B, T"},
        output="B, T, d",
        parameters=_vision_parameters(facts),
        diagram=diagram,
        pseudo_code=pseudo_code,
        mathematics=rf"{features}, \quad {_PLACEHOLDERS}",
        symbols=whole.symbols,
        formulas=whole.formulas,
        cases=whole.cases,
        flops_notes=(_PIXELS_NOTE, *flops_notes),
        memory_notes=memory_notes,
        related=related,
        usage=f"""from dsocr_analyze.session import DeepSeekOCRSession

session = DeepSeekOCRSession.from_local()
report = session.analyze(page={workload.page})
assert report.workload.visual_tokens == {workload.visual_tokens}
assert report.stages["sam"].matrix_flops == {figures.stages["sam"].work.matrix_flops}""",
        notes="vision side and decoder as one module",
        references=references,
    )


def _vision_parameters(facts: Facts) -> dict[str, Parameter]:
    """The config keys of a model with its vision side."""
    encoders = f"ImageEncoderViT and {facts.second_encoder}"
    return {
        **stack_parameters(facts),
        "config.vision_config": Parameter("Widths, layers, heads.", f"see {encoders}"),
        "config.projector_config": Parameter("Variant and widths.", "see MlpProjector"),
    }


def causal_lm_page(
    whole: WholeModel,
    *,
    what: str,
    related: tuple[str, ...],
    references: tuple[str, ...],
    flops_notes: tuple[str, ...] = (),
    memory_notes: tuple[str, ...] = (),
) -> Page:
    """The page of a whole model; for the arguments see `Page`."""
    facts = whole.facts
    decoder, workload = facts.decoder, facts.workload
    d, vocabulary = decoder.hidden_size, decoder.vocab_size
    figures, per_token = facts.analytic, facts.cache_bytes_per_token
    params, weights_bytes = figures.parameters.total, figures.memory.weights_bytes
    return Page(
        group=group_of(facts),
        subject=facts.class_at(""),
        what=what,
        blocks=(("prefill", "whole model"), ("decode", "whole model")),
        layer="architectures.ocr_family.composition.compose",
        inputs={"input_ids": "B, T"},
        output="B, T, V",
        parameters=stack_parameters(facts),
        diagram=f"""flowchart LR
  ids["input_ids [B, T]"] --> model["model: {facts.model_class}"]
  images["images"] --> model
  model --> head["lm_head<br/>{d} to {count(vocabulary)}"]
  head --> cast["cast to fp32"]
  cast --> logits["logits [B, T, {count(vocabulary)}]"]
  model --> cache[("KV cache<br/>{count(per_token)} bytes/token")]
  cache --> model""",
        pseudo_code="""hidden, cache = model(input_ids, images, images_seq_mask, images_spatial_crop)
logits = lm_head(hidden).float()
token = logits[:, -1].argmax()
repeat: hidden, cache = model(token, cache); logits = lm_head(hidden).float()""",
        mathematics=r"p(t_{n+1} \mid t_{\le n}, v) = \mathrm{softmax}(W_{lm}\, y_n)",
        symbols=whole.symbols,
        formulas=whole.formulas,
        cases=whole.cases,
        flops_notes=(
            "The prefill pass over the stated page takes"
            f" {flops_text(figures.prefill_pass.flops)}, including"
            f" {flops_text(figures.prefill_pass.matrix_flops)} of matrix work;"
            f" a decode step takes {flops_text(figures.stages['decode'].work.flops)}.",
            *flops_notes,
        ),
        memory_notes=(
            f"All weights take {bytes_text(weights_bytes)} in bf16"
            f" ({count(params)} parameters); the KV cache takes"
            f" {count(per_token)} bytes per token.",
            *memory_notes,
        ),
        related=related,
        usage=f"""from dsocr_analyze.session import DeepSeekOCRSession

session = DeepSeekOCRSession.from_local()
report = session.analyze(page={workload.page})
assert report.total.params == {params}
assert report.total.matrix_flops == {figures.prefill_pass.matrix_flops}""",
        notes="the whole model",
        references=references,
    )


def clip_and_sam_diagram(facts: Facts, decoder: str) -> str:
    """Diagram of how views become prompt tokens in models with SAM and CLIP.

    Args:
        facts: The model.
        decoder: The decoder's class and layers.
    """
    views = " and ".join(f"{N} of {count(R)} pixels square" for _, N, R in facts.views)
    return f"""flowchart TB
  ids["input_ids [B, T]"] --> embed["embed_tokens"]
  views["views: {views}"] --> sam["sam_model: ImageEncoderViT"]
  sam --> clip["vision_model: VitModel"]
  views --> clip
  sam --> cat["concatenate"]
  clip --> cat
  cat --> proj["projector: MlpProjector"]
  proj --> rows["rows, image_newline after each,<br/>view_seperator at the end"]
  rows --> scatter["masked_scatter_ over the placeholders:<br/>{count(facts.workload.visual_tokens)} visual tokens"]
  embed --> scatter
  scatter --> decoder["{decoder}"]
  decoder --> y["hidden states [B, T, {facts.decoder.hidden_size}]"]"""
