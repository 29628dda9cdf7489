"""The norm over channels in the neck of the SAM encoder."""

from __future__ import annotations

from dsocr_analyze.costs.normalization import layer_norm_2d
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.reference_files import VISION
from dsocr_analyze.knowledge.families.sam import GROUP, SYMBOLS, view_cases
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, Parameter, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    C = facts.sam.neck
    return Page(
        group=GROUP,
        subject=facts.get("LayerNorm2d"),
        what="Layer normalisation over the channels of a feature map in channels-first layout,"
        " written out operator by operator; the neck of the SAM encoder has two.",
        blocks=(("sam", "LayerNorm2d"),),
        layer="costs.normalization.layer_norm_2d",
        inputs={"x": "N, C, g, g"},
        output="N, C, g, g",
        parameters={
            "num_channels": Parameter("Channels C.", C),
            "eps": Parameter(
                "Added to the variance before the root.", facts.default("LayerNorm2d", "eps")
            ),
        },
        diagram=f"""flowchart TB
  x["x [N, {C}, g, g]"] --> mean["mean over channels"]
  mean --> centre["centre"]
  x --> centre
  centre --> variance["square, mean"]
  variance --> quotient["divide by the root"]
  centre --> quotient
  quotient --> affine["weight, bias"]
  affine --> y["y [N, {C}, g, g]"]""",
        pseudo_code="""mean = x.mean(1, keepdim=True)
variance = ((x - mean) ** 2).mean(1, keepdim=True)
return weight * (x - mean) / sqrt(variance + eps) + bias""",
        mathematics=r"y_{c} = w_c \frac{x_c - \mu}{\sqrt{\sigma^2 + \varepsilon}} + b_c, \quad"
        r" \mu = \frac{1}{C} \sum_c x_c, \quad \sigma^2 = \frac{1}{C} \sum_c (x_c - \mu)^2",
        symbols=pick("N C g", SYMBOLS),
        formulas=Formulas(vector_flops="N * g ** 2 * (8 * C + 2)", params="2 * C"),
        cases=view_cases(
            facts,
            build=lambda: facts.make("LayerNorm2d", C),
            arguments=lambda N, R: [tensor(N, C, facts.sam_grid(R), facts.sam_grid(R))],
            closed_form=lambda N, R: layer_norm_2d(N, C, facts.sam_grid(R) ** 2, BFLOAT16),
            more_values={"C": C},
        ),
        flops_notes=(
            "Unfused, it costs more than a fused layer norm: the input is centred twice.",
        ),
        related=("ImageEncoderViT", "LayerNormfp32", "DeepseekV2RMSNorm"),
        usage=f"""import torch
from {VISION} import LayerNorm2d

norm = LayerNorm2d({C})
y = norm(torch.randn(1, {C}, 2, 2))
assert torch.allclose(y.mean(1), torch.zeros(1, 2, 2), atol=1e-5)""",
        notes="two in the neck, not fused",
        references=("layernorm", "sam"),
    )
