"""Dimensions of a model of the family, read from its `config.json`.

The only source of dimensions for closed forms and reports. As in the vendors' config classes, the
decoder's keys are at the top level (`language_config` is not read) and the encoders' under
`vision_config.width`. The relative's `config_table` lists what the other keys do.

A key may be absent only if the published file leaves it to a default of `DeepseekV2Config`
(`configuration_deepseek_v2.py`) or `PretrainedConfig`; a key that some configurations never use
(mixture of experts, latent attention) is required only if it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dsocr_analyze.architectures.config_keys import ConfigKeys
from dsocr_analyze.architectures.config_rules import Code, KeyTable, findings_of
from dsocr_analyze.architectures.ocr_family.decoder_dimensions import DecoderDimensions
from dsocr_analyze.architectures.ocr_family.vision_dimensions import (
    PAIR_PROJECTOR_TYPES,
    ClipDimensions,
    ProjectorDimensions,
    SamDimensions,
)
from dsocr_analyze.errors import ConfigError

__all__ = [
    "ClipDimensions",
    "DecoderDimensions",
    "ModelDimensions",
    "ProjectorDimensions",
    "RelativeDimensions",
    "SamDimensions",
    "check_projector",
    "dimensions_of",
]


@dataclass(frozen=True, slots=True)
class RelativeDimensions:
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
class ModelDimensions(RelativeDimensions):
    """Every dimension of a model with SAM and CLIP.

    Attributes:
        clip: The CLIP encoder.
    """

    clip: ClipDimensions

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelDimensions:
        """Reads a whole `config.json` that is already parsed.

        Args:
            config: The file's top-level object.

        Raises:
            ConfigError: A key is absent or has a wrong value, or two keys conflict.
        """
        dimensions = cls(
            sam=SamDimensions.from_config(config),
            clip=ClipDimensions.from_config(config),
            projector=ProjectorDimensions.from_config(config),
            decoder=DecoderDimensions.from_config(config),
        )
        _check_joints(dimensions)
        return dimensions


_Dimensions = TypeVar("_Dimensions")


def dimensions_of(
    read: Callable[[Mapping[str, Any]], _Dimensions],
    table: KeyTable,
    config: Mapping[str, Any],
    code: Code = "reference",
) -> _Dimensions:
    """Dimensions of the model that the given code builds from a config.

    Args:
        read: Reads them from the top-level object of a `config.json`.
        table: What each key does.
        config: The top-level object.
        code: Whose code reads it; other code is assumed to read what the reference reads.

    Raises:
        ConfigError: The file does not describe a model, or one that is not modelled.
    """
    findings_of(config, table, code).check_modelled()
    if code != "published":
        return read(config)
    built = table.built["projector_config"]["n_embed"]
    if config.get("hidden_size") != built:
        raise ConfigKeys(config).refusal(
            "hidden_size", f"{built}, the width for which the directory's code builds its projector"
        )
    return read({**config, **table.built})


def _check_joints(dimensions: ModelDimensions) -> None:
    """Rejects parts that do not fit together as `DeepseekOCRModel.forward` joins them.

    SAM's output is CLIP's patch embedding; both, concatenated, go through the projector.
    """
    sam, clip = dimensions.sam, dimensions.clip
    projector, decoder = dimensions.projector, dimensions.decoder
    if clip.width != sam.out_channels:
        raise ConfigError(
            f"config.json: 'vision_config.width.clip-l-14-224.width' is {clip.width}; give "
            f"{sam.out_channels}, the last of 'vision_config.width.sam_vit_b.downsample_channels'"
        )
    features = clip.width + sam.out_channels
    check_projector(projector, features, "CLIP's width and SAM's last channels together", decoder)


def check_projector(
    projector: ProjectorDimensions, features: int, origin: str, decoder: DecoderDimensions
) -> None:
    """Rejects a projector that does not fit between encoders and decoder.

    It must return one token of the decoder's width per token it gets.

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
    if projector.output_channels != decoder.hidden_size:
        raise ConfigError(
            "config.json: 'projector_config.projector_type' is 'identity', which passes on "
            f"{features} features; give a type that maps them to 'hidden_size', "
            f"{decoder.hidden_size}"
        )
    _check_projector_wiring(projector)


def _check_projector_wiring(projector: ProjectorDimensions) -> None:
    """Rejects variants that take a pair of maps, or return fewer tokens than they get."""
    if projector.projector_type in PAIR_PROJECTOR_TYPES or projector.conv_fusion:
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
