"""The report: its keys, its sums, its texts, its files; saved ones, and files that are none."""

import datetime as dt
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hand_built import (
    AGREEMENT,
    CREATED,
    FIGURES,
    LEFT_OUT,
    STAGES,
    batch_of,
    compared,
    traced,
)
from hypothesis import given, settings, strategies as st
from relatives import FAMILY
from test_answer import TIME

from dsocr_analyze import errors, kernels, output_files
from dsocr_analyze.agreement import PeakAgreement
from dsocr_analyze.cli import main
from dsocr_analyze.report import document as document_module, markdown, opening, reading, tables
from dsocr_analyze.report.document import build_report
from dsocr_analyze.report.table import (
    bytes_text,
    counted,
    exact,
    percent_text,
    ratio_text,
    scaled,
    share_text,
)

COUNTS = ("macs", "matrix_flops", "vector_flops", "flops", "activations", "bytes_read",
          "bytes_written")  # fmt: skip


REPORT = build_report(compared(), AGREEMENT, CREATED)
ANALYTIC = build_report(FIGURES, None, CREATED)


@pytest.fixture(scope="module")
def document():
    return json.loads(opening.dump_json(REPORT))


def changed(path, value, report=REPORT):
    """A report's text, with one value replaced."""
    document = json.loads(opening.dump_json(report))
    reduce(getitem, path[:-1], document)[path[-1]] = value
    return json.dumps(document)


DATA = Path(__file__).parent / "data"
SCHEMA = Path(document_module.__file__).with_name("schema.json")
AGREES = {"params": True, "macs": True}
DIFFERING = msgspec.structs.replace(
    AGREEMENT,
    agrees=False,
    stages={**AGREEMENT.stages, "eye": {"params": True, "macs": False}},
    first_difference="macs of 'model.eye.fc'",
    peak_activation_bytes=PeakAgreement(traced=5000, analytic=4000, agrees=False),
)


HELD = [
    (("schema_version",), "2"),
    (("metadata", "model"), {
        "architecture": "small-model", "source": "directory", "id": "my-model",
        "config_digest": "c0ffee" * 10, "code_digest": "decade" * 10, "class": "SmallModel",
        "weights": "none", "config_text": None,
    }),
    (("metadata", "created"), "2026-01-02T03:04:05+00:00"),
    (("metadata", "engine"), "trace"),
    (("metadata", "device"), "meta"),
    (("metadata", "dtype"), "bfloat16"),
    (("metadata", "attention"), "eager"),
    (("metadata", "versions"), {"tool": "0.1.0"}),
    (("workload",), {
        "page": [600, 500], "base_size": 512, "image_size": 512, "crop_mode": False,
        "grid": [1, 1], "views": [{"count": 1, "resolution": 512}], "visual_tokens": 73,
        "text_tokens": 10, "seq_len": 83, "batch_size": 1, "max_new_tokens": 3,
        "prompt_pages": 1,
    }),
    (("stages", "eye", "by_module", "model.eye"), {
        "macs": 2000, "matrix_flops": 4000, "vector_flops": 52, "flops": 4052,
        "activations": 4, "bytes_read": 60 + 200, "bytes_written": 8 + 100, "class": "Eye",
        "calls": 1, "params": 500,
        "own": {
            "macs": 0, "matrix_flops": 0, "vector_flops": 50, "flops": 50, "activations": 0,
            "bytes_read": 200, "bytes_written": 100,
        },
    }),
    (("stages", "prefill", "by_module", "model.layers", "calls"), 0),
    (("stages", "eye", "operator_families"), {
        "gemm": {"operators": ["linear"], "flops": 4002, "bytes": 68},
        "elementwise": {"operators": ["add"], "flops": 50, "bytes": 300},
    }),
    (("stages", "eye", "notes"), ["it only has one"]),
    (("stages", "eye", "causal_savable_flops"), 0),
    (("stages", "prefill", "causal_savable_flops"), 77),
    (("stages", "decode", "causal_savable_flops"), 0),
    (("stages", "decode", "arithmetic_intensity"), 181 / 34),
    (("total", "causal_savable_flops"), 77),
    (("total", "batch"), {
        "macs": 3581, "matrix_flops": 7162, "vector_flops": 66, "flops": 7228,
        "activations": 12, "bytes_read": 400, "bytes_written": 1,
        "arithmetic_intensity": 7228 / 401, "max_new_tokens": 3, "decode_steps": 2,
    }),
    (("memory",), {
        "weights_bytes": 1686, "inputs_bytes": 99, "kv_cache_bytes": 1700,
        "peak_activation_bytes": 5000, "peak_module": "model.eye.fc",
        "stated_for": {
            "weights_bytes": "all parameters in bfloat16",
            "inputs_bytes":
                "inputs of the prefill pass of 1 page: pixels, token ids, masks",
            "kv_cache_bytes":
                "85 tokens of 1 page: the prompt and every new token but the last",
            "peak_activation_bytes": "the prefill pass: tensors alive at once, without"
            " weights and inputs but with the KV cache",
        },
    }),
    (("agreement",), {
        "agrees": True, "stages": {"eye": AGREES, "prefill": AGREES, "decode": AGREES},
        "kv_cache_bytes": True, "batch": True,
        "peak_activation_bytes": {"traced": 5000, "analytic": 5000, "agrees": True},
        "first_difference": None, "not_modelled": [], "not_modelled_share": {},
    }),
    (("unassigned",), {"params": 3, "names": ["model.separator"]}),
    (("operator_ledger",),
     {"counted": {"linear": 5, "add": 2}, "free": {"view": 4}, "unknown": {}}),
    (("warnings",), ["mind the gap"]),
    (("notes",), ["mind the gap", "nothing was run"]),
]  # fmt: skip


