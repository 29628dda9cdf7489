"""Dimensions of the decoder, read from the top level of a `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsocr_analyze.architectures.config_file import LARGEST_WIDTH, MOST_LAYERS, Config, ConfigKeys
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.tape import Size, largest, maximum
from dsocr_analyze.tape.modules import ACTIVATIONS

__all__ = [
    "DECODER_DEFAULTS",
    "DecoderDimensions",
]

_SCORING_FUNCS: Final = ("softmax", "sigmoid")
_TOPK_METHODS: Final = ("greedy", "group_limited_greedy", "noaux_tc")
_ROPE_SCALING_TYPES: Final = ("linear", "dynamic", "yarn")

DECODER_DEFAULTS: Final[Mapping[str, Any]] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "moe_layer_freq": 1,
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}
"""Values for keys missing in the file: the defaults of `DeepseekV2Config`."""

_MOST_EXPERTS: Final = 65_536
_MOST_EXPERTS_OF_ALL_LAYERS: Final = 10_000
"""DeepSeek-V2 has 9,440. The modules of so many are built and listed in 10 s at most."""

_LARGEST_VOCABULARY: Final = 2**26


@dataclass(frozen=True, slots=True)
class DecoderDimensions:
    """Decoder (`DeepseekV2Model` and its head), the top level of `config.json`.

    Attributes:
        vocab_size: Rows of the embedding and of the head.
        hidden_size: Features per token.
        layers: Decoder layers.
        heads: Attention heads.
        kv_heads: Key and value heads; `heads` if `use_mla`.
        head_dim: Features per head; those of a query or key if `use_mla`.
        intermediate_size: Hidden width of a dense MLP.
        moe_intermediate_size: Hidden width of one expert; 0 in a dense decoder.
        n_routed_experts: Routed experts per MoE layer; None in a dense decoder.
        n_shared_experts: Experts that every token passes, fused into one MLP; None for none.
        num_experts_per_tok: Routed experts per token; 0 in a dense decoder.
        first_k_dense_replace: Number of initial layers that are dense.
        moe_layer_freq: Every this many layers, one is MoE.
        scoring_func: One of `_SCORING_FUNCS`.
        topk_method: One of `_TOPK_METHODS`; "greedy" in a dense decoder.
        n_group: Expert groups of a group-limited method; 1 for other methods.
        topk_group: Groups a token may choose from; 1 for other methods.
        norm_topk_prob: Whether the chosen scores are normalised to sum to 1.
        hidden_act: Activation of the MLPs, one of `ACTIVATIONS`.
        rms_norm_eps: Epsilon of the norms.
        use_mla: Latent attention (`DeepseekV2Attention`) instead of `LlamaAttention`.
        q_lora_rank: Rank of the queries' latent; None for a direct projection and without MLA.
        kv_lora_rank: Rank of the keys' and values' latent; 0 without MLA.
        qk_rope_head_dim: Rotary features per head; 0 without MLA.
        qk_nope_head_dim: Other features per head; 0 without MLA.
        v_head_dim: Features per value head if `use_mla`; 0 without MLA.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: How they are stretched, `linear`, `dynamic` or `yarn`; None for unscaled.
        attention_bias: Whether the attention projections have biases.
        max_position_embeddings: Positions the model was trained for.
        tie_word_embeddings: Whether the head shares the embedding's weight.
        masks_steps: Whether a decode step builds a mask and adds it to its scores.
        sliding_window: Generated tokens that a decode step attends to, including its own, and that
            the cache keeps; None for all.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int | None
    n_shared_experts: int | None
    num_experts_per_tok: int
    first_k_dense_replace: int
    moe_layer_freq: int
    scoring_func: str
    topk_method: str
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    hidden_act: str
    rms_norm_eps: float
    use_mla: bool
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    rope_theta: float
    rope_scaling: str | None
    attention_bias: bool
    max_position_embeddings: int
    tie_word_embeddings: bool
    masks_steps: bool = True
    sliding_window: int | None = None

    @classmethod
    def from_config(cls, config: Config) -> DecoderDimensions:
        """Reads the decoder's keys from a whole `config.json`.

        Raises:
            ConfigError: A key is absent, or no decoder can be built from its value.
        """
        keys = ConfigKeys(config)
        use_mla = keys.boolean("use_mla")
        vocabulary = keys.integer("vocab_size", most=_LARGEST_VOCABULARY)
        if keys.has("pad_token_id"):
            keys.integer("pad_token_id", least=-vocabulary, most=vocabulary - 1)
        dimensions = cls(
            vocab_size=vocabulary,
            hidden_size=keys.integer("hidden_size", most=LARGEST_WIDTH),
            layers=keys.integer("num_hidden_layers", most=MOST_LAYERS),
            intermediate_size=keys.integer("intermediate_size", most=LARGEST_WIDTH),
            hidden_act=keys.choice(
                "hidden_act", tuple(ACTIVATIONS), DECODER_DEFAULTS["hidden_act"]
            ),
            rms_norm_eps=keys.number("rms_norm_eps", DECODER_DEFAULTS["rms_norm_eps"], least=0),
            use_mla=use_mla,
            rope_theta=keys.number("rope_theta", DECODER_DEFAULTS["rope_theta"], least=0),
            rope_scaling=_rope_scaling(keys, use_mla=use_mla),
            attention_bias=keys.boolean("attention_bias", DECODER_DEFAULTS["attention_bias"]),
            max_position_embeddings=keys.integer("max_position_embeddings"),
            tie_word_embeddings=keys.boolean(
                "tie_word_embeddings", DECODER_DEFAULTS["tie_word_embeddings"]
            ),
            **(_latent_attention(config) if use_mla else _multi_head_attention(keys)),
            **_experts(keys),
        )
        total = dimensions.moe_layers * (dimensions.n_routed_experts or 0)
        if total > _MOST_EXPERTS_OF_ALL_LAYERS:
            raise keys.refusal(
                "n_routed_experts",
                f"at most {_MOST_EXPERTS_OF_ALL_LAYERS // dimensions.moe_layers:,} to each of"
                f" {dimensions.moe_layers:,} MoE layers",
            )
        return dimensions

    def check_positions(self, seq_len: Size, max_new_tokens: Size) -> None:
        """Rejects "dynamic" positions beyond the trained length if no closed form applies.

        Args:
            seq_len: Tokens of each prompt.
            max_new_tokens: Tokens generated after it.

        Raises:
            ConfigError: Each layer of plain attention would recompute frequencies, or latent
                attention that rotates 2 dimensions would divide by zero.
        """
        trained = self.max_position_embeddings
        divides_by_zero = self.use_mla and self.qk_rope_head_dim == 2
        if self.rope_scaling != "dynamic" or (self.use_mla and not divides_by_zero):
            return
        longest = largest(seq_len + maximum(max_new_tokens - 1, 1))  # one step is always counted
        if longest <= trained:
            return
        which = "with 'qk_rope_head_dim' of 2" if divides_by_zero else "without 'use_mla'"
        raise ConfigError(
            f"config.json: no closed form for 'rope_scaling' of type 'dynamic' {which} beyond"
            f" 'max_position_embeddings', {trained}; the sequence reaches {longest}: give a shorter"
            f" one{'' if divides_by_zero else ', or trace the model'}"
        )

    def is_moe(self, layer_index: int) -> bool:
        """Whether layer `layer_index` (from 0) is MoE, as `DeepseekV2DecoderLayer` decides."""
        return (
            self.n_routed_experts is not None
            and layer_index >= self.first_k_dense_replace
            and layer_index % self.moe_layer_freq == 0
        )

    @property
    def moe_layers(self) -> int:
        """Layers that are MoE."""
        return sum(self.is_moe(index) for index in range(self.layers))

    @property
    def shared_intermediate_size(self) -> int:
        """Hidden width of the shared experts fused into one MLP; 0 for none."""
        return (self.n_shared_experts or 0) * self.moe_intermediate_size


