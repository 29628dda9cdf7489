"""The closed forms of a whole page against a trace of it, to the integer."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from closed_forms import LATENT, by_both_engines, directory_with, small_directory
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dsocr_analyze.costs import compare_with_trace, page_costs
from dsocr_analyze.costs.peak import peak_moments
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.model.dimensions import ModelDimensions
from dsocr_analyze.model.directory import REFERENCE_DIRECTORY
from dsocr_analyze.model.stages import STAGES, owner_of
from dsocr_analyze.work import NO_WORK
from dsocr_analyze.workload import plan_workload

GOLDENS = json.loads((Path(__file__).parent / "data" / "golden_workloads.json").read_text())
DIMENSIONS = ModelDimensions.from_file(REFERENCE_DIRECTORY / "config.json")


def assert_agreement(page):
    """Every quantity of every module; parameters; cache; peak within a percent."""
    params = dict.fromkeys(STAGES, 0)
    for name, parameter in page.model.module.named_parameters():
        if owner := owner_of(name):
            params[owner] += parameter.numel()
    agreement = compare_with_trace(page.costs, page.operators, params=params)
    assert agreement.warning is None
    assert agreement.agrees
    for stage in agreement.stages.values():
        assert stage.vector_flops_left_out < 0.001
        assert stage.bytes_left_out < 0.001
    total = sum(parameter.numel() for parameter in page.model.module.parameters())
    assert page.costs.params == total
    for stage, summary in page.stages.items():
        assert page.costs.stages[stage].work == summary.work
    peak = page.traces.prefill.peak_bytes
    assert abs(page.costs.peak_activation_bytes - peak) <= 0.01 * peak
    assert page.costs.prefill == summed(page.traces.prefill)


def summed(trace):
    total = NO_WORK
    for entry in trace.entries:
        total = total.plus(entry.work)
    return total


def workload_of(golden, **changes):
    return plan_workload(
        **{
            "page": tuple(golden["page"]),
            "base_size": golden["base_size"],
            "image_size": golden["image_size"],
            "crop_mode": golden["crop_mode"],
            "text_tokens": golden["text_tokens"],
        }
        | changes
    )


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: str(golden["seq_len"]))
def test_golden_workloads(golden):
    costs = page_costs(DIMENSIONS, workload_of(golden))
    flops = {stage: costs.stages[stage].work.matrix_flops for stage in STAGES}
    expected = golden["matrix_flops"]
    assert flops["sam"] == expected["sam"]
    assert flops["clip"] == expected["clip"]
    assert flops["projector"] == expected["projector"]
    assert flops["prefill"] == expected["layers"] + expected["lm_head"]
    assert costs.prefill.matrix_flops == expected["total"]
    head = costs.stages["prefill"].centres["lm_head"]
    assert head.matrix_flops == expected["lm_head"]
    assert flops["decode"] == golden["decode_step_matrix_flops"]["total"]


def test_published_parameters():
    costs = page_costs(DIMENSIONS, workload_of(GOLDENS[0]))
    assert {stage: costs.stages[stage].params for stage in STAGES} == {
        "sam": 95_569_152,
        "clip": 303_177_728,
        "projector": 2_622_720,
        "prefill": 2_769_255_680,
        "decode": 165_478_400,
    }
    assert costs.unassigned_params == 2_560
    assert costs.params == 3_336_106_240
    assert costs.weights_bytes == 6_672_212_480
    assert costs.kv_bytes_per_token == 61_440


@pytest.mark.parametrize("flash", [False, True], ids=["eager", "flash"])
def test_the_published_model_agrees_with_its_trace(flash):
    assert_agreement(by_both_engines(directory_with(), flash=flash, page=(1191, 1684)))


PAGES = {
    "one view": {"page": (500, 500), "base_size": 256},
    "odd views": {"page": (1000, 1500), "base_size": 205, "image_size": 133},
    "one token a view": {"page": (2000, 500), "base_size": 79, "image_size": 64},
    "a column of views": {"page": (300, 900), "base_size": 224, "image_size": 224},
    "windows that fit": {"page": (500, 500), "base_size": 448},
    "no resizing": {"page": (500, 500), "base_size": 1024},
    "long text": {"page": (500, 500), "base_size": 128, "text_tokens": 700},
}

DECODERS = {
    "published shape": {},
    "dense": {"n_routed_experts": None},
    "grouped": {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True},
    "one kv head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 96},
    "latent": LATENT,
    "latent, low-rank queries": {**LATENT, "q_lora_rank": 96, "attention_bias": True},
    "latent, equal heads": {**LATENT, "v_head_dim": 80},
    "latent, linear": {**LATENT, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "latent, dynamic": {
        **LATENT,
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
        "max_position_embeddings": 40,
    },
    "latent, yarn": {**LATENT, "rope_scaling": {"type": "yarn", "factor": 2.0}},
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 2.0}},
    "sigmoid, noaux_tc": {
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "num_experts_per_tok": 3,
    },
    "group-limited": {
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "n_shared_experts": None,
    },
    "every other layer": {"moe_layer_freq": 2, "num_hidden_layers": 5},
    "more experts than choices": {"n_routed_experts": 96, "num_experts_per_tok": 1},
    "another activation": {"hidden_act": "gelu"},
    "mlp projector": {"projector_config": {"projector_type": "mlp_gelu", "depth": 3}},
    "split projector": {
        "projector_config": {
            "projector_type": "hybrid_split_feature_mlp_gelu",
            "input_dim": [1024, 1024],
            "depth": 2,
        }
    },
    "identity projector": {
        "hidden_size": 2048,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "projector_config": {"projector_type": "identity", "n_embed": 2048},
    },
}


@pytest.mark.parametrize("name", DECODERS)
def test_another_config_agrees(name):
    directory = small_directory(**DECODERS[name])
    flash = len(name) % 2 == 0
    assert_agreement(
        by_both_engines(
            directory, flash=flash, page=(1000, 700), base_size=256, image_size=192, batch_size=2
        )
    )


@pytest.mark.parametrize("name", PAGES)
def test_another_page_agrees(name):
    assert_agreement(by_both_engines(small_directory(), **PAGES[name]))


sizes = st.one_of(st.integers(4, 60).map(lambda patches: 16 * patches), st.integers(64, 960))


@st.composite
def decoders(draw):
    """A small decoder: MHA, GQA or latent, dense or mixed, of any depth and width."""
    heads = draw(st.sampled_from([1, 2, 4]))
    width = heads * 2 * draw(st.integers(4, 40))
    changes = {
        "num_hidden_layers": draw(st.integers(1, 4)),
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])),
        "vocab_size": draw(st.integers(100, 3000)),
        "intermediate_size": draw(st.integers(8, 900)),
        "attention_bias": draw(st.booleans()),
        "projector_config": {"n_embed": width},
    }
    if draw(st.booleans()):
        groups = draw(st.sampled_from([1, 2, 4]))
        experts = groups * draw(st.integers(2, 8))
        chosen = draw(st.integers(1, groups))
        changes |= {
            "n_routed_experts": experts,
            "moe_intermediate_size": draw(st.integers(4, 200)),
            "n_shared_experts": draw(st.sampled_from([None, 1, 2])),
            "num_experts_per_tok": draw(st.integers(1, min(6, experts // groups * chosen))),
            "topk_method": draw(st.sampled_from(["greedy", "group_limited_greedy", "noaux_tc"])),
            "scoring_func": draw(st.sampled_from(["softmax", "sigmoid"])),
            "norm_topk_prob": draw(st.booleans()),
            "n_group": groups,
            "topk_group": chosen,
            "first_k_dense_replace": draw(st.integers(0, 2)),
        }
    else:
        changes["n_routed_experts"] = None
    if draw(st.booleans()):
        kinds = [None, "linear", "dynamic", "yarn"]
        kind = draw(st.sampled_from(kinds))
        changes |= {
            "use_mla": True,
            "num_key_value_heads": heads,
            "kv_lora_rank": draw(st.integers(1, 64)),
            "q_lora_rank": draw(st.sampled_from([None, 24])),
            "qk_rope_head_dim": 2 * draw(st.integers(1, 16)),
            "qk_nope_head_dim": draw(st.integers(20, 48)),
            "v_head_dim": draw(st.integers(4, 20)),
            "max_position_embeddings": draw(st.sampled_from([50, 8192])),
            "rope_scaling": None if kind is None else {"type": kind, "factor": 2.0},
        }
    return changes


@settings(
    max_examples=25,
    deadline=None,
    # A failing example is small enough to read; shrinking it would trace for minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    changes=decoders(),
    page=st.tuples(st.integers(1, 2500), st.integers(1, 2500)),
    base_size=sizes,
    image_size=sizes,
    crop_mode=st.booleans(),
    text_tokens=st.integers(1, 200),
    batch_size=st.integers(1, 3),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    flash=st.booleans(),
)
def test_any_model_and_page_agree(changes, dtype, flash, **page):
    assert_agreement(by_both_engines(small_directory(**changes), dtype=dtype, flash=flash, **page))


@pytest.mark.parametrize("name", ["published shape", "latent", "latent, dynamic", "dense"])
@pytest.mark.parametrize("flash", [False, True])
def test_a_page_is_the_prefill_pass_and_every_step_over_its_growing_cache(name, flash):
    page = by_both_engines(
        small_directory(**DECODERS[name]),
        flash=flash,
        decode_steps=25,
        page=(300, 300),
        base_size=128,
        max_new_tokens=26,
    )
    assert page.costs.workload.seq_len < 40 < page.costs.workload.seq_len + 25
    total = summed(page.traces.prefill)
    for step in page.traces.decode_steps:
        total = total.plus(summed(step))
    assert page.costs.page == total


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("flash", [False, True])
def test_the_cache_has_the_bytes_of_the_traced_one(name, flash):
    from dsocr_analyze.model import accommodation
    from dsocr_analyze.trace.passes import _meta_flash_attention, prefill_inputs

    page = by_both_engines(
        small_directory(**DECODERS[name]), flash=flash, page=(9, 9), base_size=64, batch_size=2
    )
    workload = page.costs.workload
    with accommodation.running(page.model.device, _meta_flash_attention):
        output = page.model.module(**prefill_inputs(page.model, workload))
    held = sum(
        tensor.numel() * tensor.element_size()
        for layer in output.past_key_values
        for tensor in layer
    )
    assert page.costs.kv_bytes(workload.seq_len) == held
    grown = page.costs.kv_bytes_per_token * 2 * (workload.max_new_tokens - 1)
    assert page.costs.kv_cache_bytes == held + grown


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize(
    ("changes", "text_tokens", "flash", "moment"),
    [
        ({}, 10, False, "global view: sam"),
        ({"vocab_size": 90_000}, 300, False, "logits"),
        ({}, 1500, False, "moe layer: attention"),
        (LATENT, 1500, False, "moe layer: attention"),
        ({"n_routed_experts": 512}, 3000, True, "moe layer: moe"),
        ({"n_routed_experts": None, "intermediate_size": 4000}, 2000, True, "mlp layer: mlp"),
    ],
)
def test_the_peak_is_the_traced_one(changes, text_tokens, flash, moment, dtype):
    page = by_both_engines(
        small_directory(**changes),
        dtype=dtype,
        flash=flash,
        page=(500, 500),
        base_size=256,
        text_tokens=text_tokens,
    )
    traced = page.traces.prefill.peak_bytes
    assert abs(page.costs.peak_activation_bytes - traced) <= 0.01 * traced
    moments = peak_moments(
        page.costs.dimensions,
        page.costs.workload,
        element_bytes=dtype.itemsize,
        flash_attention=flash,
    )
    assert max(moments, key=moments.get).startswith(moment)


def test_what_a_causal_kernel_may_skip_is_what_the_trace_notes():
    page = by_both_engines(small_directory(), flash=True, page=(500, 500), base_size=256)
    assert page.costs.causal_savable_flops == page.stages["prefill"].causal_savable_flops


class TestCentres:
    def test_they_sum_to_their_stage(self):
        costs = page_costs(DIMENSIONS, workload_of(GOLDENS[0]))
        for stage in STAGES:
            total = NO_WORK
            for work in costs.stages[stage].centres.values():
                total = total.plus(work)
            assert total == costs.stages[stage].work

    def test_vision_centres_lie_under_their_stage(self):
        costs = page_costs(DIMENSIONS, workload_of(GOLDENS[0]))
        for stage in ("sam", "clip", "projector"):
            assert {owner_of(path) for path in costs.stages[stage].centres} == {stage}

    def test_counts_are_python_integers(self):
        costs = page_costs(DIMENSIONS, workload_of(GOLDENS[0], max_new_tokens=1 << 20))
        assert {type(count) for count in (*costs.page, *costs.decode_step)} == {int}


class TestExactness:
    def test_beyond_a_float_and_beyond_64_bits(self):
        """m steps over K, K + 1, ... are m K + m (m - 1) / 2 keys, to the last digit."""
        workload = workload_of(GOLDENS[0])
        long = dataclasses.replace(workload, max_new_tokens=3 * 10**9 + 2, batch_size=10**6)
        costs = page_costs(DIMENSIONS, long)
        step = page_costs(DIMENSIONS, dataclasses.replace(workload, batch_size=10**6))
        m, K = 3 * 10**9 + 1, workload.seq_len
        per_key = 10**6 * 12 * 2 * 10 * 128
        steps = m * (step.decode_step.macs - K * per_key) + per_key * (m * K + m * (m - 1) // 2)
        assert costs.page.macs == step.prefill.macs + steps
        assert costs.page.macs > 2**63


class TestBadConfigs:
    def test_a_projector_that_does_not_fit_is_named_with_the_ones_that_do(self):
        config = directory_with(projector_config={"projector_type": "low_high_split_mlp_gelu"})
        with pytest.raises(ConfigError, match="linear, mlp_gelu or hybrid"):
            ModelDimensions.from_config(config.config)

    def test_a_missing_key_is_named(self):
        config = dict(directory_with().config)
        del config["moe_intermediate_size"]
        with pytest.raises(ConfigError, match="moe_intermediate_size"):
            ModelDimensions.from_config(config)

    def test_an_activation_without_a_closed_form(self):
        dimensions = ModelDimensions.from_config(directory_with(hidden_act="mish").config)
        with pytest.raises(ConfigError, match=r"hidden_act.*mish"):
            page_costs(dimensions, workload_of(GOLDENS[0]))


def test_neither_torch_nor_numpy_is_imported():
    code = (
        "import sys, dsocr_analyze.costs as c\n"
        "from dsocr_analyze.model.dimensions import ModelDimensions\n"
        "from dsocr_analyze.workload import plan_workload\n"
        f"d = ModelDimensions.from_file({str(REFERENCE_DIRECTORY / 'config.json')!r})\n"
        "p = c.page_costs(d, plan_workload(page=(1000, 1000)))\n"
        "p.peak_activation_bytes, [s.centres for s in p.stages.values()]\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'fvcore') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
