"""The MLP of a SAM block."""

from __future__ import annotations

from dsocr_analyze.costs.activations import gelu
from dsocr_analyze.knowledge.families.mlp import mlp_formulas, mlp_kernels
from dsocr_analyze.knowledge.families.reference_files import VISION
from dsocr_analyze.knowledge.families.sam import GROUP, SYMBOLS, view_cases
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Page, Parameter, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    d, m = facts.sam.width, facts.sam.mlp
    return Page(
        group=GROUP,
        subject=facts.get("MLPBlock"),
        what="The MLP of a SAM block: a linear map up, GELU, a linear map down; both with bias.",
        blocks=(("sam", "MLP"),),
        layer="costs.linear.linear, costs.activations.gelu",
        inputs={"x": "N, g, g, d"},
        output="N, g, g, d",
        parameters={
            "embedding_dim": Parameter("Width d.", d),
            "mlp_dim": Parameter("Hidden width m.", m),
            "act": Parameter("Constructor of the activation.", "GELU"),
        },
        diagram=f"""flowchart LR
  x["x [..., {d}]"] --> lin1["lin1<br/>{d} to {m}"]
  lin1 --> act["GELU"]
  act --> lin2["lin2<br/>{m} to {d}"]
  lin2 --> y["y [..., {d}]"]""",
        pseudo_code="return lin2(gelu(lin1(x)))",
        mathematics=r"y = W_2\,\mathrm{gelu}(W_1 x + b_1) + b_2, \quad"
        r" \mathrm{gelu}(z) = \frac{z}{2}\left(1 + \mathrm{erf}\frac{z}{\sqrt{2}}\right)",
        symbols=pick("N g d m", SYMBOLS),
        formulas=mlp_formulas("N * g ** 2", activation=5),
        cases=view_cases(
            facts,
            build=lambda: facts.make("MLPBlock", d, m),
            arguments=lambda N, R: [tensor(N, facts.sam_grid(R), facts.sam_grid(R), d)],
            closed_form=lambda N, R: mlp_kernels(N * facts.sam_grid(R) ** 2, d, m, gelu),
        ),
        flops_notes=("GELU counts five operations per element, and a bias one.",),
        related=("Block", "NoTPFeedForward", "DeepseekV2MLP"),
        usage=f"""import torch
from {VISION} import MLPBlock

mlp = MLPBlock({d}, {m})
assert mlp(torch.zeros(1, 2, 2, {d})).shape == (1, 2, 2, {d})""",
        notes="linear, GELU, linear",
        references=("gelu", "sam"),
    )