def _rope_scaling(keys: ConfigKeys, *, use_mla: bool) -> str | None:
    """Rotary scaling; `LlamaAttention` also reads `rope_type`, `DeepseekV2Attention` does not."""
    if keys.value("rope_scaling", DECODER_DEFAULTS["rope_scaling"]) is None:
        return None
    scaling = keys.section("rope_scaling")
    name = "rope_type" if scaling.has("rope_type") and not use_mla else "type"
    scaling.number("factor", least=1)  # no count depends on it
    return scaling.choice(name, _ROPE_SCALING_TYPES)


def _multi_head_attention(keys: ConfigKeys) -> dict[str, Any]:
    """Fields of `LlamaAttention`: heads share keys and values evenly, rotary features pair up."""
    hidden_size = keys.integer("hidden_size", most=LARGEST_WIDTH)
    heads = keys.integer("num_attention_heads")
    kv_heads = keys.integer_or_null("num_key_value_heads") or heads
    keys.check_divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    if keys.has("head_dim"):
        head_dim = keys.integer("head_dim", most=LARGEST_WIDTH)
    else:
        keys.check_divides("num_attention_heads", heads, "hidden_size", hidden_size)
        head_dim = hidden_size // heads
    if head_dim % 2:
        name = "head_dim" if keys.has("head_dim") else "num_attention_heads"
        raise keys.refusal(name, f"a value that makes heads of even size, not {head_dim}")
    return {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "q_lora_rank": None,
        "kv_lora_rank": 0,
        "qk_rope_head_dim": 0,
        "qk_nope_head_dim": 0,
        "v_head_dim": 0,
    }


