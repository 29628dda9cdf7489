"""Pages of the decoder's parts: norm, rotary positions, MLP, mixture of experts, helpers."""

from __future__ import annotations

from typing import Any, Final

import torch

from dsocr_analyze.architectures.ocr_family import decoder as decoder_costs
from dsocr_analyze.architectures.ocr_family.decoder_dimensions import DecoderDimensions
from dsocr_analyze.costs import moe as moe_costs
from dsocr_analyze.costs import normalization, rope, swiglu
from dsocr_analyze.costs.activations import activation_flops
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.knowledge.machinery.facts import Facts, config_value, count, tensor
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Parameter, Symbol
from dsocr_analyze.knowledge.machinery.signature import import_line

__all__ = [
    "SYMBOLS",
    "YARN_OPERATORS",
    "decoder_parts",
    "fallback_notes",
    "gate_formulas",
    "moe_formulas",
    "pick",
    "routing_of",
]

SYMBOLS: Final[dict[str, Symbol]] = {
    "B": Symbol("B", "sequences of the batch"),
    "T": Symbol("T", "new tokens of a sequence"),
    "K": Symbol("K", "keys: cached and new tokens"),
    "d": Symbol("d", "width of a token"),
    "H": Symbol("H", "query heads"),
    "G": Symbol("H_{kv}", "key and value heads"),
    "D": Symbol("D", "features of a head"),
    "m": Symbol("m", "hidden width of the MLP"),
    "a": Symbol("a", "FLOPs of the activation, an element"),
    "E": Symbol("E", "routed experts"),
    "k": Symbol("k", "experts a token passes"),
    "f": Symbol("f", "hidden width of a routed expert"),
    "s": Symbol("s", "hidden width of the shared experts, fused"),
    "V": Symbol("V", "vocabulary"),
    "e": Symbol("e", "bytes of an element"),
}
"""The decoder's alphabet."""

_FILE: Final = "dsocr_analyze.architectures.deepseek_ocr.reference.modeling_deepseekv2"


def pick(names: str, alphabet: dict[str, Symbol] = SYMBOLS) -> dict[str, Symbol]:
    """Some symbols of an alphabet, in the order given."""
    return {name: alphabet[name] for name in names.split()}


def decoder_parts(facts: Facts) -> list[Page]:
    """The pages of this file, in reading order."""
    return [
        _rms_norm(facts),
        _rotary(facts),
        _linear_scaling(facts),
        _dynamic_scaling(facts),
        _yarn(facts),
        _mlp(facts),
        _gate(facts),
        _mixture(facts),
        _auxiliary_loss(facts),
        _repeat_kv(facts),
    ]


def _rms_norm(facts: Facts) -> Page:
    d = facts.decoder.hidden_size

    def case(label: str, T: int) -> Case:
        return Case(
            label,
            {"B": 1, "T": T, "d": d},
            lambda: facts.make("DeepseekV2RMSNorm", d, facts.decoder.rms_norm_eps),
            lambda: [tensor(1, T, d)],
            closed_form=lambda: normalization.rms_norm(T, d, BFLOAT16),
        )

    norms = 2 * facts.decoder.layers + 1
    return Page(
        name="DeepseekV2RMSNorm",
        group="Decoder: norms and positions",
        subject=facts.get("DeepseekV2RMSNorm"),
        what="Root-mean-square normalisation over the last dimension, with a learned gain and no"
        " bias, computed in fp32 and cast back to the model's type. The decoder has one before each"
        " layer's attention, one before each layer's MLP and one behind the last layer:"
        f" {count(norms)} in {facts.model_name}.",
        blocks=(("prefill", "RMSNorm"), ("decode", "RMSNorm")),
        layer="costs.normalization.rms_norm",
        inputs={"hidden_states": "B, T, d"},
        output="B, T, d",
        parameters={
            "hidden_size": Parameter("Width that is normalised.", d),
            "eps": Parameter(
                "Added to the mean square before the root.", facts.decoder.rms_norm_eps
            ),
        },
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
        mathematics=r"y = w \odot \frac{x}{\sqrt{\frac{1}{d} \sum_{i=1}^{d} x_i^2 + \varepsilon}}",
        symbols=pick("B T d"),
        formulas=Formulas(vector_flops="B * T * (4 * d + 2)", params="d"),
        cases=tuple(case(label, T) for label, T, _ in facts.steps),
        flops_notes=(
            "Square, mean, product and gain count one FLOP an element each; the epsilon and the"
            " reciprocal root one a token each.",
        ),
        memory_notes=(
            "Not one kernel but eight operators, counted as they run: three fp32 tensors of the"
            " input's size pass through memory.",
        ),
        related=("DeepseekV2DecoderLayer", "DeepseekV2Model", "LayerNormfp32", "LayerNorm2d"),
        usage=f"""import torch
from {_FILE} import DeepseekV2RMSNorm

norm = DeepseekV2RMSNorm({d})
x = torch.randn(1, 4, {d})
y = norm(x)
assert y.shape == x.shape
assert torch.allclose(y.pow(2).mean(-1), torch.ones(1, 4), atol=1e-3)""",
        notes="before attention, before the MLP, behind the last layer",
        references=("rmsnorm",),
    )


