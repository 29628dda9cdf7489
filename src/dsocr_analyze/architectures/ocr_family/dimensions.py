"""Dimensions of a model of the family, read from its `config.json`.

As in the vendors' config classes, the decoder's keys are at the top level and the encoders' under
`vision_config.width`. A key may be absent if it is not used, or if `DeepseekV2Config`
(`configuration_deepseek_v2.py`) or `PretrainedConfig` has a default for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from dsocr_analyze.architectures.config_file import LARGEST_WIDTH, MOST_LAYERS, Config, ConfigKeys
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.escaping import shown
from dsocr_analyze.tape import Size, largest, maximum
from dsocr_analyze.tape.modules import ACTIVATIONS

# --- the encoders ----------------------------------------------------------------------------

_SAM: Final = "vision_config.width.sam_vit_b"
SAM_PATCH: Final = 16
"""Pixels per side."""
CHANNELS: Final = 3
LARGEST_IMAGE: Final = 16_384


@dataclass(frozen=True, slots=True)
class SamDimensions:
    """SAM encoder (`ImageEncoderViT`), `vision_config.width.sam_vit_b` and `vision_config`.

    `_build_sam` fixes those with defaults.

    Attributes:
        width: Features per patch token.
        global_attn_indexes: Blocks that attend over the whole grid instead of windows.
        downsample_channels: Output channels of the two stride-2 convolutions after the neck.
        image_size: Pixels per side of the learned position table.
        patch: Pixels per side.
        window: Tokens per side.
    """

    width: int
    layers: int
    heads: int
    global_attn_indexes: tuple[int, ...]
    downsample_channels: tuple[int, int]
    image_size: int
    patch: int = SAM_PATCH
    window: int = 14
    mlp_ratio: int = 4
    neck: int = 256

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Reads a whole `config.json`; raises ConfigError."""
        vision, keys = ConfigKeys(config).section("vision_config"), ConfigKeys(config).section(_SAM)
        width = keys.integer("width", most=LARGEST_WIDTH)
        heads = keys.integer("heads")
        keys.check(width % heads == 0, "heads", f"a divisor of '{_SAM}.width', {width}")
        layers = keys.integer("layers", most=MOST_LAYERS)
        blocks = keys.integers("global_attn_indexes", least=0, most=layers - 1)
        keys.check(len(set(blocks)) == len(blocks), "global_attn_indexes", "each block once")
        channels = keys.integers("downsample_channels", most=LARGEST_WIDTH)
        keys.check(len(channels) == 2, "downsample_channels", "two whole numbers, e.g. [512, 1024]")
        image_size = vision.integer("image_size", least=SAM_PATCH, most=LARGEST_IMAGE)
        vision.check(
            image_size % SAM_PATCH == 0,
            "image_size",
            f"a multiple of {SAM_PATCH}, the patch size",
        )
        return cls(
            width, layers, heads, tuple(sorted(blocks)), (channels[0], channels[1]), image_size
        )


# --- the projector -----------------------------------------------------------------------------

_PROJECTOR_TYPES: Final = (
    "identity",
    "linear",
    "mlp_gelu",
    "normlayer_downsample_mlp_gelu",
    "downsample_mlp_gelu",
    "low_high_hybrid_split_mlp_gelu",
    "hybrid_split_feature_mlp_gelu",
    "low_high_split_mlp_gelu",
)
"""Variants of `MlpProjector` (`deepencoder.py`)."""


