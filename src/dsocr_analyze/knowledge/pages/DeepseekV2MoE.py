"""The mixture of experts of a decoder layer."""

from __future__ import annotations

from dsocr_analyze.architectures.ocr_family.dimensions import DecoderDimensions
from dsocr_analyze.costs import moe as moe_costs
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.decoder import THE_CONFIG, fallback_notes
from dsocr_analyze.knowledge.families.mixture import (
    mixture_symbols,
    mixture_values,
    moe_formulas,
    routing_of,
    with_mixture,
)
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, config_value, count, tensor
from dsocr_analyze.knowledge.machinery.page import Page, Parameter

__all__ = ["page"]


def page(facts: Facts) -> Page:
    """The page."""
    mixture = with_mixture(facts)
    decoder = mixture.decoder
    d, E, k = decoder.hidden_size, int(decoder.n_routed_experts or 0), decoder.num_experts_per_tok
    shared = decoder.shared_intermediate_size
    return Page(
        group="Decoder: MLP and mixture of experts",
        subject=facts.get("DeepseekV2MoE"),
        what=f"A mixture of experts: a router sends each token to {k} of {E} small gated MLPs, whose"
        " outputs are summed with the router's weights"
        + (", plus shared experts that process every token, fused into one MLP." if shared else ".")
        + " At inference the tokens are sorted by expert, and each expert that received any tokens"
        " runs once over its share.",
        blocks=(("prefill", "MoE block"), ("decode", "MoE block")),
        layer="costs.moe.moe",
        inputs={"hidden_states": "B, T, d"},
        output="B, T, d",
        parameters=_parameters(mixture),
        diagram=_diagram(decoder),
        pseudo_code="""experts, weights = gate(x)
order = argsort(experts.flatten())
sorted_tokens = x[order // k]
outputs = cat(expert(share) for expert, share in split(sorted_tokens) if share)
y = empty_like(outputs); y[order] = outputs
y = (y.view(tokens, k, d).float() * weights).sum(1).to(x.dtype)
return y + shared_experts(x)""",
        mathematics=r"y = \sum_{i \in \mathcal{T}} g_i\, E_i(x) + E_{shared}(x)",
        symbols=mixture_symbols(decoder, "B T d E k f s a"),
        formulas=moe_formulas(decoder),
        cases=cases_of(
            facts.steps,
            lambda T, _: {"B": 1, "T": T, **mixture_values(decoder)},
            build=lambda *_: mixture.make("DeepseekV2MoE", mixture.config),
            arguments=lambda T, _: [tensor(1, T, d)],
            closed_form=lambda T, _: _kernels(mixture, T),
        ),
        flops_notes=(
            *fallback_notes(facts, mixture, "The given config has no experts"),
            "FLOPs do not depend on the routing: every token is processed by k experts. On `meta`,"
            " where no values exist, tokens are spread evenly over the experts.",
            "Sorting counts one comparison per element for each level of a binary merge.",
        ),
        memory_notes=(
            "All experts are in memory; a pass reads the weights of those that received a token:"
            f" {count(min(E, facts.tokens * k))} of {count(E)} in the prefill pass stated here,"
            f" {count(min(E, k))} in a decode step.",
        ),
        related=("MoEGate", "DeepseekV2MLP", "AddAuxiliaryLoss", "DeepseekV2DecoderLayer"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.running.forward import running

layers = DeepSeekOCRSession.from_local().model.model.layers
x = torch.empty(1, {facts.tokens}, {d}, dtype=torch.bfloat16, device="meta")
with running(torch.device("meta")):  # answers "how many tokens per expert?"
    y = layers[-1].mlp(x)
assert y.shape == x.shape""",
        notes="router, routed experts, shared experts",
        references=("deepseekv2",),
    )


def _parameters(facts: Facts) -> dict[str, Parameter]:
    decoder = facts.decoder
    return {
        "config": THE_CONFIG,
        "config.n_routed_experts": Parameter(
            "Routed experts E.", int(decoder.n_routed_experts or 0)
        ),
        "config.num_experts_per_tok": Parameter(
            "Experts k per token.", decoder.num_experts_per_tok
        ),
        "config.moe_intermediate_size": Parameter(
            "Hidden width f of an expert.", decoder.moe_intermediate_size
        ),
        "config.n_shared_experts": Parameter(
            "Experts that process every token; their widths are added up.",
            decoder.n_shared_experts,
        ),
        "config.ep_size": Parameter(
            "Number of processes that the experts are distributed over; only one is supported.",
            config_value(facts.config, "ep_size"),
        ),
    }


def _kernels(facts: Facts, T: int) -> ModuleKernels:
    decoder = facts.decoder
    return moe_costs.moe(
        T,
        decoder.hidden_size,
        decoder.moe_intermediate_size,
        decoder.shared_intermediate_size,
        routing_of(facts),
        BFLOAT16,
        decoder.hidden_act,
    )


def _diagram(decoder: DecoderDimensions) -> str:
    d, f, shared = (
        decoder.hidden_size,
        decoder.moe_intermediate_size,
        decoder.shared_intermediate_size,
    )
    shared_path = (
        f"""
  x --> shared["shared_experts: SwiGLU<br/>{d} to {shared} to {d}"]
  shared --> sum"""
        if shared
        else ""
    )
    return f"""flowchart TB
  x["x [B, T, {d}]"] --> gate["gate: MoEGate<br/>top {decoder.num_experts_per_tok} of {decoder.n_routed_experts}"]
  gate --> order["sort tokens by expert"]
  x --> order
  order --> experts["experts: SwiGLU<br/>{d} to {f} to {d}"]
  experts --> back["back to token order"]
  gate --> weighted["weighted sum in fp32"]
  back --> weighted
  weighted --> sum["sum"]{shared_path}
  sum --> y["y [B, T, {d}]"]"""
