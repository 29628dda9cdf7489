"""Dimensions read from a `config.json`, and the configurations that are refused."""

from __future__ import annotations

import copy
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.deepseek_ocr import ClipDimensions, ClipModelDimensions
from dsocr_analyze.architectures.ocr_family.dimensions import (
    PROJECTOR_TYPES,
    DecoderDimensions,
    ProjectorDimensions,
    SamDimensions,
)
from dsocr_analyze.errors import AnalyzeError, ConfigError
from dsocr_analyze.model.directory import read_config

PUBLISHED: dict[str, Any] = read_config(DEFAULT.reference / "config.json")

SAM = "vision_config.width.sam_vit_b"
CLIP = "vision_config.width.clip-l-14-224"

MLA = {
    "use_mla": True,
    "q_lora_rank": 96,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 120,
}

NEEDED = [
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "intermediate_size", "max_position_embeddings", "use_mla"),
    *("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "num_experts_per_tok"),
    *("first_k_dense_replace", "topk_method", "vision_config", "projector_config"),
    *("vision_config.width", "vision_config.image_size", SAM, CLIP),
    *(f"{SAM}.{key}" for key in ("width", "layers", "heads", "global_attn_indexes")),
    f"{SAM}.downsample_channels",
    *(f"{CLIP}.{key}" for key in ("width", "layers", "heads", "image_size", "patch_size")),
    *(f"projector_config.{key}" for key in ("projector_type", "input_dim", "n_embed")),
]


def changed(**changes: object) -> dict[str, Any]:
    """The published configuration with other values at top-level keys."""
    return {**copy.deepcopy(PUBLISHED), **changes}


def changed_at(path: str, value: object) -> dict[str, Any]:
    """The published configuration with another value at a dotted path."""
    config = copy.deepcopy(PUBLISHED)
    *parents, key = path.split(".")
    reduce(dict.__getitem__, parents, config)[key] = value
    return config


