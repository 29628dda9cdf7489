"""The recorded workloads on a vendor checkout's own files; they stay untouched.

`pytest -m vendor` runs these tests alone.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from alive_tensors import Alive
from test_golden import (
    GOLDENS,
    decode_flops,
    flops_by_stage,
    reference,
    repeats_of,
    traced,
    workload_of,
)
from vendor_checkout import VENDOR, assert_same_passes, digests, needs_vendor

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.generation import flash_attention
from dsocr_analyze.model.loading import LoadedModel, load_model
from dsocr_analyze.trace.passes import trace_passes
from dsocr_analyze.workload import PageWorkload

pytestmark = [pytest.mark.vendor, needs_vendor]


@pytest.fixture(scope="module", params=[False, True], ids=["eager", "flash"])
def vendor(request):
    before = digests(VENDOR)
    yield load_model(
        ModelDirectory.read(VENDOR),
        device=torch.device("meta"),
        dtype=torch.bfloat16,
        flash_attention=request.param,
        trust_remote_code=True,
    )
    assert digests(VENDOR) == before


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: f"{g['page']}-{g['image_size']}")
def test_every_stage_counts_what_was_recorded(vendor, golden):
    traces = traced(vendor, workload_of(golden))
    assert flops_by_stage(traces) == golden["matrix_flops"]
    assert decode_flops(traces) == golden["decode_step_matrix_flops"]


def test_the_reference_runs_the_same_operators(vendor):
    """By module and cost, in whatever order, and has the same parameters."""
    ours = reference(flash_attention=vendor.attention == "flash_attention_2")
    theirs, own = (traced(model, DEFAULT.plan(page=(1191, 1684))) for model in (vendor, ours))
    assert_same_passes(own, theirs)
    shapes = [{n: p.shape for n, p in each.module.named_parameters()} for each in (vendor, ours)]
    assert shapes[0] == shapes[1]


def test_its_code_is_the_published_one_whose_declared_repetition_changes_nothing(vendor):
    assert vendor.directory.runs_code(DEFAULT.published_code)
    workload = DEFAULT.plan(page=(1000, 700))
    repeated = traced(vendor, workload, step_numbers=range(2), repeats=repeats_of(vendor))
    assert repeated == traced(vendor, workload, step_numbers=range(2))


# --- the reference holds what a vendor checkout's own code holds, tensor by tensor ---------------

META = torch.device("meta")

WIDTH = 1280  # the vendor hard-codes the vision side and its width
RUNS = range(28)


@dataclasses.dataclass(frozen=True)
class Run:
    """A small decoder and a workload."""

    config: dict[str, Any]
    page: dict[str, Any]
    dtype: torch.dtype
    flash: bool


def drawn(seed: int) -> Run:
    draw = random.Random(seed)
    heads = draw.choice([2, 5, 10])
    config: dict[str, Any] = {
        "hidden_size": WIDTH,
        "num_hidden_layers": draw.randint(1, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([n for n in (1, heads) if heads % n == 0]),
        "intermediate_size": draw.choice([96, 3000]),
        "vocab_size": draw.choice([128, 2000, 20000]),
        "attention_bias": draw.random() < 0.3,
        "n_routed_experts": draw.choice([None, 4, 16, 64]),
        "n_shared_experts": draw.choice([None, 1, 2]),
        "num_experts_per_tok": draw.choice([1, 2, 4]),
        "moe_intermediate_size": draw.choice([16, 300]),
        "first_k_dense_replace": draw.randint(0, 2),
        "norm_topk_prob": draw.random() < 0.5,
        "topk_method": draw.choice(["greedy", "group_limited_greedy", "noaux_tc"]),
        "scoring_func": draw.choice(["softmax", "sigmoid"]),
        "n_group": 2,
        "topk_group": 2,
        "use_mla": seed % 2 == 1,
        "max_position_embeddings": draw.choice([16, 8192]),
        "rope_scaling": None,
    }
    if config["use_mla"]:
        config |= {
            "kv_lora_rank": draw.choice([32, 100]),
            "q_lora_rank": draw.choice([None, 40]),
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 16,
            "v_head_dim": draw.choice([20, 40]),
            "num_key_value_heads": heads,
        }
    kinds = [None, "linear", "yarn", *(["dynamic"] if config["use_mla"] else [])]
    kind = draw.choice(kinds)
    if kind:
        config["rope_scaling"] = {"type": kind, "factor": 2.0, "mscale_all_dim": 0.5}
    base, small = draw.choice([(256, 192), (512, 320), (640, 640), (1024, 640)])
    page = {
        "page": (draw.randint(100, 2500), draw.randint(100, 2500)),
        "base_size": base,
        "image_size": small,
        "crop_mode": draw.random() < 0.5,
        "text_tokens": draw.choice([1, 10, 150, 2000]),
        "batch_size": draw.randint(1, 3),
    }
    return Run(config, page, draw.choice([torch.bfloat16, torch.float32]), draw.random() < 0.4)


def load(run: Run, *, vendor: bool) -> LoadedModel:
    directory = ModelDirectory.read(VENDOR if vendor else DEFAULT.reference)
    return load_model(
        dataclasses.replace(directory, config={**directory.config, **run.config}),
        device=META,
        dtype=run.dtype,
        flash_attention=run.flash,
        trust_remote_code=True,
    )


@pytest.mark.parametrize("seed", RUNS)
def test_drawn_models_peak_at_the_same_byte(seed):
    run = drawn(seed)
    needs_mask = run.config["use_mla"] and not run.flash  # which the vendor's attention asserts
    options = {"step_numbers": () if needs_mask else range(2)}
    workload = DEFAULT.plan(**run.page)
    theirs, ours = (
        trace_passes(load(run, vendor=vendor), workload, DEFAULT, **options)
        for vendor in (True, False)
    )
    assert_same_passes(ours, theirs)


# ------------------------------------------------------------------------- an outside witness


def curves(model: LoadedModel, workload: PageWorkload) -> list[list[tuple[str, int]]]:
    """Of a prefill pass and of a decode step, called as `generate` does: with mask and positions.

    The second page has no local views.
    """
    found, cache = [], None
    with running(META, flash_attention):
        inputs = DEFAULT.prefill_inputs(META, model.dtype, workload)
        batch, length = inputs["input_ids"].shape
        blank = torch.zeros(1, 3, 64, 64, dtype=model.dtype, device=META)
        inputs["images"][1] = (blank, inputs["images"][1][1])
        for tokens in (length, 1):
            held = length + (tokens == 1)
            mask = torch.ones(batch, held, dtype=torch.long, device=META)
            positions = torch.arange(held - tokens, held, device=META).expand(batch, -1)
            inputs |= {"attention_mask": mask, "position_ids": positions.contiguous()}
            with Alive() as alive:
                output = model.module(**inputs, past_key_values=cache)
            cache = output.past_key_values
            del output
            found.append(alive.curve)
            inputs = {"input_ids": torch.zeros_like(mask[:, :1]), "use_cache": True}
    return found


@pytest.mark.parametrize("seed", RUNS[:8])
def test_as_many_bytes_are_alive_after_every_operator(seed):
    run = drawn(100 + seed)
    page = {**run.page, "page": (1200, 1600), "crop_mode": True, "batch_size": 3}
    workload = DEFAULT.plan(**{**page, "base_size": 256, "image_size": 192})
    assert workload.local_views is not None
    # A page without local views among others: what is held of the one before it stays.
    theirs, ours = (curves(load(run, vendor=vendor), workload) for vendor in (True, False))
    assert len(theirs[0]) > 100
    assert ours == theirs