def test_what_the_document_holds(document):
    for path, expected in HELD:
        assert reduce(getitem, path, document) == expected, path


def test_keys_stand_in_order(document):
    assert list(document) == [
        "schema_version", "metadata", "workload", "total", "stages", "unassigned", "memory",
        "agreement", "time", "operator_ledger", "warnings", "notes",
    ]  # fmt: skip
    assert list(document["stages"]) == ["eye", "prefill", "decode"]


def test_without_a_model_class_and_parameters_of_a_module_are_null():
    row = ANALYTIC.stages["eye"].by_module["model.eye.fc"]
    assert (row.class_name, row.params, row.calls) == (None, None, 2)
    assert row.own.flops == row.flops == 4002


# --- sums ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", COUNTS)
def test_modules_add_up_to_their_stage_and_stages_to_the_total(document, key):
    stages, total = document["stages"], document["total"]
    assert stages["decode"][key] == total["decode_step"][key]
    assert stages["eye"][key] + stages["prefill"][key] == total[key]
    for stage in stages.values():
        rows = stage["by_module"]
        for path, row in rows.items():
            below = [each["own"][key] for name, each in rows.items()
                     if f".{name}.".startswith(f".{path}." if path else "")]  # fmt: skip
            assert sum(below) == row[key]
        assert rows[""][key] == stage[key]
        assert type(stage[key]) is int


def test_operators_and_families_add_up_to_their_stage(document):
    for stage in document["stages"].values():
        families = [*stage["operator_families"].values()]
        moved = stage["bytes_read"] + stage["bytes_written"]
        for ours, theirs, whole in (
            ("operators", "flops", stage["flops"]), ("operator_bytes", "bytes", moved),
        ):  # fmt: skip
            sums = [sum(map(stage[ours].get, each["operators"])) for each in families]
            assert sums == [family[theirs] for family in families]
            assert sum(sums) == whole


def test_intensity_is_null_where_no_byte_moves():
    still = replace(FIGURES, batch=kernels.Work(macs=1))
    assert build_report(still, None, CREATED).total.batch.arithmetic_intensity is None


@pytest.mark.parametrize("pages", [1, 3])
def test_a_page_is_its_share_of_the_batch_in_floats(pages):
    report = build_report(batch_of(pages), None, CREATED)
    page, parts = report.total.page, tables.page_parts(report, tables.AMOUNTS["flops"])
    assert sum(parts.values()) == pytest.approx(page.flops)
    assert (page.pages, page.flops, page.macs) == (pages, 7228 / pages, 3581 / pages)
    assert page.bytes_moved == 400 / pages + 1 / pages
    assert page.arithmetic_intensity == 7228 / 401
    assert {type(getattr(page, key)) for key in COUNTS} == {float}


