"""Whole reports of the reference model: golden counts, sums over passes, both engines."""

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import msgspec
import pytest
import torch
from both_engines import small_directory

from dsocr_analyze import DeepSeekOCRSession
from dsocr_analyze.cli.documents import schemas
from dsocr_analyze.errors import DeviceError, WorkloadError
from dsocr_analyze.report.opening import dump_json
from dsocr_analyze.session import parse_device
from dsocr_analyze.trace import operators, recorder

COUNTS = (
    "macs",
    "matrix_flops",
    "vector_flops",
    "flops",
    "activations",
    "bytes_read",
    "bytes_written",
)
GOLDEN = json.loads((Path(__file__).parent / "data" / "golden_workloads.json").read_text())


@pytest.fixture(scope="module")
def session():
    return DeepSeekOCRSession.from_local()


@pytest.fixture(scope="module")
def report(session):
    return session.analyze(page=(1191, 1684), max_new_tokens=100)


def counts_of(work):
    return {key: getattr(work, key) for key in COUNTS}


@pytest.mark.exhaustive
def test_the_report_fits_its_published_schema(report):
    jsonschema.validate(json.loads(dump_json(report)), schemas()["schema.json"])


def test_the_usual_page_has_the_golden_matrix_flops(report):
    """`test_golden.py` has the others."""
    [golden] = [g for g in GOLDEN if g["page"] == [1191, 1684] and g["image_size"] == 640]
    matrix, decode = golden["matrix_flops"], golden["decode_step_matrix_flops"]
    assert list(report.workload.grid) == golden["grid"]
    assert report.workload.seq_len == golden["seq_len"]
    assert {name: stage.matrix_flops for name, stage in report.stages.items()} == {
        **{name: matrix[name] for name in ("sam", "clip", "projector")},
        "prefill": matrix["layers"] + matrix["lm_head"],
        "decode": decode["total"],
    }
    assert report.stages["prefill"].by_module["lm_head"].matrix_flops == matrix["lm_head"]
    assert report.stages["decode"].by_module["lm_head"].matrix_flops == decode["lm_head"]
    assert report.total.matrix_flops == matrix["total"]


def test_parameters_are_the_published_ones(report):
    assert report.total.params == 3_336_106_240
    assert {name: stage.params for name, stage in report.stages.items()} == {
        "sam": 95_569_152,
        "clip": 303_177_728,
        "projector": 2_622_720,
        "prefill": 2_769_255_680,
        "decode": 165_478_400,
    }
    assert report.unassigned.params == 2 * 1280
    assert report.unassigned.names == ("model.image_newline", "model.view_seperator")
    assert report.memory.weights_bytes == 2 * 3_336_106_240


def test_modules_add_up_to_stages_and_these_to_the_total(report):
    *prefill_pass, decode = report.stages.values()
    for key in COUNTS:
        assert sum(getattr(stage, key) for stage in prefill_pass) == getattr(report.total, key)
    assert counts_of(decode) == counts_of(report.total.decode_step)
    for stage in report.stages.values():
        sums = {path: counts_of(row.own) for path, row in stage.by_module.items()}
        for path, row in stage.by_module.items():
            for key in COUNTS if path else ():
                sums[path.rpartition(".")[0]][key] += getattr(row, key)
        assert {path: counts_of(row) for path, row in stage.by_module.items()} == sums
        assert sums[""] == counts_of(stage)


@pytest.mark.exhaustive
def test_the_batch_is_the_prefill_pass_and_every_decode_step_over_a_growing_cache():
    session = DeepSeekOCRSession.from_directory(small_directory())
    base = {"page": (600, 500), "crop_mode": False, "image_size": 512}
    for new_tokens in (1, 2, 3, 6):
        report = session.analyze(**base, text_tokens=10, max_new_tokens=new_tokens)
        expected = counts_of(report.total)
        for step in range(new_tokens - 1):
            longer = session.analyze(**base, text_tokens=10 + step, max_new_tokens=1)
            for key, count in counts_of(longer.stages["decode"]).items():
                expected[key] += count
        assert counts_of(report.total.batch) == expected


TINY = {"page": (600, 500), "crop_mode": False, "image_size": 64}


@pytest.fixture(scope="module")
def small_session():
    return DeepSeekOCRSession.from_directory(small_directory(num_hidden_layers=1))


def test_the_largest_batch_is_traced_and_no_larger_one(monkeypatch, small_session):
    monkeypatch.setattr("dsocr_analyze.session.LARGEST_TRACED_BATCH", 2)
    page = TINY | {"max_new_tokens": 1}
    assert small_session.analyze(**page, batch_size=2).total.batch.macs > 0
    with pytest.raises(WorkloadError, match="give at most 2"):
        small_session.analyze(**page, batch_size=3)


