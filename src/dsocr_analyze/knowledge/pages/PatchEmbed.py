"""Patches of a view, by one convolution."""

from __future__ import annotations

from dsocr_analyze.costs.conv2d import conv2d
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.reference_files import VISION
from dsocr_analyze.knowledge.families.sam import GROUP, SYMBOLS, view_cases
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, Parameter, Symbol, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    sam, C = facts.sam, facts.channels
    patch = (sam.patch, sam.patch)
    return Page(
        group=GROUP,
        subject=facts.get("PatchEmbed"),
        what="Cuts a view into patches with one convolution whose kernel is as large as its stride,"
        " so that each patch becomes one vector. The output is channels-last.",
        blocks=(("sam", "patch embedding"),),
        layer="costs.conv2d.conv2d",
        inputs={"x": "N, C, R, R"},
        output="N, g, g, d",
        parameters={
            "kernel_size": Parameter("Pixels of a patch.", patch),
            "stride": Parameter("Pixels from one patch to the next.", patch),
            "padding": Parameter("Zero pixels added at each edge.", (0, 0)),
            "in_chans": Parameter("Channels of the image.", C),
            "embed_dim": Parameter("Width of a patch's vector.", sam.width),
        },
        diagram=f"""flowchart LR
  x["x [N, {C}, R, R]"] --> conv["proj: Conv2d<br/>kernel {sam.patch}, stride {sam.patch}"]
  conv --> permute["channels last, a view"]
  permute --> y["y [N, g, g, {sam.width}]"]""",
        pseudo_code="return proj(x).permute(0, 2, 3, 1)",
        mathematics=r"y_{ij} = W\, \mathrm{patch}_{ij}(x) + b",
        symbols=pick("N R p C d", SYMBOLS) | {"g": Symbol("g", "patches per side, R / p")},
        formulas=Formulas(
            macs="N * g ** 2 * d * C * p ** 2",
            vector_flops="N * g ** 2 * d",
            params="C * p ** 2 * d + d",
            activations="N * g ** 2 * d",
        ),
        cases=view_cases(
            facts,
            build=lambda: facts.make("PatchEmbed", patch, patch, in_chans=C, embed_dim=sam.width),
            arguments=lambda N, R: [tensor(N, C, R, R)],
            closed_form=lambda N, R: conv2d(
                N, R, C, sam.width, sam.patch, BFLOAT16, stride=sam.patch, bias=True
            ),
        ),
        flops_notes=("The bias is one addition per output element.",),
        related=("ImageEncoderViT", "Block", "CLIPVisionEmbeddings"),
        usage=f"""import torch
from {VISION} import PatchEmbed

embed = PatchEmbed(({sam.patch}, {sam.patch}), ({sam.patch}, {sam.patch}), embed_dim={sam.width})
y = embed(torch.zeros(1, {C}, {4 * sam.patch}, {4 * sam.patch}))
assert y.shape == (1, 4, 4, {sam.width})""",
        notes="one convolution, kernel equal to stride",
        references=("vit", "sam"),
    )
