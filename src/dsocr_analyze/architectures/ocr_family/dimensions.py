"""Dimensions of a model of the family, read from its `config.json`.

The only source of dimensions for closed forms and reports. As in the vendors' config classes, the
decoder's keys are at the top level (`language_config` is not read) and the encoders' under
`vision_config.width`. The relative's `config_table` lists what the other keys do.

A key may be absent only if the published file leaves it to a default of `DeepseekV2Config`
(`configuration_deepseek_v2.py`) or `PretrainedConfig`; a key that some configurations never use
(mixture of experts, latent attention) is required only if it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dsocr_analyze.architectures.config_file import LARGEST_WIDTH, MOST_LAYERS, Config, ConfigKeys
from dsocr_analyze.architectures.ocr_family.decoder_dimensions import DecoderDimensions
from dsocr_analyze.errors import ConfigError

__all__ = [
    "PROJECTOR_TYPES",
    "ClipDimensions",
    "ClipModelDimensions",
    "DecoderDimensions",
    "ModelDimensions",
    "ProjectorDimensions",
    "SamDimensions",
    "check_projector",
]


# --- the encoders ----------------------------------------------------------------------------

_SAM_PATCH: Final = 16
_LARGEST_IMAGE: Final = 16_384


@dataclass(frozen=True, slots=True)
class SamDimensions:
    """SAM encoder (`ImageEncoderViT`), `vision_config.width.sam_vit_b` and `vision_config`.

    Attributes:
        width: Features per patch token.
        layers: Blocks.
        heads: Attention heads per block.
        global_attn_indexes: Blocks that attend over the whole grid; the others in windows.
        downsample_channels: Output channels of the two stride-2 convolutions after the neck.
        image_size: Pixels per side for which the learned position table is made.
        patch: Pixels per side of one patch (fixed in `_build_sam`).
        window: Tokens per side of an attention window (fixed in `_build_sam`).
        mlp_ratio: MLP width over `width` (fixed in `_build_sam`; the `mlp_ratio` of
            `vision_config` belongs to another model and is not read).
        neck: Channels of the neck (fixed in `_build_sam`).
    """

    width: int
    layers: int
    heads: int
    global_attn_indexes: tuple[int, ...]
    downsample_channels: tuple[int, int]
    image_size: int
    patch: int = _SAM_PATCH
    window: int = 14
    mlp_ratio: int = 4
    neck: int = 256

    @classmethod
    def from_config(cls, config: Config) -> SamDimensions:
        """Reads the encoder's keys from a whole `config.json`.

        Raises:
            ConfigError: A key is absent, or no encoder can be built from its value.
        """
        vision = ConfigKeys(config).section("vision_config")
        keys = vision.section("width").section("sam_vit_b")
        width = keys.integer("width", most=LARGEST_WIDTH)
        heads = keys.integer("heads")
        keys.check_divides("heads", heads, "width", width)
        layers = keys.integer("layers", most=MOST_LAYERS)
        global_blocks = keys.integers("global_attn_indexes", least=0, most=layers - 1)
        if any(left >= right for left, right in pairwise(sorted(global_blocks))):
            raise keys.refusal("global_attn_indexes", "each block once")
        channels = keys.integers("downsample_channels", most=LARGEST_WIDTH)
        if len(channels) != 2:
            raise keys.refusal("downsample_channels", "two whole numbers, e.g. [512, 1024]")
        image_size = vision.integer("image_size", least=_SAM_PATCH, most=_LARGEST_IMAGE)
        if image_size % _SAM_PATCH:
            raise vision.refusal("image_size", f"a multiple of {_SAM_PATCH}, the patch size")
        return cls(
            width=width,
            layers=layers,
            heads=heads,
            global_attn_indexes=tuple(sorted(global_blocks)),
            downsample_channels=(channels[0], channels[1]),
            image_size=image_size,
        )

    @property
    def head_dim(self) -> int:
        """Features per attention head."""
        return self.width // self.heads

    @property
    def mlp(self) -> int:
        """Hidden width of a block's MLP."""
        return self.mlp_ratio * self.width

    @property
    def position_grid(self) -> int:
        """Entries per side of the learned position table."""
        return self.image_size // self.patch


