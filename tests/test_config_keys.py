"""Keys of a config: what is read of them, and that none does nothing in silence.

A changed key changes a figure, is listed as harmless, repeats another key and is warned of, or is
refused by its name; a key that nobody knows is warned of.
"""

import copy
import dataclasses
import json
import shutil
from pathlib import Path
from types import NoneType, SimpleNamespace

import pytest
from both_engines import LATENT, PUBLISHED, small_directory
from command_line import run
from hypothesis import assume, given, settings, strategies as st
from relatives import FAMILY
from sampling import every, first, sampled
from vendor_checkout import VENDOR, needs_vendor

from dsocr_analyze import analytic
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.architectures.config_file import (
    USED,
    Conditional,
    Fixed,
    Harmless,
    Unread,
    findings_of,
    leaves_of,
)
from dsocr_analyze.architectures.deepseek_ocr import (
    PUBLISHED_SECTIONS,
    ClipDimensions,
    ClipModelDimensions,
)
from dsocr_analyze.architectures.ocr_family.dimensions import (
    DecoderDimensions,
    ProjectorDimensions,
    SamDimensions,
)
from dsocr_analyze.errors import AnalyzeError, ConfigError, ModelCodeError
from dsocr_analyze.escaping import shown
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.session import DeepSeekOCRSession

CONFIG_TABLE = DEFAULT.config_table
OCR2, UNLIMITED = "deepseek-ocr-2", "unlimited-ocr"
DIRECTORY = {name: ModelDirectory.read(each.reference) for name, each in FAMILY.items()}
SMALL_PAGE = {"crop_mode": False, "base_size": 256, "image_size": 256}
PAGES = {
    DEFAULT.name: DEFAULT.plan(page=(300, 300), max_new_tokens=3, text_tokens=5, **SMALL_PAGE),
    OCR2: ARCHITECTURES[OCR2].plan(page=(600, 500), max_new_tokens=3),
    # whose decode steps fill the window
    UNLIMITED: ARCHITECTURES[UNLIMITED].plan(page=(600, 500), max_new_tokens=300),
}
CODE_PAGE = DEFAULT.plan(page=(600, 500), max_new_tokens=2, **SMALL_PAGE)

ENCODER = ("vision_config", "width", "qwen2-0-5b")
BESIDES = {
    DEFAULT.name: {
        ("sliding_window_size",): [128, 256],
        ("sliding_window",): [128, 256],
        ("language_config", "sliding_window_size"): [128, 256],
    },
    OCR2: {
        (*ENCODER, "layers"): [12],
        (*ENCODER, "heads"): [7],
        (*ENCODER, "key_value_heads"): [7],
        (*ENCODER, "intermediate_size"): [4000],
        (*ENCODER, "view_sizes"): [[768]],
    },
    UNLIMITED: {},
}
"""Keys that the published file leaves out, and values other than those that the code has."""

GROUPS = {
    "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3,
}  # fmt: skip
PAIR = "hybrid_split_feature_mlp_gelu"


# --- configs with a change, and what comes of it ------------------------------------------------


def at(config, path):
    return at(config[path[0]], path[1:]) if path else config


def changed(config, path, value):
    """A copy with another value at a path, whose sections are made where they are missing."""
    name, *below = path
    if below:
        section = config.get(name)
        value = changed(section if isinstance(section, dict) else {}, below, value)
    return {**config, name: value}


def with_all(config, values):
    """A copy with other values at dotted paths."""
    for path, value in values.items():
        config = changed(config, path.split("."), value)
    return config


def without(config, path):
    result = copy.deepcopy(config)
    del at(result, path[:-1])[path[-1]]
    return result


OTHERS = {
    NoneType: lambda _: [1, 64, "x", {}],
    bool: lambda value: [not value, None],
    int: lambda value: [2 * value if value else 1, value + 1, None, str(value)],
    float: lambda value: [2 * value, None],
    str: lambda value: [value + "x", value.swapcase(), "", None],
    list: lambda value: [
        [*value[:-1], others(value[-1])[0]], [others(value[0])[0], *value[1:]], value[:-1], [], None
    ],
    dict: lambda _: [{}, None],
}  # fmt: skip


def others(value):
    """Plausible other values."""
    return OTHERS[type(value)](value)


def counts(figures):
    """All that is counted, and nothing of where it comes from."""
    stages = [
        (stage.name, stage.params, stage.kernels, dict(stage.module_calls))
        for stage in figures.stages.values()
    ]
    return stages, figures.parameters, figures.batch, figures.memory, figures.causal_savable_flops


def dotted(path):
    return f"'{'.'.join(path)}'"


def outcome(config, name=DEFAULT.name):
    """What comes of a config: figures and warnings, or a refusal."""
    directory = dataclasses.replace(DIRECTORY[name], config=config)
    try:
        figures = analytic.page_figures(directory, PAGES[name])
    except ConfigError as error:
        return SimpleNamespace(figures=None, warnings=(), refusal=str(error))
    return SimpleNamespace(figures=counts(figures), warnings=figures.warnings, refusal=None)