def test_integers_stay_exact_beyond_64_bits():
    large = replace(FIGURES, batch=kernels.Work(macs=10**22 + 1))
    text = opening.dump_json(build_report(large, None, CREATED))
    assert json.loads(text)["total"]["batch"]["macs"] == 10**22 + 1


def test_two_reports_differ_in_nothing_but_the_timestamp():
    again = build_report(compared(), AGREEMENT, CREATED + dt.timedelta(hours=1))
    texts = opening.dump_json(REPORT).splitlines(), opening.dump_json(again).splitlines()
    [(one, other)] = [pair for pair in zip(*texts, strict=True) if pair[0] != pair[1]]
    assert '"created": "2026-01-02T03:04:05+00:00"' in one
    assert '"created": "2026-01-02T04:04:05+00:00"' in other


def test_the_schema_fits_reports_of_both_engines_and_nothing_else(document):
    is_report = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).is_valid
    assert is_report(document)
    assert is_report(json.loads(opening.dump_json(ANALYTIC)))
    for path, value in (
        (["schema_version"], "1"),
        (["total", "macs"], -1),
        (["total", "macs"], 1.5),
        (["total", "batch", "flops"], "many"),
        (["stages", "eye", "by_module", "model.eye", "own"], None),
        (["stages", "eye", "operator_families"], {"magic": {}}),
        (["workload", "page"], [1, 2, 3]),
        (["metadata", "engine"], "guess"),
    ):
        assert not is_report(json.loads(changed(path, value))), path


# --- agreement of the engines ----------------------------------------------------------------


def test_what_is_left_out_is_told_with_its_work_and_share():
    figures = replace(traced(), flops_analytic={"eye": 4040})
    document = json.loads(opening.dump_json(build_report(figures, LEFT_OUT, CREATED)))
    assert document["stages"]["eye"]["flops_analytic"] == 4040
    agreement = document["agreement"]
    assert agreement["batch"] is None
    assert agreement["not_modelled_share"] == {"eye": {"vector_flops": 0.25, "bytes": 0.125}}
    assert agreement["not_modelled"] == [{
        "stage": "eye", "modules": r"model\.eye", "operators": ["add", "gt"],
        "reason": "nobody knows why", "macs": 0, "matrix_flops": 0, "vector_flops": 5,
        "flops": 5, "activations": 0, "bytes_read": 7, "bytes_written": 0,
    }]  # fmt: skip


def test_flops_analytic_come_from_whoever_knows_them():
    for name, stage in STAGES.items():
        assert REPORT.stages[name].flops_analytic == stage.work.flops
        assert ANALYTIC.stages[name].flops_analytic == stage.work.flops
    alone = build_report(traced(), None, CREATED)
    assert [stage.flops_analytic for stage in alone.stages.values()] == [None] * 3
    assert alone.agreement is None


def test_an_agreement_about_other_stages_is_refused():
    agreement = msgspec.structs.replace(AGREEMENT, stages={**AGREEMENT.stages, "tail": {}})
    with pytest.raises(ValueError, match="tail"):
        build_report(traced(), agreement, CREATED)


TEXTS = {
    "traced": REPORT,
    "analytic": ANALYTIC,
    "batch": build_report(batch_of(3), None, CREATED),
    "differing": build_report(traced(), DIFFERING, CREATED, (TIME,)),
}


# --- what is printed -------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
def test_they_say_what_was_added_up_by_hand(name):
    """Whoever changes a wording reads `tests/data/report_*.txt` anew."""
    readable = markdown.ReadableReport(TEXTS[name], is_full=True)
    lines = (f"*{line.text}*" if line.is_bold else line.text for line in readable.lines(100))
    shown = "\n".join(lines)
    golden = DATA / f"report_{name}.txt"
    assert f"{readable.markdown()}\n{shown}\n" == golden.read_text("utf-8")


