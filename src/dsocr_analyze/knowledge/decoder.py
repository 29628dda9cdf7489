"""Pages of the decoder: latent attention, the layer, the stack and its heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dsocr_analyze.costs import mla as mla_costs
from dsocr_analyze.costs.activations import activation_flops
from dsocr_analyze.costs.linear import linear
from dsocr_analyze.costs.operators import Kernels, filled, moved
from dsocr_analyze.dtypes import BFLOAT16, INT64
from dsocr_analyze.knowledge.decoder_parts import (
    SYMBOLS,
    YARN_OPERATORS,
    gate_formulas,
    mixture_values,
    moe_formulas,
    pick,
)
from dsocr_analyze.knowledge.machinery.facts import (
    Facts,
    below_model,
    config_value,
    count,
    scaled,
    tensor,
)
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Page, Parameter, Symbol
from dsocr_analyze.knowledge.machinery.signature import import_line

__all__ = ["attention_formulas", "decoder_pages", "stack_symbols", "stack_values"]

_FILE: Final = "dsocr_analyze.architectures.deepseek_ocr.reference.modeling_deepseekv2"
_CLASS_DEFAULTS: Final = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)


def decoder_pages(facts: Facts) -> list[Page]:
    """The pages of this file, in reading order."""
    return [
        _latent_attention(facts),
        _latent_flash_attention(facts),
        _layer(facts),
        _stack(facts),
        _causal_lm(facts),
        _classifier(facts),
    ]


# --- latent attention ------------------------------------------------------------------------

_LATENT_SYMBOLS: Final = {
    "r": Symbol("d_c", "rank of the keys' and values' latent"),
    "q": Symbol("d_q", "rank of the queries' latent"),
    "P": Symbol("D_n", "features of a head without positions"),
    "R": Symbol("D_r", "rotary features of a head"),
    "v": Symbol("D_v", "features of a value head"),
}


def _latent_config(facts: Facts, attention: str) -> Any:
    """The model's own config where it uses latent attention, else the class's default sizes."""
    if facts.decoder.use_mla:
        return facts.config_with(attention)
    defaults = facts.defaults()
    return facts.config_with(
        attention, use_mla=True, **{key: defaults[key] for key in _CLASS_DEFAULTS}
    )


def _latent_heads(config: Any) -> mla_costs.LatentHeads:
    scaling = config.rope_scaling
    return mla_costs.LatentHeads(
        heads=config.num_attention_heads,
        q_rank=config.q_lora_rank,
        kv_rank=config.kv_lora_rank,
        nope=config.qk_nope_head_dim,
        rope=config.qk_rope_head_dim,
        value=config.v_head_dim,
        variant="default" if scaling is None else scaling["type"],
        trained_length=config.max_position_embeddings,
        bias=bool(config.attention_bias),
    )


def _latent_page(facts: Facts, name: str, *, flash: bool, formulas: Formulas, **texts: Any) -> Page:
    config = _latent_config(facts, "flash_attention_2" if flash else "eager")
    latent, d = _latent_heads(config), config.hidden_size
    values = {
        "B": 1,
        "d": d,
        "H": latent.heads,
        "r": latent.kv_rank,
        "P": latent.nope,
        "R": latent.rope,
        "v": latent.value,
        "e": BFLOAT16.nbytes,
    }
    if latent.q_rank is not None:
        values["q"] = latent.q_rank

    def cache(past: int) -> Any:
        if flash:
            pair = (tensor(1, latent.heads, past, latent.query),) * 2
        else:
            pair = (tensor(1, 1, past, latent.rope), tensor(1, 1, past, latent.kv_rank))
        return facts.get("KeyValueCache")([pair] if past else [])

    def case(label: str, T: int, K: int) -> Case:
        def keywords() -> dict[str, Any]:
            mask = None if flash else tensor(1, 1, T, K)
            return {
                "attention_mask": mask,
                "position_ids": facts.positions(T),
                "past_key_value": cache(K - T),
            }

        return Case(
            label,
            {"T": T, "K": K, **values},
            lambda: facts.make(name, config, 0),
            lambda: [tensor(1, T, d)],
            keywords,
            closed_form=lambda: mla_costs.mla_attention(
                1, T, K - T, d, latent, BFLOAT16, flash=flash
            ),
        )

    symbols = pick("B T K d H e") | {
        key: symbol for key, symbol in _LATENT_SYMBOLS.items() if key in values
    }
    keys = {
        "hidden_size": "Width d.",
        "num_attention_heads": "Heads H.",
        "q_lora_rank": "Rank of the queries' latent; None for one full projection.",
        "kv_lora_rank": "Rank of the keys' and values' latent: what is cached.",
        "qk_nope_head_dim": "Features of a head's query and key without positions.",
        "qk_rope_head_dim": "Rotary features of a head's query; the key's are shared by all heads.",
        "v_head_dim": "Features of a value head.",
        "rope_theta": "Base of the rotary frequencies.",
        "rope_scaling": "How positions are stretched.",
        "attention_bias": "Whether the projections into latents and out have biases.",
        "attention_dropout": "Dropout of the weights, in training.",
    }
    return Page(
        name=name,
        group="Decoder: attention",
        subject=facts.get(name),
        layer=f"costs.mla.mla_attention (flash={flash})",
        inputs={"hidden_states": "B, T, d"},
        output="B, T, d",
        parameters={
            "config": Parameter("Gives everything below.", "the model's config"),
            "layer_idx": Parameter("Number of the layer: its place in the cache.", "0, 1, ..."),
            **{
                f"config.{key}": Parameter(meaning, config_value(facts.config, key))
                for key, meaning in keys.items()
            },
        },
        symbols=symbols,
        formulas=formulas,
        cases=tuple(case(*step) for step in facts.steps),
        references=("deepseekv2", "rope") + (("flash2",) if flash else ()),
        **texts,
    )


def _not_used(facts: Facts) -> str:
    if facts.decoder.use_mla:
        return ""
    return (
        f" {facts.model_name} does not use it: `use_mla` is false, and its layers have plain"
        " multi-head attention. The figures here are for the published width and heads with the"
        " latent sizes that are the defaults of `DeepseekV2Config`."
    )


def _query_terms(facts: Facts) -> tuple[str, str, str, str]:
    """MACs, vector FLOPs, parameters and activations of the queries' path, and all biases."""
    config = _latent_config(facts, "eager")
    if config.q_lora_rank is None:
        biases = "r + R + d" if config.attention_bias else "0"
        heads = "H * (P + R)"
        return (
            f"B * T * d * {heads}",
            f"B * T * ({biases})",
            f"d * {heads} + {biases}",
            f"B * T * {heads}",
        )
    biases = " + q + r + R + d" if config.attention_bias else ""
    return (
        "B * T * q * (d + H * (P + R))",
        f"B * T * (4 * q + 2{biases})",
        f"q * (d + H * (P + R)) + q{biases}",
        "B * T * (q + H * (P + R))",
    )