def rule_of(path, config=PUBLISHED.config, name=DEFAULT.name):
    return ARCHITECTURES[name].config_table.rule(path, config, "reference")


KEYS = {
    name: [path for path, _ in leaves_of(DIRECTORY[name].config, each.config_table.is_section)]
    for name, each in FAMILY.items()
}
OF_DEFAULT = KEYS[DEFAULT.name]
BASES = {name: outcome(directory.config, name) for name, directory in DIRECTORY.items()}
BASE = BASES[DEFAULT.name]
OF_ALL = [
    pytest.param(name, path, id=f"{name}-{'.'.join(path)}")
    for name in FAMILY
    for path in (*KEYS[name], *BESIDES[name])
]
SAME_MEANING = [
    # null is "as many as attention heads", which the published file says in a number
    (("num_key_value_heads",), None),
    # 225 pixels hold as many patches of 14 a side as 224 do
    (("vision_config", "width", "clip-l-14-224", "image_size"), 225),
    # the second key of the window counts where the first is null
    (("sliding_window_size",), None),
]
"""Other values of used keys that mean the same."""
CHECKED = {("max_position_embeddings",), ("pad_token_id",)}
"""Keys whose impossible values are refused although no figure depends on them."""


@pytest.mark.parametrize("name", FAMILY)
def test_the_published_file_says_nothing_that_would_be_warned_of(name):
    assert (BASES[name].warnings, BASES[name].refusal, len(OF_DEFAULT)) == ((), None, 80)


def values_of(name, path):
    return BESIDES[name].get(path) or others(at(DIRECTORY[name].config, path))


def assert_told(name, config, path, found):
    """What came of a change is named, has a reason, or is a change of figures."""
    value, rule, same = at(config, path), rule_of(path, config, name), BASES[name].figures
    context = (path, value, rule, found.warnings, found.refusal)
    if found.refusal is not None:
        # The key, its value or the part that does not fit, and the right ones: its own, or those
        # of the key that it meets.
        last = str(value[-1]) if isinstance(value, list) and value else shown(value)
        assert path[-1] in found.refusal, context
        assert "give " in found.refusal, context
        assert shown(value) in found.refusal or last in found.refusal, context
        assert not isinstance(rule, Harmless | Unread) or path in CHECKED, context
    elif isinstance(rule, Unread):
        read = shown(at(config, rule.of))
        said = f"{dotted(path)} is {shown(value)}, but {dotted(rule.of)}, which is read, is {read};"
        assert found.figures == same, context
        assert found.warnings == (f"config.json: {said} {read} counts",), context
    elif found.figures == same:
        assert isinstance(rule, Harmless) or (path, value) in SAME_MEANING, context
        assert rule == USED or (rule.reason and found.warnings == ()), context
    else:
        assert rule == USED, context


@sampled(("name", "path"), OF_ALL, every(9))
def test_a_changed_key_is_never_silent(name, path):
    for value in values_of(name, path):
        if (path, value) != (("model_type",), None):
            config = changed(DIRECTORY[name].config, path, value)
            assert_told(name, config, path, outcome(config, name))


@sampled(("name", "path"), OF_ALL, every(8))
def test_a_missing_key_is_a_default_or_is_refused_by_name(name, path):
    config = DIRECTORY[name].config
    found = outcome(config if path in BESIDES[name] else without(config, path), name)
    if found.refusal is not None:
        assert f"lacks {dotted(path)}" in found.refusal
        return
    assert found.figures == BASES[name].figures
    # nothing is lost with them: they say what counts anyway
    is_told = path == ("sliding_window_size",) or path in BESIDES[name]
    is_unused = isinstance(rule_of(path, config, name), Harmless | Unread | Fixed)
    assert is_told or (is_unused and found.warnings == ())


def test_the_last_of_sams_channels_may_be_the_width_that_is_built():
    path = "vision_config.width.sam_vit_b.downsample_channels"
    found = [outcome(with_all(DIRECTORY[OCR2].config, {path: [512, n]}), OCR2) for n in (896, 900)]
    assert found[0] == BASES[OCR2]
    assert "give [512, 896]" in found[1].refusal


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
    (LATENT | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "max_position_embeddings", 16),
    ({"projector_config": {"projector_type": "mlp_gelu"}}, "projector_config.depth", 2),
    (
        {"projector_config": {"projector_type": PAIR, "input_dim": [128, 128]}},
        "projector_config.channel_div",
        0.25,
    ),
]


@sampled(("base", "path", "value"), USED_ELSEWHERE, every(6), ids=str)
def test_keys_that_only_some_models_use_change_figures_of_those(base, path, value):
    before = small_directory(**base).config
    after = with_all(before, {path: value})
    assert rule_of(tuple(path.split(".")), after) == USED
    assert outcome(before).figures != outcome(after).figures is not None


REFUSED_WHERE_USED = [
    *("token_pooling", "conv_fusion_high_low_features", "downsample_ratio", "mlp_ratio")
]
"""Keys of projectors with which the model cannot be built, as `REFUSALS` have it."""


