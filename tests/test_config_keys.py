"""No key of a config does nothing in silence: every one is changed, and something comes of it.

A changed key changes a figure, is listed as harmless, repeats another key and is warned of, or is
refused by its name; a key that nobody knows is warned of.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
from both_engines import PUBLISHED, small_directory
from config_changes import at, changed, counts, is_named, others, without
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampling import every, sampled

from dsocr_analyze import analytic
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.config_file import (
    USED,
    Conditional,
    Fixed,
    Harmless,
    Unread,
    findings_of,
    leaves_of,
)
from dsocr_analyze.architectures.deepseek_ocr import CONFIG_TABLE, PUBLISHED_SECTIONS
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.escaping import shown
from dsocr_analyze.model.directory import read_config
from dsocr_analyze.session import DeepSeekOCRSession

PAGE = DEFAULT.plan(
    page=(300, 300),
    base_size=256,
    image_size=256,
    crop_mode=False,
    text_tokens=5,
    max_new_tokens=3,
)

OF_UNLIMITED_OCR = {
    ("sliding_window_size",): 128,
    ("sliding_window",): 128,
    ("language_config", "sliding_window_size"): 128,
}
"""Keys that the config of Unlimited-OCR has besides those of DeepSeek-OCR, and its values."""

LATENT = {
    "use_mla": True,
    "q_lora_rank": 24,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 48,
    "v_head_dim": 40,
}
GROUPS = {
    "topk_method": "group_limited_greedy",
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
}
DOWNSAMPLE = {"projector_type": "downsample_mlp_gelu", "downsample_ratio": 2, "depth": 3}
SPLIT = {"projector_type": "hybrid_split_feature_mlp_gelu", "input_dim": [128, 128]}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What comes of a config."""

    figures: object = None
    warnings: tuple[str, ...] = ()
    refusal: str | None = None


def outcome(config, base=PUBLISHED) -> Outcome:
    directory = dataclasses.replace(base, config=config)
    try:
        figures = analytic.page_figures(directory, PAGE)
    except ConfigError as error:
        return Outcome(refusal=str(error))
    return Outcome(counts(figures), figures.warnings)


def dotted(path):
    return f"'{'.'.join(path)}'"


def known_keys(config):
    return [path for path, _ in leaves_of(config, CONFIG_TABLE.is_section)]


BASE = outcome(PUBLISHED.config)
KEYS = known_keys(PUBLISHED.config)
ALL_KEYS = [*KEYS, *OF_UNLIMITED_OCR]

SAME_MEANING = [
    # null is "as many as attention heads", which the published file says in a number
    (("num_key_value_heads",), None),
    # 225 pixels hold as many patches of 14 a side as 224 do
    (("vision_config", "width", "clip-l-14-224", "image_size"), 225),
]
"""Other values of used keys that mean the same."""


def test_the_published_file_says_nothing_that_would_be_warned_of():
    assert BASE.warnings == ()
    assert BASE.refusal is None
    assert len(KEYS) == 80


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", ALL_KEYS, ids=".".join)
def test_a_changed_key_is_never_silent(path):
    present = path in KEYS
    old = at(PUBLISHED.config, path) if present else None
    values = others(old) if present else [OF_UNLIMITED_OCR[path], 256]
    for value in values:
        config = changed(PUBLISHED.config, path, value)
        if path[-1] == "model_type" and value is None and len(path) == 1:
            continue
        found = outcome(config)
        rule = CONFIG_TABLE.rule(path, config, "reference")
        context = (path, value, rule, found.warnings, found.refusal)
        if found.refusal is not None:
            # The key, its value and the right ones: its own, or those of the key that it meets.
            assert path[-1] in found.refusal, context
            assert "give " in found.refusal, context
            assert is_named(value, found.refusal), context
            assert not isinstance(rule, Harmless | Unread) or is_checked(path), context
        elif isinstance(rule, Unread):
            assert found.figures == BASE.figures, context
            [warning] = found.warnings
            assert f"{dotted(path)} is {shown(value)}" in warning
            assert f"{dotted(rule.of)}, which is read, is {shown(old)}; {shown(old)} counts" in (
                warning
            )
        elif found.figures == BASE.figures:
            assert isinstance(rule, Harmless) or (path, value) in SAME_MEANING, context
            assert rule == USED or rule.reason
            assert found.warnings == () or rule == USED, context
        else:
            assert rule == USED, context