# --- rotary positions ------------------------------------------------------------------------


def _rotary_size(facts: Facts) -> int:
    decoder = facts.decoder
    return decoder.qk_rope_head_dim if decoder.use_mla else decoder.head_dim


def _rotary_page(
    facts: Facts,
    name: str,
    variant: rope.RopeVariant,
    *,
    extra: str,
    arguments: dict[str, Any],
    long: int,
    **texts: Any,
) -> Page:
    size = _rotary_size(facts)
    length = facts.decoder.max_position_embeddings
    common = {"max_position_embeddings": length, "base": facts.decoder.rope_theta}

    def case(label: str, K: int) -> Case:
        def closed() -> Kernels:
            tables = rope.tables(variant, K, size, BFLOAT16)
            if variant == "dynamic" and length < K:
                return rope.dynamic_update(size) + tables
            return tables

        return Case(
            label,
            {"K": K, "D": size, "L": length},
            lambda: facts.make(name, size, **common, **arguments),
            lambda: [tensor(1, facts.decoder.heads, 1, size), K],
            closed_form=closed,
        )

    described = {
        "dim": Parameter("Rotary features of a head; even.", size),
        "max_position_embeddings": Parameter("Length the model was trained for.", length),
        "base": Parameter("Base of the frequencies.", facts.decoder.rope_theta),
        "device": Parameter("Where the frequencies are made.", None),
    }
    for key, meaning in texts.pop("meanings", {}).items():
        described[key] = Parameter(meaning, arguments.get(key))
    unused = not facts.decoder.use_mla
    return Page(
        name=name,
        group="Decoder: norms and positions",
        subject=facts.get(name),
        layer=f'costs.rope.tables (variant "{variant}")',
        inputs={"x": "1, H, 1, D"},
        output="K, D",
        parameters=described,
        symbols={
            "K": Symbol("K", "positions tabled"),
            "D": Symbol("D", "rotary features of a head"),
            "H": Symbol("H", "heads; they share the tables", f"{facts.decoder.heads}"),
            "L": Symbol("L_0", "length the model was trained for"),
        },
        formulas=Formulas(vector_flops=f"K * D / 2 + 2 * K * D{extra}"),
        cases=(
            case("prefill", facts.tokens),
            case("beyond the trained length", long),
        ),
        memory_notes=(
            "No parameters. The frequencies (fp32, one for each pair of features) and the two"
            " tables are buffers outside the checkpoint; a longer call replaces the tables.",
        ),
        flops_notes=(
            "Counted for a call that fills the tables; a call within their length computes"
            " nothing.",
            *(
                (
                    f"{facts.model_name} has `use_mla` false: its plain attention tables its"
                    " positions by itself and never makes this class. The sizes are those of its"
                    " heads.",
                )
                if unused
                else ()
            ),
        ),
        **texts,
    )


_ROTARY_DIAGRAM: Final = """flowchart LR
  p["positions 0 .. K - 1"] --> outer["outer product"]
  f["{frequencies}"] --> outer
  outer --> both["both halves [K, D]"]
  both --> cos["cosine{scale}"]
  both --> sin["sine{scale}"]
  cos --> tables["tables [K, D], kept"]
  sin --> tables"""