@dataclass(frozen=True, slots=True)
class ClipDimensions:
    """CLIP encoder (`VitModel`), `vision_config.width["clip-l-14-224"]`.

    Attributes:
        width: Features per token.
        layers: Blocks.
        heads: Attention heads per block.
        image_size: Pixels per side for which the learned position table is made.
        patch_size: Pixels per side of a patch of its own convolution, which never runs.
    """

    width: int
    layers: int
    heads: int
    image_size: int
    patch_size: int

    @classmethod
    def from_config(cls, config: Config) -> ClipDimensions:
        """Reads the encoder's keys from a whole `config.json`.

        Raises:
            ConfigError: A key is absent, or no encoder can be built from its value.
        """
        vision = ConfigKeys(config).section("vision_config")
        keys = vision.section("width").section("clip-l-14-224")
        width = keys.integer("width", most=LARGEST_WIDTH)
        heads = keys.integer("heads")
        keys.check_divides("heads", heads, "width", width)
        image_size = keys.integer("image_size", most=_LARGEST_IMAGE)
        patch_size = keys.integer("patch_size")
        if patch_size > image_size:
            raise keys.refusal("patch_size", f"at most {image_size}, the 'image_size' beside it")
        return cls(
            width=width,
            layers=keys.integer("layers", most=MOST_LAYERS),
            heads=heads,
            image_size=image_size,
            patch_size=patch_size,
        )

    @property
    def head_dim(self) -> int:
        """Features per attention head."""
        return self.width // self.heads

    @property
    def mlp(self) -> int:
        """Hidden width of a block's MLP: four times `width` (`vit_model_cfg`)."""
        return 4 * self.width

    @property
    def positions(self) -> int:
        """Rows of the learned position table, including the class token's."""
        return (self.image_size // self.patch_size) ** 2 + 1


# --- the projector -----------------------------------------------------------------------------

PROJECTOR_TYPES: Final = (
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

_PAIR_PROJECTOR_TYPES: Final = ("low_high_hybrid_split_mlp_gelu", "low_high_split_mlp_gelu")
"""Variants whose input is a pair of feature maps, (high, low), each of `input_dim`."""

_DOWNSAMPLE_TYPES: Final = ("normlayer_downsample_mlp_gelu", "downsample_mlp_gelu")


@dataclass(frozen=True, slots=True)
class ProjectorDimensions:
    """Projector (`MlpProjector`), `projector_config`.

    Attributes:
        projector_type: One of `PROJECTOR_TYPES`.
        input_dim: Input features; a pair (high, low) for `hybrid_split_feature_mlp_gelu`.
        n_embed: Output features.
        depth: Linear layers of the MLP.
        mlp_ratio: Hidden width over `n_embed`, for the downsampling variants.
        downsample_ratio: Tokens per side that a downsampling variant merges into one; otherwise 1.
        channel_div: Share of `n_embed` given to the high features in the split variant.
        token_pooling: Whether 2 x 2 tokens are pooled into one by a linear layer first.
        conv_fusion: Whether `conv_fusion_high_low_features` adds a fusion layer.
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
    def from_config(cls, config: Config) -> ProjectorDimensions:
        """Reads the projector's keys from a whole `config.json`.

        Raises:
            ConfigError: A key is absent, or no projector can be built from its value.
        """
        keys = ConfigKeys(config).section("projector_config")
        kind = keys.choice("projector_type", PROJECTOR_TYPES)
        n_embed = keys.integer("n_embed", most=LARGEST_WIDTH)
        if kind in _PAIR_PROJECTOR_TYPES and n_embed % 2:
            raise keys.refusal("n_embed", f"an even number, since '{kind}' halves it")
        ratio = keys.integer("downsample_ratio") if kind in _DOWNSAMPLE_TYPES else 1
        channel_div = keys.number("channel_div", 0.5, least=0)
        if not 1 <= int(n_embed * channel_div) < n_embed:
            raise keys.refusal("channel_div", "a share that leaves each part a channel, e.g. 0.5")
        pooling = keys.boolean("token_pooling", False)
        fusion = keys.boolean("conv_fusion_high_low_features", False)
        input_dim = _projector_input(keys, kind)
        if isinstance(input_dim, tuple) and (pooling or fusion):
            name = "token_pooling" if pooling else "conv_fusion_high_low_features"
            raise keys.refusal(name, f"false, since '{kind}' has two input widths")
        return cls(
            projector_type=kind,
            input_dim=input_dim,
            n_embed=n_embed,
            depth=keys.integer("depth", 1, most=MOST_LAYERS),
            mlp_ratio=keys.integer("mlp_ratio", 1, most=LARGEST_WIDTH),
            downsample_ratio=ratio,
            channel_div=channel_div,
            token_pooling=pooling,
            conv_fusion=fusion,
        )

    @property
    def input_channels(self) -> int:
        """Input features, summed over both parts of a pair."""
        return sum(self.input_dim) if isinstance(self.input_dim, tuple) else self.input_dim


def _projector_input(keys: ConfigKeys, kind: str) -> int | tuple[int, int]:
    """Input width: one number, or two if `hybrid_split_feature_mlp_gelu` splits it."""
    if kind != "hybrid_split_feature_mlp_gelu":
        return keys.integer("input_dim", most=LARGEST_WIDTH)
    widths = keys.integers("input_dim", most=LARGEST_WIDTH)
    if len(widths) != 2:
        raise keys.refusal("input_dim", "two whole numbers, e.g. [1024, 1024]")
    return widths[0], widths[1]


# --- the whole model ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelDimensions:
    """The dimensions common to all relatives.

    Attributes:
        sam: The SAM encoder.
        projector: The projector between encoders and decoder.
        decoder: The decoder.
    """

    sam: SamDimensions
    projector: ProjectorDimensions
    decoder: DecoderDimensions

    @property
    def max_positions(self) -> int:
        """Positions the decoder was trained for."""
        return self.decoder.max_position_embeddings

    @property
    def sliding_window(self) -> int | None:
        """Generated tokens that the cache keeps; None for all."""
        return self.decoder.sliding_window

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for a reader of the model's figures."""
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
        """Numbers of the decode steps, from 0, from which their work changes in kind.

        Beyond the trained length, "dynamic" positions recompute rotary tables; once a sliding
        window is full, the cache no longer grows.

        Args:
            seq_len: Tokens of the prompt; step i reaches `seq_len + i + 1` positions.
        """
        decoder, cuts = self.decoder, []
        if decoder.rope_scaling == "dynamic":
            cuts.append(max(0, decoder.max_position_embeddings - seq_len))
        if decoder.sliding_window is not None:
            cuts.append(decoder.sliding_window)
        return tuple(sorted(cuts))


@dataclass(frozen=True, slots=True)
class ClipModelDimensions(ModelDimensions):
    """Every dimension of a model with SAM and CLIP.

    Attributes:
        clip: The CLIP encoder.
    """

    clip: ClipDimensions

    @classmethod
    def from_config(cls, config: Config) -> ClipModelDimensions:
        """Reads a whole `config.json` that is already parsed.

        Args:
            config: The file's top-level object.

        Raises:
            ConfigError: A key is absent or has a wrong value, or two keys conflict.
        """
        sam, clip = SamDimensions.from_config(config), ClipDimensions.from_config(config)
        projector = ProjectorDimensions.from_config(config)
        decoder, channels = DecoderDimensions.from_config(config), sam.downsample_channels[-1]
        # SAM's output is CLIP's patch embedding; both, concatenated, go through the projector.
        if clip.width != channels:
            raise ConfigError(
                f"config.json: 'vision_config.width.clip-l-14-224.width' is {clip.width}; give "
                f"{channels}, the last of 'vision_config.width.sam_vit_b.downsample_channels'"
            )
        origin = "CLIP's width and SAM's last channels together"
        check_projector(projector, clip.width + channels, origin, decoder)
        return cls(sam=sam, clip=clip, projector=projector, decoder=decoder)


def check_projector(
    projector: ProjectorDimensions, features: int, origin: str, decoder: DecoderDimensions
) -> None:
    """Rejects a projector that does not fit between encoders and decoder.

    It must take one feature map, and return one token of the decoder's width per token it gets.

    Args:
        projector: The projector.
        features: Features per token that it gets.
        origin: Where they come from, for the message.
        decoder: The decoder.

    Raises:
        ConfigError: It does not fit.
    """
    if projector.input_channels != features:
        raise ConfigError(
            f"config.json: 'projector_config.input_dim' is {projector.input_dim}; give "
            f"{features}, {origin}"
        )
    if projector.n_embed != decoder.hidden_size:
        raise ConfigError(
            f"config.json: 'projector_config.n_embed' is {projector.n_embed}; give "
            f"{decoder.hidden_size}, the decoder's 'hidden_size'"
        )
    if projector.projector_type == "identity" and features != decoder.hidden_size:
        raise ConfigError(
            "config.json: 'projector_config.projector_type' is 'identity', which passes on "
            f"{features} features; give a type that maps them to 'hidden_size', "
            f"{decoder.hidden_size}"
        )
    if projector.projector_type in _PAIR_PROJECTOR_TYPES or projector.conv_fusion:
        name = "conv_fusion_high_low_features" if projector.conv_fusion else "projector_type"
        value = "true" if projector.conv_fusion else repr(projector.projector_type)
        reason = "takes two feature maps, but the model provides one"
    elif projector.downsample_ratio > 1 or projector.token_pooling:
        name = "token_pooling" if projector.token_pooling else "downsample_ratio"
        value = "true" if projector.token_pooling else str(projector.downsample_ratio)
        reason = "merges tokens, but the page's layout has a place for each"
    else:
        return
    right = "linear, mlp_gelu or hybrid_split_feature_mlp_gelu without merging or fusion"
    raise ConfigError(
        f"config.json: 'projector_config.{name}' is {value}, which {reason}; give {right}"
    )
