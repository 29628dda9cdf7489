"""The decoder's norm."""

from __future__ import annotations

from dsocr_analyze.costs.normalization import rms_norm
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.decoder import SYMBOLS
from dsocr_analyze.knowledge.families.reference_files import DECODER
from dsocr_analyze.knowledge.families.rms_norm import (
    RMS_NORM,
    rms_norm_formulas,
    rms_norm_parameters,
)
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, count, tensor
from dsocr_analyze.knowledge.machinery.page import Page, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    d = facts.decoder.hidden_size
    norms = 2 * facts.decoder.layers + 1
    return Page(
        group="Decoder: norms and positions",
        subject=facts.get("DeepseekV2RMSNorm"),
        what="Root-mean-square normalisation over the last dimension, with a learned gain and no"
        " bias, computed in fp32 and cast back to the model's dtype. The decoder has one before"
        " each layer's attention, one before each layer's MLP and one after the last layer:"
        f" {count(norms)} in {facts.model_name}.",
        blocks=(("prefill", "RMSNorm"), ("decode", "RMSNorm")),
        layer="costs.normalization.rms_norm",
        inputs={"hidden_states": "B, T, d"},
        output="B, T, d",
        parameters=rms_norm_parameters(d, facts.decoder.rms_norm_eps),
        diagram="""flowchart TB
  x["x [B, T, d]"] --> wide["cast to fp32"]
  wide --> square["square, mean over d"]
  square --> root["add eps, reciprocal root"]
  wide --> scale["product"]
  root --> scale
  scale --> back["cast back"]
  back --> gain["times weight [d]"]
  gain --> y["y [B, T, d]"]""",
        pseudo_code="""wide = x.float()
wide = wide * rsqrt(mean(wide ** 2, dim=-1) + eps)
return weight * wide.to(x.dtype)""",
        mathematics=RMS_NORM,
        symbols=pick("B T d", SYMBOLS),
        formulas=rms_norm_formulas("B * T"),
        cases=cases_of(
            facts.steps,
            lambda T, _: {"B": 1, "T": T, "d": d},
            build=lambda *_: facts.make("DeepseekV2RMSNorm", d, facts.decoder.rms_norm_eps),
            arguments=lambda T, _: [tensor(1, T, d)],
            closed_form=lambda T, _: rms_norm(T, d, BFLOAT16),
        ),
        flops_notes=(
            "Square, mean, product and gain count one FLOP per element each; the epsilon and the"
            " reciprocal root count one per token each.",
        ),
        memory_notes=(
            "It is not one kernel but eight operators, counted as they run: three fp32 tensors of"
            " the input's size are written to memory and read back.",
        ),
        related=("DeepseekV2DecoderLayer", "DeepseekV2Model", "LayerNormfp32", "LayerNorm2d"),
        usage=f"""import torch
from {DECODER} import DeepseekV2RMSNorm

norm = DeepseekV2RMSNorm({d})
x = torch.randn(1, 4, {d})
y = norm(x)
assert y.shape == x.shape
assert torch.allclose(y.pow(2).mean(-1), torch.ones(1, 4), atol=1e-3)""",
        notes="before attention, before the MLP, after the last layer",
        references=("rmsnorm",),
    )