def _rope_terms(facts: Facts) -> str:
    """Vector FLOPs of the tables and of turning queries and the shared key."""
    scaling = _latent_config(facts, "eager").rope_scaling
    kind = None if scaling is None else scaling["type"]
    extra = {
        None: "",
        "linear": " + K",
        "dynamic": f" + (K > {facts.decoder.max_position_embeddings}) * 4 * R / 2",
        "yarn": f" + 2 * K * R + {YARN_OPERATORS} * R / 2",
    }[kind]
    return f"K * R / 2 + 2 * K * R{extra} + 7 / 2 * B * T * R * (H + 1)"


def _latent_formulas(facts: Facts, *, masks_steps: bool = True) -> Formulas:
    """Of latent attention, eager; the mask is one of the FLOPs of a score."""
    score = "8" if masks_steps else "(7 + (T > 1))"
    macs, vector, params, outputs = _query_terms(facts)
    rope = _rope_terms(facts)
    return Formulas(
        macs=f"{macs} + B * T * d * (r + R) + B * H * T * r * (P + v)"
        " + B * H * T * K * (R + 2 * r) + B * T * H * v * d",
        vector_flops=f"{vector} + B * T * (4 * r + 2) + {rope} + {score} * B * H * T * K",
        params=f"{params} + d * (r + R) + r + r * H * (P + v) + H * v * d",
        activations=f"{outputs} + B * T * (r + R) + B * H * T * (2 * r + v)"
        " + 2 * B * H * T * K + B * T * d",
        cache_bytes="B * K * (r + R) * e",
    )


