"""The recorded workloads on a vendor checkout's own files; they stay untouched.

`pytest -m vendor` runs these tests alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter

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
from vendor_checkout import VENDOR, needs_vendor

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.kernels import Kernel
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import load_model
from dsocr_analyze.trace.record import Trace
from dsocr_analyze.trace.summary import ledger_of

pytestmark = [pytest.mark.vendor, needs_vendor]


def digests() -> dict[str, str]:
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(VENDOR.rglob("*"))
        if file.is_file() and file.suffix != ".safetensors"
    }


@pytest.fixture(scope="module", params=[False, True], ids=["eager", "flash"])
def vendor(request):
    before = digests()
    yield load_model(
        ModelDirectory.read(VENDOR),
        device=torch.device("meta"),
        dtype=torch.bfloat16,
        flash_attention=request.param,
        trust_remote_code=True,
    )
    assert digests() == before


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: f"{g['page']}-{g['image_size']}")
def test_every_stage_counts_what_was_recorded(vendor, golden):
    traces = traced(vendor, workload_of(golden))
    assert flops_by_stage(traces) == golden["matrix_flops"]
    assert decode_flops(traces) == golden["decode_step_matrix_flops"]


def test_the_reference_runs_the_same_operators(vendor):
    flash = vendor.attention == "flash_attention_2"
    ours = reference(flash_attention=flash)
    workload = DEFAULT.plan(page=(1191, 1684))
    theirs = traced(vendor, workload)
    own = traced(ours, workload)
    for one, other in (
        (theirs.prefill, own.prefill),
        (theirs.decode_steps[0], own.decode_steps[0]),
    ):
        assert ledger_of(one).counted == ledger_of(other).counted
        assert ledger_of(one).unknown == {}
        assert sorted(one.calls) == sorted(other.calls)
        assert counted(one) == counted(other)
        assert one.peak == other.peak


def counted(trace: Trace) -> Counter[Kernel]:
    """Executed operators by module and cost, in whatever order."""
    return Counter(trace.kernels)


def test_parameters_are_the_references(vendor):
    theirs = {name: p.shape for name, p in vendor.module.named_parameters()}
    ours = {name: p.shape for name, p in reference().module.named_parameters()}
    assert theirs == ours


def test_its_code_is_the_published_one_whose_repetition_is_declared(vendor):
    assert vendor.directory.runs_code(DEFAULT.published_code)


def test_declared_repetition_changes_nothing(vendor):
    workload = DEFAULT.plan(page=(1000, 700))
    repeated = traced(vendor, workload, step_numbers=range(2), repeats=repeats_of(vendor))
    every = traced(vendor, workload, step_numbers=range(2))
    assert repeated == every
