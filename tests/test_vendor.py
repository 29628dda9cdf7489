"""The recorded workloads on a vendor checkout's own files; they stay untouched.

`pytest -m vendor` runs these tests alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
import torch
from test_golden import GOLDENS, decode_flops, flops_by_stage, reference, workload_of
from vendor_checkout import VENDOR, needs_vendor

from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.loading import load_model
from dsocr_analyze.trace.passes import trace_passes
from dsocr_analyze.trace.recorder import Entry, Trace
from dsocr_analyze.trace.summary import ledger_of
from dsocr_analyze.workload import plan_workload

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
    traces = trace_passes(vendor, workload_of(golden))
    assert flops_by_stage(vendor, traces) == golden["matrix_flops"]
    assert decode_flops(vendor, traces) == golden["decode_step_matrix_flops"]


def test_the_reference_runs_the_same_operators(vendor):
    flash = vendor.attention == "flash_attention_2"
    ours = reference(flash_attention=flash)
    workload = plan_workload(page=(1191, 1684))
    theirs = trace_passes(vendor, workload)
    own = trace_passes(ours, workload)
    for one, other in (
        (theirs.prefill, own.prefill),
        (theirs.decode_steps[0], own.decode_steps[0]),
    ):
        assert ledger_of(one)["counted"] == ledger_of(other)["counted"]
        assert ledger_of(one)["unknown"] == {}
        assert sorted(one.calls) == sorted(other.calls)
        assert counted(one) == counted(other)
        assert one.peak_bytes == other.peak_bytes


def counted(trace: Trace) -> Counter[Entry]:
    """Executed operators by module and cost, in whatever order."""
    return Counter(entry for entry in trace.entries if entry.status == "counted")


def test_parameters_are_the_references(vendor):
    theirs = {name: p.shape for name, p in vendor.module.named_parameters()}
    ours = {name: p.shape for name, p in reference().module.named_parameters()}
    assert theirs == ours


def test_repeating_equal_modules_changes_nothing(vendor):
    workload = plan_workload(page=(1000, 700))
    repeated = trace_passes(vendor, workload, decode_steps=2)
    every = trace_passes(vendor, workload, decode_steps=2, repeat_equal_modules=False)
    assert repeated == every