def test_the_kv_cache_is_61440_bytes_a_token_in_bf16(report):
    tokens = report.workload.seq_len + 100 - 1
    assert report.memory.kv_cache_bytes == 2 * 12 * 10 * 128 * 2 * tokens


@pytest.mark.exhaustive
def test_causality_could_save_just_under_half_of_attention_under_flash_attention():
    session = DeepSeekOCRSession.from_local(flash_attention=True)
    flash = session.analyze(page=(1024, 1024), max_new_tokens=1).total
    tokens = 703
    skipped = tokens * (tokens - 1) // 2
    assert flash.causal_savable_flops == 12 * 10 * 2 * (128 + 128) * skipped
    eager = DeepSeekOCRSession.from_local().analyze(page=(1024, 1024), max_new_tokens=1).total
    assert (flash.matrix_flops, flash.causal_savable_flops) == (
        eager.matrix_flops,
        eager.causal_savable_flops,
    )
    assert flash.bytes_read < eager.bytes_read
    assert flash.activations < eager.activations


def test_no_operator_is_unknown(report):
    ledger = report.operator_ledger
    assert ledger.unknown == {}
    assert ledger.counted["linear"] > 2000
    assert ledger.free["view"] > 0


@pytest.mark.exhaustive
def test_two_runs_differ_in_nothing_but_the_timestamp(session, report):
    again = session.analyze(page=(1191, 1684), max_new_tokens=100)
    metadata = msgspec.structs.replace(again.metadata, created=report.metadata.created)
    assert dump_json(msgspec.structs.replace(again, metadata=metadata)) == dump_json(report)
    assert dt.datetime.fromisoformat(report.metadata.created).tzinfo == dt.UTC


def test_every_step_is_announced_and_equal_records_are_merged(small_session):
    told = []
    workload = small_session.plan(**TINY, max_new_tokens=2)
    figures, _ = small_session.figures(workload, on_progress=told.append)
    assert told == [
        "prefill pass", "decode step 1", "decode step over a longer cache", "analytic engine",
    ]  # fmt: skip
    for stage in figures.stages.values():
        kinds = {kernel._replace(calls=1) for kernel in stage.kernels}
        assert len(kinds) == len(stage.kernels)


def test_a_gpu_is_there_if_torch_can_use_it(monkeypatch):
    """The driver names GPUs that a torch for another version of CUDA cannot use."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert parse_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(DeviceError, match=r"'cuda:2' does not exist \(2 here\)"):
        parse_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"'cuda' does not exist \(no CUDA GPU here\)"):
        parse_device("cuda")


def test_trace_and_closed_forms_agree_in_every_quantity_of_every_stage(report):
    agreement = report.agreement
    assert (agreement.agrees, agreement.first_difference) == (True, None)
    assert all(all(stage.values()) for stage in agreement.stages.values())
    assert agreement.kv_cache_bytes is agreement.batch is True
    assert agreement.peak_activation_bytes.agrees is True
    for stage in report.stages.values():
        assert stage.flops_analytic == stage.flops


@pytest.fixture
def with_other_rules(monkeypatch):
    """Rules are looked up anew, before and after a test that replaces some."""
    recorder.traits_of.cache_clear()
    yield monkeypatch
    recorder.traits_of.cache_clear()


def test_a_disagreement_is_a_warning_that_names_module_and_quantity(
    small_session, with_other_rules
):
    rule = replace(operators.RULES["gelu"], vector_flops=lambda call: 1)
    with_other_rules.setitem(operators.RULES, "gelu", rule)
    report = small_session.analyze(**TINY, max_new_tokens=1)
    assert report.agreement.agrees is False
    [warning] = report.warnings
    assert "vector_flops of 'model.sam_model.blocks.0.mlp.act'" in warning
    stages = report.agreement.stages
    assert [stages["sam"]["vector_flops"], stages["sam"]["macs"]] == [False, True]
    assert stages["clip"]["vector_flops"] is True


def test_an_operator_without_a_rule_is_a_warning(small_session, with_other_rules):
    with_other_rules.delitem(operators.RULES, "gelu")
    report = small_session.analyze(**TINY, max_new_tokens=1)
    calls = 4  # of SAM's blocks
    assert report.operator_ledger.unknown == {"gelu": calls}
    assert f"unknown operator gelu: {calls} calls are not counted" in report.warnings