def cases_of(rule):
    return [rule.then, *cases_of(rule.otherwise)] if isinstance(rule, Conditional) else [rule]


def test_every_used_key_of_the_table_is_proved_to_be_used():
    proved = {tuple(path.split(".")) for _, path, _ in USED_ELSEWHERE}
    proved |= {("projector_config", key) for key in REFUSED_WHERE_USED}
    proved |= {("rope_scaling", "rope_type")}  # in a test below
    for path, rule in CONFIG_TABLE.rules.items():
        in_the_file = path in OF_DEFAULT and rule_of(path) == USED  # so changes of it are tested
        assert in_the_file or path in proved or USED not in cases_of(rule), path


NO_EXPERTS = {"first_k_dense_replace": 12}


@sampled(
    ("layers", "key"),
    [({"first_k_dense_replace": 0}, "intermediate_size"), (NO_EXPERTS, "moe_intermediate_size"),
     ({"moe_layer_freq": 12}, "moe_intermediate_size"),  # of 12 layers, the first is dense
     (NO_EXPERTS, "num_experts_per_tok"), (NO_EXPERTS, "n_shared_experts")],
    first(3),
)  # fmt: skip
def test_keys_of_layers_that_there_are_not_are_harmless(layers, key):
    for others_of, is_harmless in ((layers, True), ({}, False)):
        base = {**PUBLISHED.config, **others_of}
        config = {**base, key: base[key] - 1}
        assert isinstance(rule_of((key,), config), Harmless) == is_harmless
        assert (outcome(config).figures == outcome(base).figures) == is_harmless


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_the_rotary_type_of_plain_attention_counts_where_it_is_dynamic(key):
    scaled = [{key: kind, "factor": 2.0} for kind in ("linear", "yarn", "dynamic")]
    linear, yarn, dynamic = (
        outcome(small_directory(rope_scaling=each, max_position_embeddings=16).config)
        for each in scaled
    )
    assert linear == yarn
    assert linear.figures is not None
    assert "'rope_scaling' of type 'dynamic'" in dynamic.refusal


@pytest.mark.parametrize(
    ("decoder", "path", "winner"),
    [({}, "type", "rope_type"), (LATENT, "rope_type", "type")],
    ids=["plain attention", "latent attention"],
)
def test_the_two_names_of_the_rotary_type_are_told_apart(decoder, path, winner):
    both, one, same = (
        outcome(small_directory(**decoder, rope_scaling=kinds | {"factor": 2.0}).config)
        for kinds in (
            {path: "linear", winner: "yarn"},
            {winner: "yarn"},
            dict.fromkeys((path, winner), "yarn"),
        )
    )
    assert both.figures == one.figures
    assert both.warnings == (
        f"config.json: 'rope_scaling.{path}' is 'linear', but 'rope_scaling.{winner}', which is"
        " read, is 'yarn'; 'yarn' counts",
    )
    assert same.warnings == ()


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


def both_counts(config):
    """What each engine counts, and the warnings of the trace."""
    directory = dataclasses.replace(PUBLISHED, config=config)
    page = PAGES[DEFAULT.name]
    traced, agreement = DeepSeekOCRSession.from_directory(directory).figures(page)
    composed = analytic.page_figures(directory, page)
    assert agreement is not None
    assert traced.warnings == composed.warnings
    return counts(traced), counts(composed), composed.warnings


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("decoder", "values"),
    [
        ({}, HARMLESS_VALUES),
        (LATENT | {"rope_scaling": {"type": "yarn", "factor": 4.0}}, OF_YARN),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, OF_YARN),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, OF_YARN),
    ],
    ids=["all at once", "latent", "plain", "newer name"],
)
def test_harmless_keys_change_no_figure_of_either_engine(decoder, values):
    before = small_directory(**decoder).config
    assert both_counts(with_all(before, values)) == both_counts(before)


def test_every_harmless_key_is_among_them():
    config = with_all(small_directory().config, HARMLESS_VALUES)
    harmless = {
        ".".join(path) for path in CONFIG_TABLE.rules if isinstance(rule_of(path, config), Harmless)
    }
    # `auto_map` names the files that are run; rotary types have tests of their own
    apart = {"auto_map", "rope_scaling.type", "rope_scaling.rope_type", *OF_YARN}
    assert harmless == set(HARMLESS_VALUES) | apart


