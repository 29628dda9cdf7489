"""Dimensions of the projector, read from `projector_config` of a `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsocr_analyze.architectures.config_keys import LARGEST_WIDTH, MOST_LAYERS, ConfigKeys

__all__ = ["PAIR_PROJECTOR_TYPES", "PROJECTOR_TYPES", "ProjectorDimensions"]

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

PAIR_PROJECTOR_TYPES: Final = ("low_high_hybrid_split_mlp_gelu", "low_high_split_mlp_gelu")
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
    def from_config(cls, config: Mapping[str, Any]) -> ProjectorDimensions:
        """Reads the projector's keys from a whole `config.json`.

        Raises:
            ConfigError: A key is absent, or no projector can be built from its value.
        """
        keys = ConfigKeys(config).section("projector_config")
        kind = keys.choice("projector_type", PROJECTOR_TYPES)
        n_embed = keys.integer("n_embed", most=LARGEST_WIDTH)
        if kind in PAIR_PROJECTOR_TYPES and n_embed % 2:
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

    @property
    def output_channels(self) -> int:
        """Output features."""
        return self.input_channels if self.projector_type == "identity" else self.n_embed


def _projector_input(keys: ConfigKeys, kind: str) -> int | tuple[int, int]:
    """Input width: one number, or two if `hybrid_split_feature_mlp_gelu` splits it."""
    if kind != "hybrid_split_feature_mlp_gelu":
        return keys.integer("input_dim", most=LARGEST_WIDTH)
    widths = keys.integers("input_dim", most=LARGEST_WIDTH)
    if len(widths) != 2:
        raise keys.refusal("input_dim", "two whole numbers, e.g. [1024, 1024]")
    return widths[0], widths[1]
