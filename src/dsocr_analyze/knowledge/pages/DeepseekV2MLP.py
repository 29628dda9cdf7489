"""The decoder's gated MLP: dense layers, routed experts, shared experts."""

from __future__ import annotations

from collections.abc import Iterator

from dsocr_analyze.costs.activations import activation_flops
from dsocr_analyze.costs.swiglu import swiglu
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.decoder import SYMBOLS
from dsocr_analyze.knowledge.families.mlp import SILU_GATE, gated_mlp_formulas
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Page, Parameter, pick

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    decoder = facts.decoder
    d, act = decoder.hidden_size, decoder.hidden_act
    return Page(
        group="Decoder: MLP and mixture of experts",
        subject=facts.get("DeepseekV2MLP"),
        what="The gated MLP (SwiGLU): two up projections, one of them through the activation, their"
        " elementwise product, and one down projection; no biases. It serves as the MLP of a dense"
        " layer, as each routed expert, and (with their widths added up) as the shared experts.",
        blocks=(("prefill", "SwiGLU MLP"), ("decode", "SwiGLU MLP")),
        layer="costs.swiglu.swiglu",
        inputs={"x": "B, T, d"},
        output="B, T, d",
        parameters={
            "config": Parameter("Source of the widths and the activation.", "the model's config"),
            "hidden_size": Parameter("Overrides the config's width.", None),
            "intermediate_size": Parameter("Overrides the config's hidden width.", None),
            "config.hidden_size": Parameter("Width d.", d),
            "config.intermediate_size": Parameter(
                "Hidden width m of a dense layer.", decoder.intermediate_size
            ),
            "config.hidden_act": Parameter("Activation of the gate.", act),
        },
        diagram=f"""flowchart LR
  x["x [B, T, {d}]"] --> gate["gate_proj<br/>{d} to m"]
  x --> up["up_proj<br/>{d} to m"]
  gate --> act["{act}"]
  act --> product["product"]
  up --> product
  product --> down["down_proj<br/>m to {d}"]
  down --> y["y [B, T, {d}]"]""",
        pseudo_code="return down_proj(act(gate_proj(x)) * up_proj(x))",
        mathematics=SILU_GATE + r", \quad \mathrm{silu}(z) = \frac{z}{1 + e^{-z}}",
        symbols=pick("B T d m a", SYMBOLS),
        formulas=gated_mlp_formulas("B * T"),
        cases=cases_of(
            _calls(facts),
            lambda T, m: {"B": 1, "T": T, "d": d, "m": m, "a": activation_flops(act)},
            build=lambda _, m: facts.make("DeepseekV2MLP", facts.config, intermediate_size=m),
            arguments=lambda T, _: [tensor(1, T, d)],
            closed_form=lambda T, m: swiglu(T, d, m, BFLOAT16, act),
        ),
        flops_notes=(
            "The activation's FLOPs follow from its definition: SiLU is a negation, an exponential,"
            " an addition, a division and a product.",
        ),
        memory_notes=("Gate, up and their product are alive at once: three tensors of width m.",),
        related=("DeepseekV2MoE", "DeepseekV2DecoderLayer", "MLPBlock", "NoTPFeedForward"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession

model = DeepSeekOCRSession.from_local().model
mlp = model.model.layers[0].mlp
y = mlp(torch.empty(1, {facts.tokens}, {d}, dtype=torch.bfloat16, device="meta"))
assert y.shape == (1, {facts.tokens}, {d})""",
        notes="dense layers, routed experts, shared experts",
        references=("swiglu",),
    )


def _calls(facts: Facts) -> Iterator[tuple[str, int, int]]:
    """Calls of the MLP: label, tokens, hidden width."""
    decoder = facts.decoder
    yield "dense layer", facts.tokens, decoder.intermediate_size
    if decoder.n_routed_experts is not None:
        share = facts.tokens * decoder.num_experts_per_tok // decoder.n_routed_experts
        yield "one routed expert's share", share, decoder.moe_intermediate_size
        if decoder.shared_intermediate_size:
            yield "shared experts", facts.tokens, decoder.shared_intermediate_size
    yield "dense layer, decode step", 1, decoder.intermediate_size