@sampled(
    "path",
    [path for path, rule in CONFIG_TABLE.rules.items() if isinstance(rule, Fixed)],
    every(4),
    ids=".".join,
)
def test_what_is_not_modelled_is_refused_by_both_engines(path):
    rule, published = CONFIG_TABLE.rules[path], PUBLISHED.config
    for right in rule.values:
        assert outcome(changed(published, path, right)) == BASE
    rights = [(type(right), right) for right in rule.values]
    wrong = [v for v in (*others(rule.values[0]), True, 0) if (type(v), v) not in rights]
    refusals = []
    for value in wrong:
        config = changed(published, path, value)
        refusals.append(outcome(config).refusal)
        assert f"{dotted(path)} is {shown(value)}: {rule.reason}" in refusals[-1]
        assert refusals[-1].endswith("; give " + " or ".join(map(shown, rule.values)))
        with pytest.raises(ConfigError) as error:
            DeepSeekOCRSession.from_local(config=config)
        assert str(error.value) == refusals[-1]
    # the same in the section that repeats the top level, where that lacks the key
    config = without(published, path) if path in OF_DEFAULT else published
    nested = ("language_config", *path)
    assert f"{dotted(nested)} is " in outcome(changed(config, nested, wrong[0])).refusal
    # published code ignores some
    config = changed(published, path, wrong[0])
    found = findings_of(config, CONFIG_TABLE, "published")
    if not rule.ignored_by_published:
        assert [message for message, _ in found.refusals] == refusals[:1]
        return
    assert found.refusals == ()
    assert found.warnings[0] == (
        f"config.json: {dotted(path)} is {shown(wrong[0])}, which the directory's code does not"
        " read; no figure includes it"
    )
    assert DEFAULT.forms.dimensions(config, "published") == PUBLISHED.dimensions()


def test_a_default_of_transformers_says_nothing():
    """What `save_pretrained` writes of every attribute, with new names for none of them."""
    session = DeepSeekOCRSession.from_directory(small_directory())
    saved = json.loads(session.model.config.to_json_string(use_diff=False))
    found = outcome({**saved, "auto_map": PUBLISHED.config["auto_map"]})
    assert found == outcome(small_directory().config)
    assert (found.warnings, found.refusal) == ((), None)


@pytest.mark.parametrize(
    ("copied", "warnings"),
    [
        (PUBLISHED.config["language_config"] | {"attention_bias": False}, 0),
        (
            PUBLISHED.config["language_config"] | {"attention_bias": True},
            ["config.json: 'language_config.attention_bias' is true, which nothing reads:"
             " 'attention_bias' is read instead, but is missing and counts as false"],
        ),
        (None, 0),
        ([], 1),
        (5, 1),
    ],
)  # fmt: skip
def test_the_section_that_repeats_the_top_level_counts_where_that_has_no_value(copied, warnings):
    found = outcome({**PUBLISHED.config, "language_config": copied})
    assert found.figures == BASE.figures
    assert warnings in (len(found.warnings), [*found.warnings])


# --- keys that nobody knows --------------------------------------------------------------------

SECTIONS = [(), *sorted(CONFIG_TABLE.sections), ("language_config",)]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2000) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
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
    for code, left_out in (("reference", "no figure includes it"), ("other", "no closed form inc")):
        found = findings_of(config, CONFIG_TABLE, code)
        [warning] = found.warnings
        said = f"config.json: {shown('.'.join(path))} is unknown; {left_out}"
        assert (warning[: len(said)], found.refusals) == (said, ())


def test_many_unknown_keys_are_counted_and_a_dot_in_a_name_makes_no_section():
    many = {"rope_scaling.type": "yarn", **{f"x{i}": i for i in range(10_019)}}
    first, *_, last = found = outcome({**PUBLISHED.config, **many}).warnings
    assert first.startswith("config.json: 'rope_scaling.type' is unknown")
    assert (len(found), last) == (21, "config.json: 10,000 more keys are unknown")


# --- the published code, which reads neither section of the vision side ------------------------

BUILT = dict(leaves_of(PUBLISHED_SECTIONS, CONFIG_TABLE.is_section))


def test_the_reference_is_set_up_as_the_published_code_is_built():
    read = {path for path in OF_DEFAULT if path[0] in PUBLISHED_SECTIONS and rule_of(path) == USED}
    assert read <= set(BUILT)
    for path in BUILT.keys() & {*OF_DEFAULT}:
        assert at(PUBLISHED.config, path) == BUILT[path]


def of_published_code(config):
    """Dimensions of what the published code builds, and the warnings."""
    found = findings_of(config, CONFIG_TABLE, "published")
    assert found.refusals == ()
    return DEFAULT.forms.dimensions(config, "published"), found.warnings


@pytest.mark.parametrize("path", BUILT, ids=".".join)
def test_the_published_code_builds_the_same_whatever_these_keys_say(path):
    built = shown(BUILT[path])
    for value in [*others(BUILT[path]), "no such type", -7]:
        assert of_published_code(changed(PUBLISHED.config, path, value)) == (
            PUBLISHED.dimensions(),
            (
                f"config.json: {dotted(path)} is {shown(value)}, but the directory's code does not"
                f" read it and builds {built}; {built} counts",
            ),
        )


@pytest.mark.parametrize("section", PUBLISHED_SECTIONS)
def test_the_published_code_needs_no_section_of_the_vision_side(section):
    absent = without(PUBLISHED.config, (section,))
    for config, warned in (
        (absent, 0),
        ({**absent, section: None}, 0),
        ({**absent, section: 7}, 1),
    ):
        built, warnings = of_published_code(config)
        assert (built, len(warnings)) == (PUBLISHED.dimensions(), warned)