def _latent_attention(facts: Facts) -> Page:
    name = "DeepseekV2Attention"
    return _latent_page(
        facts,
        name,
        flash=False,
        what="Multi-head latent attention (MLA), eager. Keys and values of all heads come from one"
        " latent vector a token, and the rotary part of the key is shared by the heads; only these"
        " two are cached. The projection up from the latent is never applied to it: its weight is"
        " absorbed into the queries on one side and the outputs on the other, so the module"
        f" `kv_b_proj` is never called.{_not_used(facts)}",
        blocks=(("prefill", "latent attention (MLA)"), ("decode", "latent attention (MLA)")),
        diagram="""flowchart TB
  x["x [B, T, d]"] --> qa["q_a_proj, norm, q_b_proj"]
  qa --> qn["q_nope"]
  qa --> qp["q_pe, rotated"]
  x --> kva["kv_a_proj_with_mqa"]
  kva --> norm["latent, normalised"]
  kva --> kp["k_pe, rotated"]
  norm --> cache[("cache: latent and k_pe")]
  kp --> cache
  qn --> absorb["times W_k of kv_b_proj"]
  absorb --> scores["scores: latent and rotary part"]
  qp --> scores
  cache --> scores
  scores --> softmax["scale, mask, softmax in fp32"]
  softmax --> mix["weights times latent"]
  cache --> mix
  mix --> up["times W_v of kv_b_proj"]
  up --> o["o_proj"]""",
        pseudo_code="""q_nope, q_pe = split(q_b_proj(norm(q_a_proj(x))))
latent, k_pe = split(kv_a_proj_with_mqa(x))
latent, k_pe = cache.update(norm(latent), rotate(k_pe))
W_k, W_v = split(kv_b_proj.weight)
scores = rotate(q_pe) @ k_pe.T + (q_nope @ W_k) @ latent.T
weights = softmax(scores * scale + mask)
return o_proj(((weights @ latent) @ W_v.T))""",
        mathematics=r"c_t = \mathrm{norm}(W_{dkv} x_t), \quad"
        r" a_{tj} = \mathrm{softmax}_j\left(\frac{(W_k^T q^n_t)^T c_j + (q^r_t)^T k^r_j}"
        r"{\sqrt{D_n + D_r}}\right), \quad"
        r" o_t = W_o\, W_v \sum_j a_{tj}\, c_j",
        formulas=_latent_formulas(facts),
        flops_notes=(
            "The whole product of T queries and K keys is computed; causality is the mask.",
            "Absorbing saves the projection of every cached token at the price of wider scores: the"
            " latent is wider than a head.",
        ),
        memory_notes=("The cache holds the latent and the shared rotary key, whatever the heads.",),
        related=(
            "DeepseekV2FlashAttention2",
            "DeepseekV2DecoderLayer",
            "DeepseekV2RotaryEmbedding",
            "DeepseekV2RMSNorm",
            "repeat_kv",
        ),
        usage=_latent_usage(facts, name),
        notes="MLA, up-projection absorbed; not used where `use_mla` is false",
    )


def _latent_usage(facts: Facts, name: str) -> str:
    d, T = facts.decoder.hidden_size, facts.tokens
    names = ", ".join(f'"{key}"' for key in _CLASS_DEFAULTS)
    sizes = ""
    if not facts.decoder.use_mla:
        sizes = "defaults = type(config)()\n"
        sizes += f"for key in ({names}):\n    setattr(config, key, getattr(defaults, key))\n"
    call = "assert attention.kv_b_proj.in_features == config.kv_lora_rank"
    if name == "DeepseekV2Attention":
        call = f"""with torch.device("meta"):
    out, weights, cache = attention(torch.empty(1, {T}, {d}))
assert out.shape == (1, {T}, {d}) and weights is None"""
    return f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
{import_line(_FILE, name)}

config = DeepSeekOCRSession.from_local().model.config
{sizes}with torch.device("meta"):
    attention = {name}(config, layer_idx=0).eval()
{call}"""


def _latent_flash_attention(facts: Facts) -> Page:
    macs, vector, params, outputs = _query_terms(facts)
    rope = _rope_terms(facts)
    name = "DeepseekV2FlashAttention2"
    return _latent_page(
        facts,
        name,
        flash=True,
        what="Multi-head latent attention through FlashAttention-2. The kernel takes keys and"
        " values, so here the latent is projected up for every head and the cache holds whole keys"
        " and values, padded to one size; no product of queries and keys is kept in memory."
        f"{_not_used(facts)}",
        blocks=(
            ("prefill", "latent attention, FlashAttention-2"),
            ("decode", "latent attention, FlashAttention-2"),
        ),
        diagram="""flowchart TB
  x["x [B, T, d]"] --> qa["q_a_proj, norm, q_b_proj"]
  x --> kva["kv_a_proj_with_mqa"]
  kva --> up["norm, kv_b_proj"]
  kva --> kp["k_pe, rotated"]
  qa --> q["queries [B, T, H, D_n + D_r]"]
  up --> k["keys, joined with k_pe"]
  kp --> k
  up --> v["values, padded to a key's size"]
  k --> cache[("cache: keys and values")]
  v --> cache
  q --> kernel["flash_attn_func, causal"]
  cache --> kernel
  kernel --> cut["cut to D_v"]
  cut --> o["o_proj"]""",
        pseudo_code="""q = join(q_nope, rotate(q_pe))
