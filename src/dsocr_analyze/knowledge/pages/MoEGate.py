"""The router of a mixture layer."""

from __future__ import annotations

from typing import Final

from dsocr_analyze.costs import moe as moe_costs
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.families.decoder import THE_CONFIG, config_parameters, fallback_notes
from dsocr_analyze.knowledge.families.mixture import (
    gate_formulas,
    mixture_symbols,
    routing_of,
    with_mixture,
)
from dsocr_analyze.knowledge.families.reference_files import DECODER
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts, tensor
from dsocr_analyze.knowledge.machinery.page import Page

__all__ = ["page"]

_KEYS: Final = {
    "n_routed_experts": "Routed experts E.",
    "num_experts_per_tok": "Experts k per token.",
    "scoring_func": "softmax or sigmoid, over the logits.",
    "topk_method": "greedy, group_limited_greedy or noaux_tc.",
    "n_group": "Groups of experts, for the group-limited methods.",
    "topk_group": "Groups that a token may choose from.",
    "norm_topk_prob": "Whether the chosen scores are normalised to sum to one.",
    "routed_scaling_factor": "Factor on the chosen scores.",
    "aux_loss_alpha": "Weight of the load-balancing loss, in training only.",
    "seq_aux": "Whether that loss is computed per sequence.",
}


def page(facts: Facts) -> Page:
    """The page."""
    mixture = with_mixture(facts)
    decoder = mixture.decoder
    d, E, k = decoder.hidden_size, int(decoder.n_routed_experts or 0), decoder.num_experts_per_tok
    return Page(
        group="Decoder: MLP and mixture of experts",
        subject=facts.get("MoEGate"),
        what="The router of a mixture layer: a linear map from a token to one logit per expert, in"
        " fp32 and without a module of its own (a functional linear), scores by softmax or sigmoid,"
        " and the experts with the highest scores. Group-limited methods consider only the best"
        " groups. In training it also computes the load-balancing loss.",
        blocks=(("prefill", "MoE router"), ("decode", "MoE router")),
        layer="costs.moe.gate",
        inputs={"hidden_states": "B, T, d"},
        output="B * T, k",
        parameters={"config": THE_CONFIG, **config_parameters(mixture.config, _KEYS)},
        diagram=f"""flowchart TB
  x["x [B T, {d}], cast to fp32"] --> logits["functional linear<br/>{d} to {E}"]
  logits --> scores["{decoder.scoring_func}"]
  scores --> top["top {k} ({decoder.topk_method})"]
  top --> experts["experts [B T, {k}]"]
  top --> scale["times routed_scaling_factor"]
  scale --> weights["weights [B T, {k}] fp32"]""",
        pseudo_code="""logits = linear(x.float(), weight.float())
scores = softmax(logits) if scoring_func == "softmax" else sigmoid(logits)
weights, experts = topk(scores, k)          # or within the best groups
if k > 1 and norm_topk_prob:
    weights = weights / sum(weights)
return experts, weights * routed_scaling_factor""",
        mathematics=r"s = \mathrm{softmax}(x W_g^T), \quad"
        r" \mathcal{T} = \mathrm{top}_k(s), \quad g_i = \lambda\, s_i\, [i \in \mathcal{T}]",
        symbols=mixture_symbols(decoder, "B T d E k"),
        formulas=gate_formulas(decoder),
        cases=cases_of(
            facts.steps,
            lambda T, _: {"B": 1, "T": T, "d": d, "E": E, "k": k},
            build=lambda *_: mixture.make("MoEGate", mixture.config),
            arguments=lambda T, _: [tensor(1, T, d)],
            closed_form=lambda T, _: moe_costs.gate(T, d, routing_of(mixture), BFLOAT16),
        ),
        flops_notes=(
            *fallback_notes(facts, mixture, "The given config has no experts"),
            "Choosing the top k counts one comparison per candidate.",
            "The auxiliary loss exists only in training and is not part of an inference pass.",
        ),
        memory_notes=(
            "Input and weight are cast to fp32 first, which reads and writes both once more.",
        ),
        related=("DeepseekV2MoE", "AddAuxiliaryLoss", "DeepseekV2MLP"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
from {DECODER} import MoEGate

config = DeepSeekOCRSession.from_local().model.config
gate = MoEGate(config).eval()
routing = gate(torch.randn(1, 8, {d}))
assert routing.experts.shape == routing.weights.shape == (8, {k})
assert int(routing.experts.max()) < {E}""",
        runs_given_config=mixture is facts,
        notes="functional linear in fp32, softmax, top k",
        references=("deepseekv2", "deepseekv3"),
    )
