"""A norm in fp32 that the CLIP encoder can have before its blocks."""

from __future__ import annotations

from dsocr_analyze.costs.normalization import layer_norm_fp32
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.clip import GROUP, SYMBOLS, tokens, view_cases
from dsocr_analyze.knowledge.families.reference_files import VISION
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Formulas, Page, Parameter, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    d = facts.clip.width
    return Page(
        group=GROUP,
        subject=facts.get("LayerNormfp32"),
        what="Layer normalisation that computes in fp32 and returns its input's dtype. The encoder"
        " uses it before the stack if its settings include `fp32norm`; the published settings do"
        " not, so the model has a plain `nn.LayerNorm` there.",
        blocks=(),
        layer="costs.normalization.layer_norm_fp32",
        inputs={"x": "N, T, d"},
        output="N, T, d",
        parameters={
            "normalized_shape": Parameter("Width that is normalised.", d),
            "eps": Parameter(
                "Added to the variance before the root.", facts.default("LayerNormfp32", "eps")
            ),
            "elementwise_affine": Parameter("Whether it has a weight and a bias.", True),
            "bias": Parameter("Whether it has a bias in addition to the weight.", True),
            "device": Parameter("Device of the parameters.", None),
            "dtype": Parameter("Dtype of the parameters.", None),
        },
        diagram="""flowchart LR
  x["x"] --> wide["cast to fp32"]
  wide --> norm["LayerNorm"]
  norm --> back["cast back"]""",
        pseudo_code="return layer_norm(x.float(), weight, bias, eps).to(x.dtype)",
        mathematics=r"y = w \odot \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + b",
        symbols=pick("N q T d", SYMBOLS),
        formulas=Formulas(vector_flops="5 * N * T * d", params="2 * d"),
        cases=view_cases(
            facts,
            build=lambda: facts.make("LayerNormfp32", d),
            closed_form=lambda N, R: layer_norm_fp32(N * tokens(facts, R), d, BFLOAT16),
        ),
        flops_notes=("Five FLOPs per element, as for a plain LayerNorm; the casts move bytes.",),
        related=("VitModel", "LayerNorm2d", "DeepseekV2RMSNorm"),
        usage=f"""import torch
from {VISION} import LayerNormfp32

norm = LayerNormfp32({d})
x = torch.randn(2, {d})
assert norm(x).dtype == x.dtype
assert torch.allclose(norm(x).mean(-1), torch.zeros(2), atol=1e-5)""",
        notes="only if the settings ask for `fp32norm`",
        references=("layernorm",),
    )
