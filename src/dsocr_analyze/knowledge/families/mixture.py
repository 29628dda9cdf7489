"""The mixture of experts: routing, formulas and values for the router and the block."""

from __future__ import annotations

from dsocr_analyze.architectures.ocr_family import decoder_forms as decoder_costs
from dsocr_analyze.architectures.ocr_family.decoder_dimensions import DecoderDimensions
from dsocr_analyze.costs import moe as moe_costs
from dsocr_analyze.costs.activations import activation_flops
from dsocr_analyze.knowledge.families.decoder import SYMBOLS
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Formulas, Symbol, pick

__all__ = [
    "gate_formulas",
    "mixture_symbols",
    "mixture_values",
    "moe_formulas",
    "routing_of",
    "with_mixture",
]


def routing_of(facts: Facts) -> moe_costs.Routing:
    """The router's dimensions for the closed forms."""
    return decoder_costs.routing_of(facts.decoder)


def with_mixture(facts: Facts) -> Facts:
    """The given facts, or those of the published config if the given one has no experts."""
    return facts if facts.decoder.n_routed_experts is not None else facts.published


def gate_formulas(decoder: DecoderDimensions) -> Formulas:
    """Formulas of the router as configured."""
    n = "B * T"
    terms = [f"{5 if decoder.scoring_func == 'softmax' else 4} * {n} * E"]
    if decoder.topk_method == "greedy":
        terms.append(f"{n} * E")
    elif decoder.topk_method == "group_limited_greedy":
        terms.append(f"3 * {n} * E + {n} * g")
    else:
        terms.append(f"5 * {n} * E")
    if decoder.topk_method == "noaux_tc":
        terms[-1] = f"4 * {n} * E + 3 * {n} * g"
    if decoder.num_experts_per_tok > 1 and decoder.norm_topk_prob:
        terms.append(f"{n} * (2 * k + 1)")
    terms.append(f"{n} * k")
    bias = " + E" if decoder.topk_method == "noaux_tc" else ""
    return Formulas(
        macs=f"{n} * d * E",
        vector_flops=" + ".join(terms),
        params=f"d * E{bias}",
        activations=f"{n} * E",
    )


def mixture_symbols(decoder: DecoderDimensions, names: str) -> dict[str, Symbol]:
    """Some of the decoder's symbols, plus the expert groups if routing uses them."""
    symbols = pick(names, SYMBOLS)
    if decoder.topk_method != "greedy":
        symbols["g"] = Symbol("g", "groups of experts", str(decoder.n_group))
    return symbols


def moe_formulas(decoder: DecoderDimensions) -> Formulas:
    """Formulas of the whole mixture: router, dispatch, routed and shared experts."""
    gate, n = gate_formulas(decoder), "B * T"
    has_shared = bool(decoder.shared_intermediate_size)
    shared_macs = f" + 3 * {n} * d * s" if has_shared else ""
    shared_vector = f" + (a + 1) * {n} * s + {n} * d" if has_shared else ""
    shared_outputs = f" + {n} * (2 * s + d)" if has_shared else ""
    return Formulas(
        macs=f"{gate.macs} + 3 * {n} * k * d * f{shared_macs}",
        vector_flops=f"{gate.vector_flops} + {n} * E + {n} * k * (ceil_log2({n} * k) + 1)"
        f" + (a + 1) * {n} * k * f + 2 * {n} * k * d{shared_vector}",
        params=f"{gate.params} + 3 * d * f * E" + (" + 3 * d * s" if has_shared else ""),
        activations=f"{gate.activations} + {n} * k * (2 * f + d){shared_outputs}",
    )


def mixture_values(decoder: DecoderDimensions) -> dict[str, int]:
    """Values of the mixture's symbols."""
    return {
        "d": decoder.hidden_size,
        "E": int(decoder.n_routed_experts or 0),
        "k": decoder.num_experts_per_tok,
        "f": decoder.moe_intermediate_size,
        "s": decoder.shared_intermediate_size,
        "a": activation_flops(decoder.hidden_act),
    }
