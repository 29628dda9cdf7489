"""Saved reports, of both schema versions, and files that are none."""

import copy
import gzip
import json
import re
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
from hand_built import AGREEMENT, CREATED, batch_of, compared, traced

from dsocr_analyze.errors import ConfigError
from dsocr_analyze.report.document import build_report
from dsocr_analyze.report.markdown import ReadableReport
from dsocr_analyze.report.opening import dump_json
from dsocr_analyze.report.reading import load_report

DATA = Path(__file__).parent / "data"

VERSION_1 = ("analytic", "trace", "trace_batch3")
"""Reports that dsocr-analyze 0.1 wrote in mode tiny; the last of 3 pages and 7 new tokens."""


def old_document(name):
    return json.loads(gzip.decompress((DATA / f"report_v1_{name}.json.gz").read_bytes()))


@pytest.fixture(params=VERSION_1, scope="module")
def upgrade(request, tmp_path_factory):
    """A report of version 1 as it was, and as it is read."""
    old = old_document(request.param)
    path = tmp_path_factory.mktemp("old") / "old.json"
    path.write_text(json.dumps(old))
    return old, load_report(path)


def assert_read_back(report, path, **more):
    """What is written of a report is read as the report, whatever else is written."""
    document = json.loads(dump_json(report))
    document["memory"].update(more)
    path.write_text(json.dumps(document))
    assert load_report(path) == report


@pytest.mark.parametrize("figures", [traced(), batch_of(3), compared()])
def test_a_report_that_was_written_is_read_back_without_keys_that_are_not_known(tmp_path, figures):
    report = build_report(figures, AGREEMENT, CREATED)
    assert_read_back(report, tmp_path / "report.json", spilled_bytes=1)


class TestVersion1:
    def test_what_it_called_page_is_the_batch_of_which_a_page_is_a_share(self, upgrade):
        old, report = upgrade
        whole, pages = old["total"]["page"], old["workload"]["batch_size"]
        batch, page = report.total.batch, report.total.page
        assert batch.max_new_tokens == whole["new_tokens"]
        for name in ("flops", "bytes_read", "bytes_written", "decode_steps"):
            assert getattr(batch, name) == whole[name]
        assert (page.pages, page.flops, page.bytes_read) == (
            pages, whole["flops"] / pages, whole["bytes_read"] / pages
        )  # fmt: skip

    def test_stages_keep_their_figures_and_a_module_without_its_own_work_owns_all_of_it(
        self, upgrade
    ):
        old, report = upgrade
        root = old["metadata"]["model"].get("class")
        assert list(report.stages) == ["sam", "clip", "projector", "prefill", "decode"]
        for name, stage in report.stages.items():
            before = old["stages"][name]
            for key in ("flops", "params", "calls", "flops_analytic", "arithmetic_intensity",
                        "operators"):  # fmt: skip
                assert getattr(stage, key) == before[key]
            assert {path: (row.flops, row.own.flops) for path, row in stage.by_module.items()} == {
                "" if path == root else path: (row["flops"], row.get("own", row)["flops"])
                for path, row in before["by_module"].items()
            }
            assert sum(module.own.flops for module in stage.by_module.values()) == stage.flops

    def test_what_it_did_not_know_is_none(self, upgrade):
        report = upgrade[1]
        memory, is_analytic = report.memory, report.metadata.engine == "analytic"
        assert (memory.inputs_bytes, memory.peak_module) == (None, None)
        assert report.metadata.model.architecture is None
        for stage in report.stages.values():
            assert (stage.experts_touched, stage.bytes_read_expected) == (None, None)
            for row in stage.by_module.values():
                known = {each is not None for each in (row.class_name, row.calls, row.params)}
                assert known == {not is_analytic}

    def test_the_agreement_never_judged_the_peak(self, upgrade):
        before, agreement = upgrade[0]["agreement"], upgrade[1].agreement
        if before is None:
            assert agreement is None
            return
        peak = agreement.peak_activation_bytes
        assert (agreement.agrees, agreement.batch, peak.traced, peak.agrees) == (
            before["agrees"], before["page"], before["peak_activation_bytes"]["traced"], None
        )  # fmt: skip

    def test_it_can_be_shown_and_written_in_this_version(self, upgrade, tmp_path):
        assert "## Stages" in ReadableReport(upgrade[1]).markdown()
        assert_read_back(upgrade[1], tmp_path / "new.json")


CURRENT = json.loads(dump_json(build_report(compared(), AGREEMENT, CREATED)))


def changed(path, value):
    """A report's text, with one value replaced."""
    document = copy.deepcopy(CURRENT)
    reduce(getitem, path[:-1], document)[path[-1]] = value
    return json.dumps(document)


def old_without(*path):
    """A report of version 1 that lacks a key."""
    document = old_document("trace")
    del reduce(getitem, path[:-1], document)[path[-1]]
    return json.dumps(document)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ('{"schema_version": "2", "total": NaN}', "not JSON"),
        ('{"schema_version": "2", "total": Infinity}', "not JSON"),
        ('{"schema_version": "2", "total": 1e400}', "not JSON"),
        ('{"schema_version": "\\ud800"}', "not JSON"),
        ('{"schema_version": "2", "total": ' + "1" * 5000 + "}", "not JSON"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a": ' * 800 + "1" + "}" * 800, "schema_version None"),
        ("[]", "schema_version None"),
        ("{}", "give a report with schema_version '1' or '2'"),
        ('{"schema_version": "0"}', "'0'; give a report with schema_version '1' or '2'"),
        ('{"schema_version": "3"}', "'3'; give a report with schema_version '1' or '2'"),
        ('{"schema_version": 2}', "schema_version 2; give a report with schema_version '1' or '2'"),
        ('{"schema_version": {"2": "2"}}', "give a report with schema_version '1' or '2'"),
        ('{"schema_version": "2"}', "`metadata`"),
        ('{"schema_version": "1"}', "`metadata`"),
        (changed(["total"], None), "`$.total`"),
        (changed(["total", "batch", "flops"], 10**400), "no figure is above"),
        (changed(["total", "page", "flops"], 1e200), "no figure is above"),
        (changed(["total", "batch", "flops"], 1.5), "`$.total.batch.flops`"),
        (changed(["total", "batch", "flops"], True), "`$.total.batch.flops`"),
        (changed(["total", "batch", "flops"], -1), "`$.total.batch.flops`"),
        (changed(["total", "page", "flops"], "many"), "`$.total.page.flops`"),
        (changed(["workload", "batch_size"], 0), "`$.workload.batch_size`"),
        (changed(["workload", "page"], [1]), "`$.workload.page`"),
        (changed(["stages"], {}), "`$.stages`"),
        (changed(["stages", "eye", "by_module"], []), "`$.stages[...].by_module`"),
        (changed(["agreement", "stages"], {"a\nb": {}}), "agreement is about stages"),
        (old_without("workload", "batch_size"), "`batch_size`"),
        (old_without("total", "page"), "`page`"),
        (old_without("stages", "clip"), "`clip`"),
        (old_without("agreement", "stages", "sam"), "agreement is about stages"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path, content, named):
    path = tmp_path / "r.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=re.escape(repr(str(path)))) as caught:
        load_report(path)
    message = str(caught.value)
    assert (named in message, "\n" in message, len(message) < 500) == (True, False, True), message


@pytest.mark.parametrize("name", ["missing.json", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot read report"):
        load_report(tmp_path / name)