k_nope, v = split(kv_b_proj(norm(latent)))
k = join(k_nope, rotate(k_pe))
v = pad(v, key_size - value_size)
k, v = cache.update(k, v)
return o_proj(flash_attn_func(q, k, v, causal=True)[..., :value_size])""",
        mathematics=r"k_j = [W_k c_j;\ k^r_j], \quad v_j = W_v c_j, \quad"
        r" o_t = W_o \sum_j \mathrm{softmax}_j\left(\frac{q_t^T k_j}{\sqrt{D_n + D_r}}\right) v_j",
        formulas=Formulas(
            macs=f"{macs} + B * T * d * (r + R) + B * T * r * H * (P + v)"
            " + 2 * B * H * T * K * (P + R) + B * T * H * v * d",
            vector_flops=f"{vector} + B * T * (4 * r + 2) + {rope} + 6 * B * H * T * K",
            params=f"{params} + d * (r + R) + r + r * H * (P + v) + H * v * d",
            activations=f"{outputs} + B * T * (r + R) + B * T * H * (P + v)"
            " + B * T * H * (P + R) + B * T * d",
            cache_bytes="2 * B * K * H * (P + R) * e",
        ),
        flops_notes=(
            "Values are padded to a key's size, and the padding is computed.",
            "A causal kernel may skip the scores above the diagonal; they are counted here and"
            " reported as `causal_savable_flops` by the main job.",
        ),
        memory_notes=(
            "The cache is larger than the eager class's: whole keys and values of every head.",
        ),
        related=("DeepseekV2Attention", "DeepseekV2DecoderLayer", "DeepseekV2RotaryEmbedding"),
        usage=_latent_usage(facts, name),
        notes="MLA through the kernel; keys and values projected up",
    )


# --- the layer and the stack -----------------------------------------------------------------


def attention_formulas(facts: Facts) -> Formulas:
    """Of the attention that the model's layers have, eager; its cache is one layer's."""
    decoder = facts.decoder
    if decoder.use_mla:
        return _latent_formulas(facts, masks_steps=decoder.masks_steps)
    bias = " + B * T * (D * (H + 2 * G) + d)" if decoder.attention_bias else ""
    bias_params = " + D * (H + 2 * G) + d" if decoder.attention_bias else ""
    score = "7" if decoder.masks_steps else "(6 + (T > 1))"
    return Formulas(
        macs="2 * B * T * d * D * (H + G) + B * T * D / 2 + 2 * B * H * T * K * D",
        vector_flops=f"4 * B * T * D + 7 / 2 * B * T * D * (H + G) + {score} * B * H * T * K{bias}",
        params=f"2 * d * D * (H + G){bias_params}",
        activations="B * T * D * (2 * H + 2 * G) + B * T * d + B * T * D / 2 + B * H * T * K",
        cache_bytes="2 * B * K * G * D * e",
    )


_PLAIN_NOTE: Final = (
    "Attention here is `LlamaAttention` of transformers, as the vendor's class table chooses it"
    " without `use_mla`: projections, rotary positions computed anew by each layer, the whole"
    " product of T queries and K keys, softmax in fp32."
)


def _attention_note(facts: Facts) -> str:
    name = facts.class_at("model.layers.0.self_attn").__name__
    if name == "LlamaAttention":
        return _PLAIN_NOTE
    variant = ", latent and eager," if facts.decoder.use_mla else ""
    with_key = "with" if facts.decoder.use_mla else "without"
    return (
        f"Attention here is `{name}`{variant} as the class table chooses it {with_key} `use_mla`."
    )


def stack_symbols(facts: Facts, *, layers: bool) -> dict[str, Symbol]:
    """Symbols of a layer, and of the stack where `layers`, with the derived ones."""
    decoder, attention = facts.decoder, attention_formulas(facts)
    names = "B T K d H G D m a e"
    has_mixture = decoder.n_routed_experts is not None
    symbols = pick(names + (" E k f s" if has_mixture else ""))
    if decoder.use_mla:
        latent = "r P R v" if decoder.q_lora_rank is None else "r q P R v"
        symbols |= pick(latent, _LATENT_SYMBOLS)
    if has_mixture and decoder.topk_method != "greedy":
        symbols["g"] = Symbol("g", "groups of experts", str(decoder.n_group))
    symbols |= {
        "Am": Symbol("M_{attn}", "MACs of attention", attention.macs),
        "Av": Symbol("V_{attn}", "vector FLOPs of attention", attention.vector_flops),
        "Dm": Symbol("M_{mlp}", "MACs of the dense MLP", "3 * B * T * d * m"),
        "Dv": Symbol("V_{mlp}", "vector FLOPs of the dense MLP", "(a + 1) * B * T * m"),
    }
    if has_mixture:
        mixture = moe_formulas(decoder)
        symbols |= {
            "Gv": Symbol(
                "V_{gate}", "vector FLOPs of the router", gate_formulas(decoder).vector_flops
            ),
            "Xm": Symbol("M_{moe}", "MACs of the mixture", mixture.macs),
            "Xv": Symbol(
                "V_{moe}",
                "vector FLOPs of the mixture",
                mixture.vector_flops.replace(gate_formulas(decoder).vector_flops, "Gv", 1),
            ),
            "Xp": Symbol("P_{moe}", "parameters of the mixture", mixture.params),
            "Xa": Symbol("A_{moe}", "matrix outputs of the mixture", mixture.activations),
        }
    symbols |= {
        "Nv": Symbol("V_{norm}", "vector FLOPs of a norm", "B * T * (4 * d + 2)"),
        "Ap": Symbol("P_{attn}", "parameters of attention", attention.params),
        "Aa": Symbol("A_{attn}", "matrix outputs of attention", attention.activations),
        "Ac": Symbol("C_{attn}", "bytes of one layer's cache", attention.cache_bytes),
    }
    if layers:
        symbols |= {
            "L": Symbol("L", "layers", str(decoder.layers)),
            "X": Symbol("L_{moe}", "layers with a mixture", str(decoder.moe_layers)),
            "V": SYMBOLS["V"],
        }
    return symbols


def stack_values(facts: Facts) -> dict[str, int]:
    """Values of the symbols of `stack_symbols` that do not change with the pass."""
    decoder = facts.decoder
    values = {
        "B": 1,
        "d": decoder.hidden_size,
        "H": decoder.heads,
        "G": decoder.kv_heads,
        "D": decoder.head_dim,
        "m": decoder.intermediate_size,
        "a": activation_flops(decoder.hidden_act),
        "e": BFLOAT16.nbytes,
        "V": decoder.vocab_size,
    }
    if decoder.n_routed_experts is not None:
        values |= mixture_values(decoder)
    if decoder.use_mla:
        values |= {
            "r": decoder.kv_lora_rank,
            "q": decoder.q_lora_rank or 0,
            "P": decoder.qk_nope_head_dim,
            "R": decoder.qk_rope_head_dim,
            "v": decoder.v_head_dim,
        }
    return values


def _layer(facts: Facts) -> Page:
    decoder = facts.decoder
    d, D = decoder.hidden_size, decoder.head_dim
    dense = next((i for i in range(decoder.layers) if not decoder.is_moe(i)), None)
    mixed = next((i for i in range(decoder.layers) if decoder.is_moe(i)), None)

    def case(label: str, index: int, T: int, K: int) -> Case:
        def keywords() -> dict[str, Any]:
            cache = facts.cache(1, K - T)
            return {
                "attention_mask": facts.mask(T, K),
                "position_ids": facts.positions(T),
                "past_key_value": cache,
            }

        def build() -> Any:
            # Alone, the layer has the cache to itself: layer 0 of it.
            layer: Any = facts.make("DeepseekV2DecoderLayer", facts.config, index)
            layer.self_attn.layer_idx = 0
            return layer

        return Case(
            label,
            {**stack_values(facts), "T": T, "K": K, "x": int(decoder.is_moe(index))},
            build,
            lambda: [tensor(1, T, d)],
            keywords,
            closed_form=lambda: facts.layer_kernels(index, T, K - T),
        )

    cases = []
    for kind, index in (("dense layer", dense), ("MoE layer", mixed)):
        if index is not None:
            cases += [case(f"{kind}, {label}", index, T, K) for label, T, K in facts.steps]
    symbols = stack_symbols(facts, layers=False)
    symbols["x"] = Symbol("x", "1 for a layer with a mixture, 0 for a dense one")
    both = decoder.n_routed_experts is not None

    def either(dense_part: str, mixed_part: str) -> str:
        return f"(1 - x) * {dense_part} + x * {mixed_part}" if both else f"(1 - x) * {dense_part}"

    index = mixed if mixed is not None else 0
    return Page(
        name="DeepseekV2DecoderLayer",
        group="Decoder: the stack",
        subject=facts.get("DeepseekV2DecoderLayer"),
        what="One layer of the decoder: normalise, attend, add; normalise, MLP, add. The attention"
        " class follows from `use_mla` and the attention implementation; the MLP is a mixture of"
        " experts where the config has routed experts, the layer is not among the first dense ones"
        " and `moe_layer_freq` divides its number.",
        blocks=(("prefill", "decoder layer"), ("decode", "decoder layer")),
        layer="architectures.ocr_family.decoder (one layer of it)",
        inputs={"hidden_states": "B, T, d"},
        output="B, T, d",
        parameters={
            "config": Parameter("Gives everything below.", "the model's config"),
            "layer_idx": Parameter("Number of the layer, from 0.", f"0 to {decoder.layers - 1}"),
            "config.use_mla": Parameter("Latent or plain attention.", decoder.use_mla),
            "config.n_routed_experts": Parameter(
                "Routed experts; None for dense layers only.", decoder.n_routed_experts
            ),
            "config.first_k_dense_replace": Parameter(
                "First layers that stay dense.", decoder.first_k_dense_replace
            ),
            "config.moe_layer_freq": Parameter(
                "Every how many layers one is a mixture.", decoder.moe_layer_freq
            ),
            "config.rms_norm_eps": Parameter("Epsilon of both norms.", decoder.rms_norm_eps),
        },
        diagram=f"""flowchart TB
  x["x [B, T, {d}]"] --> n1["input_layernorm: RMSNorm"]
  n1 --> attn["self_attn: {decoder.heads} heads of {D}"]
  cache[("KV cache")] <--> attn
  attn --> add1["sum"]
  x --> add1
  add1 --> n2["post_attention_layernorm: RMSNorm"]
  n2 --> mlp["mlp: DeepseekV2MLP or DeepseekV2MoE"]
  mlp --> add2["sum"]
  add1 --> add2
  add2 --> y["y [B, T, {d}]"]""",
        pseudo_code="""x = x + self_attn(input_layernorm(x), mask, positions, cache)
