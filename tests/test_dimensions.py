"""Dimensions read from a `config.json`, and the configurations that are refused."""

from __future__ import annotations

import copy
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.deepseek_ocr import ClipModelDimensions
from dsocr_analyze.architectures.ocr_family.dimensions import (
    PROJECTOR_TYPES,
    ClipDimensions,
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


def without(path: str) -> dict[str, Any]:
    """The published configuration without the key at a dotted path."""
    config = copy.deepcopy(PUBLISHED)
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


class TestPublishedModel:
    def test_encoders_and_projector(self):
        dimensions = ClipModelDimensions.from_config(PUBLISHED)
        assert dimensions.sam == SamDimensions(
            width=768,
            layers=12,
            heads=12,
            global_attn_indexes=(2, 5, 8, 11),
            downsample_channels=(512, 1024),
            image_size=1024,
        )
        assert dimensions.clip == ClipDimensions(1024, 24, 16, image_size=224, patch_size=14)
        assert dimensions.projector == ProjectorDimensions("linear", input_dim=2048, n_embed=1280)

    def test_what_the_code_fixes(self):
        sam = SamDimensions.from_config(PUBLISHED)
        assert (sam.patch, sam.mlp_ratio, sam.window, sam.neck) == (16, 4, 14, 256)
        assert sam.downsample_channels == (512, 1024)
        assert sam.global_attn_indexes == (2, 5, 8, 11)

    def test_decoder(self):
        assert DecoderDimensions.from_config(PUBLISHED) == DecoderDimensions(
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

    def test_what_the_decoder_derives(self):
        decoder = DecoderDimensions.from_config(PUBLISHED)
        assert [decoder.is_moe(index) for index in range(12)] == [False] + [True] * 11
        assert decoder.moe_layers == 11
        assert decoder.shared_intermediate_size == 2 * 896 == 1792

    def test_the_top_level_is_read_and_not_language_config(self):
        config = changed(language_config={"hidden_size": 7})
        assert ClipModelDimensions.from_config(config).decoder.hidden_size == 1280

    def test_reading_leaves_the_configuration_as_it_was(self):
        config = copy.deepcopy(PUBLISHED)
        ClipModelDimensions.from_config(config)
        assert config == PUBLISHED


class TestOtherModels:
    def test_latent_attention(self):
        decoder = DecoderDimensions.from_config(changed(**MLA))
        assert (decoder.use_mla, decoder.head_dim, decoder.kv_heads) == (True, 128 + 64, 10)
        assert (decoder.q_lora_rank, decoder.kv_lora_rank) == (96, 512)
        assert (decoder.qk_rope_head_dim, decoder.qk_nope_head_dim) == (64, 128)
        assert decoder.v_head_dim == 120

    def test_latent_attention_without_a_latent_for_the_queries(self):
        decoder = DecoderDimensions.from_config(changed(**{**MLA, "q_lora_rank": None}))
        assert decoder.q_lora_rank is None

    def test_latent_attention_needs_no_key_value_heads_and_no_even_split(self):
        config = changed(**MLA, num_attention_heads=7)
        del config["num_key_value_heads"]
        decoder = DecoderDimensions.from_config(config)
        assert (decoder.heads, decoder.kv_heads) == (7, 7)

    def test_latent_keys_are_not_needed_without_latent_attention(self):
        config = changed()
        for key in ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"):
            del config[key]
        assert DecoderDimensions.from_config(config) == DecoderDimensions.from_config(PUBLISHED)

    def test_grouped_keys_and_values(self):
        assert DecoderDimensions.from_config(changed(num_key_value_heads=2)).kv_heads == 2

    def test_null_key_value_heads_are_as_many_as_heads(self):
        assert DecoderDimensions.from_config(changed(num_key_value_heads=None)).kv_heads == 10

    def test_a_head_size_of_its_own(self):
        config = changed(num_attention_heads=7, num_key_value_heads=7, head_dim=96)
        assert DecoderDimensions.from_config(config).head_dim == 96

    def test_a_dense_decoder_needs_no_expert_keys(self):
        config = changed(n_routed_experts=None)
        for key in (
            *("n_shared_experts", "moe_intermediate_size", "num_experts_per_tok"),
            *("first_k_dense_replace", "topk_method", "n_group", "topk_group"),
        ):
            del config[key]
        decoder = DecoderDimensions.from_config(config)
        assert decoder.n_routed_experts is None
        assert decoder.moe_layers == 0
        assert decoder.moe_intermediate_size == decoder.shared_intermediate_size == 0

    def test_no_shared_experts(self):
        decoder = DecoderDimensions.from_config(changed(n_shared_experts=None))
        assert decoder.shared_intermediate_size == 0
        assert decoder.moe_layers == 11

    def test_every_third_layer_of_experts_behind_dense_ones(self):
        decoder = DecoderDimensions.from_config(changed(moe_layer_freq=3, first_k_dense_replace=4))
        assert [index for index in range(12) if decoder.is_moe(index)] == [6, 9]

    @pytest.mark.parametrize("method", ["group_limited_greedy", "noaux_tc"])
    def test_experts_in_groups(self, method):
        decoder = DecoderDimensions.from_config(
            changed(topk_method=method, n_group=8, topk_group=3, scoring_func="sigmoid")
        )
        assert (decoder.topk_method, decoder.n_group, decoder.topk_group) == (method, 8, 3)
        assert decoder.scoring_func == "sigmoid"

    def test_greedy_needs_no_groups(self):
        decoder = DecoderDimensions.from_config(changed(n_group=None, topk_group=None))
        assert (decoder.n_group, decoder.topk_group) == (1, 1)

    @pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn"])
    @pytest.mark.parametrize("attention", [{}, MLA], ids=["mha", "mla"])
    def test_stretched_rotary_positions(self, kind, attention):
        config = changed(rope_scaling={"type": kind, "factor": 4}, **attention)
        assert DecoderDimensions.from_config(config).rope_scaling == kind

    def test_plain_attention_knows_the_newer_name_of_the_rotary_type(self):
        config = changed(rope_scaling={"rope_type": "yarn", "factor": 2.5})
        assert DecoderDimensions.from_config(config).rope_scaling == "yarn"

    def test_values_in_place_of_defaults(self):
        decoder = DecoderDimensions.from_config(
            changed(
                rope_theta=500_000,
                rms_norm_eps=1e-5,
                hidden_act="gelu",
                attention_bias=True,
                norm_topk_prob=True,
                tie_word_embeddings=True,
            )
        )
        assert (decoder.rope_theta, decoder.rms_norm_eps) == (500_000.0, 1e-5)
        assert (decoder.hidden_act, decoder.attention_bias) == ("gelu", True)
        assert decoder.norm_topk_prob
        assert decoder.tie_word_embeddings

    @pytest.mark.parametrize("kind", PROJECTOR_TYPES)
    def test_every_projector_type_is_read(self, kind):
        pair = [1024, 1024] if kind == "hybrid_split_feature_mlp_gelu" else 2048
        config = with_projector(projector_type=kind, input_dim=pair, downsample_ratio=2, depth=3)
        projector = ProjectorDimensions.from_config(config)
        assert (projector.projector_type, projector.depth) == (kind, 3)
        assert projector.input_channels == 2048
        assert projector.downsample_ratio == (2 if "downsample" in kind else 1)

    def test_a_model_with_another_projector(self):
        mlp = with_projector(projector_type="mlp_gelu", depth=2)
        assert ClipModelDimensions.from_config(mlp).projector.depth == 2
        split = with_projector(
            projector_type="hybrid_split_feature_mlp_gelu", input_dim=[1024, 1024], channel_div=0.25
        )
        assert ClipModelDimensions.from_config(split).projector.input_dim == (1024, 1024)
        even = with_projector(projector_type="downsample_mlp_gelu", downsample_ratio=1)
        assert ClipModelDimensions.from_config(even).projector.downsample_ratio == 1
        identity = with_projector(projector_type="identity", n_embed=2048)
        identity.update(hidden_size=2048, num_attention_heads=16, num_key_value_heads=16)
        assert ClipModelDimensions.from_config(identity).projector.input_channels == 2048

    @given(
        st.fixed_dictionaries(
            {
                "num_hidden_layers": st.integers(1, 40),
                "first_k_dense_replace": st.integers(0, 50),
                "moe_layer_freq": st.integers(1, 50),
            }
        )
    )
    def test_layers_of_experts_follow_the_vendors_rule(self, keys):
        decoder = DecoderDimensions.from_config(changed(**keys))
        first, every = keys["first_k_dense_replace"], keys["moe_layer_freq"]
        layers = [index for index in range(decoder.layers) if index >= first and not index % every]
        assert decoder.moe_layers == len(layers)


class TestRefusals:
    @pytest.mark.parametrize("path", NEEDED)
    def test_an_absent_key_is_named(self, path):
        assert refusal(without(path)) == f"config.json lacks '{path}'"

    @pytest.mark.parametrize("key", [key for key in MLA if key != "use_mla"])
    def test_an_absent_key_of_latent_attention_is_named(self, key):
        config = changed(**MLA)
        del config[key]
        assert refusal(config) == f"config.json lacks '{key}', since 'use_mla' is true"

    @pytest.mark.parametrize("key", ["n_group", "topk_group"])
    def test_an_absent_key_of_grouped_experts_is_named(self, key):
        config = changed(topk_method="group_limited_greedy")
        del config[key]
        assert refusal(config) == f"config.json lacks '{key}'"

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

    def test_an_odd_width_cannot_be_halved_by_a_pair_projector(self):
        config = with_projector(projector_type="low_high_split_mlp_gelu", n_embed=1281)
        assert "'projector_config.n_embed' is 1281; give an even number" in refusal(config)

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