def is_checked(path):
    """Whether values that no model can have are refused although the key changes no figure."""
    return path in {("max_position_embeddings",), ("pad_token_id",)}


@sampled("path", KEYS, every(4), ids=".".join)
def test_a_missing_key_is_a_default_or_is_refused_by_name(path):
    rule = CONFIG_TABLE.rule(path, PUBLISHED.config, "reference")
    found = outcome(without(PUBLISHED.config, path))
    if found.refusal is None:
        assert found == BASE
        # nothing is lost with them: they say what counts anyway
        assert isinstance(rule, Harmless | Unread | Fixed)
    else:
        assert f"lacks {dotted(path)}" in found.refusal


# --- every rule of the table, in a config where it holds --------------------------------------

USED_ELSEWHERE = [
    # keys that the published file lacks or does not use: a config that does, and another value
    ({}, "attention_bias", True),
    ({}, "head_dim", 32),
    ({}, "hidden_act", "gelu"),
    ({}, "moe_layer_freq", 2),
    ({}, "norm_topk_prob", True),
    ({}, "scoring_func", "sigmoid"),
    ({}, "tie_word_embeddings", True),
    (GROUPS, "n_group", 2),
    (GROUPS, "topk_group", 4),
    (LATENT, "q_lora_rank", 32),
    (LATENT, "kv_lora_rank", 72),
    (LATENT, "qk_rope_head_dim", 16),
    (LATENT, "qk_nope_head_dim", 40),
    (LATENT, "v_head_dim", 24),
    (LATENT, "rope_scaling", {"type": "linear", "factor": 2.0}),
    (LATENT | {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_scaling.type", "linear"),
    (
        LATENT | {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "max_position_embeddings",
        16,
    ),
    (
        {"projector_config": {"projector_type": "mlp_gelu"}},
        "projector_config.depth",
        2,
    ),
    ({"projector_config": SPLIT}, "projector_config.channel_div", 0.25),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("base", "path", "value"), USED_ELSEWHERE, ids=str)
def test_keys_that_only_some_models_use_change_figures_of_those(base, path, value):
    key = tuple(path.split("."))
    before = small_directory(**base)
    after = dataclasses.replace(before, config=changed(before.config, key, value))
    assert CONFIG_TABLE.rule(key, after.config, "reference") == USED
    one, other = (analytic.page_figures(each, PAGE) for each in (before, after))
    assert counts(one) != counts(other)


REFUSED_WHERE_USED = [
    # keys of projectors that the model cannot be built with: whatever is said, it is refused
    ("token_pooling", {"token_pooling": True}),
    ("conv_fusion_high_low_features", {"conv_fusion_high_low_features": True}),
    ("downsample_ratio", DOWNSAMPLE),
    ("mlp_ratio", DOWNSAMPLE | {"mlp_ratio": 2, "downsample_ratio": 1}),
]


def test_every_used_key_of_the_table_is_proved_to_be_used():
    proved = {tuple(path.split(".")) for _, path, _ in USED_ELSEWHERE}
    proved |= {("projector_config", key) for key, _ in REFUSED_WHERE_USED}
    proved |= {("rope_scaling", "rope_type")}  # in the test below
    for path, rule in CONFIG_TABLE.rules.items():
        resolved = CONFIG_TABLE.rule(path, PUBLISHED.config, "reference")
        in_the_file = path in KEYS and resolved == USED  # so changes of it are tested
        assert in_the_file or path in proved or USED not in cases_of(rule), path


@pytest.mark.exhaustive
def test_keys_of_layers_that_there_are_not_are_harmless():
    every = {**PUBLISHED.config, "first_k_dense_replace": 0}
    none = {**PUBLISHED.config, "first_k_dense_replace": 12}
    for base, key in (
        (every, "intermediate_size"),
        (none, "moe_intermediate_size"),
        (none, "num_experts_per_tok"),
        (none, "n_shared_experts"),
    ):
        config = {**base, key: base[key] - 1}
        assert isinstance(CONFIG_TABLE.rule((key,), config, "reference"), Harmless)
        assert outcome(config).figures == outcome(base).figures
        config = {**PUBLISHED.config, key: base[key] - 1}
        assert CONFIG_TABLE.rule((key,), config, "reference") == USED
        assert outcome(config).figures != BASE.figures


def cases_of(rule):
    return [rule.then, *cases_of(rule.otherwise)] if isinstance(rule, Conditional) else [rule]


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_the_rotary_type_of_plain_attention_counts_where_it_is_dynamic(key):
    def found(kind):
        scaling = {key: kind, "factor": 2.0}
        return outcome(small_directory(rope_scaling=scaling, max_position_embeddings=16).config)

    assert found("linear") == found("yarn")
    assert found("linear").figures is not None
    assert "'rope_scaling' of type 'dynamic'" in found("dynamic").refusal


@pytest.mark.parametrize(("key", "section"), REFUSED_WHERE_USED[:3], ids=str)
def test_projectors_that_do_not_fit_are_refused(key, section):
    found = outcome(small_directory(projector_config=section).config)
    assert f"'projector_config.{key}'" in found.refusal


HARMLESS_VALUES = {
    # another value of every harmless key, all of which a model can be built with
    "rope_theta": 5e5,
    "rms_norm_eps": 1e-3,
    "routed_scaling_factor": 2.5,
    "max_position_embeddings": 4096,
    "vision_config.mlp_ratio": 2,
    "vision_config.model_name": "x",
    "_name_or_path": "x",
    "name_or_path": "x",
    "_commit_hash": "x",
    "transformers_version": "9.9.9",
    "architectures": ["X"],
    "model_type": "x",
    "torch_dtype": "float16",
    "dtype": "float16",
    "attn_implementation": "sdpa",
    "_attn_implementation_autoset": True,
    "use_cache": False,
    "attention_dropout": 0.5,
    "aux_loss_alpha": 1.0,
    "seq_aux": False,
    "initializer_range": 1.0,
    "gradient_checkpointing": False,
    "problem_type": "regression",
    "finetuning_task": "x",
    "task_specific_params": {"x": 1},
    "num_labels": 3,
    "id2label": {"0": "a", "1": "b", "2": "c"},
    "label2id": {"a": 0},
    "use_bfloat16": True,
    "tf_legacy_loss": True,
    "xla_device": True,
    "tokenizer_class": "X",
    "prefix": "x",
    "bos_token_id": 3,
    "eos_token_id": 4,
    "pad_token_id": 5,
    "sep_token_id": 6,
    "decoder_start_token_id": 7,
    "forced_bos_token_id": 8,
    "forced_eos_token_id": 9,
    "max_length": 7,
    "min_length": 3,
    "do_sample": True,
    "early_stopping": True,
    "diversity_penalty": 0.5,
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.5,
    "typical_p": 0.5,
    "repetition_penalty": 2.0,
    "length_penalty": 2.0,
    "no_repeat_ngram_size": 20,
    "encoder_no_repeat_ngram_size": 20,
    "bad_words_ids": [[1]],
    "output_scores": True,
    "return_dict_in_generate": True,
    "remove_invalid_values": True,
    "exponential_decay_length_penalty": [1, 2.0],
    "suppress_tokens": [1],
    "begin_suppress_tokens": [1],
    "is_decoder": True,
    "cross_attention_hidden_size": 8,
    "chunk_size_feed_forward": 4,
    "candidate_resolutions": [[512, 512]],
    "projector_config.depth": 3,
    "projector_config.mlp_ratio": 2,
    "projector_config.downsample_ratio": 2,
    "projector_config.channel_div": 0.25,
    "q_lora_rank": 24,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 32,
    "v_head_dim": 40,
    "n_group": 4,
    "topk_group": 2,
}

OF_YARN = {
    "rope_scaling.factor": 8.0,
    "rope_scaling.original_max_position_embeddings": 32,
    "rope_scaling.attention_factor": 0.5,
    "rope_scaling.beta_fast": 16,
    "rope_scaling.beta_slow": 2,
    "rope_scaling.mscale": 0.7,
    "rope_scaling.mscale_all_dim": 0.5,
}


def with_all(config, values):
    for path, value in values.items():
        config = changed(config, tuple(path.split(".")), value)
    return config


def both_counts(directory):
    """What each engine counts, and the warnings of the trace."""
    session = DeepSeekOCRSession.from_directory(directory)
    traced, agreement = session.figures(PAGE)
    composed = analytic.page_figures(directory, PAGE)
    assert agreement is not None
    assert traced.warnings == composed.warnings
    return counts(traced), counts(composed), composed.warnings


@pytest.mark.exhaustive
def test_every_harmless_key_at_once_changes_no_figure_of_either_engine():
    before = small_directory()
    after = dataclasses.replace(before, config=with_all(before.config, HARMLESS_VALUES))
    rules = {
        path: CONFIG_TABLE.rule(path, after.config, "reference") for path in CONFIG_TABLE.rules
    }
    harmless = {".".join(path) for path, rule in rules.items() if isinstance(rule, Harmless)}
    # `auto_map` names the files that are run; rotary types and numbers have tests of their own
    apart = {"auto_map", "rope_scaling.type", "rope_scaling.rope_type", *OF_YARN}
    assert harmless == set(HARMLESS_VALUES) | apart
    assert both_counts(after) == both_counts(before)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("decoder", "kind"), [(LATENT, "type"), ({}, "type"), ({}, "rope_type")], ids=str
)
def test_numbers_of_yarn_change_no_figure_of_either_engine(decoder, kind):
    before = small_directory(**decoder, rope_scaling={kind: "yarn", "factor": 4.0})
    after = dataclasses.replace(before, config=with_all(before.config, OF_YARN))
    assert both_counts(after) == both_counts(before)


each_fixed_key = sampled(
    "path",
    [path for path, rule in CONFIG_TABLE.rules.items() if isinstance(rule, Fixed)],
    every(4),
    ids=".".join,
)


@each_fixed_key
def test_what_is_not_modelled_is_refused_by_both_engines(path):
    rule = CONFIG_TABLE.rules[path]
    for right in rule.values:
        assert outcome(changed(PUBLISHED.config, path, right)) == BASE
    wrong = [
        value
        for value in others(rule.values[0])
        if not any(type(value) is type(right) and value == right for right in rule.values)
    ]
    assert wrong
    for value in wrong:
        config = changed(PUBLISHED.config, path, value)
        said = outcome(config).refusal
        assert f"{dotted(path)} is {shown(value)}: {rule.reason}" in said
        assert said.endswith("; give " + " or ".join(map(shown, rule.values)))
        with pytest.raises(ConfigError) as error:
            DeepSeekOCRSession.from_local(config=config)
        assert str(error.value) == said
    # the same in the section that repeats the top level, where that lacks the key
    config = without(PUBLISHED.config, path) if path in KEYS else PUBLISHED.config
    nested = ("language_config", *path)
    assert f"{dotted(nested)} is " in outcome(changed(config, nested, wrong[0])).refusal


@pytest.mark.parametrize(
    ("decoder", "path", "winner"),
    [({}, "type", "rope_type"), (LATENT, "rope_type", "type")],
    ids=["plain attention", "latent attention"],
)
def test_the_two_names_of_the_rotary_type_are_told_apart(decoder, path, winner):
    scaling = {path: "linear", winner: "yarn", "factor": 2.0}
    both = small_directory(**decoder, rope_scaling=scaling)
    alone = small_directory(**decoder, rope_scaling={winner: "yarn", "factor": 2.0})
    found = outcome(both.config)
    assert found.figures == outcome(alone.config).figures
    assert found.warnings == (
        f"config.json: 'rope_scaling.{path}' is 'linear', but 'rope_scaling.{winner}', which is"
        " read, is 'yarn'; 'yarn' counts",
    )
    same = small_directory(**decoder, rope_scaling=scaling | {path: "yarn"})
    assert outcome(same.config).warnings == ()


def test_a_default_of_transformers_says_nothing():
    """What `save_pretrained` writes of every attribute, with new names for none of them."""
    session = DeepSeekOCRSession.from_directory(small_directory())
    saved = json.loads(session.model.config.to_json_string(use_diff=False))
    found = outcome({**saved, "auto_map": PUBLISHED.config["auto_map"]})
    assert (found.warnings, found.refusal) == ((), None)
    assert found.figures == outcome(small_directory().config).figures


def test_the_section_that_repeats_the_top_level_counts_where_that_has_no_value():
    config = changed(PUBLISHED.config, ("language_config", "attention_bias"), True)
    found = outcome(config)
    assert found.figures == BASE.figures
    assert found.warnings == (
        "config.json: 'language_config.attention_bias' is true, which nothing reads:"
        " 'attention_bias' is read instead, but is missing and counts as false",
    )
    config = changed(PUBLISHED.config, ("language_config", "attention_bias"), False)
    assert outcome(config) == BASE
    for value, warned in ((None, 0), ([], 1), (5, 1)):
        found = outcome({**PUBLISHED.config, "language_config": value})
        assert found.figures == BASE.figures
        assert len(found.warnings) == warned


# --- keys that nobody knows --------------------------------------------------------------------

SECTIONS = [(), *sorted(CONFIG_TABLE.sections), ("language_config",)]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.mark.exhaustive
@settings(deadline=None)
@given(where=st.sampled_from(SECTIONS), name=st.text(min_size=1, max_size=30), value=JSON)
def test_a_key_that_nobody_knows_is_warned_of_wherever_it_stands(where, name, value):
    path = (*where, name)
    assume((name,) not in CONFIG_TABLE.rules and path not in CONFIG_TABLE.rules)
    assume(path not in CONFIG_TABLE.sections and name != "language_config")
    assume(where[:1] != ("rope_scaling",))
    config = changed(PUBLISHED.config, path, value)
    for code, left_out in (
        ("reference", "no figure includes it"),
        ("other", "no closed form includes"),
    ):
        found = findings_of(config, CONFIG_TABLE, code)
        assert found.refusals == ()
        [warning] = found.warnings
        assert warning.startswith(f"config.json: {shown('.'.join(path))} is unknown; {left_out}")


@pytest.mark.parametrize("path", KEYS, ids=".".join)
def test_a_misspelt_key_is_warned_of(path):
    spelt = (*path[:-1], path[-1][:-1] + "_")
    config = changed(without(PUBLISHED.config, path), spelt, at(PUBLISHED.config, path))
    found = findings_of(config, CONFIG_TABLE, "reference")
    assert f"config.json: {dotted(spelt)} is unknown; no figure includes it" in found.warnings


def test_a_dot_in_a_name_is_not_a_section():
    config = changed(PUBLISHED.config, ("rope_scaling.type",), "yarn")
    [warning] = outcome(config).warnings
    assert warning.startswith("config.json: 'rope_scaling.type' is unknown")


def test_many_unknown_keys_are_counted():
    found = outcome({**PUBLISHED.config, **{f"x{i}": i for i in range(10_020)}})
    assert len(found.warnings) == 21
    assert found.warnings[-1] == "config.json: 10,000 more keys are unknown"


def test_a_key_that_stands_twice_is_refused(tmp_path):
    text = (DEFAULT.reference / "config.json").read_text()
    twice = text.replace('"hidden_size": 1280', '"hidden_size": 640, "hidden_size": 1280', 1)
    (tmp_path / "config.json").write_text(twice)
    with pytest.raises(ConfigError, match=r"'hidden_size' appears twice .* as 640 and as 1280"):
        read_config(tmp_path / "config.json")


# --- the published code, which reads neither section of the vision side ------------------------

BUILT = dict(leaves_of(PUBLISHED_SECTIONS, CONFIG_TABLE.is_section))


def test_the_reference_is_set_up_as_the_published_code_is_built():
    for path, value in BUILT.items():
        if path in KEYS:
            assert at(PUBLISHED.config, path) == value
    read = [path for path in KEYS if path[0] in PUBLISHED_SECTIONS]
    used = [p for p in read if CONFIG_TABLE.rule(p, PUBLISHED.config, "reference") == USED]
    assert set(used) <= set(BUILT)
    assert DEFAULT.forms.dimensions(PUBLISHED.config, "published") == DEFAULT.forms.dimensions(
        PUBLISHED.config
    )


@pytest.mark.parametrize("path", BUILT, ids=".".join)
def test_the_published_code_builds_the_same_whatever_these_keys_say(path):
    built = DEFAULT.forms.dimensions(PUBLISHED.config)
    for value in [*others(BUILT[path]), "no such type", -7]:
        config = changed(PUBLISHED.config, path, value)
        assert DEFAULT.forms.dimensions(config, "published") == built
        found = findings_of(config, CONFIG_TABLE, "published")
        assert found.refusals == ()
        shown_built = shown(BUILT[path])
        assert found.warnings == (
            f"config.json: {dotted(path)} is {shown(value)}, but the directory's code does not read"
            f" it and builds {shown_built}; {shown_built} counts",
        )


@pytest.mark.parametrize("section", PUBLISHED_SECTIONS)
def test_the_published_code_needs_no_section_of_the_vision_side(section):
    built = DEFAULT.forms.dimensions(PUBLISHED.config)
    absent = without(PUBLISHED.config, (section,))
    assert DEFAULT.forms.dimensions(absent, "published") == built
    assert findings_of(absent, CONFIG_TABLE, "published").warnings == ()
    for value, warned in ((None, 0), (7, 1)):
        config = {**PUBLISHED.config, section: value}
        assert DEFAULT.forms.dimensions(config, "published") == built
        assert len(findings_of(config, CONFIG_TABLE, "published").warnings) == warned


def test_keys_of_a_projector_that_the_published_code_does_not_build_are_named():
    config = changed(PUBLISHED.config, ("projector_config", "projector_type"), "mlp_gelu")
    deeper = changed(config, ("projector_config", "depth"), 2)
    found = findings_of(deeper, CONFIG_TABLE, "published").warnings
    assert len(found) == 2
    assert "'projector_config.projector_type' is 'mlp_gelu'" in found[0]
    assert "'projector_config.depth' is 2, which the directory's code does not read" in found[1]
    assert (
        DEFAULT.forms.parameter_count(DEFAULT.forms.dimensions(config, "published"))
        == 3_336_106_240
    )


def test_the_published_code_has_a_projector_of_one_width():
    config = {**PUBLISHED.config, "hidden_size": 640}
    with pytest.raises(ConfigError, match="'hidden_size' is 640; give 1280"):
        DEFAULT.forms.dimensions(config, "published")


@each_fixed_key
def test_what_the_published_code_ignores_is_warned_of_and_the_rest_refused(path):
    rule = CONFIG_TABLE.rules[path]
    value = next(v for v in others(rule.values[0]) if v not in rule.values)
    config = changed(PUBLISHED.config, path, value)
    found = findings_of(config, CONFIG_TABLE, "published")
    if not rule.ignored_by_published:
        assert [message for message, _ in found.refusals] == [outcome(config).refusal]
        return
    assert found.refusals == ()
    assert found.warnings[0] == (
        f"config.json: {dotted(path)} is {shown(value)}, which the directory's code does not read;"
        " no figure includes it"
    )
    built = DEFAULT.forms.dimensions(PUBLISHED.config)
    assert DEFAULT.forms.dimensions(config, "published") == built


# --- two at once -------------------------------------------------------------------------------

PAIRS = st.lists(st.sampled_from(ALL_KEYS), min_size=2, max_size=2, unique=True)


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=60)
@given(paths=PAIRS, pick=st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_of_two_changed_keys_neither_is_silent(paths, pick):
    config = PUBLISHED.config
    values = []
    for path, number in zip(paths, pick, strict=True):
        known = path in KEYS
        choices = others(at(PUBLISHED.config, path) if known else OF_UNLIMITED_OCR[path])
        values.append(choices[number % len(choices)])
        config = changed(config, path, values[-1])
    assume(not (("model_type",) in paths and config["model_type"] is None))
    found = outcome(config)
    if found.refusal is not None:
        assert any(path[-1] in found.refusal for path in paths)
        return
    rules = [CONFIG_TABLE.rule(path, config, "reference") for path in paths]
    for path, rule in zip(paths, rules, strict=True):
        assert rule == USED or isinstance(rule, Harmless | Unread | Fixed)
        if isinstance(rule, Unread) and at(config, path) != at(config, rule.of):
            assert any(f"{dotted(path)} is " in warning for warning in found.warnings)
    changes = [
        path
        for path, value, rule in zip(paths, values, rules, strict=True)
        if rule == USED and (path, value) not in SAME_MEANING
    ]
    assert (found.figures != BASE.figures) == bool(changes)