def test_numbers_keep_so_many_digits():
    for text, expected in (
        (scaled(0), "0"), (scaled(999), "999"), (scaled(1000), "1.000 k"),
        (scaled(4_568_380_069_376), "4.568 T"), (scaled(97_690_917_273_600), "97.69 T"),
        (scaled(123_456_789), "123.5 M"), (scaled(2409.3333), "2.409 k"),
        (scaled(4_568_380_069_376.5), "4.568 T"), (scaled(999_960_000_000), "1.000 T"),
        (scaled(9_999_600), "10.00 M"), (scaled(33.333333), "33.33"), (scaled(5e27), "5000 Y"),
        (bytes_text(6_672_212_480), "6.672 GB"), (bytes_text(12), "12 B"),
        (exact(1234567), "1,234,567"), (share_text(1234567 / 2), "617,283.50"),
        (share_text(1234567.0), "1,234,567"), (ratio_text(None), "-"),
        (ratio_text(0.90374), "0.9037"), (ratio_text(66.6), "66.60"),
        (ratio_text(104.06), "104.1"), (ratio_text(999.96), "1,000"),
        (ratio_text(1234.5), "1,234"), (percent_text(0), "0.0 %"),
        (percent_text(1e-5), "<0.1 %"), (percent_text(0.0005), "0.1 %"),
        (percent_text(0.169), "16.9 %"), (percent_text(1), "100.0 %"),
        (counted(1, "page"), "1 page"), (counted(16, "page"), "16 pages"),
    ):  # fmt: skip
        assert text == expected


# --- files -----------------------------------------------------------------------------------


def test_json_text_is_the_same_document_and_a_module_takes_one_line():
    text = opening.dump_json(REPORT)
    assert json.loads(text) == json.loads(msgspec.json.encode(REPORT))
    lines = re.findall(r'.*"lm_head": \{.*', text)
    assert {line.rstrip(",")[-1] for line in lines} == {"}"}