def _latent_attention(config: Config) -> dict[str, Any]:
    """Fields of `DeepseekV2Attention`: a head consists of its rotary and its other features."""
    keys = ConfigKeys(config, since="'use_mla' is true")
    heads = keys.integer("num_attention_heads")
    rope = keys.integer("qk_rope_head_dim", most=LARGEST_WIDTH)
    if rope % 2:
        raise keys.refusal("qk_rope_head_dim", "an even number")
    nope = keys.integer("qk_nope_head_dim", most=LARGEST_WIDTH)
    return {
        "heads": heads,
        "kv_heads": heads,
        "head_dim": nope + rope,
        "q_lora_rank": keys.integer_or_null("q_lora_rank", most=LARGEST_WIDTH),
        "kv_lora_rank": keys.integer("kv_lora_rank", most=LARGEST_WIDTH),
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": nope,
        "v_head_dim": keys.integer("v_head_dim", most=LARGEST_WIDTH),
    }


def _experts(keys: ConfigKeys) -> dict[str, Any]:
    """Fields of `DeepseekV2MoE` and `MoEGate`; a dense decoder needs none of its keys."""
    experts = keys.integer_or_null("n_routed_experts", most=_MOST_EXPERTS)
    if experts is None:
        return {
            "moe_intermediate_size": 0,
            "n_routed_experts": None,
            "n_shared_experts": None,
            "num_experts_per_tok": 0,
            "first_k_dense_replace": 0,
            "moe_layer_freq": 1,
            "scoring_func": "softmax",
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
        }
    method = keys.choice("topk_method", _TOPK_METHODS)
    per_token = keys.integer("num_experts_per_tok")
    if per_token > experts:
        raise keys.refusal("num_experts_per_tok", f"at most 'n_routed_experts', {experts}")
    groups, chosen = (1, 1) if method == "greedy" else _expert_groups(keys, method, experts)
    if per_token > experts // groups * chosen:
        raise keys.refusal(
            "num_experts_per_tok",
            f"at most {experts // groups * chosen}, the experts of {chosen} of {groups} groups",
        )
    scale = DECODER_DEFAULTS["routed_scaling_factor"]
    keys.number("routed_scaling_factor", scale, least=0)  # no count depends on it
    return {
        "moe_intermediate_size": keys.integer("moe_intermediate_size", most=LARGEST_WIDTH),
        "n_routed_experts": experts,
        "n_shared_experts": keys.integer_or_null("n_shared_experts", most=_MOST_EXPERTS),
        "num_experts_per_tok": per_token,
        "first_k_dense_replace": keys.integer("first_k_dense_replace", least=0),
        "moe_layer_freq": keys.integer("moe_layer_freq", DECODER_DEFAULTS["moe_layer_freq"]),
        "scoring_func": keys.choice(
            "scoring_func", _SCORING_FUNCS, DECODER_DEFAULTS["scoring_func"]
        ),
        "topk_method": method,
        "n_group": groups,
        "topk_group": chosen,
        "norm_topk_prob": keys.boolean("norm_topk_prob", DECODER_DEFAULTS["norm_topk_prob"]),
    }


def _expert_groups(keys: ConfigKeys, method: str, experts: int) -> tuple[int, int]:
    """Total and chosen groups of a group-limited `topk_method`."""
    groups = keys.integer("n_group")
    keys.check_divides("n_group", groups, "n_routed_experts", experts)
    if method == "noaux_tc" and experts // groups < 2:
        right = f"at most {experts // 2}, since 'noaux_tc' scores two experts per group"
        raise keys.refusal("n_group", right)
    chosen = keys.integer("topk_group")
    if chosen > groups:
        raise keys.refusal("topk_group", f"at most 'n_group', {groups}")
    return groups, chosen