return x + mlp(post_attention_layernorm(x))""",
        mathematics=r"h = x + \mathrm{attn}(\mathrm{norm}_1(x)), \quad"
        r" y = h + \mathrm{mlp}(\mathrm{norm}_2(h)), \quad"
        r" \mathrm{attn}(x) = \mathrm{softmax}\left(\frac{Q K^T}{\sqrt{D}} + M\right) V\, W_o",
        symbols=symbols,
        formulas=Formulas(
            macs=f"Am + {either('Dm', 'Xm')}",
            vector_flops=f"Av + {either('Dv', 'Xv')} + 2 * Nv + 2 * B * T * d",
            params=f"Ap + 2 * d + {either('3 * d * m', 'Xp')}",
            activations=f"Aa + {either('B * T * (2 * m + d)', 'Xa')}",
            cache_bytes="Ac",
        ),
        cases=tuple(cases),
        flops_notes=(_attention_note(facts),),
        memory_notes=(
            "The eager scores pass through memory several times, in fp32 for the softmax; with"
            " FlashAttention-2 none of them does.",
        ),
        related=(
            "DeepseekV2RMSNorm",
            "DeepseekV2Attention",
            "DeepseekV2FlashAttention2",
            "DeepseekV2MLP",
            "DeepseekV2MoE",
            "DeepseekV2Model",
        ),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.running.forward import running

layer = DeepSeekOCRSession.from_local().model.model.layers[{index}]
x = torch.empty(1, {facts.tokens}, {d}, dtype=torch.bfloat16, device="meta")
with running(torch.device("meta")):
    (y,) = layer(x)
assert y.shape == x.shape""",
        notes="pre-norm; plain attention unless `use_mla`",
        references=("deepseekv2", "attention", "rmsnorm"),
    )