def test_a_failure_while_writing_leaves_the_old_file(tmp_path):
    target = tmp_path / "report.json"
    target.write_text("old")

    with pytest.raises(ZeroDivisionError), output_files.replacing(target) as temporary:
        temporary.write(b"half" * (1 // 0))
    assert (target.read_text(), [*tmp_path.iterdir()]) == ("old", [target])


def test_files_that_belong_together_are_written_together(tmp_path):
    (tmp_path / "b").mkdir()  # a directory cannot be replaced by a file
    (tmp_path / "a").write_text("old")
    with pytest.raises(errors.OutputError, match="cannot write"):
        output_files.write_files({tmp_path / name: "new" for name in "ab"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
    with pytest.raises(errors.OutputError, match="give a directory that can be written"):
        output_files.prepare_directory(tmp_path / "a")
    with (
        pytest.raises(errors.OutputError, match="it is a folder"),
        output_files.replacing(tmp_path / "b"),
    ):
        pass


@pytest.mark.parametrize("points_to", ["real.json", "dangling.json", "/dev/null"])
def test_a_link_is_replaced_and_not_what_it_points_to(tmp_path, points_to):
    link, real = tmp_path / "link", tmp_path / "real.json"
    real.write_text("old")
    link.symlink_to(points_to)
    output_files.write_files({link: "new"})
    assert (link.is_symlink(), link.read_text(), real.read_text()) == (False, "new", "old")
    assert not (tmp_path / "dangling.json").exists()


@pytest.mark.skipif(not Path("/dev/stdout").is_symlink(), reason="needs /dev/stdout")
@pytest.mark.parametrize("is_file", [True, False])
def test_links_to_what_is_open_lead_there(tmp_path, is_file):
    code = (
        "from pathlib import Path; from dsocr_analyze.output_files import write_files;"
        "write_files({Path('/dev/stdout'): 'new'})"
    )
    out = tmp_path / "out"
    with out.open("w") as file:
        stream = file if is_file else subprocess.PIPE
        ended = subprocess.run([sys.executable, "-c", code], stdout=stream, check=True)
    assert (out.read_bytes() if is_file else ended.stdout) == b"new"
    assert Path("/dev/stdout").is_symlink()


@pytest.mark.skipif(os.name == "nt", reason="needs named pipes")
def test_into_a_pipe_the_result_is_written(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        with output_files.replacing(pipe) as temporary:
            temporary.write(b"new")
        assert reader.read(3) == b"new"
    assert (pipe.is_fifo(), list(tmp_path.iterdir())) == (True, [pipe])


# --- read again ----------------------------------------------------------------------------------


def read_back(report, path):
    """A report that is read after it was written with a key that is not known."""
    path.write_text(changed(["memory", "spilled_bytes"], 1, report))
    return reading.load_report(path)


@pytest.mark.parametrize("figures", [traced(), batch_of(3), compared()])
def test_a_report_that_was_written_is_read_back_without_keys_that_are_not_known(tmp_path, figures):
    report = build_report(figures, AGREEMENT, CREATED)
    assert read_back(report, tmp_path / "report.json") == report


NO_REPORTS = [
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
    ("{}", "give a report with schema_version '2'"),
    (changed(["schema_version"], "1"), "'1'; give a report with schema_version '2'"),
    ('{"schema_version": "3"}', "'3'; give a report with schema_version '2'"),
    ('{"schema_version": 2}', "schema_version 2; give a report with schema_version '2'"),
    ('{"schema_version": {"2": "2"}}', "give a report with schema_version '2'"),
    ('{"schema_version": "2"}', "`metadata`"),
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
]


def test_what_is_no_report_is_refused_in_one_line(tmp_path):
    path = tmp_path / "r.json"
    for content, named in NO_REPORTS:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(errors.ConfigError, match=re.escape(repr(str(path)))) as caught:
            reading.load_report(path)
        message = str(caught.value)
        assert (named in message, "\n" in message, len(message) < 500) == (True, False, True)
    for name in ("missing.json", ".", "a\0b"):
        with pytest.raises(errors.ConfigError, match="cannot read report"):
            reading.load_report(tmp_path / name)


# --- stages as parts of a page ---------------------------------------------------------------

OURS = sorted({stage.name for each in FAMILY.values() for stage in each.stages})


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    file = tmp_path_factory.mktemp("parts") / "report.json"
    main(["--engine", "analytic", "-q", "--json", str(file), "--batch-size", "3",
          "--max-new-tokens", "7", "--gpu", "l4", "--runtime", "eager,serving"])  # fmt: skip
    return reading.load_report(file)


def test_seconds_add_up_to_the_page(timed):
    assert len(timed.time) == 2
    for entry in timed.time:
        parts = tables.seconds_parts(timed, entry)
        assert list(parts) == [*timed.stages, tables.OUTSIDE]
        assert sum(parts.values()) == pytest.approx(entry.page_seconds)
        alone = {name: stage.seconds for name, stage in entry.stages.items() if name != "decode"}
        assert alone == {name: parts[name] for name in alone}
        assert parts[tables.OUTSIDE] >= entry.assumptions.preprocess_seconds * (1 - 1e-9)
    # A correction is of the whole; the stages' seconds stay as the kernels take them.
    before = sum(alone.values())
    corrected = msgspec.structs.replace(entry, ttft_seconds=before / 2, page_seconds=before / 2 + 1)
    parts = tables.seconds_parts(timed, corrected)
    found = sum(parts.values()), parts["sam"], parts["decode"], parts[tables.OUTSIDE]
    assert found == pytest.approx((corrected.page_seconds, alone["sam"] / 2, 1, 0))


@settings(max_examples=40)
@given(st.lists(st.sampled_from([*OURS, tables.OUTSIDE, "eye", "ear"]), unique=True))
def test_stages_keep_their_colours_and_none_has_anothers(names):
    colours = tables.stage_colours(names)
    assert (set(colours), len(set(colours.values()))) == (set(names), len(names))
    assert set(colours.values()) <= set(tables.PALETTE)
    for known in {*OURS, tables.OUTSIDE} & set(names):
        assert colours[known] == tables.stage_colours([known])[known]
    many = [f"stage {index}" for index in range(30)]
    assert [*tables.stage_colours(many)] == many  # which use the palette again
