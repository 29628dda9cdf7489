"""The recorded workloads on a vendor checkout's own files; they stay untouched.

`pytest -m vendor` runs these tests alone.
"""

from __future__ import annotations

import pytest
import torch
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
from dsocr_analyze.model.loading import load_model

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