def stack_formulas(facts: Facts) -> Formulas:
    """Of embedding, layers and last norm, in the symbols of `stack_symbols`."""
    decoder = facts.decoder

    def both(dense_part: str, mixed_part: str) -> str:
        if decoder.n_routed_experts is None:
            return f"(L - X) * {dense_part}"
        return f"(L - X) * {dense_part} + X * {mixed_part}"

    masked = "" if decoder.masks_steps else "(T > 1) * "
    return Formulas(
        macs=f"L * Am + {both('Dm', 'Xm')}",
        vector_flops=f"L * (Av + 2 * Nv + 2 * B * T * d) + {both('Dv', 'Xv')} + Nv"
        f" + {masked}B * T * K + (T > 1) * (T + T ** 2)",
        params=f"V * d + L * (Ap + 2 * d) + {both('3 * d * m', 'Xp')} + d",
        activations=f"L * Aa + {both('B * T * (2 * m + d)', 'Xa')}",
        cache_bytes="L * Ac",
    )


def _stack_cases(
    facts: Facts,
    build: Callable[[], Any],
    closed: Callable[[int, int], Kernels],
    below: str = "",
) -> tuple[Case, ...]:
    decoder = facts.decoder

    def case(label: str, T: int, K: int) -> Case:
        def keywords() -> dict[str, Any]:
            return {
                "input_ids": facts.ids(T),
                "attention_mask": facts.ids(K),
                "position_ids": facts.ids(T),
                "past_key_values": facts.cache(decoder.layers, K - T),
                "use_cache": True,
            }

        return Case(
            label,
            {**stack_values(facts), "T": T, "K": K},
            build,
            keywords=keywords,
            closed_form=lambda: closed(T, K - T),
            alike=facts.alike(below),
        )

    return tuple(case(*step) for step in facts.steps)


_STACK_KEYS: Final = {
    "vocab_size": "Rows of the embedding (and of the head).",
    "hidden_size": "Width d.",
    "num_hidden_layers": "Layers.",
    "num_attention_heads": "Query heads of a layer.",
    "num_key_value_heads": "Key and value heads of a layer.",
    "max_position_embeddings": "Positions the model was trained for.",
    "rms_norm_eps": "Epsilon of the norms.",
    "use_cache": "Whether a pass returns its cache.",
    "pad_token_id": "Row of the embedding that stands for padding.",
}


