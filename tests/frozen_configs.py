"""Configs of small models, and what is changed in them, for the freeze. No torch."""

from __future__ import annotations

import copy
import dataclasses
from functools import cache
from typing import Any

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape.modules import ACTIVATIONS

ONE, TWO, UNLIMITED = ARCHITECTURES
"""Names of DeepSeek-OCR, DeepSeek-OCR-2 and Unlimited-OCR."""

SAM = {
    "downsample_channels": [48, 64],
    "global_attn_indexes": [1, 3],
    "heads": 3,
    "layers": 4,
    "width": 96,
}
CLIP = {"heads": 2, "image_size": 112, "layers": 2, "patch_size": 14, "width": 64}
ENCODER = {"dim": 112, "heads": 4, "key_value_heads": 2, "intermediate_size": 200, "layers": 3}

SMALL: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 80,
    "vocab_size": 500,
    "intermediate_size": 150,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "projector_config": {"n_embed": 80, "input_dim": 128},
}

LATENT = {
    "use_mla": True,
    "kv_lora_rank": 28,
    "qk_rope_head_dim": 12,
    "qk_nope_head_dim": 10,
    "v_head_dim": 14,
}


def _scaled(kind: str, trained: int = 8192) -> dict[str, Any]:
    return {
        "rope_scaling": {"type": kind, "factor": 2.0},
        "max_position_embeddings": trained,
    }


def _grouped(method: str, groups: int, chosen: int, **more: Any) -> dict[str, Any]:
    return {"topk_method": method, "n_group": groups, "topk_group": chosen, **more}


def _projector(**values: Any) -> dict[str, Any]:
    return {"projector_config": values}


def _sam(**values: Any) -> dict[str, Any]:
    return {"vision_config": {"width": {"sam_vit_b": values}}}


def _clip(**values: Any) -> dict[str, Any]:
    return {"vision_config": {"width": {"clip-l-14-224": values}}}


def _encoder(**values: Any) -> dict[str, Any]:
    return {"vision_config": {"width": {"qwen2-0-5b": values}}}


DECODERS: dict[str, dict[str, Any]] = {
    "small": {},
    "published rotary scaling": _scaled("yarn"),
    "linear": _scaled("linear"),
    "dynamic": _scaled("dynamic"),
    "dynamic, beyond": _scaled("dynamic", 40),
    "latent": LATENT,
    "latent, linear": LATENT | _scaled("linear"),
    "latent, dynamic": LATENT | _scaled("dynamic"),
    "latent, dynamic, beyond": LATENT | _scaled("dynamic", 40),
    "latent, dynamic, beyond while generating": LATENT | _scaled("dynamic", 500),
    "latent, yarn": LATENT | _scaled("yarn"),
    "latent, low-rank queries": LATENT | {"q_lora_rank": 36, "attention_bias": True},
    "latent, low-rank queries, yarn": LATENT | _scaled("yarn") | {"q_lora_rank": 36},
    "latent, two rotary features": LATENT | {"qk_rope_head_dim": 2},
    "latent, equal heads": LATENT | {"v_head_dim": 22},
    "latent, wide values": LATENT | {"v_head_dim": 50},
    "latent, one head": LATENT | {"num_attention_heads": 1, "num_key_value_heads": 1},
    "latent, many experts": LATENT | {"n_routed_experts": 96, "num_experts_per_tok": 1},
    "one head": {"num_attention_heads": 1, "num_key_value_heads": 1},
    "grouped": {"num_key_value_heads": 2, "attention_bias": True},
    "one kv head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 96},
    "tied": {"tie_word_embeddings": True},
    "dense": {"n_routed_experts": None},
    "dense, wide, grouped": {
        "n_routed_experts": None, "intermediate_size": 4000, "num_key_value_heads": 2,
    },
    "large vocabulary": {"vocab_size": 90_000},
    "all layers mixed": {"first_k_dense_replace": 0},
    "every other layer": {"moe_layer_freq": 2, "num_hidden_layers": 5},
    "more experts than choices": {"n_routed_experts": 96, "num_experts_per_tok": 1},
    "all experts chosen": {"num_experts_per_tok": 8},
    "normed": {"norm_topk_prob": True},
    "sigmoid": {"scoring_func": "sigmoid"},
    "no shared experts": {"n_shared_experts": None},
    "one choice, normed": {"num_experts_per_tok": 1, "norm_topk_prob": True},
    "limited": _grouped("group_limited_greedy", 4, 2, n_shared_experts=None),
    "limited, one group": _grouped("group_limited_greedy", 1, 1),
    "limited, groups of one": _grouped("group_limited_greedy", 8, 3),
    "limited, sigmoid, normed": _grouped(
        "group_limited_greedy", 2, 1, scoring_func="sigmoid", norm_topk_prob=True
    ),
    "noaux": _grouped("noaux_tc", 4, 2),
    "noaux, one group": _grouped("noaux_tc", 1, 1, scoring_func="sigmoid"),
    "noaux, all groups": _grouped("noaux_tc", 2, 2, norm_topk_prob=True),
    "noaux, sigmoid, normed": _grouped(
        "noaux_tc", 4, 2, scoring_func="sigmoid", norm_topk_prob=True
    ),
}  # fmt: skip

