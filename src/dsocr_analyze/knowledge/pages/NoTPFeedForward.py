"""The MLP of a CLIP block."""

from __future__ import annotations

from dsocr_analyze.costs.activations import quick_gelu
from dsocr_analyze.knowledge.families.clip import GROUP, SYMBOLS, tokens, view_cases
from dsocr_analyze.knowledge.families.mlp import mlp_formulas, mlp_kernels
from dsocr_analyze.knowledge.families.reference_files import VISION
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Page, Parameter, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    d, m = facts.clip.width, facts.clip.mlp
    return Page(
        group=GROUP,
        subject=facts.get("NoTPFeedForward"),
        what="The MLP of a CLIP block: a linear map up, quick GELU, a linear map down; both with"
        " bias.",
        blocks=(("clip", "MLP"),),
        layer="costs.linear.linear, costs.activations.quick_gelu",
        inputs={"x": "N, T, d"},
        output="N, T, d",
        parameters={
            "cfg": Parameter("Unused, as published.", "built from vision_config"),
            "dim": Parameter("Width d.", d),
            "hidden_dim": Parameter("Hidden width m.", m),
        },
        diagram=f"""flowchart LR
  x["x [N, T, {d}]"] --> fc1["fc1<br/>{d} to {m}"]
  fc1 --> act["quick GELU"]
  act --> fc2["fc2<br/>{m} to {d}"]
  fc2 --> y["y [N, T, {d}]"]""",
        pseudo_code="""h = fc1(x)
return fc2(h * sigmoid(1.702 * h))""",
        mathematics=r"y = W_2\,\mathrm{qgelu}(W_1 x + b_1) + b_2, \quad"
        r" \mathrm{qgelu}(z) = z\,\sigma(1.702\,z)",
        symbols=pick("N q T d m", SYMBOLS),
        formulas=mlp_formulas("N * T", activation=6),
        cases=view_cases(
            facts,
            build=lambda: facts.make("NoTPFeedForward", {}, d, m),
            closed_form=lambda N, R: mlp_kernels(N * tokens(facts, R), d, m, quick_gelu),
        ),
        flops_notes=(
            "Quick GELU is a scripted function: a product, a sigmoid (four operations) and a"
            " product, each a separate operator that reads and writes memory.",
        ),
        related=("NoTPTransformerBlock", "MLPBlock", "DeepseekV2MLP"),
        usage=f"""import torch
from {VISION} import NoTPFeedForward

mlp = NoTPFeedForward({{}}, {d}, {m})
assert mlp(torch.zeros(1, 2, {d})).shape == (1, 2, {d})""",
        notes="linear, quick GELU, linear",
        references=("gelu", "clip"),
    )