def test_the_published_code_has_one_projector_of_one_width():
    deeper = {"projector_config.projector_type": "mlp_gelu", "projector_config.depth": 2}
    built, (kind, depth) = of_published_code(with_all(PUBLISHED.config, deeper))
    assert "'projector_config.projector_type' is 'mlp_gelu'" in kind
    assert "'projector_config.depth' is 2, which the directory's code does not read" in depth
    assert DEFAULT.forms.parameter_count(built) == 3_336_106_240
    with pytest.raises(ConfigError, match="'hidden_size' is 640; give 1280"):
        of_published_code({**PUBLISHED.config, "hidden_size": 640})


# --- what commands say of a config's keys, and whose code reads them: reference, published, other

SMALL = ("--page", "600x500", "--crop-mode", "0", "--base-size", "256", "--image-size", "256", "-q")
UNKNOWN = "config.json: 'num_hidden_layer' is unknown; no figure includes it"
TYPO = {"num_hidden_layer": 6}
WINDOW = {"sliding_window_size": 128}
OF_OTHER_FILES = {
    "temperature": 0.3, "torch_dtype": "float32", "architectures": ["X"], "use_cache": False,
    "transformers_version": "4.57.0", "_name_or_path": "/x", "id2label": {"0": "a"},
    "auto_map": {"AutoModel": "file.Class"}, "vision_config.torch_dtype": "float32",
    "vision_config.transformers_version": "4.57.0",
}  # fmt: skip
COMMANDS = {
    "": (*SMALL, "--engine", "analytic"),
    "trace": (*SMALL, "--engine", "trace"),
    "sweep": ("sweep", "--page", "600x500"),
    "archive": ("archive", "pages.csv"),
    "fit": ("fit", "h100-sxm", "--page", "600x500"),
    "time": ("time", "h100-sxm", "--page", "600x500"),
    "compare": ("compare", "tiny", "--page", "600x500", "--engine", "analytic"),
    "tree": ("tree", "--depth", "1", "--no-trace"),
    "docs": ("docs", "--output", "docs"),
}


@pytest.fixture
def tmp_path(tmp_path, monkeypatch):
    """Where commands run, too, with a list of pages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "pages.csv").write_text("width,height\n600,500\n")
    return tmp_path


def written(path: Path, config=PUBLISHED.config, **changes) -> Path:
    path.write_text(json.dumps(with_all(config, changes)))
    return path


@sampled(
    ("name", "options", "changes", "expected", "said", "times"),
    [
        ("", ["--strict"], OF_OTHER_FILES, 0, "", 1),
        ("", ["--strict"], TYPO, 3, UNKNOWN, 2),
        ("sweep", ["--strict"], TYPO, 3, UNKNOWN, 2),
        ("archive", ["--strict"], TYPO, 3, UNKNOWN, 2),
        ("docs", [], TYPO | WINDOW, 2, UNKNOWN, 1),
        (
            "", [], {"language_config.num_experts_per_tok": 8}, 0,
            "config.json: 'language_config.num_experts_per_tok' is 8, but 'num_experts_per_tok',"
            " which is read, is 6; 6 counts", 1,
        ),
        (
            "", [], {"projector_config.projector_typ": "mlp_gelu"}, 0,
            "config.json: 'projector_config.projector_typ' is unknown; no figure includes it", 1,
        ),
        *(
            (engine, [], changes, 2, said, 1)
            for engine in ("trace", "")
            for changes, said in (
                (WINDOW, "'sliding_window_size' is 128: "),
                ({"pretraining_tp": 2}, "'pretraining_tp' is 2: "),
                ({"language_config.sliding_window": 64}, "'language_config.sliding_window' is"),
                ({"hidden_act": "swoosh"}, "'swoosh'"),
                ({"projector_config.projector_type": "conv"}, "'conv'"),
            )
        ),
        *(
            (name, [], *rest)
            for name in [*COMMANDS][2:-1]
            for rest in (
                ({}, 0, "warning", 0),
                (TYPO, 0, UNKNOWN, 1),
                (WINDOW, 2, "'sliding_window_size' is 128: it bounds", 1),
            )
        ),
    ],
    first(12),
)  # fmt: skip
def test_every_command_that_reads_a_config_says_what_it_does_not_read(
    capsys, tmp_path, name, options, changes, expected, said, times
):
    config = written(tmp_path / "c.json", **changes)
    code, out, err = run(capsys, *COMMANDS[name], *options, "--config", config)
    assert (code, err.count(said)) == (expected, times)
    if "-q" in COMMANDS[name] and "--strict" not in options:
        assert (out, err.count("\n")) == ("", 1)


def test_a_report_has_its_warnings(capsys, tmp_path):
    config = written(tmp_path / "c.json", **TYPO)
    said = f"dsocr-analyze: warning: {UNKNOWN}\n"
    assert run(capsys, *COMMANDS[""], "--config", config) == (0, "", said)
    report = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())
    assert [*report["warnings"], report["notes"][0]] == [UNKNOWN, UNKNOWN]


def test_a_key_that_stands_twice_is_refused(capsys, tmp_path):
    config = written(tmp_path / "c.json")
    config.write_text(config.read_text()[:-1] + ', "vocab_size": 5}')
    code, _, err = run(capsys, *COMMANDS[""], "--config", config)
    assert code == 2
    assert "c.json': 'vocab_size' appears twice in one object, as 129280 and as 5" in err


# --- code that is neither the reference's nor the published model's ----------------------------


SMALL_MODEL = small_directory().config


def other_code(path: Path, config=SMALL_MODEL, **changes) -> ModelDirectory:
    """The reference's files as a directory of their own, around a small decoder."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(DEFAULT.reference, path, ignore=ignored)
    written(path / "config.json", config, **changes)
    return ModelDirectory.read(path)


