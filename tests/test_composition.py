"""The closed forms of a whole page against a trace of it, kernel by kernel."""

import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from both_engines import (
    LATENT,
    PUBLISHED,
    by_both_engines,
    decoders,
    directory_with,
    small_directory,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sampling import first, named, sampled

from dsocr_analyze import analytic
from dsocr_analyze.architectures import DEFAULT, plan_workload
from dsocr_analyze.architectures.deepseek_ocr import ClipModelDimensions
from dsocr_analyze.errors import ConfigError
from dsocr_analyze.kernels import total_work, work_by
from dsocr_analyze.model.directory import read_config
from dsocr_analyze.trace.passes import trace_passes

GOLDENS = json.loads((Path(__file__).parent / "data" / "golden_workloads.json").read_text())
STAGES = DEFAULT.stage_names
DIMENSIONS = ClipModelDimensions.from_config(read_config(DEFAULT.reference / "config.json"))


def assert_agreement(page):
    """Every kernel of every module, calls, parameters, cache, inputs, batch and peak."""
    assert page.traced.warnings == page.analytic.warnings
    assert page.agreement.agrees
    for name, traced in page.traced.stages.items():
        composed = page.analytic.stages[name]
        left_out = page.agreement.not_modelled_share.get(name)
        assert left_out is None or left_out.vector_flops < 0.001
        if left_out is None:
            assert set(traced.kernels) == set(composed.kernels)
            assert traced.work == composed.work
        assert traced.module_calls == composed.module_calls
        assert (traced.params, traced.calls) == (composed.params, composed.calls)
    assert page.traced.parameters == page.analytic.parameters
    assert page.traced.memory == page.analytic.memory
    assert page.traced.causal_savable_flops == page.analytic.causal_savable_flops > 0


def summed(trace):
    return total_work(kernel.total for kernel in trace.kernels)


def figures_of(workload, directory=PUBLISHED):
    return analytic.page_figures(directory, workload)


def workload_of(golden, **changes):
    keys = ("base_size", "image_size", "crop_mode", "text_tokens")
    page = {"page": tuple(golden["page"])} | {key: golden[key] for key in keys}
    return plan_workload(**page | changes)


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: str(golden["seq_len"]))
def test_golden_workloads(golden):
    figures = figures_of(workload_of(golden))
    flops = {stage: figures.stages[stage].work.matrix_flops for stage in STAGES}
    head = figures.stages["prefill"].own["lm_head"].matrix_flops
    layers = flops["prefill"] - head
    assert flops["decode"] == golden["decode_step_matrix_flops"]["total"]
    total = figures.prefill_pass.matrix_flops
    found = flops | {"layers": layers, "lm_head": head, "total": total}
    assert {name: found[name] for name in golden["matrix_flops"]} == golden["matrix_flops"]


@pytest.mark.exhaustive
def test_published_parameters():
    figures = figures_of(workload_of(GOLDENS[0], max_new_tokens=1))
    assert {stage: figures.stages[stage].params for stage in STAGES} == {
        "sam": 95_569_152,
        "clip": 303_177_728,
        "projector": 2_622_720,
        "prefill": 2_769_255_680,
        "decode": 165_478_400,
    }
    assert sum(figures.parameters.unassigned.values()) == 2_560
    assert figures.parameters.total == 3_336_106_240
    assert figures.memory.weights_bytes == 6_672_212_480
    assert figures.memory.kv_cache_bytes == 61_440 * figures.workload.seq_len


@sampled("flash", [False, True], first(1), ids=["eager", "flash"])
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
    "an activation of many operators": {"hidden_act": "gelu_new"},
    "an activation that transformers knows": {"hidden_act": "laplace"},
    "mlp projector": {"projector_config": {"projector_type": "mlp_gelu", "depth": 3}},
    "split projector": {
        "projector_config": {
            "projector_type": "hybrid_split_feature_mlp_gelu",
            "input_dim": [128, 128],
            "depth": 2,
        }
    },
    "identity projector": {
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "projector_config": {"projector_type": "identity", "n_embed": 256},
    },
}


@sampled(("name", "flash"), itertools.product(DECODERS, (False, True)), named(("yarn", True)))
def test_another_config_agrees(name, flash):
    directory = small_directory(**DECODERS[name])
    page = {"page": (1000, 700), "base_size": 256, "image_size": 192, "batch_size": 2}
    assert_agreement(by_both_engines(directory, flash=flash, **page))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PAGES)
def test_another_page_agrees(name):
    assert_agreement(by_both_engines(small_directory(), **PAGES[name]))


sizes = st.one_of(st.integers(4, 60).map(lambda patches: 16 * patches), st.integers(64, 960))


@sampled("examples", [2, 40], first(1))
def test_any_model_and_page_agree(examples):
    @settings(
        max_examples=examples,
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
    def agree(changes, dtype, flash, **page):
        directory = small_directory(**changes)
        assert_agreement(by_both_engines(directory, dtype=dtype, flash=flash, **page))

    agree()


@pytest.mark.exhaustive
@pytest.mark.parametrize("trained", [43, 44, 45, 46, 50, 1064, 1065, 1066, 1067])
def test_passing_the_trained_length_while_generating_agrees(trained):
    """A step does more beyond it: the first, one in between, the last of them all, or none."""
    directory = small_directory(
        **LATENT, rope_scaling={"type": "dynamic", "factor": 2.0}, max_position_embeddings=trained
    )
    page = by_both_engines(
        directory, page=(1, 1), base_size=320, image_size=320, crop_mode=False, text_tokens=12
    )
    assert page.workload.seq_len == 43
    assert_agreement(page)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["published shape", "latent", "latent, dynamic", "dense"])
