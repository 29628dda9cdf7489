"""Every key of a neighbour's `config.json`, and what it does to the figures.

Decoders share one list, and vision stages another, of which each model has the keys that its own
config names.
"""

from collections.abc import Mapping
from typing import Any, Final

from dsocr_analyze.architectures.config_file import USED, Fixed, Harmless, KeyTable
from dsocr_analyze.architectures.neighbours.vision import OTHER_NAMES
from dsocr_analyze.architectures.ocr_family.config_table import (
    NOT_MODELLED,
    VALUE,
    Rules,
    table_of,
)

_ROTARY: Final[Rules] = {
    "mrope_section": USED,
    "mrope_interleaved": Harmless("the model's class says how sections are taken"),
    "rope_theta": VALUE,
    **dict.fromkeys(
        ("type", "rope_type"),
        Fixed(("default", "mrope", None), "it computes other frequencies"),
    ),
    "partial_rotary_factor": Fixed((1, None), "it rotates only part of each head"),
}

_DECODER: Final[Rules] = {
    **NOT_MODELLED,
    **dict.fromkeys(
        (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "hidden_act",
            "max_position_embeddings",
            "layer_types",
            "rope_scaling",
            "rope_parameters",
        ),
        USED,
    ),
    **{f"rope_scaling.{name}": rule for name, rule in _ROTARY.items()},
    **{f"rope_parameters.{name}": rule for name, rule in _ROTARY.items()},
    **dict.fromkeys(("rms_norm_eps", "rope_theta"), VALUE),
    **dict.fromkeys(("attention_bias", "use_bias"), Fixed((False, None), "it adds biases")),
    "num_nextn_predict_layers": Harmless("`generate` runs no layers that predict further tokens"),
}

_SWITCHED_WINDOW: Final[Rules] = dict.fromkeys(
    ("sliding_window", "max_window_layers"),
    Harmless("read only with 'use_sliding_window', which is off"),
)
"""Of decoders with that switch. The caches of others have any window that is named."""

_VISION: Final[Rules] = {
    **dict.fromkeys(
        (
            "depth",
            "num_hidden_layers",
            "hidden_size",
            "num_heads",
            "num_attention_heads",
            "head_dim",
            "intermediate_size",
            "mlp_dim",
            "hidden_act",
            "image_size",
            "patch_size",
            "temporal_patch_size",
            "spatial_merge_size",
            "out_hidden_size",
            "output_channels",
            "num_position_embeddings",
            "deepstack_visual_indexes",
            "window_size",
            "fullatt_block_indexes",
            "global_attn_indexes",
        ),
        USED,
    ),
    **dict.fromkeys(
        ("in_channels", "in_chans", "num_channels"),
        Fixed((3,), "it changes the channels of a pixel"),
    ),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "rope_theta"), VALUE),
    "hidden_dropout_prob": Harmless("read in training only"),
    "tokens_per_second": Harmless("for videos"),
    "spatial_patch_size": Harmless("the model's class does not read it"),
}

_TOP: Final[Rules] = {
    **NOT_MODELLED,
    "tie_word_embeddings": USED,
    "text_config.tie_word_embeddings": Harmless("the top level says so"),
    "vision_config.rope_parameters.rope_theta": VALUE,
    # Older files call it the default, which transformers then takes for axial.
    "vision_config.rope_parameters.rope_type": Fixed(
        ("axial", "default"), "it computes other frequencies"
    ),
    **dict.fromkeys(
        (
            "image_token_id",
            "image_token_index",
            "image_start_token_id",
            "image_end_token_id",
            "video_token_id",
            "video_start_token_id",
            "video_end_token_id",
            "vision_start_token_id",
            "vision_end_token_id",
            "vision_token_id",
        ),
        Harmless("a token's id"),
    ),
}


def key_table(config: Mapping[str, Any], own: Rules, *, is_flat: bool) -> KeyTable:
    """Every key that a neighbour knows.

    Args:
        config: Its built-in config.
        own: Keys that only it has, or reads otherwise, by dotted path.
        is_flat: Whether the decoder's keys may be at the top level, as in old files.
    """
    has_switch = "use_sliding_window" in config.get("text_config", config)
    decoder = _DECODER | (_SWITCHED_WINDOW if has_switch else {})
    named = {**_TOP, **_placed("text_config", decoder)}
    if is_flat:
        named |= decoder
    names = {*config["vision_config"]}
    names |= {other for name, other in OTHER_NAMES.items() if name in names}
    known = {name: rule for name, rule in _VISION.items() if name in names or rule != USED}
    named |= _placed("vision_config", NOT_MODELLED | known)
    return table_of(named | own, lambda _: {}, {}, "", {})


def _placed(where: str, rules: Rules) -> Rules:
    """Rules of an object's keys by dotted path."""
    return {f"{where}.{name}": rule for name, rule in rules.items()}