ACTIVATED = {f"activation {name}": {"hidden_act": name} for name in ACTIVATIONS}

VISION: dict[str, dict[str, Any]] = {
    "mlp projector": _projector(projector_type="mlp_gelu", depth=1),
    "mlp projector of 2": _projector(projector_type="mlp_gelu", depth=2),
    "mlp projector of 4": _projector(projector_type="mlp_gelu", depth=4),
    "one block": _sam(layers=1, global_attn_indexes=[]),
    "one global block": _sam(layers=1, global_attn_indexes=[0]),
    "wide sam": _sam(width=160, heads=5),
    "one head of sam": _sam(heads=1),
    "larger position table of sam": {"vision_config": {"image_size": 224}},
}

WITH_CLIP: dict[str, dict[str, Any]] = {
    **VISION,
    "split projector": _projector(
        projector_type="hybrid_split_feature_mlp_gelu", input_dim=[64, 64]
    ),
    "split projector of 3": _projector(
        projector_type="hybrid_split_feature_mlp_gelu",
        input_dim=[64, 64], depth=3, channel_div=0.25,
    ),
    "identity projector": {
        "hidden_size": 128, **_projector(projector_type="identity", n_embed=128),
    },
    "one layer of clip": _clip(layers=1, heads=4),
    "larger position table of clip": _clip(image_size=224),
    "tables as large as the page": {
        "vision_config": {"image_size": 256, "width": {"clip-l-14-224": {"image_size": 64,
                                                                          "patch_size": 16}}},
    },
}  # fmt: skip

WITH_ENCODER: dict[str, dict[str, Any]] = {
    **VISION,
    "encoder of one head": _encoder(heads=1, key_value_heads=1),
    "encoder of one kv head": _encoder(key_value_heads=1),
    "encoder without groups": _encoder(key_value_heads=4),
    "encoder of one layer": _encoder(layers=1, intermediate_size=3000),
}

WINDOWS = {
    f"window {size}": {"sliding_window_size": size, "sliding_window": size}
    for size in (None, 1, 2, 5, 2000)
}

_SHARED = (
    "small", "latent", "latent, dynamic, beyond", "latent, low-rank queries", "grouped",
    "one kv head", "one head", "dense", "limited", "noaux, sigmoid, normed",
    "more experts than choices", "dynamic, beyond", "large vocabulary",
)  # fmt: skip
"""Decoders that are frozen for every architecture, since what is around them differs."""

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    ONE: DECODERS | ACTIVATED | WITH_CLIP,
    TWO: {name: DECODERS[name] for name in _SHARED} | WITH_ENCODER,
    UNLIMITED: {name: DECODERS[name] for name in _SHARED} | WINDOWS,
}
"""Changes of the small config, by architecture and name."""


@cache
def published(architecture: str) -> ModelDirectory:
    return ModelDirectory.read(ARCHITECTURES[architecture].reference)


@cache
def directory(architecture: str, variant: str | None) -> ModelDirectory:
    """The reference with its published config, or with a variant of the small one."""
    reference = published(architecture)
    if variant is None:
        return reference
    config = _updated(reference.config, _small(architecture))
    config = _updated(config, VARIANTS[architecture][variant])
    # The section that repeats the top level, which nothing reads, says the same.
    copied = config["language_config"]
    same = {key: config[key] for key in copied.keys() & config.keys()}
    return dataclasses.replace(reference, config=config | {"language_config": copied | same})


def _small(architecture: str) -> dict[str, Any]:
    if architecture == TWO:
        width = {"sam_vit_b": SAM | {"downsample_channels": [48, 112]}, "qwen2-0-5b": ENCODER}
        projector = {"n_embed": 80, "input_dim": 112}
    else:
        width = {"sam_vit_b": SAM, "clip-l-14-224": CLIP}
        projector = {"n_embed": 80, "input_dim": 128}
    return SMALL | {
        "projector_config": projector,
        "vision_config": {"image_size": 512, "width": width},
    }


def _updated(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A config with some values replaced, section by section."""
    result = copy.deepcopy(config)
    for key, value in changes.items():
        is_section = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _updated(result[key], value) if is_section else copy.deepcopy(value)
    return result