def stack_parameters(facts: Facts, *keys: str) -> dict[str, Parameter]:
    """The config keys of a whole decoder."""
    return {
        "config": Parameter("Gives everything below.", "the model's config"),
        **{
            f"config.{key}": Parameter(_STACK_KEYS[key], config_value(facts.config, key))
            for key in keys or _STACK_KEYS
        },
    }


def _stack(facts: Facts) -> Page:
    decoder = facts.decoder
    d, layers = decoder.hidden_size, decoder.layers
    per_token = facts.cache_bytes_per_token
    return Page(
        name="DeepseekV2Model",
        group="Decoder: the stack",
        subject=facts.get("DeepseekV2Model"),
        what=f"The decoder: token embedding, {layers} layers, a last norm. It makes the causal mask"
        " and the positions, and keeps the KV cache: one pair of keys and values a layer.",
        blocks=(("prefill", "decoder stack"), ("decode", "decoder stack")),
        layer="architectures.ocr_family.decoder",
        inputs={"input_ids": "B, T"},
        output="B, T, d",
        parameters=stack_parameters(facts),
        diagram=f"""flowchart TB
  ids["input_ids [B, T], or inputs_embeds"] --> embed["embed_tokens<br/>{count(decoder.vocab_size)} x {d}"]
  embed --> layers["layers: {layers} x DeepseekV2DecoderLayer"]
  mask["causal mask [T, K]"] --> layers
  cache[("KV cache<br/>{count(per_token)} bytes a token")] <--> layers
  layers --> norm["norm: RMSNorm"]
  norm --> y["hidden states [B, T, {d}]"]""",
        pseudo_code="""x = embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
mask = causal_mask(T, K) if eager else None
for layer in layers:
    x = layer(x, mask, positions, cache)
return norm(x), cache""",
        mathematics=r"x^{(0)} = W_e[t], \quad x^{(l)} = \mathrm{layer}_l(x^{(l-1)}), \quad"
        r" y = \mathrm{norm}(x^{(L)})",
        symbols=stack_symbols(facts, layers=True),
        formulas=stack_formulas(facts),
        cases=_stack_cases(
            facts,
            lambda: facts.make("DeepseekV2Model", facts.config),
            lambda T, past: below_model(facts.decoder_kernels(T, past)),
            below="model",
        ),
        flops_notes=(
            _attention_note(facts),
            "The look-up of the embedding computes nothing. The causal mask is made once a pass:"
            " one comparison for each pair of positions.",
        ),
        memory_notes=(
            f"The KV cache takes {count(per_token)} bytes a token in bf16 for all layers:"
            f" {scaled(per_token * facts.tokens, 'B')} for the stated prompt.",
        ),
        related=(
            "DeepseekV2DecoderLayer",
            "DeepseekV2RMSNorm",
            "DeepseekV2ForCausalLM",
            facts.model_class,
        ),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.running.forward import running

decoder = DeepSeekOCRSession.from_local().model.model  # with the vision side on top
ids = torch.zeros(1, {facts.tokens}, dtype=torch.long, device="meta")
with running(torch.device("meta")):
    out = decoder(input_ids=ids, use_cache=True)
assert out.last_hidden_state.shape == (1, {facts.tokens}, {d})
assert len(out.past_key_values) == {layers}""",
        notes="embedding, layers, last norm; mask and cache",
        references=("deepseekv2",),
    )


def _causal_lm(facts: Facts) -> Page:
    decoder = facts.decoder
    d, vocabulary = decoder.hidden_size, decoder.vocab_size
    stack = stack_formulas(facts)
    logits = facts.tokens * vocabulary * 4
    head = "" if decoder.tie_word_embeddings else " + d * V"
    return Page(
        name="DeepseekV2ForCausalLM",
        group="Decoder: the stack",
        subject=facts.get("DeepseekV2ForCausalLM"),
        what="The decoder with a head over the vocabulary: one linear map without bias, on every"
        " position of the pass, its logits cast to fp32. With labels it also makes the loss of"
        " predicting each next token.",
        blocks=(("prefill", "LM head"), ("decode", "LM head")),
        layer="architectures.ocr_family.decoder, costs.lm_head.lm_head",
        inputs={"input_ids": "B, T"},
        output="B, T, V",
        parameters=stack_parameters(facts),
        diagram=f"""flowchart LR
  ids["input_ids [B, T]"] --> model["model: DeepseekV2Model"]
  model --> head["lm_head<br/>{d} to {count(vocabulary)}"]
  head --> cast["cast to fp32"]
  cast --> logits["logits [B, T, {count(vocabulary)}]"]
  model --> cache[("KV cache")]""",
        pseudo_code="""hidden, cache = model(input_ids, past_key_values=cache)
logits = lm_head(hidden).float()          # every position
loss = cross_entropy(logits[:, :-1], labels[:, 1:]) if labels is not None else None""",
        mathematics=r"z_t = W_{lm}\, y_t, \quad p(t + 1) = \mathrm{softmax}(z_t)",
        symbols=stack_symbols(facts, layers=True),
        formulas=Formulas(
            macs=f"{stack.macs} + B * T * d * V",
            vector_flops=stack.vector_flops,
            params=f"{stack.params}{head}",
            activations=f"{stack.activations} + B * T * V",
            cache_bytes=stack.cache_bytes,
        ),
        cases=_stack_cases(
            facts,
            lambda: facts.make("DeepseekV2ForCausalLM", facts.config),
            facts.decoder_kernels,
        ),
        flops_notes=(
            "The head runs over all T positions of the prefill pass, though only the last one is"
            " needed to generate.",
        ),
        memory_notes=(
            f"The logits of the stated prompt take {scaled(logits, 'B')} in fp32 and half of"
            " that again in bf16 before the cast.",
        ),
        related=(
            "DeepseekV2Model",
            facts.whole_class,
            "DeepseekV2ForSequenceClassification",
        ),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.running.forward import running

model = DeepSeekOCRSession.from_local().model  # a DeepseekV2ForCausalLM that takes images
ids = torch.zeros(1, {facts.tokens}, dtype=torch.long, device="meta")
with running(torch.device("meta")):
    out = model(input_ids=ids)
assert out.logits.shape == (1, {facts.tokens}, {vocabulary})
assert out.logits.dtype == torch.float32""",
        notes="head over all positions; logits in fp32",
        references=("deepseekv2",),
    )