@dataclass(frozen=True, slots=True)
class ProjectorDimensions:
    """Projector (`MlpProjector`), `projector_config`.

    Attributes:
        input_dim: Features; (high, low) for `hybrid_split_feature_mlp_gelu`.
        n_embed: Output features.
        depth: Linear layers of the MLP.
        mlp_ratio: Hidden width over `n_embed`, if it downsamples.
        downsample_ratio: Tokens per side that become one, if it downsamples.
        channel_div: Share of the high features in `n_embed`, if it splits features.
        token_pooling: Whether 2 x 2 tokens are pooled into one first.
        conv_fusion: Whether high features are added to low ones first.
    """

    projector_type: str
    input_dim: int | tuple[int, int]
    n_embed: int
    depth: int = 1
    mlp_ratio: int = 1
    downsample_ratio: int = 1
    channel_div: float = 0.5
    token_pooling: bool = False
    conv_fusion: bool = False

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Reads a whole `config.json`; raises ConfigError."""
        keys = ConfigKeys(config).section("projector_config")
        kind = keys.choice("projector_type", _PROJECTOR_TYPES)
        n_embed = keys.integer("n_embed", most=LARGEST_WIDTH)
        ratio = keys.integer("downsample_ratio") if kind.endswith("downsample_mlp_gelu") else 1
        channel_div = keys.number("channel_div", 0.5, least=0)
        keys.check(
            1 <= int(n_embed * channel_div) < n_embed,
            "channel_div",
            "a share that leaves each part a channel, e.g. 0.5",
        )
        input_dim: int | tuple[int, int]
        if kind == "hybrid_split_feature_mlp_gelu":
            widths = keys.integers("input_dim", most=LARGEST_WIDTH)
            keys.check(len(widths) == 2, "input_dim", "two whole numbers, e.g. [1024, 1024]")
            input_dim = widths[0], widths[1]
        else:
            input_dim = keys.integer("input_dim", most=LARGEST_WIDTH)
        return cls(
            projector_type=kind,
            input_dim=input_dim,
            n_embed=n_embed,
            depth=keys.integer("depth", 1, most=MOST_LAYERS),
            mlp_ratio=keys.integer("mlp_ratio", 1, most=LARGEST_WIDTH),
            downsample_ratio=ratio,
            channel_div=channel_div,
            token_pooling=keys.boolean("token_pooling", False),
            conv_fusion=keys.boolean("conv_fusion_high_low_features", False),
        )

    @property
    def input_channels(self) -> int:
        """Input features, of both parts of a pair."""
        return sum(self.input_dim) if isinstance(self.input_dim, tuple) else self.input_dim


# --- the decoder -------------------------------------------------------------------------------


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
"""DeepSeek-V2 has 9,440; the modules of so many are built and listed in 10 s."""

LARGEST_VOCABULARY: Final = 2**26


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderDimensions:
    """Decoder (`DeepseekV2Model` and its head), the top level of `config.json`.

    Attributes:
        hidden_size: Features per token.
        kv_heads: Of keys and values; `heads` if `use_mla`.
        head_dim: Features per head; of a query or key if `use_mla`.
        use_mla: Latent attention (`DeepseekV2Attention`) instead of `LlamaAttention`.
        rope_scaling: `linear`, `dynamic`, `yarn` or None.
        q_lora_rank: Rank of the queries' latent; None for a direct projection.
        kv_lora_rank: Rank of the keys' and values' latent.
        qk_rope_head_dim: Rotary features per head.
        qk_nope_head_dim: Other features per head.
        v_head_dim: Features per value head if `use_mla`.
        n_shared_experts: Experts that every token passes, fused into one MLP.
        shared_expert_size: Hidden width of each; by default that of a routed one.
        has_shared_gate: Whether their output is weighted by a score of its own.
        moe_layer_freq: Every this many layers, one is MoE.
        topk_group: Groups that a token may choose from, of `n_group`.
        masks_steps: Whether a decode step adds a mask to its scores.
        sliding_window: Generated tokens that a decode step attends to, its own among them, and that
            the cache keeps; None for all.
        axes: Positions per token: one, or three in time, height and width (M-RoPE, Wang et al.
            2024, section 2.1).
        rotary: How features of a head turn: in halves by one position (`plain`); by three, whose
            angles take `sections` of a head's features or take `turns` in them; or in pairs of
            `neighbours`, by sections.
        mrope_section: Pairs of a head's features that turn by each of three positions.
        head_norms: Whether queries and keys are normed per head.
        output_norms: Whether the outputs of attention and MLP are normed.
        deepstack: Layers after which features of the vision stages are added (DeepStack, Meng et
            al. 2024; `Qwen3VLTextModel`).
        is_of_transformers: Whether its code is that of transformers 5, whose attention has no bias
            in its last product, scales scores by a product, and copies a prompt's keys and values
            to the cache, too. All pages of a batch then pass the vision stages at once, which have
            fused attention and norms in a serving engine, and the head runs for the last position
            of each prompt alone.
    """

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    hidden_act: str
    vocab_size: int = 0
    rms_norm_eps: float = 1e-6
    use_mla: bool = False
    rope_theta: float = 1e4
    rope_scaling: str | None = None
    attention_bias: bool = False
    max_position_embeddings: int = 0
    tie_word_embeddings: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    moe_intermediate_size: int = 0
    n_routed_experts: int | None = None
    n_shared_experts: int | None = None
    shared_expert_size: int | None = None
    has_shared_gate: bool = False
    num_experts_per_tok: int = 0
    first_k_dense_replace: int = 0
    moe_layer_freq: int = 1
    scoring_func: str = "softmax"
    topk_method: str = "greedy"
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = False
    masks_steps: bool = True
    sliding_window: int | None = None
    axes: int = 1
    rotary: str = "plain"
    mrope_section: tuple[int, ...] = ()
    head_norms: bool = False
    output_norms: bool = False
    deepstack: int = 0
    is_of_transformers: bool = False

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Reads a whole `config.json`; raises ConfigError."""
        keys = ConfigKeys(config)
        use_mla, rope_scaling, usual = keys.boolean("use_mla"), None, DECODER_DEFAULTS
        vocabulary = keys.integer("vocab_size", most=LARGEST_VOCABULARY)
        if keys.value("pad_token_id", None) is not None:
            keys.integer("pad_token_id", least=-vocabulary, most=vocabulary - 1)
        if keys.value("rope_scaling", usual["rope_scaling"]) is not None:
            scaling = keys.section("rope_scaling")
            # `LlamaAttention` also reads `rope_type`, `DeepseekV2Attention` does not.
            is_new = not use_mla and scaling.value("rope_type", None) is not None
            name = "rope_type" if is_new else "type"
            scaling.number("factor", least=1)  # no count depends on it
            rope_scaling = scaling.choice(name, ("linear", "dynamic", "yarn"))
        dimensions = cls(
            vocab_size=vocabulary,
            hidden_size=keys.integer("hidden_size", most=LARGEST_WIDTH),
            layers=keys.integer("num_hidden_layers", most=MOST_LAYERS),
            intermediate_size=keys.integer("intermediate_size", most=LARGEST_WIDTH),
            hidden_act=keys.choice("hidden_act", tuple(ACTIVATIONS), usual["hidden_act"]),
            rms_norm_eps=keys.number("rms_norm_eps", usual["rms_norm_eps"], least=0),
            use_mla=use_mla,
            rope_theta=keys.number("rope_theta", usual["rope_theta"], least=0),
            rope_scaling=rope_scaling,
            attention_bias=keys.boolean("attention_bias", usual["attention_bias"]),
            max_position_embeddings=keys.integer("max_position_embeddings"),
            tie_word_embeddings=keys.boolean("tie_word_embeddings", usual["tie_word_embeddings"]),
            **(_latent_attention(config) if use_mla else multi_head_attention(keys)),
            **_experts(keys),
        )
        layers = dimensions.moe_layers
        most = _MOST_EXPERTS_OF_ALL_LAYERS // max(layers, 1)
        keys.check(
            layers * (dimensions.n_routed_experts or 0) <= _MOST_EXPERTS_OF_ALL_LAYERS,
            "n_routed_experts",
            f"at most {most:,} to each of {layers:,} MoE layers",
        )
        return dimensions

    def check_positions(self, seq_len: Size, max_new_tokens: Size) -> None:
        """Raises ConfigError for "dynamic" positions beyond the trained length, if not modelled.

        Plain attention recomputes frequencies in each layer; 2 latent ones divide by zero.
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
        """Whether a layer, from 0, is MoE (`DeepseekV2DecoderLayer`)."""
        return (
            self.n_routed_experts is not None
            and layer_index >= self.first_k_dense_replace
            and layer_index % self.moe_layer_freq == 0
        )

    @property
    def moe_layers(self) -> int:
        """Layers that are MoE."""
        return sum(map(self.is_moe, range(self.layers)))

    @property
    def expert_params(self) -> int:
        """Of one routed expert."""
        return 3 * self.hidden_size * self.moe_intermediate_size

    @property
    def shared_intermediate_size(self) -> int:
        """Hidden width of all shared experts."""
        return (self.n_shared_experts or 0) * (
            self.shared_expert_size or self.moe_intermediate_size
        )


def multi_head_attention(keys: ConfigKeys) -> dict[str, Any]:
    """Fields of `LlamaAttention`."""
    hidden_size = keys.integer("hidden_size", most=LARGEST_WIDTH)
    heads = keys.integer("num_attention_heads")
    kv_heads = keys.integer_or_null("num_key_value_heads") or heads
    keys.check(
        heads % kv_heads == 0, "num_key_value_heads", f"a divisor of 'num_attention_heads', {heads}"
    )
    if keys.value("head_dim", None) is not None:
        head_dim, origin = keys.integer("head_dim", most=LARGEST_WIDTH), "head_dim"
    else:
        keys.check(
            hidden_size % heads == 0,
            "num_attention_heads",
            f"a divisor of 'hidden_size', {hidden_size}",
        )
        head_dim, origin = hidden_size // heads, "num_attention_heads"
    keys.check(head_dim % 2 == 0, origin, f"a value that makes heads of even size, not {head_dim}")
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


def _latent_attention(config: Config) -> dict[str, Any]:
    """Fields of `DeepseekV2Attention`."""
    keys = ConfigKeys(config, since="'use_mla' is true")
    heads = keys.integer("num_attention_heads")
    rope = keys.integer("qk_rope_head_dim", most=LARGEST_WIDTH)
    keys.check(rope % 2 == 0, "qk_rope_head_dim", "an even number")
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
    """Fields of `DeepseekV2MoE` and `MoEGate`; none of a dense decoder."""
    experts = keys.integer_or_null("n_routed_experts", most=_MOST_EXPERTS)
    if experts is None:
        return {}
    method = keys.choice("topk_method", ("greedy", "group_limited_greedy", "noaux_tc"))
    per_token = keys.integer("num_experts_per_tok")
    keys.check(
        per_token <= experts, "num_experts_per_tok", f"at most 'n_routed_experts', {experts}"
    )
    groups, chosen = (1, 1) if method == "greedy" else _expert_groups(keys, method, experts)
    reached = experts // groups * chosen
    keys.check(
        per_token <= reached,
        "num_experts_per_tok",
        f"at most {reached}, the experts of {chosen} of {groups} groups",
    )
    usual = DECODER_DEFAULTS
    keys.number("routed_scaling_factor", usual["routed_scaling_factor"], least=0)  # not counted
    return {
        "moe_intermediate_size": keys.integer("moe_intermediate_size", most=LARGEST_WIDTH),
        "n_routed_experts": experts,
        "n_shared_experts": keys.integer_or_null("n_shared_experts", most=_MOST_EXPERTS),
        "num_experts_per_tok": per_token,
        "first_k_dense_replace": keys.integer("first_k_dense_replace", least=0),
        "moe_layer_freq": keys.integer("moe_layer_freq", usual["moe_layer_freq"]),
        "scoring_func": keys.choice("scoring_func", ("softmax", "sigmoid"), usual["scoring_func"]),
        "topk_method": method,
        "n_group": groups,
        "topk_group": chosen,
        "norm_topk_prob": keys.boolean("norm_topk_prob", usual["norm_topk_prob"]),
    }


def _expert_groups(keys: ConfigKeys, method: str, experts: int) -> tuple[int, int]:
    """Total and chosen groups of a group-limited `topk_method`."""
    groups = keys.integer("n_group")
    keys.check(experts % groups == 0, "n_group", f"a divisor of 'n_routed_experts', {experts}")
    keys.check(
        method != "noaux_tc" or experts // groups >= 2,
        "n_group",
        f"at most {experts // 2}, since 'noaux_tc' scores two experts per group",
    )
    chosen = keys.integer("topk_group")
    keys.check(chosen <= groups, "topk_group", f"at most 'n_group', {groups}")
    return groups, chosen


# --- the whole model ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelDimensions:
    """What the dimensions of every model have."""

    decoder: DecoderDimensions

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the model's figures."""
        decoder = self.decoder
        if decoder.masks_steps or decoder.use_mla:
            return ()
        if decoder.sliding_window is None:
            return ("the sliding window is off: the KV cache keeps every token",)
        return (
            "the sliding window is on, as infer() runs the model: a decode step attends to the"
            f" prompt and the last {decoder.sliding_window} generated tokens, including its own",
        )

    def step_cuts(self, seq_len: int) -> tuple[int, ...]:
        """Decode steps, from 0, from which the work changes in kind.

        Beyond the trained length, which step i reaches with `seq_len + i + 1` positions, "dynamic"
        ones are computed anew; with a full window, the cache no longer grows.
        """
        decoder, cuts = self.decoder, []
        if decoder.rope_scaling == "dynamic":
            cuts.append(max(0, decoder.max_position_embeddings - seq_len))
        if decoder.sliding_window is not None:
            cuts.append(decoder.sliding_window)
        return tuple(sorted(cuts))


