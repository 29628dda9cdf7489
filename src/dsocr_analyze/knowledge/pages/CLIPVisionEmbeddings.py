"""The CLIP encoder's class token and positions, around SAM's features."""

from __future__ import annotations

from typing import Any

from dsocr_analyze.architectures.ocr_family import vision
from dsocr_analyze.architectures.ocr_family.dimensions import ClipDimensions
from dsocr_analyze.costs.conv2d import conv2d
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.clip import (
    EMBEDDING_PARAMS,
    GROUP,
    MEANINGS,
    SYMBOLS,
    values,
    view_cases,
)
from dsocr_analyze.knowledge.machinery.facts import Facts, count, tensor
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Parameter, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    clip = facts.clip
    d = clip.width
    convolution = clip.patch_size**2 * facts.channels * d
    return Page(
        group=GROUP,
        subject=facts.get("CLIPVisionEmbeddings"),
        what="Prepends a class token to the patch embeddings and adds a learned position table,"
        " resized to the number of patches. The patch embeddings are the SAM features: the module's"
        f" own patch convolution ({count(convolution)} parameters) never runs.",
        blocks=(("clip", "embeddings"),),
        layer="architectures.ocr_family.vision.clip_sections (its frame)",
        inputs={"pixel_values": "N, C, R, R", "patch_embeds": "N, d, q, q"},
        output="N, T, d",
        parameters={
            "hidden_size": Parameter("Width d.", d),
            "image_size": Parameter(MEANINGS["image_size"], clip.image_size),
            "patch_size": Parameter(MEANINGS["patch_size"], clip.patch_size),
            "num_channels": Parameter("Channels of the image.", facts.channels),
        },
        diagram=_diagram(d, clip),
        pseudo_code="""patches = patch_embedding(pixels) if patch_embeds is None else patch_embeds
tokens = cat([class_embedding, patches.flatten(2).transpose(1, 2)])
return tokens + get_abs_pos(position_embedding(position_ids), tokens.shape[1])""",
        mathematics=r"x = [c;\ s_1;\ \dots;\ s_{q^2}] + P'",
        symbols=pick("N R q T d l p C o I", SYMBOLS),
        formulas=Formulas(
            macs="o * N * q ** 2 * d * C * p ** 2",
            vector_flops="N * T * d + I",
            params=EMBEDDING_PARAMS,
            activations="o * N * q ** 2 * d",
        ),
        cases=_cases(facts),
        flops_notes=("The position table lookup computes nothing but moves its rows.",),
        related=("VitModel", "ImageEncoderViT", "get_abs_pos"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

embeddings = DeepSeekOCRSession.from_local().model.model.vision_model.embeddings
side = {facts.token_side(facts.views[0][2])}
features = torch.empty(1, {d}, side, side, dtype=torch.bfloat16, device="meta")
pixels = torch.empty(1, {facts.channels}, {facts.views[0][2]}, {facts.views[0][2]}, dtype=torch.bfloat16, device="meta")
assert embeddings(pixels, features).shape == (1, side * side + 1, {d})""",
        notes="SAM features as patches; own convolution unused",
        references=("clip", "vit"),
    )


def _diagram(d: int, clip: ClipDimensions) -> str:
    return f"""flowchart LR
  sam["SAM features [N, {d}, q, q]"] --> flat["flatten, tokens first"]
  first["class_embedding [{d}]"] --> cat["concatenate [N, T, {d}]"]
  flat --> cat
  table["position_embedding<br/>{clip.positions} x {d}"] --> resize["get_abs_pos<br/>to q q + 1 rows"]
  cat --> add["sum"]
  resize --> add
  add --> y["y [N, T, {d}]"]
  own["patch_embedding: Conv2d (never runs)"] -.-> flat"""


def _cases(facts: Facts) -> tuple[Case, ...]:
    """The model's calls, and one that runs the convolution, which the model never does."""
    clip, C = facts.clip, facts.channels
    d, patch, side = clip.width, clip.patch_size, clip.image_size // clip.patch_size

    def build() -> Any:
        return facts.make("CLIPVisionEmbeddings", d, clip.image_size, patch)

    def kernels(N: int, q: int) -> ModuleKernels:
        frame = vision.clip_sections(N, q, clip, BFLOAT16)[0].modules
        return {path: own for path, own in frame.items() if path.startswith("embeddings")}

    in_the_model = view_cases(
        facts,
        build=build,
        arguments=lambda N, R: [
            tensor(N, C, R, R),
            tensor(N, d, facts.token_side(R), facts.token_side(R)),
        ],
        closed_form=lambda N, R: kernels(N, facts.token_side(R)),
    )
    patches = conv2d(1, clip.image_size, C, d, patch, BFLOAT16, stride=patch)
    own_convolution = Case(
        "own convolution (never runs in the model)",
        {**values(facts, 1, clip.image_size), "q": side, "o": 1},
        build,
        lambda: [tensor(1, C, clip.image_size, clip.image_size), None],
        closed_form=lambda: kernels(1, side) | {"embeddings.patch_embedding": patches},
    )
    return (*in_the_model, own_convolution)
