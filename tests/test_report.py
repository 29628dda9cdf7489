"""The report: its keys, its sums, its texts, its files."""

import io
import json
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from dsocr_analyze import DeepSeekOCRSession
from dsocr_analyze.errors import OutputError
from dsocr_analyze.report.document import without_timestamp
from dsocr_analyze.report.files import dump_json, prepare_directory, replacing, write_texts
from dsocr_analyze.report.markdown import render_markdown
from dsocr_analyze.report.quantities import bytes_text, exact, ratio_text, scaled
from dsocr_analyze.report.tables import tables_of
from dsocr_analyze.report.terminal import render_terminal
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
def document(session):
    return session.analyze(page=(1191, 1684), max_new_tokens=100)


def test_the_report_fits_its_published_schema(document):
    schema = json.loads(resources.files("dsocr_analyze").joinpath("report/schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(dump_json(document)), schema)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: f"{g['page']}-{g['image_size']}")
def test_stages_hold_the_golden_matrix_flops(session, golden):
    document = session.analyze(
        page=tuple(golden["page"]),
        base_size=golden["base_size"],
        image_size=golden["image_size"],
        crop_mode=golden["crop_mode"],
        max_new_tokens=1,
    )
    matrix = golden["matrix_flops"]
    stages = document["stages"]
    assert document["workload"]["grid"] == golden["grid"]
    assert document["workload"]["seq_len"] == golden["seq_len"]
    for stage in ("sam", "clip", "projector"):
        assert stages[stage]["matrix_flops"] == matrix[stage]
    assert stages["prefill"]["matrix_flops"] == matrix["layers"] + matrix["lm_head"]
    assert stages["prefill"]["by_module"]["lm_head"]["matrix_flops"] == matrix["lm_head"]
    decode = golden["decode_step_matrix_flops"]
    assert stages["decode"]["matrix_flops"] == decode["total"]
    assert stages["decode"]["by_module"]["lm_head"]["matrix_flops"] == decode["lm_head"]
    assert document["total"]["matrix_flops"] == matrix["total"]


def test_parameters_are_the_published_ones(document):
    assert document["total"]["params"] == 3_336_106_240
    assert {name: stage["params"] for name, stage in document["stages"].items()} == {
        "sam": 95_569_152,
        "clip": 303_177_728,
        "projector": 2_622_720,
        "prefill": 2_769_255_680,
        "decode": 165_478_400,
    }
    assert document["unassigned"] == {
        "params": 2 * 1280,
        "names": ["model.image_newline", "model.view_seperator"],
    }
    assert document["memory"]["weights_bytes"] == 2 * 3_336_106_240


def test_stages_add_up_to_the_total(document):
    stages = document["stages"]
    for key in COUNTS:
        in_prefill_pass = [s[key] for name, s in stages.items() if name != "decode"]
        assert sum(in_prefill_pass) == document["total"][key]
        assert stages["decode"][key] == document["total"]["decode_step"][key]


def test_operators_and_families_add_up_to_their_stage(document):
    for stage in document["stages"].values():
        assert sum(stage["operators"].values()) == stage["flops"]
        families = stage["operator_families"].values()
        assert sum(family["flops"] for family in families) == stage["flops"]
        moved = sum(family["bytes"] for family in families)
        assert moved == stage["bytes_read"] + stage["bytes_written"]


def test_modules_add_up_to_their_parent_and_to_their_stage(document):
    for stage in document["stages"].values():
        rows = stage["by_module"]
        root = next(iter(rows))
        for key in (*COUNTS, "params"):
            assert rows[root][key] == stage[key]
        # The root of the tree stands under its class name.
        paths = {"" if "." not in path and path not in ("model", "lm_head") else path: path
                 for path in rows}  # fmt: skip
        for path, name in paths.items():
            below = [
                rows[paths[other]]
                for other in paths
                if other and other != path and other.rpartition(".")[0] == path
            ]
            own = rows[name].get("own", rows[name] if not below else None)
            for key in COUNTS:
                own_count = own[key] if own else 0
                assert rows[name][key] == own_count + sum(row[key] for row in below), (path, key)


def test_the_page_is_the_prefill_pass_and_every_decode_step_over_a_growing_cache(session):
    base = {"page": (600, 500), "crop_mode": False, "image_size": 512}
    for new_tokens in (1, 2, 3, 6):
        document = session.analyze(**base, text_tokens=10, max_new_tokens=new_tokens)
        expected = {key: document["total"][key] for key in COUNTS}
        for step in range(new_tokens - 1):
            longer = session.analyze(**base, text_tokens=10 + step, max_new_tokens=1)
            for key in COUNTS:
                expected[key] += longer["stages"]["decode"][key]
        assert {key: document["total"]["page"][key] for key in COUNTS} == expected


def test_the_kv_cache_is_61440_bytes_a_token_in_bf16(document):
    tokens = document["workload"]["seq_len"] + 100 - 1
    assert document["memory"]["kv_cache_bytes"] == 2 * 12 * 10 * 128 * 2 * tokens


def test_causality_could_save_just_under_half_of_attention_under_flash_attention():
    session = DeepSeekOCRSession.from_local(flash_attention=True)
    document = session.analyze(page=(1024, 1024), max_new_tokens=1)
    tokens = 703
    skipped = tokens * (tokens - 1) // 2
    assert document["total"]["causal_savable_flops"] == 12 * 10 * 2 * (128 + 128) * skipped
    eager = DeepSeekOCRSession.from_local().analyze(page=(1024, 1024), max_new_tokens=1)
    assert document["total"]["matrix_flops"] == eager["total"]["matrix_flops"]
    assert document["total"]["bytes_read"] < eager["total"]["bytes_read"]
    assert document["total"]["activations"] < eager["total"]["activations"]
    assert document["total"]["causal_savable_flops"] == eager["total"]["causal_savable_flops"]


def test_no_operator_is_unknown(document):
    ledger = document["operator_ledger"]
    assert ledger["unknown"] == {}
    assert ledger["counted"]["linear"] > 2000
    assert ledger["free"]["view"] > 0


def test_two_runs_differ_in_nothing_but_the_timestamp(session, document):
    again = session.analyze(page=(1191, 1684), max_new_tokens=100)
    assert dump_json(without_timestamp(again)) == dump_json(without_timestamp(document))


def test_counts_are_integers_all_the_way(document):
    for stage in document["stages"].values():
        for row in (stage, *stage["by_module"].values()):
            assert all(type(row[key]) is int for key in COUNTS)


class TestAgreement:
    def test_trace_and_closed_forms_agree_in_every_quantity_of_every_stage(self, document):
        agreement = document["agreement"]
        assert agreement["agrees"] is True
        assert agreement["first_difference"] is None
        assert all(all(stage.values()) for stage in agreement["stages"].values())
        for stage in document["stages"].values():
            assert stage["flops_analytic"] == stage["flops"]

    def test_a_disagreement_is_a_warning_that_names_module_and_quantity(self, session, monkeypatch):
        rule = replace(operators.RULES["gelu"], vector_flops=lambda call: 1)
        monkeypatch.setitem(operators.RULES, "gelu", rule)
        recorder._rule_of.cache_clear()
        try:
            document = session.analyze(page=(600, 500), crop_mode=False, image_size=64)
        finally:
            recorder._rule_of.cache_clear()
        assert document["agreement"]["agrees"] is False
        [warning] = document["warnings"]
        assert "vector_flops of 'model.sam_model.blocks.0.mlp.act'" in warning
        assert document["agreement"]["stages"]["sam"]["vector_flops"] is False
        assert document["agreement"]["stages"]["sam"]["macs"] is True
        assert document["agreement"]["stages"]["clip"]["vector_flops"] is True


class TestTexts:
    def test_the_first_line_says_which_model_ran(self, document):
        first = render_markdown(document).splitlines()[0]
        assert "built-in reference model" in first
        assert "on meta, bfloat16, eager attention" in first

    def test_markdown_has_every_section_and_well_formed_tables(self, document):
        text = render_markdown(document)
        for title in ("Workload", "Stages", "Memory", "Top modules", "Operator families",
                      "Operator ledger", "Notes", "Conventions"):  # fmt: skip
            assert f"## {title}" in text
        for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1

    def test_the_terminal_shows_the_tables_of_the_markdown(self, document):
        from rich.console import Console

        console = Console(width=200, record=True, file=io.StringIO())
        console.print(render_terminal(document))
        text = console.export_text()
        for table in tables_of(document):
            assert table.title in text
        assert f"{document['total']['page']['flops']:,}" in text

    def test_the_stage_table_shows_the_sum_that_it_claims(self, document):
        stages = next(t for t in tables_of(document) if t.title.startswith("Stages"))
        shown = [int(row[1].replace(",", "")) for row in stages.rows if row[1]]
        assert stages.rows[-2][0] == "model"
        assert sum(shown[:-1]) == shown[-1] == 3_336_106_240
        assert stages.rows[-1][0] == "prefill pass"

    @pytest.mark.parametrize(
        ("count", "text"),
        [(0, "0"), (999, "999"), (1000, "1.000 k"), (4_568_380_069_376, "4.568 T"),
         (97_690_917_273_600, "97.69 T"), (123_456_789, "123.5 M")],
    )  # fmt: skip
    def test_scaled_numbers_keep_four_digits(self, count, text):
        assert scaled(count) == text

    def test_bytes_exact_numbers_and_ratios(self):
        assert bytes_text(6_672_212_480) == "6.672 GB"
        assert bytes_text(12) == "12 B"
        assert exact(1234567) == "1,234,567"
        assert ratio_text(None) == "-"
        assert ratio_text(0.90374) == "0.904"


class TestFiles:
    def test_json_text_is_the_same_document(self, document):
        assert json.loads(dump_json(document)) == json.loads(json.dumps(document))

    def test_a_module_takes_one_line(self, document):
        lines = [line for line in dump_json(document).splitlines() if '"lm_head": {' in line]
        assert all(line.rstrip(",").endswith("}") for line in lines)
        assert lines

    def test_a_failure_while_writing_leaves_the_old_file(self, tmp_path):
        target = tmp_path / "report.json"
        target.write_text("old")

        def fail_halfway():
            with replacing(target) as temporary:
                temporary.write_text("half")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_halfway()
        assert target.read_text() == "old"
        assert [p.name for p in tmp_path.iterdir()] == ["report.json"]

    def test_files_that_belong_together_are_written_together(self, tmp_path):
        (tmp_path / "b").mkdir()  # a directory cannot be replaced by a file
        (tmp_path / "a").write_text("old")
        with pytest.raises(OutputError, match="cannot write"):
            write_texts(tmp_path, {"a": "new", "b": "new"})
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]

    def test_a_directory_that_is_a_file_is_refused(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="cannot write to --output"):
            prepare_directory(tmp_path / "file")