def _label_head(T: int, d: int, labels: int) -> Kernels:
    """The label head on T tokens of one row, and taking the last one by the row's number."""
    taken = labels * BFLOAT16.nbytes
    return (
        *linear(T, d, labels, BFLOAT16),
        *filled("arange", 1, INT64),
        *moved("index", labels, taken + INT64.nbytes, taken, BFLOAT16),
    )


def _classifier(facts: Facts) -> Page:
    decoder = facts.decoder
    d = decoder.hidden_size
    stack = stack_formulas(facts)
    labels = int(facts.config.num_labels)
    symbols = stack_symbols(facts, layers=True)
    symbols["c"] = Symbol("c", "labels", str(labels))
    return Page(
        name="DeepseekV2ForSequenceClassification",
        group="Decoder: the stack",
        subject=facts.get("DeepseekV2ForSequenceClassification"),
        what="The decoder with a linear head over labels, read at each row's last token. The files"
        f" of {facts.model_name} hold it; its OCR pipeline never runs it.",
        blocks=(),
        layer="architectures.ocr_family.decoder, costs.linear.linear",
        inputs={"input_ids": "B, T"},
        output="B, c",
        parameters={
            **stack_parameters(facts),
            "config.num_labels": Parameter("Labels.", labels),
        },
        diagram=f"""flowchart LR
  ids["input_ids [B, T]"] --> model["model: DeepseekV2Model"]
  model --> score["score<br/>{d} to {labels}"]
  score --> last["row's last token"]
  last --> logits["logits [B, {labels}]"]""",
        pseudo_code="""scores = score(model(input_ids))
last = position before the first padding, or the last position
return scores[arange(B), last]""",
        mathematics=r"z = W_s\, y_{t_{last}}",
        symbols=symbols,
        formulas=Formulas(
            macs=f"{stack.macs} + B * T * d * c",
            vector_flops=stack.vector_flops,
            params=f"{stack.params} + d * c",
            activations=f"{stack.activations} + B * T * c",
            cache_bytes=stack.cache_bytes,
        ),
        cases=_stack_cases(
            facts,
            lambda: facts.make("DeepseekV2ForSequenceClassification", facts.config),
            lambda T, past: below_model(facts.decoder_kernels(T, past)) + _label_head(T, d, labels),
        )[:1],
        flops_notes=("The head runs on every position, though one a row is read.",),
        related=("DeepseekV2Model", "DeepseekV2ForCausalLM"),
        usage=f"""import torch
from dsocr_analyze.session import DeepSeekOCRSession
{import_line(_FILE, "DeepseekV2ForSequenceClassification")}
from dsocr_analyze.running.building import building
from dsocr_analyze.running.forward import running

meta = torch.device("meta")
config = DeepSeekOCRSession.from_local().model.config
with building(meta, torch.bfloat16):
    model = DeepseekV2ForSequenceClassification(config).eval()
with running(meta):
    out = model(input_ids=torch.zeros(1, {facts.tokens}, dtype=torch.long, device=meta))
assert out.logits.shape == (1, {labels})""",
        notes="in the files, not in the OCR pipeline",
        references=("deepseekv2",),
    )