def session(directory: ModelDirectory) -> DeepSeekOCRSession:
    return DeepSeekOCRSession.from_directory(directory, trust_remote_code=True)


def test_closed_forms_say_what_they_assume_of_it(capsys, tmp_path):
    directory = other_code(tmp_path / "m")
    assert directory.code == "other"
    figures = analytic.page_figures(directory, CODE_PAGE)
    assert figures.warnings == ()
    [said] = [note for note in figures.notes if "assume" in note]
    assert "builds the model in config.json; a trace shows what it runs" in said
    for name in ("fit", "time"):
        _, _, err = run(capsys, *COMMANDS[name], "--model", tmp_path / "m")
        assert f"dsocr-analyze: assumed: {said}\n" in err
    assert not any("assume" in n for n in analytic.page_figures(PUBLISHED, CODE_PAGE).notes)


@pytest.mark.exhaustive
@pytest.mark.directory
def test_what_a_trace_sees_of_it_stands_without_closed_forms(tmp_path):
    plain, sliced = other_code(tmp_path / "m"), other_code(tmp_path / "n", pretraining_tp=2)
    [figures, agreement], [before, _] = (
        session(each).figures(CODE_PAGE) for each in (sliced, plain)
    )
    assert agreement is None
    assert figures.prefill_pass == before.prefill_pass  # this code does not read the key
    [warning] = figures.warnings
    assert warning.startswith("no analytic figures to compare the trace with: config.json:")
    assert "'pretraining_tp' is 2: it splits projections into slices" in warning


@pytest.mark.directory
def test_a_failure_of_its_own_is_told_with_what_is_odd_about_the_config(tmp_path):
    directory = other_code(tmp_path / "m", num_experts_per_tok=100)
    with pytest.raises(ModelCodeError, match="k not in range") as caught:
        session(directory).figures(CODE_PAGE)
    assert "; config.json: 'num_experts_per_tok' is 100; give at most" in str(caught.value)


def test_what_published_code_cannot_build_is_refused_before_torch_is_there(
    capsys, tmp_path, monkeypatch
):
    heads = {"num_attention_heads": 7, "num_key_value_heads": 7}
    directory = other_code(tmp_path / "m", PUBLISHED.config, **heads)
    monkeypatch.setattr(ModelDirectory, "runs_code", lambda *_: True)
    monkeypatch.setattr("dsocr_analyze.analysis.start_torch", pytest.fail)
    code, _, err = run(
        capsys, "--model", tmp_path / "m", "--trust-remote-code", "--engine", "trace"
    )
    assert code == 2
    assert "'num_attention_heads' is 7; give a divisor of 'hidden_size', 1280" in err
    with pytest.raises(ConfigError, match="'num_attention_heads' is 7"):
        session(directory)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sliding_window_size", 128),
        ("_attn_implementation", "flash_attention_2"),
        ("quantization_config", {"quant_method": "fp8"}),
        ("num_beams", 4),
    ],
)
def test_what_a_trace_does_not_see_of_it_is_refused(tmp_path, key, value):
    with pytest.raises(ConfigError, match=f"'{key}' is "):
        session(other_code(tmp_path / "m", **{key: value}))


def test_without_files_to_build_from_it_is_other_code(tmp_path):
    written(tmp_path / "config.json", without(PUBLISHED.config, ("auto_map",)))
    directory = ModelDirectory.read(tmp_path)
    assert directory.code == "other"
    assert directory.dimensions() == PUBLISHED.dimensions()


# --- the published files -----------------------------------------------------------------------


def vendor(**changes) -> ModelDirectory:
    """The published files around a small decoder."""
    read = ModelDirectory.read(VENDOR)
    decoder = {
        "num_hidden_layers": 2, "vocab_size": 1000, "n_routed_experts": 8,
        "moe_intermediate_size": 72,
    }  # fmt: skip
    config = without(read.config, ("language_config",)) | decoder | changes
    return dataclasses.replace(read, config=config)


OTHER_VISION = {
    "projector_config": {
        "projector_type": "mlp_gelu", "depth": 3, "input_dim": 1024, "n_embed": 640
    },
    "vision_config": {
        "image_size": 512,
        "width": {
            "clip-l-14-224": {
                "heads": 8, "image_size": 112, "layers": 2, "patch_size": 16, "width": 512
            },
            "sam_vit_b": {
                "downsample_channels": [64, 512], "global_attn_indexes": [1], "heads": 4,
                "layers": 2, "width": 256,
            },
        },
    },
}  # fmt: skip


