"""The norm of DeepSeek-OCR-2's encoder."""

from __future__ import annotations

from typing import Any

from dsocr_analyze.costs.normalization import rms_norm
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.qwen2 import (
    GROUP,
    INNER,
    SYMBOLS,
    encoder_of,
    hidden,
    tokens,
    view_cases,
)
from dsocr_analyze.knowledge.families.reference_files import QWEN2
from dsocr_analyze.knowledge.families.rms_norm import (
    RMS_NORM,
    rms_norm_formulas,
    rms_norm_parameters,
)
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.page import Page, pick
from dsocr_analyze.knowledge.machinery.signature import import_line

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    encoder = encoder_of(facts)
    d = encoder.width
    config: Any = facts.at(INNER).config
    return Page(
        group=GROUP,
        subject=facts.class_at(f"{INNER}.norm"),
        what="Root-mean-square normalisation in fp32 with a learned gain, computed like the"
        " decoder's `DeepseekV2RMSNorm`. Each layer has two, and one follows the last layer:"
        f" {count(2 * encoder.layers + 1)} in the encoder.",
        blocks=(("encoder", "RMSNorm"),),
        layer="costs.normalization.rms_norm",
        inputs={"hidden_states": "N, T, d"},
        output="N, T, d",
        parameters=rms_norm_parameters(d, config.rms_norm_eps),
        diagram=f"""flowchart TB
  x["x [N, T, {d}]"] --> wide["cast to fp32"]
  wide --> root["reciprocal root of the mean square and eps"]
  wide --> scale["product"]
  root --> scale
  scale --> gain["cast back, times weight [{d}]"]
  gain --> y["y [N, T, {d}]"]""",
        pseudo_code="""wide = x.float()
return weight * (wide * rsqrt(mean(wide ** 2, dim=-1) + eps)).to(x.dtype)""",
        mathematics=RMS_NORM,
        symbols=pick("N q n T d", SYMBOLS),
        formulas=rms_norm_formulas("N * T"),
        cases=view_cases(
            facts,
            f"{INNER}.norm",
            hidden(facts),
            lambda N, R: rms_norm(N * tokens(facts, R), d, BFLOAT16),
        ),
        related=("DeepseekV2RMSNorm", "Qwen2DecoderLayer", "CustomQwen2ModelInner"),
        usage=f"""import torch
{import_line(QWEN2, "Qwen2RMSNorm")}

x = torch.randn(1, 4, {d})
y = Qwen2RMSNorm({d})(x)
assert torch.allclose(y.pow(2).mean(-1), torch.ones(1, 4), atol=1e-3)""",
        notes="same as the decoder's",
        references=("rmsnorm",),
    )