@pytest.mark.parametrize("flash", [False, True])
def test_a_batch_is_the_prefill_pass_and_every_step_over_its_growing_cache(name, flash):
    page = by_both_engines(
        small_directory(**DECODERS[name]),
        flash=flash,
        page=(300, 300),
        base_size=128,
        max_new_tokens=26,
    )
    session, workload = page.session, page.workload
    assert workload.seq_len < 40 < workload.seq_len + 25
    traces = trace_passes(session.loaded, workload, session.architecture, step_numbers=range(25))
    passes = map(summed, (traces.prefill, *traces.decode_steps))
    assert page.analytic.batch == total_work(passes)


DENSE = {"n_routed_experts": None, "intermediate_size": 4000}
HEAD = ("", "lm_head")


def rotary(kind, trained, size):
    """Rotary frequencies that a layer works out are alive to the end.

    At the logits they are in every layer; with many of them, a layer's tables are the peak.
    """
    return {
        **LATENT,
        "num_hidden_layers": 4,
        "qk_rope_head_dim": size,
        "max_position_embeddings": trained,
        "rope_scaling": {"type": kind, "factor": 2.0},
        "vocab_size": 20_000 if size == 16 else 50,
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("changes", "text_tokens", "flash", "modules", "size", "dtype"),
    [
        *(
            (*case, 256, dtype)
            for case in (
                ({}, 10, False, ["model.sam_model.blocks.0.attn.proj"]),
                ({"vocab_size": 90_000}, 300, False, HEAD),
                ({}, 1500, False, ["model.layers.2.self_attn"]),
                (LATENT, 1500, False, ["model.layers.2.self_attn"]),
                ({"n_routed_experts": 512}, 3000, True, ["model.layers.2.mlp"]),
                (DENSE, 2000, True, ["model.layers.2.mlp"]),
            )
            for dtype in (torch.bfloat16, torch.float32)
        ),
        *(
            (rotary(kind, trained, size), 200, True, modules, 64, torch.bfloat16)
            for kind in ("linear", "dynamic", "yarn")
            for trained in (50, 8192)
            for size, modules in ((16, HEAD), (2000, ["model.layers.3.self_attn"]))
        ),
    ],
)
def test_the_peak_is_the_traced_one_and_so_is_its_module(
    changes, text_tokens, flash, modules, size, dtype
):
    page = by_both_engines(
        small_directory(**changes),
        dtype=dtype,
        flash=flash,
        page=(500, 500),
        base_size=size,
        text_tokens=text_tokens,
    )
    assert page.analytic.memory.peak == page.traced.memory.peak
    assert page.analytic.memory.peak.path in modules


def test_modules_sum_to_their_stage_in_python_integers():
    figures = figures_of(workload_of(GOLDENS[0], max_new_tokens=1 << 20))
    for stage in figures.stages.values():
        assert total_work(stage.own.values()) == stage.work
        assert total_work(work_by(stage.kernels, "kind").values()) == stage.work
    for name in ("sam", "clip", "projector"):
        assert {DEFAULT.owner_of(path) for path in figures.stages[name].own} == {name}
    assert {type(count) for count in (*figures.batch, *figures.decode.work)} == {int}


@pytest.mark.exhaustive
def test_batches_beyond_a_float_and_beyond_64_bits_are_exact():
    """m steps over K, K + 1, ... are m K + m (m - 1) / 2 keys, to the last digit."""
    workload = workload_of(GOLDENS[0])
    long = dataclasses.replace(workload, max_new_tokens=3 * 10**9 + 2, batch_size=10**6)
    figures = figures_of(long)
    step = figures_of(dataclasses.replace(workload, batch_size=10**6))
    m, K = 3 * 10**9 + 1, workload.seq_len
    per_key = 10**6 * 12 * 2 * 10 * 128
    steps = m * (step.decode.work.macs - K * per_key) + per_key * (m * K + m * (m - 1) // 2)
    assert figures.batch.macs == step.prefill_pass.macs + steps
    assert figures.batch.macs > 2**63


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"projector_config": {"projector_type": "low_high_split_mlp_gelu"}}, "linear, mlp_gelu"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_with_what_would(changes, says):
    with pytest.raises(ConfigError, match=says):
        ClipModelDimensions.from_config(directory_with(**changes).config)


def test_neither_torch_nor_numpy_is_imported_before_arrays_ask_for_it():
    code = (
        "import sys\n"
        "def check(*names): assert not {*names} & sys.modules.keys(), names\n"
        "import dsocr_analyze.workload\n"
        "check('PIL', 'numpy')\n"
        "from dsocr_analyze import analytic\n"
        "from dsocr_analyze.architectures import DEFAULT\n"
        "from dsocr_analyze.model.directory import ModelDirectory\n"
        "directory = ModelDirectory.read(DEFAULT.reference)\n"
        "page = analytic.page_figures(directory, DEFAULT.plan(page=(1000, 1000)))\n"
        "page.prefill_pass, [stage.own for stage in page.stages.values()]\n"
        "check('numpy', 'torch')\n"
        "import numpy as np\n"
        "lengths = {'base_size': 1024, 'whole_resolution': 1024, 'text_tokens': np.arange(1, 9)}\n"
        "DEFAULT.forms.page_totals(directory.dimensions(), **lengths)\n"
        "check('torch', 'transformers', 'fvcore')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