def without(path: str, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without the key at a dotted path."""
    *parents, key = path.split(".")
    del reduce(dict.__getitem__, parents, config)[key]
    return config


def with_projector(**changes: object) -> dict[str, Any]:
    return changed(projector_config={**PUBLISHED["projector_config"], **changes})


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as error:
        ClipModelDimensions.from_config(config)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


PUBLISHED_DECODER = DecoderDimensions(
    vocab_size=129_280,
    hidden_size=1280,
    layers=12,
    heads=10,
    kv_heads=10,
    head_dim=128,
    intermediate_size=6848,
    moe_intermediate_size=896,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
    first_k_dense_replace=1,
    moe_layer_freq=1,
    scoring_func="softmax",
    topk_method="greedy",
    n_group=1,
    topk_group=1,
    norm_topk_prob=False,
    hidden_act="silu",
    rms_norm_eps=1e-6,
    use_mla=False,
    q_lora_rank=None,
    kv_lora_rank=0,
    qk_rope_head_dim=0,
    qk_nope_head_dim=0,
    v_head_dim=0,
    rope_theta=10_000.0,
    rope_scaling=None,
    attention_bias=False,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
)


def test_the_published_model():
    config = copy.deepcopy(PUBLISHED)
    config["language_config"] = {"hidden_size": 7}  # which is not read
    before = copy.deepcopy(config)
    assert ClipModelDimensions.from_config(config) == ClipModelDimensions(
        sam=SamDimensions(
            width=768,
            layers=12,
            heads=12,
            global_attn_indexes=(2, 5, 8, 11),
            downsample_channels=(512, 1024),
            image_size=1024,
            patch=16,
            window=14,
            mlp_ratio=4,
            neck=256,
        ),
        clip=ClipDimensions(1024, 24, 16, image_size=224, patch_size=14),
        projector=ProjectorDimensions("linear", input_dim=2048, n_embed=1280),
        decoder=PUBLISHED_DECODER,
    )
    assert config == before
    assert [PUBLISHED_DECODER.is_moe(index) for index in range(12)] == [False] + [True] * 11
    assert PUBLISHED_DECODER.moe_layers == 11
    assert PUBLISHED_DECODER.shared_intermediate_size == 2 * 896


LATENT_KEYS = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
EXPERT_KEYS = (
    *("n_shared_experts", "moe_intermediate_size", "num_experts_per_tok"),
    *("first_k_dense_replace", "topk_method", "n_group", "topk_group"),
)
OF_MLA = {
    "use_mla": True, "head_dim": 128 + 64, "kv_heads": 10, "q_lora_rank": 96, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 120,
}  # fmt: skip
GROUPS = {"n_group": 8, "topk_group": 3, "scoring_func": "sigmoid"}
OTHERS = {
    "rope_theta": 500_000,
    "rms_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "attention_bias": True,
    "norm_topk_prob": True,
    "tie_word_embeddings": True,
}
DENSE = {
    "n_routed_experts": None,
    "moe_layers": 0,
    "moe_intermediate_size": 0,
    "shared_intermediate_size": 0,
}


@pytest.mark.parametrize(
    ("changes", "absent", "expected"),
    [
        (MLA, (), OF_MLA),
        ({**MLA, "q_lora_rank": None}, (), OF_MLA | {"q_lora_rank": None}),
        # which needs neither key and value heads nor an even split
        ({**MLA, "num_attention_heads": 7}, ("num_key_value_heads",), {"heads": 7, "kv_heads": 7}),
        ({}, LATENT_KEYS, {"use_mla": False, "kv_lora_rank": 0}),
        ({"num_key_value_heads": 2}, (), {"kv_heads": 2}),
        ({"num_key_value_heads": None}, (), {"kv_heads": 10}),
        ({"num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": 96}, (),
         {"head_dim": 96}),
        ({"n_routed_experts": None}, EXPERT_KEYS, DENSE),
        ({"n_shared_experts": None}, (), {"shared_intermediate_size": 0, "moe_layers": 11}),
        # layers 6 and 9
        ({"moe_layer_freq": 3, "first_k_dense_replace": 4}, (), {"moe_layers": 2}),
        *(({"topk_method": method, **GROUPS}, (), {"topk_method": method, **GROUPS})
          for method in ("group_limited_greedy", "noaux_tc")),
        ({}, ("n_group", "topk_group"), {"n_group": 1, "topk_group": 1}),
        *(({"rope_scaling": {"type": kind, "factor": 4}, **attention}, (), {"rope_scaling": kind})
          for kind in ("linear", "dynamic", "yarn") for attention in ({}, MLA)),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.5}}, (), {"rope_scaling": "yarn"}),
        (OTHERS, (), OTHERS),
    ],
    ids=str,
)  # fmt: skip
def test_other_decoders(changes, absent, expected):
    config = {key: value for key, value in changed(**changes).items() if key not in absent}
    decoder = DecoderDimensions.from_config(config)
    assert {name: getattr(decoder, name) for name in expected} == expected


class TestProjectors:
    @pytest.mark.parametrize("kind", PROJECTOR_TYPES)
    def test_every_type_is_read(self, kind):
        pair = [1024, 1024] if kind == "hybrid_split_feature_mlp_gelu" else 2048
        config = with_projector(projector_type=kind, input_dim=pair, downsample_ratio=2, depth=3)
        projector = ProjectorDimensions.from_config(config)
        assert (projector.projector_type, projector.depth) == (kind, 3)
        assert projector.input_channels == 2048
        assert projector.downsample_ratio == (2 if "downsample" in kind else 1)

    @pytest.mark.parametrize(
        ("changes", "decoder", "expected"),
        [
            ({"projector_type": "mlp_gelu", "depth": 2}, {}, {"depth": 2}),
            (
                {
                    "projector_type": "hybrid_split_feature_mlp_gelu",
                    "input_dim": [1024, 1024],
                    "channel_div": 0.25,
                },
                {},
                {"input_dim": (1024, 1024), "channel_div": 0.25},
            ),
            (
                {"projector_type": "downsample_mlp_gelu", "downsample_ratio": 1},
                {},
                {"downsample_ratio": 1},
            ),
            (
                {"projector_type": "identity", "n_embed": 2048},
                {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16},
                {"input_channels": 2048},
            ),
        ],
        ids=str,
    )
    def test_of_a_whole_model(self, changes, decoder, expected):
        config = with_projector(**changes) | decoder
        projector = ClipModelDimensions.from_config(config).projector
        assert {name: getattr(projector, name) for name in expected} == expected


@given(
    st.fixed_dictionaries(
        {
            "num_hidden_layers": st.integers(1, 40),
            "first_k_dense_replace": st.integers(0, 50),
            "moe_layer_freq": st.integers(1, 50),
        }
    )
)
def test_layers_of_experts_follow_the_vendors_rule(keys):
    decoder = DecoderDimensions.from_config(changed(**keys))
    first, every = keys["first_k_dense_replace"], keys["moe_layer_freq"]
    layers = [index for index in range(decoder.layers) if index >= first and not index % every]
    assert decoder.moe_layers == len(layers)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "path", "reason"),
        [
            *(({}, path, "") for path in NEEDED),
            *((MLA, key, ", since 'use_mla' is true") for key in MLA if key != "use_mla"),
            *(({"topk_method": "noaux_tc"}, key, "") for key in ("n_group", "topk_group")),
        ],
        ids=str,
    )
    def test_an_absent_key_is_named(self, changes, path, reason):
        config = without(path, changed(**changes))
        assert refusal(config) == f"config.json lacks '{path}'{reason}"

    @pytest.mark.parametrize(
        ("path", "value", "shown"),
        [
            ("hidden_size", "1280", "'1280'"),
            ("hidden_size", 1280.0, "1280.0"),
            ("hidden_size", True, "true"),
            ("hidden_size", None, "null"),
            ("hidden_size", 0, "0"),
            ("hidden_size", -1280, "-1280"),
            ("hidden_size", [1280], "[1280]"),
            ("hidden_size", 10**9, "1000000000"),
            ("hidden_size", 10**60, "a huge number"),
            ("vocab_size", 0, "0"),
            ("num_hidden_layers", 0, "0"),
            ("num_hidden_layers", 10**6, "1000000"),
            ("num_attention_heads", -10, "-10"),
            ("num_key_value_heads", 0, "0"),
            ("intermediate_size", "x" * 500, "'xxxxx"),
            ("max_position_embeddings", 0, "0"),
            ("first_k_dense_replace", -1, "-1"),
            ("moe_layer_freq", 0, "0"),
            ("n_routed_experts", 0, "0"),
            ("n_shared_experts", 0, "0"),
            ("moe_intermediate_size", 0, "0"),
            ("num_experts_per_tok", 0, "0"),
            (f"{SAM}.width", -768, "-768"),
            (f"{SAM}.layers", 0, "0"),
            (f"{SAM}.global_attn_indexes", 11, "11"),
            (f"{SAM}.global_attn_indexes", [2, "5"], "[2, '5']"),
            (f"{SAM}.global_attn_indexes", [2, 12], "[2, 12]"),
            (f"{SAM}.global_attn_indexes", [-1], "[-1]"),
            (f"{SAM}.downsample_channels", [512, 0], "[512, 0]"),
            (f"{CLIP}.layers", 0, "0"),
            (f"{CLIP}.patch_size", 0, "0"),
            ("vision_config.image_size", 8, "8"),
            ("projector_config.n_embed", 0, "0"),
            ("projector_config.input_dim", [2048], "[2048]"),
        ],
        ids=lambda value: str(value)[:40] if not isinstance(value, int) else None,
    )
    def test_no_possible_number_is_refused_with_the_possible_ones(self, path, value, shown):
        message = refusal(changed_at(path, value))
        assert message.startswith(f"config.json: '{path}' is {shown}")
        assert "give " in message
        assert "whole number" in message

    @pytest.mark.parametrize(
        ("path", "value", "right"),
        [
            ("use_mla", "false", "true or false"),
            ("use_mla", 0, "true or false"),
            ("attention_bias", None, "true or false"),
            ("norm_topk_prob", 1, "true or false"),
            ("scoring_func", "tanh", "one of softmax, sigmoid"),
            ("topk_method", "gready", "one of greedy, group_limited_greedy, noaux_tc"),
            ("topk_method", ["greedy"], "one of greedy"),
            ("hidden_act", "swoosh", "one of silu, "),
            ("hidden_act", None, "one of silu, "),
            ("projector_config.projector_type", "conv", "one of identity, linear, mlp_gelu, "),
            ("projector_config.projector_type", 5, "one of identity, linear, mlp_gelu, "),
            ("rms_norm_eps", 0, "a number above 0"),
            ("rms_norm_eps", "1e-6", "a number above 0"),
            ("rms_norm_eps", float("nan"), "a number above 0"),
            ("rope_theta", float("inf"), "a number above 0"),
            ("rope_theta", True, "a number above 0"),
            ("routed_scaling_factor", -1.0, "a number above 0"),
            ("rope_scaling", "yarn", "a JSON object"),
            ("vision_config", [1024], "a JSON object"),
            ("vision_config.width", None, "a JSON object"),
            (SAM, 768, "a JSON object"),
            ("projector_config", "linear", "a JSON object"),
            ("pad_token_id", 129280, "a whole number from -129280 to 129279"),
        ],
        ids=str,
    )
    def test_no_possible_value_is_refused_with_the_possible_ones(self, path, value, right):
        message = refusal(changed_at(path, value))
        assert f"'{path}' is " in message
        assert f"give {right}" in message

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"hidden_size": 1284}, "'num_attention_heads' is 10; give a divisor of 'hidden_size'"),
            (
                {"num_key_value_heads": 3},
                "'num_key_value_heads' is 3; give a divisor of 'num_attention_heads', 10",
            ),
            ({"num_key_value_heads": 20}, "'num_key_value_heads' is 20; give a divisor"),
            ({"num_attention_heads": 256, "num_key_value_heads": 1}, "heads of even size, not 5"),
            ({"head_dim": 63}, "'head_dim' is 63; give a value that makes heads of even size"),
            ({"num_experts_per_tok": 65}, "give at most 'n_routed_experts', 64"),
            ({"topk_method": "noaux_tc", "n_group": 7}, "give a divisor of 'n_routed_experts', 64"),
            ({"topk_method": "noaux_tc", "n_group": 64}, "'n_group' is 64; give at most 32"),
            (
                {"topk_method": "noaux_tc", "n_group": 4, "topk_group": 5},
                "'topk_group' is 5; give at most 'n_group', 4",
            ),
            (
                {"topk_method": "group_limited_greedy", "n_group": 32, "topk_group": 2},
                "'num_experts_per_tok' is 6; give at most 4, the experts of 2 of 32 groups",
            ),
            ({**MLA, "qk_rope_head_dim": 63}, "'qk_rope_head_dim' is 63; give an even number"),
            ({**MLA, "kv_lora_rank": None}, "'kv_lora_rank' is null; give a whole number"),
            ({**MLA, "v_head_dim": 0}, "'v_head_dim' is 0; give a whole number"),
            (
                {"rope_scaling": {"type": "longrope", "factor": 2}},
                "'rope_scaling.type' is 'longrope'; give one of linear, dynamic, yarn",
            ),
            ({"rope_scaling": {"factor": 2}}, "lacks 'rope_scaling.type'"),
            ({"rope_scaling": {"type": "yarn"}}, "lacks 'rope_scaling.factor'"),
            (
                {"rope_scaling": {"type": "yarn", "factor": 0.5}},
                "'rope_scaling.factor' is 0.5; give a number of at least 1",
            ),
            (
                {**MLA, "rope_scaling": {"rope_type": "yarn", "factor": 2}},
                "lacks 'rope_scaling.type'",
            ),
        ],
        ids=str,
    )
    def test_contradictions_in_the_decoder(self, changes, said):
        assert said in refusal(changed(**changes))

    @pytest.mark.parametrize(
        ("path", "value", "said"),
        [
            (f"{SAM}.heads", 13, f"'{SAM}.heads' is 13; give a divisor of '{SAM}.width', 768"),
            (f"{CLIP}.heads", 15, f"give a divisor of '{CLIP}.width', 1024"),
            (f"{SAM}.global_attn_indexes", [2, 2], "give each block once"),
            (f"{SAM}.downsample_channels", [1024], "give two whole numbers"),
            (f"{SAM}.downsample_channels", [512, 1024, 1024], "give two whole numbers"),
            ("vision_config.image_size", 1000, "give a multiple of 16"),
            (f"{CLIP}.patch_size", 225, "give at most 224"),
            (f"{CLIP}.width", 512, f"'{CLIP}.width' is 512; give 1024, the last of"),
            (f"{SAM}.downsample_channels", [512, 512], "is 1024; give 512, the last of"),
            ("projector_config.n_embed", 1024, "'projector_config.n_embed' is 1024; give 1280"),
            ("projector_config.input_dim", 1024, "'projector_config.input_dim' is 1024; give 2048"),
        ],
        ids=str,
    )
    def test_contradictions_in_the_vision_half(self, path, value, said):
        assert said in refusal(changed_at(path, value))

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            (
                {"projector_type": "hybrid_split_feature_mlp_gelu"},
                "'projector_config.input_dim' is 2048; give a list",
            ),
            (
                {"projector_type": "hybrid_split_feature_mlp_gelu", "input_dim": [1024]},
                "give two whole numbers",
            ),
            (
                {"projector_type": "hybrid_split_feature_mlp_gelu", "input_dim": [1024, 512]},
                "is (1024, 512); give 2048",
            ),
            ({"channel_div": 1.0}, "give a share that leaves each part a channel"),
            ({"channel_div": 1e-9}, "give a share that leaves each part a channel"),
            (
                {"projector_type": "downsample_mlp_gelu"},
                "lacks 'projector_config.downsample_ratio'",
            ),
            (
                {"projector_type": "downsample_mlp_gelu", "downsample_ratio": 2},
                "'projector_config.downsample_ratio' is 2, which merges tokens",
            ),
            ({"token_pooling": True}, "'projector_config.token_pooling' is true, which merges"),
            (
                {"conv_fusion_high_low_features": True},
                "conv_fusion_high_low_features' is true, which takes two feature maps",
            ),
            (
                {"projector_type": "low_high_split_mlp_gelu"},
                "is 'low_high_split_mlp_gelu', which takes two feature maps",
            ),
            (
                {"projector_type": "low_high_split_mlp_gelu", "n_embed": 1281},
                "'projector_config.n_embed' is 1281; give an even number",
            ),
            ({"projector_type": "identity"}, "is 'identity', which passes on 2048 features"),
            (
                {
                    "projector_type": "hybrid_split_feature_mlp_gelu",
                    "input_dim": [1024, 1024],
                    "token_pooling": True,
                },
                "'projector_config.token_pooling' is true; give false",
            ),
        ],
        ids=str,
    )
    def test_projectors_that_do_not_fit_the_model(self, changes, said):
        assert said in refusal(with_projector(**changes))

    @pytest.mark.parametrize("config", [[], None, "config", 5])
    def test_no_object_at_all(self, config):
        assert "the top level" in refusal(config)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2000) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.mark.exhaustive
@given(st.sampled_from(NEEDED), json_values)
def test_any_value_anywhere_gives_dimensions_or_a_refusal_on_one_line(path, value):
    refused = ""
    try:
        ClipModelDimensions.from_config(changed_at(path, value))
    except AnalyzeError as error:
        refused = str(error)
    assert "\n" not in refused
