"""The CLIP encoder."""

from __future__ import annotations

from dsocr_analyze.knowledge.families.clip import (
    BLOCK,
    EMBEDDING_PARAMS,
    GROUP,
    MEANINGS,
    SYMBOLS,
    sections,
    setting_parameters,
    tokens,
    view_cases,
)
from dsocr_analyze.knowledge.machinery.facts import Facts, kernels_of, tensor
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, Parameter, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    clip = facts.clip
    d = clip.width
    _, _, R = facts.views[0]
    return Page(
        group=GROUP,
        subject=facts.get("VitModel"),
        what="The CLIP encoder as used in the model: embeddings that take the SAM features as"
        f" patches, a norm before the stack, {clip.layers} pre-norm blocks, and no norm after them.",
        blocks=(("clip", "CLIP encoder"),),
        layer="architectures.ocr_family.vision.clip_sections",
        inputs={"x": "N, C, R, R", "patch_embeds": "N, d, q, q"},
        output="N, T, d",
        parameters={
            **setting_parameters(facts, *MEANINGS),
            "freeze_embed": Parameter("Freezes the embeddings in training.", False),
            "freeze_pre_norm": Parameter("Freezes the norm before the stack in training.", False),
        },
        diagram=f"""flowchart TB
  view["view [N, {facts.channels}, R, R]"] --> emb["embeddings: CLIPVisionEmbeddings"]
  sam["SAM features [N, {d}, q, q]"] --> emb
  emb --> norm["pre_layrnorm: LayerNorm"]
  norm --> stack["transformer: {clip.layers} x NoTPTransformerBlock<br/>width {d}, {clip.heads} heads"]
  stack --> y["y [N, q q + 1, {d}]"]""",
        pseudo_code="return transformer(pre_layrnorm(embeddings(x, patch_embeds)))",
        mathematics=r"y = \mathrm{blocks}(\mathrm{norm}([c;\ s] + P'))",
        symbols=pick("N R q T d H m L l p C I", SYMBOLS),
        formulas=Formulas(
            macs=f"L * ({BLOCK.macs})",
            vector_flops=f"6 * N * T * d + I + L * ({BLOCK.vector_flops})",
            params=f"{EMBEDDING_PARAMS} + 2 * d + L * ({BLOCK.params})",
            activations=f"L * ({BLOCK.activations})",
        ),
        cases=view_cases(
            facts,
            build=lambda: facts.at("model.vision_model"),
            arguments=lambda N, R: [
                tensor(N, facts.channels, R, R),
                tensor(N, d, facts.token_side(R), facts.token_side(R)),
            ],
            closed_form=lambda N, R: kernels_of(sections(facts, N, R)),
        ),
        related=("CLIPVisionEmbeddings", "NoTPTransformer", "ImageEncoderViT", "MlpProjector"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

model = DeepSeekOCRSession.from_local().model.model
view = torch.empty(1, {facts.channels}, {R}, {R}, dtype=torch.bfloat16, device="meta")
features = model.vision_model(view, model.sam_model(view))
assert features.shape == (1, {tokens(facts, R)}, {d})""",
        notes="takes SAM features; no final norm",
        references=("clip", "deepseekocr"),
    )