_ROTARY_RELATED: Final = (
    "DeepseekV2RotaryEmbedding",
    "DeepseekV2LinearScalingRotaryEmbedding",
    "DeepseekV2DynamicNTKScalingRotaryEmbedding",
    "DeepseekV2YarnRotaryEmbedding",
    "DeepseekV2Attention",
    "DeepseekV2FlashAttention2",
)


def _others(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(other for other in names if other != name)


def _rotary_usage(facts: Facts, name: str, arguments: str = "") -> str:
    size = _rotary_size(facts)
    return f"""import torch
{import_line(_FILE, name)}

rotary = {name}({size}{arguments})
cos, sin = rotary(torch.zeros(1), seq_len={facts.tokens})
assert cos.shape == sin.shape == ({facts.tokens}, {size})
assert torch.allclose(cos**2 + sin**2, torch.ones_like(cos), atol=1e-2)"""


def _rotary(facts: Facts) -> Page:
    name = "DeepseekV2RotaryEmbedding"
    return _rotary_page(
        facts,
        name,
        "default",
        extra="",
        arguments={},
        long=2 * facts.decoder.max_position_embeddings,
        blocks=(("prefill", "RoPE of latent attention"), ("decode", "RoPE of latent attention")),
        what="Rotary positions: tables of the cosines and sines of position times frequency, which"
        " turn queries and keys so that their product depends on the distance between them. The"
        " tables are filled up to the longest length that was asked for and sliced after that.",
        diagram=_ROTARY_DIAGRAM.format(frequencies="base^(-2 i / D)", scale=""),
        pseudo_code="""frequencies = base ** (-arange(0, D, 2) / D)
if seq_len > tabled:
    angles = outer(arange(seq_len), frequencies)
    cos, sin = cat(angles, angles).cos(), cat(angles, angles).sin()
return cos[:seq_len], sin[:seq_len]""",
        mathematics=r"\theta_i = b^{-2i/D}, \quad"
        r" \mathrm{rot}(x, p) = x \odot \cos(p\,\theta) + \mathrm{half}(x) \odot \sin(p\,\theta),"
        r" \quad \mathrm{half}([x_1, x_2]) = [-x_2, x_1]",
        related=_others(name, _ROTARY_RELATED),
        usage=_rotary_usage(facts, name),
        notes="tables of cosines and sines; base class of the scaled variants",
        references=("rope",),
    )


def _linear_scaling(facts: Facts) -> Page:
    name = "DeepseekV2LinearScalingRotaryEmbedding"
    return _rotary_page(
        facts,
        name,
        "linear",
        extra=" + K",
        arguments={"scaling_factor": 2.0},
        long=2 * facts.decoder.max_position_embeddings,
        meanings={
            "scaling_factor": "What positions are divided by; stated here for twice the length."
        },
        blocks=(),
        what="Rotary positions with every position divided by a factor, so that a longer sequence"
        " falls into the range of angles the model was trained on (position interpolation).",
        diagram=_ROTARY_DIAGRAM.format(frequencies="base^(-2 i / D)", scale="").replace(
            "positions 0 .. K - 1", "positions 0 .. K - 1, divided by the factor"
        ),
        pseudo_code="""angles = outer(arange(seq_len) / scaling_factor, frequencies)
cos, sin = cat(angles, angles).cos(), cat(angles, angles).sin()""",
        mathematics=r"\mathrm{rot}_s(x, p) = \mathrm{rot}\left(x, \frac{p}{s}\right)",
        related=_others(name, _ROTARY_RELATED),
        usage=_rotary_usage(facts, name, ", scaling_factor=2.0"),
        notes="`rope_scaling` of type linear",
        references=("interpolation", "rope"),
    )


def _dynamic_scaling(facts: Facts) -> Page:
    name = "DeepseekV2DynamicNTKScalingRotaryEmbedding"
    return _rotary_page(
        facts,
        name,
        "dynamic",
        extra=" + (K > L) * 4 * D / 2",
        arguments={"scaling_factor": 2.0},
        long=2 * facts.decoder.max_position_embeddings,
        meanings={"scaling_factor": "How fast the base grows; stated here for a factor of two."},
        blocks=(),
        what="Rotary positions whose base grows with the length once it exceeds the trained one:"
        " high frequencies stay, low ones are stretched (NTK-aware scaling, made dynamic). Below"
        " the trained length it is the plain class.",
        diagram=_ROTARY_DIAGRAM.format(
            frequencies="base'^(-2 i / D), base' grown beyond L0", scale=""
        ),
        pseudo_code="""if seq_len > max_position_embeddings:
    stretch = factor * seq_len / max_position_embeddings - (factor - 1)
    frequencies = (base * stretch ** (D / (D - 2))) ** (-arange(0, D, 2) / D)
angles = outer(arange(seq_len), frequencies)""",
        mathematics=r"b' = b \left(\frac{s\,K}{L_0} - (s - 1)\right)^{\frac{D}{D - 2}}"
        r" \quad (K > L_0)",
        related=_others(name, _ROTARY_RELATED),
        usage=_rotary_usage(facts, name, ", scaling_factor=2.0"),
        notes="`rope_scaling` of type dynamic",
        references=("yarn", "rope"),
    )


YARN_OPERATORS: Final = 17
"""Operators that touch every frequency while YaRN blends them; the trace holds the page to it."""


def _yarn(facts: Facts) -> Page:
    name = "DeepseekV2YarnRotaryEmbedding"
    length = facts.decoder.max_position_embeddings
    return _rotary_page(
        facts,
        name,
        "yarn",
        extra=f" + 2 * K * D + {YARN_OPERATORS} * D / 2",
        arguments={
            "scaling_factor": 2.0,
            "original_max_position_embeddings": length,
            **{
                key: facts.default(name, key)
                for key in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
            },
        },
        long=2 * length,
        meanings={
            "scaling_factor": "New length over the original one; stated here for twice the length.",
            "original_max_position_embeddings": "Length before the extension.",
            "beta_fast": "Turns over the original length above which a frequency is kept.",
            "beta_slow": "Turns below which a frequency is divided by the factor.",
            "mscale": "Scale of the tables' magnitude.",
            "mscale_all_dim": "Scale that attention's softmax already corrects.",
        },
        blocks=(),
        what="Rotary positions extended by YaRN: a frequency that turns often over the original"
        " length is kept, one that turns rarely is divided by the factor, those between are"
        " blended; cosines and sines are scaled by a magnitude that grows with the logarithm of the"
        " factor.",
        diagram=_ROTARY_DIAGRAM.format(
            frequencies="frequencies, blended by how often they turn", scale=", times magnitude"
        ),
        pseudo_code="""turning(n) = D * log(L0 / (2 * pi * n)) / (2 * log(base))
first, last = floor(turning(beta_fast)), ceil(turning(beta_slow))
share = clamp((arange(D / 2) - first) / (last - first), 0, 1)
frequencies = plain / factor * share + plain * (1 - share)
magnitude = (0.1 * mscale * log(factor) + 1) / (0.1 * mscale_all_dim * log(factor) + 1)
cos, sin = cos(angles) * magnitude, sin(angles) * magnitude""",
        mathematics=r"\theta'_i = \frac{\theta_i}{s}\,\gamma_i + \theta_i\,(1 - \gamma_i), \quad"
        r" \gamma_i = \mathrm{clamp}\left(\frac{i - i_{fast}}{i_{slow} - i_{fast}}, 0, 1\right),"
        r" \quad \mu = \frac{0.1\,m\,\ln s + 1}{0.1\,m_{all}\,\ln s + 1}",
        related=_others(name, _ROTARY_RELATED),
        usage=f"""import torch
{import_line(_FILE, name)}

rotary = {name}({_rotary_size(facts)}, scaling_factor=2.0, mscale_all_dim=1)
cos, sin = rotary(torch.zeros(1), seq_len={facts.tokens})
assert cos.shape == sin.shape == ({facts.tokens}, {_rotary_size(facts)})
assert torch.allclose(cos**2 + sin**2, torch.ones_like(cos), atol=1e-2)""",
        notes="`rope_scaling` of type yarn",
        references=("yarn", "rope"),
    )


# --- MLP and mixture -------------------------------------------------------------------------


def _mlp(facts: Facts) -> Page:
    decoder = facts.decoder
    d, act = decoder.hidden_size, decoder.hidden_act
    widths = [("dense layer", facts.tokens, decoder.intermediate_size)]
    if decoder.n_routed_experts is not None:
        share = moe_costs.spread(facts.tokens, routing_of(facts)).tokens
        widths.append(("one routed expert's share", share, decoder.moe_intermediate_size))
        if decoder.shared_intermediate_size:
            widths.append(("shared experts", facts.tokens, decoder.shared_intermediate_size))
    widths.append(("dense layer, decode step", 1, decoder.intermediate_size))

    def case(label: str, T: int, m: int) -> Case:
        return Case(
            label,
            {"B": 1, "T": T, "d": d, "m": m, "a": activation_flops(decoder.hidden_act)},
            lambda: facts.make("DeepseekV2MLP", facts.config, intermediate_size=m),
            lambda: [tensor(1, T, d)],
            closed_form=lambda: swiglu.swiglu(T, d, m, BFLOAT16, act),
        )

    return Page(
        name="DeepseekV2MLP",
        group="Decoder: MLP and mixture of experts",
        subject=facts.get("DeepseekV2MLP"),
        what="The gated MLP (SwiGLU): two projections up, one through the activation, multiplied"
        " element by element, one projection down; no biases. It is a dense layer's whole MLP, each"
        " routed expert, and (with their widths added up) the shared experts.",
        blocks=(("prefill", "SwiGLU MLP"), ("decode", "SwiGLU MLP")),
        layer="costs.swiglu.swiglu",
        inputs={"x": "B, T, d"},
        output="B, T, d",
        parameters={
            "config": Parameter("Gives the widths and the activation.", "the model's config"),
            "hidden_size": Parameter("In place of the config's width.", None),
            "intermediate_size": Parameter("In place of the config's hidden width.", None),
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
        mathematics=r"y = \left(\mathrm{silu}(x W_{gate}^T) \odot x W_{up}^T\right) W_{down}^T,"
        r" \quad \mathrm{silu}(z) = \frac{z}{1 + e^{-z}}",
        symbols=pick("B T d m a"),
        formulas=Formulas(
            macs="3 * B * T * d * m",
            vector_flops="(a + 1) * B * T * m",
            params="3 * d * m",
            activations="B * T * (2 * m + d)",
        ),
        cases=tuple(case(*row) for row in widths),
        flops_notes=(
            "The activation's FLOPs follow its definition: SiLU is a negation, an exponential, an"
            " addition, a division and a product.",
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


def routing_of(facts: Facts) -> moe_costs.Routing:
    """The router's dimensions for the closed forms."""
    return decoder_costs.routing_of(facts.decoder)


def fallback_notes(own: Facts, used: Facts, why: str) -> tuple[str, ...]:
    """What to say where a page's figures are not those of the config that was given."""
    if own is used:
        return ()
    return (f"{why}, so the figures on this page are those of the published config.",)


def with_mixture(facts: Facts) -> Facts:
    """The facts themselves, or those of the published config where theirs has no experts."""
    return facts if facts.decoder.n_routed_experts is not None else facts.published


def gate_formulas(decoder: DecoderDimensions) -> Formulas:
    """Of the router, as the config sets it up."""
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


_GATE_KEYS: Final = {
    "n_routed_experts": "Routed experts E.",
    "num_experts_per_tok": "Experts k a token passes.",
    "scoring_func": "softmax or sigmoid, over the logits.",
    "topk_method": "greedy, group_limited_greedy or noaux_tc.",
    "n_group": "Groups of experts, for the group-limited methods.",
    "topk_group": "Groups a token may choose from.",
    "norm_topk_prob": "Whether the chosen scores are normalised to one.",
    "routed_scaling_factor": "Factor on the chosen scores.",
    "aux_loss_alpha": "Weight of the load-balancing loss, in training only.",
    "seq_aux": "Whether that loss is taken a sequence at a time.",
}


def _gate_symbols(decoder: DecoderDimensions, names: str) -> dict[str, Symbol]:
    symbols = pick(names)
    if decoder.topk_method != "greedy":
        symbols["g"] = Symbol("g", "groups of experts", str(decoder.n_group))
    return symbols


def _gate(facts: Facts) -> Page:
    mixture = with_mixture(facts)
    decoder = mixture.decoder
    d, E, k = decoder.hidden_size, int(decoder.n_routed_experts or 0), decoder.num_experts_per_tok

    def case(label: str, T: int) -> Case:
        return Case(
            label,
            {"B": 1, "T": T, "d": d, "E": E, "k": k},
            lambda: mixture.make("MoEGate", mixture.config),
            lambda: [tensor(1, T, d)],
            closed_form=lambda: moe_costs.gate(T, d, routing_of(mixture), BFLOAT16),
        )

    return Page(
        name="MoEGate",
        group="Decoder: MLP and mixture of experts",
        subject=facts.get("MoEGate"),
        what="The router of a mixture layer: a linear map from a token to one logit an expert, in"
        " fp32 and without a module of its own (a functional linear), scores by softmax or sigmoid,"
        " and the experts of highest score. Group-limited methods look only into the best groups."
        " In training it also makes the load-balancing loss.",
        blocks=(("prefill", "MoE router"), ("decode", "MoE router")),
        layer="costs.moe.gate",
        inputs={"hidden_states": "B, T, d"},
        output="B * T, k",
        parameters={
            "config": Parameter("Gives everything below.", "the model's config"),
            **{
                f"config.{key}": Parameter(meaning, config_value(mixture.config, key))
                for key, meaning in _GATE_KEYS.items()
            },
        },
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
        symbols=_gate_symbols(decoder, "B T d E k"),
        formulas=gate_formulas(decoder),
        cases=tuple(case(label, T) for label, T, _ in facts.steps),
        flops_notes=(
            *fallback_notes(facts, mixture, "The given config has no experts"),
            "Choosing the top k counts one comparison a candidate.",
            "The auxiliary loss exists in training only and is not part of an inference pass.",
        ),
        memory_notes=("Input and weight are cast to fp32 first: both pass through memory again.",),
        related=("DeepseekV2MoE", "AddAuxiliaryLoss", "DeepseekV2MLP"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
from {_FILE} import MoEGate

config = DeepSeekOCRSession.from_local().model.config
gate = MoEGate(config).eval()
routing = gate(torch.randn(1, 8, {d}))
assert routing.experts.shape == routing.weights.shape == (8, {k})
assert int(routing.experts.max()) < {E}""",
        runs_given_config=mixture is facts,
        notes="functional linear in fp32, softmax, top k",
        references=("deepseekv2", "deepseekv3"),
    )


def moe_formulas(decoder: DecoderDimensions) -> Formulas:
    """Of the whole mixture: router, dispatch, routed and shared experts."""
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


def _mixture(facts: Facts) -> Page:
    mixture = with_mixture(facts)
    decoder = mixture.decoder
    d, E, k = decoder.hidden_size, int(decoder.n_routed_experts or 0), decoder.num_experts_per_tok
    f, shared = decoder.moe_intermediate_size, decoder.shared_intermediate_size
    formulas = moe_formulas(decoder)

    def case(label: str, T: int) -> Case:
        return Case(
            label,
            {"B": 1, "T": T, **mixture_values(decoder)},
            lambda: mixture.make("DeepseekV2MoE", mixture.config),
            lambda: [tensor(1, T, d)],
            closed_form=lambda: moe_costs.moe(
                T,
                d,
                f,
                shared,
                routing_of(mixture),
                BFLOAT16,
                decoder.hidden_act,
                each_expert=True,
            ),
        )

    shared_path = (
        f"""
  x --> shared["shared_experts: SwiGLU<br/>{d} to {shared} to {d}"]
  shared --> sum"""
        if shared
        else ""
    )
    return Page(
        name="DeepseekV2MoE",
        group="Decoder: MLP and mixture of experts",
        subject=facts.get("DeepseekV2MoE"),
        what=f"A mixture of experts: a router sends each token to {k} of {E} small gated MLPs, whose"
        " outputs are summed with the router's weights"
        + (", plus shared experts that every token passes, fused into one MLP." if shared else ".")
        + " At inference the tokens are sorted by expert and each expert that received any runs"
        " once over its share.",
        blocks=(("prefill", "MoE block"), ("decode", "MoE block")),
        layer="costs.moe.moe",
        inputs={"hidden_states": "B, T, d"},
        output="B, T, d",
        parameters={
            "config": Parameter("Gives everything below.", "the model's config"),
            "config.n_routed_experts": Parameter("Routed experts E.", E),
            "config.num_experts_per_tok": Parameter("Experts k a token passes.", k),
            "config.moe_intermediate_size": Parameter("Hidden width f of an expert.", f),
            "config.n_shared_experts": Parameter(
                "Experts that every token passes; their widths are added up.",
                decoder.n_shared_experts,
            ),
            "config.ep_size": Parameter(
                "Processes the experts are spread over; only one is supported.",
                config_value(mixture.config, "ep_size"),
            ),
        },
        diagram=f"""flowchart TB
  x["x [B, T, {d}]"] --> gate["gate: MoEGate<br/>top {k} of {E}"]
  gate --> order["sort tokens by expert"]
  x --> order
  order --> experts["experts: SwiGLU<br/>{d} to {f} to {d}"]
  experts --> back["back to token order"]
  gate --> weighted["weighted sum in fp32"]
  back --> weighted
  weighted --> sum["sum"]{shared_path}
  sum --> y["y [B, T, {d}]"]""",
        pseudo_code="""experts, weights = gate(x)
order = argsort(experts.flatten())
sorted_tokens = x[order // k]
outputs = cat(expert(share) for expert, share in split(sorted_tokens) if share)
y = empty_like(outputs); y[order] = outputs
y = (y.view(tokens, k, d).float() * weights).sum(1).to(x.dtype)
return y + shared_experts(x)""",
        mathematics=r"y = \sum_{i \in \mathcal{T}} g_i\, E_i(x) + E_{shared}(x)",
        symbols=_gate_symbols(decoder, "B T d E k f s a"),
        formulas=formulas,
        cases=tuple(case(label, T) for label, T, _ in facts.steps),
        flops_notes=(
            *fallback_notes(facts, mixture, "The given config has no experts"),
            "FLOPs do not depend on the routing: every token passes k experts. On `meta`, where no"
            " values exist, the choices are spread evenly.",
            "Sorting counts a comparison for each level of a binary merge.",
        ),
        memory_notes=(
            "All experts are held; a pass reads the weights of those that received a token:"
            f" {count(min(E, facts.tokens * k))} of {count(E)} in the prefill pass stated here,"
            f" {count(min(E, k))} in a decode step.",
        ),
        related=("MoEGate", "DeepseekV2MLP", "AddAuxiliaryLoss", "DeepseekV2DecoderLayer"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.running.forward import running

layers = DeepSeekOCRSession.from_local().model.model.layers
x = torch.empty(1, {facts.tokens}, {d}, dtype=torch.bfloat16, device="meta")
with running(torch.device("meta")):  # answers "how many tokens an expert?"
    y = layers[-1].mlp(x)
assert y.shape == x.shape""",
        notes="router, routed experts, shared experts",
        references=("deepseekv2",),
    )


def _auxiliary_loss(facts: Facts) -> Page:
    d = facts.decoder.hidden_size
    function = facts.get("AddAuxiliaryLoss")

    def apply(x: torch.Tensor, loss: torch.Tensor) -> Any:
        return function.apply(x, loss)

    return Page(
        name="AddAuxiliaryLoss",
        group="Decoder: MLP and mixture of experts",
        subject=function,
        what="An autograd function that returns its input and, on the way back, hands the router's"
        " load-balancing loss a gradient of one where that loss requires a gradient, as if it had"
        " been added to the total. It runs in training only.",
        blocks=(),
        layer="none: nothing is computed",
        inputs={"x": "B, T, d"},
        output="B, T, d",
        parameters={},
        diagram="""flowchart LR
  x["x"] -->|"forward: returned"| y["x"]
  loss["auxiliary loss"] -.->|"its dtype is kept for backward"| y
  grad["gradient of y"] -->|"backward"| gx["gradient of x: the same"]
  grad -.->|"if the loss requires one"| gl["gradient of the loss: one"]""",
        pseudo_code="""forward(x, loss):   return x
backward(grad):     return grad, ones(1) if loss.requires_grad else None""",
        mathematics=r"y = x, \quad \frac{\partial \mathcal{L}}{\partial x} ="
        r" \frac{\partial \mathcal{L}}{\partial y}, \quad"
        r" \frac{\partial \mathcal{L}}{\partial \ell_{aux}} = 1"
        r" \ \text{(where it is required)}",
        symbols=pick("B T d"),
        formulas=Formulas(),
        cases=(
            Case(
                "training step",
                {"B": 1, "T": facts.tokens, "d": d},
                lambda: apply,
                lambda: [tensor(1, facts.tokens, d), tensor(1, dtype=torch.float32)],
            ),
        ),
        flops_notes=("Nothing forward; backward fills one element.",),
        related=("MoEGate", "DeepseekV2MoE"),
        usage=f"""import torch
from {_FILE} import AddAuxiliaryLoss

x = torch.ones(2, 3, requires_grad=True)
loss = torch.zeros(1, requires_grad=True)
AddAuxiliaryLoss.apply(x, loss).sum().backward()
assert loss.grad.item() == 1 and bool((x.grad == 1).all())""",
        notes="training only; returns its input",
        references=("deepseekv2",),
    )


def _repeat_kv(facts: Facts) -> Page:
    decoder = facts.decoder
    kv, D = decoder.kv_heads, decoder.head_dim
    own = decoder.heads // kv

    def case(label: str, n: int) -> Case:
        return Case(
            label,
            {"B": 1, "K": facts.tokens, "G": kv, "D": D, "n": n},
            lambda: facts.get("repeat_kv"),
            lambda: [tensor(1, kv, facts.tokens, D), n],
        )

    return Page(
        name="repeat_kv",
        group="Decoder: attention",
        subject=facts.get("repeat_kv"),
        what="Gives every query head its key or value head where several query heads share one"
        " (grouped-query attention), by repeating each of them. With one query head a key head it"
        f" returns its input; so it does in {facts.model_name}."
        if own == 1
        else "Gives every query head its key or value head where several query heads share one"
        " (grouped-query attention), by repeating each of them.",
        blocks=(("prefill", "attention"), ("decode", "attention")),
        layer="costs.decoder_attention.decoder_attention (its copies)",
        inputs={"hidden_states": "B, G, K, D"},
        output="B, G * n, K, D",
        parameters={
            "hidden_states": Parameter("Keys or values of all KV heads.", "a tensor"),
            "n_rep": Parameter("Query heads a KV head.", own),
        },
        diagram="""flowchart LR
  x["[B, H_kv, K, D]"] --> one{"n_rep is one?"}
  one -->|"yes"| same["the input itself"]
  one -->|"no"| expand["expand to [B, H_kv, n, K, D], a view"]
  expand --> copy["reshape to [B, H_kv n, K, D], a copy"]""",
        pseudo_code="""if n_rep == 1:
    return x
return x[:, :, None].expand(B, kv_heads, n_rep, K, D).reshape(B, kv_heads * n_rep, K, D)""",
        mathematics=r"y_{h} = x_{\lfloor h / n \rfloor}",
        symbols={**pick("B K G D"), "n": Symbol("n", "query heads a KV head")},
        formulas=Formulas(),
        cases=(case("as the model calls it", own), case("two query heads a KV head", 2)),
        flops_notes=("Nothing is computed; above one query head a KV head it copies.",),
        memory_notes=("The cache holds the KV heads before they are repeated.",),
        related=("DeepseekV2DecoderLayer", "DeepseekV2Attention", "DeepseekV2FlashAttention2"),
        usage=f"""import torch
from {_FILE} import repeat_kv

x = torch.arange(2.0).view(1, 2, 1, 1)
assert repeat_kv(x, 1) is x
assert repeat_kv(x, 2).flatten().tolist() == [0, 0, 1, 1]""",
        notes="grouped-query attention; a copy, or nothing",
        references=("gqa",),
    )