@pytest.mark.vendor
@needs_vendor
def test_the_code_builds_the_same_whatever_the_vision_sections_say():
    plain, other, neither = (
        session(vendor(**changes))
        for changes in ({}, OTHER_VISION, {"vision_config": None, "projector_config": None})
    )
    shapes = [
        {name: each.shape for name, each in found.model.named_parameters()}
        for found in (plain, other, neither)
    ]
    assert shapes[0] == shapes[1] == shapes[2]
    (one, one_agrees), (two, two_agrees) = plain.figures(CODE_PAGE), other.figures(CODE_PAGE)
    assert one.prefill_pass == two.prefill_pass
    assert two.parameters == analytic.page_figures(vendor(**OTHER_VISION), CODE_PAGE).parameters
    assert one_agrees.stages == two_agrees.stages
    assert set(two.warnings) >= set(vendor(**OTHER_VISION).config_findings.warnings)


@pytest.mark.vendor
@needs_vendor
def test_a_window_that_the_code_ignores_is_warned_of():
    directory = vendor(sliding_window_size=128)
    warning = (
        "config.json: 'sliding_window_size' is 128, which the directory's code does not read;"
        " no figure includes it"
    )
    assert analytic.page_figures(directory, CODE_PAGE).warnings == (warning,)
    figures, _ = session(directory).figures(CODE_PAGE)
    assert warning in figures.warnings
    assert figures.batch == session(vendor()).figures(CODE_PAGE)[0].batch


@pytest.mark.vendor
@needs_vendor
def test_slices_that_the_code_cuts_are_traced_and_have_no_closed_form():
    directory = vendor(pretraining_tp=2)
    with pytest.raises(ConfigError, match="'pretraining_tp' is 2"):
        analytic.page_figures(directory, CODE_PAGE)
    (figures, agreement), (before, _) = (
        session(each).figures(CODE_PAGE) for each in (directory, vendor())
    )
    assert agreement is None
    assert figures.prefill_pass.matrix_flops == before.prefill_pass.matrix_flops
    assert figures.prefill_pass.vector_flops > before.prefill_pass.vector_flops


# --- dimensions read from a `config.json`, and the configurations that are refused ---------------

SAM = "vision_config.width.sam_vit_b"
CLIP = "vision_config.width.clip-l-14-224"
PROJECTOR = "projector_config"

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
    config = copy.deepcopy(PUBLISHED.config)
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
    found = PUBLISHED_DECODER.moe_layers, PUBLISHED_DECODER.shared_intermediate_size
    assert found == (11, 2 * 896)


LATENT_KEYS = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
EXPERT_KEYS = (
    *("n_shared_experts", "moe_intermediate_size", "num_experts_per_tok"),
    *("first_k_dense_replace", "topk_method", "n_group", "topk_group"),
)
OF_MLA = {
    "use_mla": True, "head_dim": 128 + 64, "kv_heads": 10, "q_lora_rank": 96, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 120,
}  # fmt: skip
OF_GROUPS = {"n_group": 8, "topk_group": 3, "scoring_func": "sigmoid"}
UNUSUAL = {
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
        *(({"topk_method": method, **OF_GROUPS}, (), {"topk_method": method, **OF_GROUPS})
          for method in ("group_limited_greedy", "noaux_tc")),
        ({}, ("n_group", "topk_group"), {"n_group": 1, "topk_group": 1}),
        *(({"rope_scaling": {"type": kind, "factor": 4}, **attention}, (), {"rope_scaling": kind})
          for kind in ("linear", "dynamic", "yarn") for attention in ({}, MLA)),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.5}}, (), {"rope_scaling": "yarn"}),
        (UNUSUAL, (), UNUSUAL),
    ],
    ids=str,
)  # fmt: skip
def test_other_decoders(changes, absent, expected):
    config = with_all(PUBLISHED.config, changes)
    kept = {key: value for key, value in config.items() if key not in absent}
    decoder = DecoderDimensions.from_config(kept)
    assert {name: getattr(decoder, name) for name in expected} == expected


def of_projector(**changes):
    return {f"{PROJECTOR}.{key}": value for key, value in changes.items()}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (of_projector(projector_type="mlp_gelu", depth=2), {"depth": 2}),
        (
            of_projector(projector_type=PAIR, input_dim=[1024, 1024], channel_div=0.25),
            {"input_dim": (1024, 1024), "channel_div": 0.25},
        ),
        (
            of_projector(projector_type="downsample_mlp_gelu", downsample_ratio=1),
            {"downsample_ratio": 1},
        ),
        (
            of_projector(projector_type="identity", n_embed=2048)
            | {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16},
            {"input_channels": 2048},
        ),
    ],
    ids=str,
)
def test_the_projector_of_a_whole_model(changes, expected):
    projector = ClipModelDimensions.from_config(with_all(PUBLISHED.config, changes)).projector
    assert {name: getattr(projector, name) for name in expected} == expected