@dataclass(frozen=True, slots=True)
class RelativeDimensions(ModelDimensions):
    """The dimensions common to all relatives."""

    sam: SamDimensions
    projector: ProjectorDimensions


def check_projector(
    projector: ProjectorDimensions, features: int, origin: str, decoder: DecoderDimensions
) -> None:
    """Raises ConfigError for a projector that does not map `features` to the decoder's width.

    The message names the features' `origin`.
    """
    for key, width, fitting, whose in (
        ("input_dim", projector.input_dim, features, origin),
        ("n_embed", projector.n_embed, decoder.hidden_size, "the decoder's 'hidden_size'"),
    ):
        total = sum(width) if isinstance(width, tuple) else width
        if total != fitting:
            raise ConfigError(
                f"config.json: 'projector_config.{key}' is {width}; give {fitting}, {whose}"
            )
    if projector.projector_type == "identity" and features != decoder.hidden_size:
        raise ConfigError(
            "config.json: 'projector_config.projector_type' is 'identity', which passes on "
            f"{features} features; give a type that maps them to 'hidden_size', "
            f"{decoder.hidden_size}"
        )
    kind, ratio = projector.projector_type, projector.downsample_ratio
    takes_two = "takes two feature maps, but the model provides one"
    merges = "merges tokens, but the page's layout has a place for each"
    for name, value, reason in (
        ("conv_fusion_high_low_features", projector.conv_fusion, takes_two),
        ("projector_type", kind.startswith("low_high") and kind, takes_two),
        ("token_pooling", projector.token_pooling, merges),
        ("downsample_ratio", ratio > 1 and ratio, merges),
    ):
        if value:
            raise ConfigError(
                f"config.json: 'projector_config.{name}' is {shown(value)}, which {reason}; give"
                " linear, mlp_gelu or hybrid_split_feature_mlp_gelu without merging or fusion"
            )