def refusal(config, name=DEFAULT.name) -> str:
    with pytest.raises(ConfigError) as error:
        ARCHITECTURES[name].read_dimensions(config)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def test_an_absent_key_is_named():
    for changes, path, reason in (
        *(({}, path, "") for path in NEEDED),
        *((MLA, key, ", since 'use_mla' is true") for key in MLA if key != "use_mla"),
        *(({"topk_method": "noaux_tc"}, key, "") for key in ("n_group", "topk_group")),
    ):
        config = without({**PUBLISHED.config, **changes}, path.split("."))
        assert refusal(config) == f"config.json lacks '{path}'{reason}"


REFUSALS = [
    *(
        ({path: value}, f"config.json: '{path}' is {text}", "give ", "whole number")
        for path, value, text in [
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
        ]
    ),
    *(
        ({path: value}, f"'{path}' is ", f"give {right}")
        for path, value, right in [
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
        ]
    ),
    # contradictions in the decoder
    ({"hidden_size": 1284}, "'num_attention_heads' is 10; give a divisor of 'hidden_size'"),
    (
        {"num_key_value_heads": 3},
        "'num_key_value_heads' is 3; give a divisor of 'num_attention_heads', 10",
    ),
    ({"num_key_value_heads": 20}, "'num_key_value_heads' is 20; give a divisor"),
    ({"num_attention_heads": 256, "num_key_value_heads": 1}, "heads of even size, not 5"),
    ({"head_dim": 63}, "'head_dim' is 63; give a value that makes heads of even size"),
    ({"n_routed_experts": 910}, "is 910; give at most 909 to each of 11 MoE layers"),
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
    # in the vision half
    *(
        ({path: value}, said)
        for path, value, said in [
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
        ]
    ),
    # projectors that do not fit the model
    (of_projector(projector_type=PAIR), "'projector_config.input_dim' is 2048; give a list"),
    (of_projector(projector_type=PAIR, input_dim=[1024]), "give two whole numbers"),
    (of_projector(projector_type=PAIR, input_dim=[1024, 512]), "is (1024, 512); give 2048"),
    (of_projector(channel_div=1.0), "give a share that leaves each part a channel"),
    (of_projector(channel_div=1e-09), "give a share that leaves each part a channel"),
    (
        of_projector(projector_type="downsample_mlp_gelu"),
        "lacks 'projector_config.downsample_ratio'",
    ),
    (
        of_projector(projector_type="downsample_mlp_gelu", downsample_ratio=2),
        "'projector_config.downsample_ratio' is 2, which merges tokens",
    ),
    (of_projector(token_pooling=True), "'projector_config.token_pooling' is true, which merges"),
    (
        of_projector(conv_fusion_high_low_features=True),
        "conv_fusion_high_low_features' is true, which takes two feature maps",
    ),
    (
        of_projector(projector_type="low_high_split_mlp_gelu"),
        "is 'low_high_split_mlp_gelu', which takes two feature maps",
    ),
    (of_projector(projector_type="identity"), "is 'identity', which passes on 2048 features"),
    (
        of_projector(projector_type=PAIR, input_dim=[1024, 1024], token_pooling=True),
        "'projector_config.token_pooling' is true, which merges",
    ),
]
"""Changes of the published config, and what is said of them."""


QWEN = "vision_config.width.qwen2-0-5b"
REFUSALS_OF_OCR2 = [
    ({f"{QWEN}.heads": 5}, f"'{QWEN}.heads' is 5; give a number of heads of even size for"),
    ({f"{QWEN}.key_value_heads": 4}, f"'{QWEN}.key_value_heads' is 4; give a divisor of 14"),
    ({f"{QWEN}.view_sizes": [768, 720]}, "give sizes of views that become different numbers of"),
    (of_projector(input_dim=48), "'projector_config.input_dim' is 48; give 896"),
    (of_projector(n_embed=30), "'projector_config.n_embed' is 30; give 1280"),
    ({f"{SAM}.downsample_channels": [12, 20, 24]}, "give two whole numbers"),
]


@pytest.mark.parametrize(("name", "refusals"), [(DEFAULT.name, REFUSALS), (OCR2, REFUSALS_OF_OCR2)])
def test_what_is_impossible_is_refused_with_what_is_possible(name, refusals):
    for changes, *said in refusals:
        message = refusal(with_all(DIRECTORY[name].config, changes), name)
        assert [part for part in said if part not in message] == [], (changes, message)


@pytest.mark.parametrize("config", [[], None, "config", 5])
def test_no_object_at_all(config):
    assert "the top level" in refusal(config)


@pytest.mark.exhaustive
@given(st.sampled_from(NEEDED), JSON)
def test_any_value_anywhere_gives_dimensions_or_a_refusal_on_one_line(path, value):
    refused = ""
    try:
        ClipModelDimensions.from_config(with_all(PUBLISHED.config, {path: value}))
    except AnalyzeError as error:
        refused = str(error)
    assert "\n" not in refused
