"""Modes, sizes and saved reports side by side."""

import csv
import io
import json
from pathlib import Path

import pytest

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.cli import main


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def rows_of(capsys, *arguments):
    assert main(["compare", *arguments, "--format", "json"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    return comparison["names"], {(row["quantity"], row["unit"]): row for row in comparison["rows"]}


def test_differences_and_ratios_are_against_the_first(capsys):
    names, rows = rows_of(capsys, "base", "tiny", "--page", "1191x1684")
    assert names == ["base", "tiny"]
    tokens = rows["visual tokens", "tokens"]
    assert tokens["values"] == [273, 73]
    assert tokens["differences"] == [0, 73 - 273]
    assert tokens["ratios"] == [1, 73 / 273]
    matrix = rows["prefill pass, matrix", "FLOPs"]["values"]
    assert matrix == [1_469_826_109_952, 364_031_042_048]


@pytest.mark.exhaustive
def test_crop_on_and_off_are_told_apart_by_the_sizes(capsys):
    _, rows = rows_of(capsys, "1024/640", "640", "--page", "1024x1024")
    assert rows["visual tokens", "tokens"]["values"] == [693, 111]
    assert rows["views", "views"]["values"] == [5, 1]


@pytest.mark.exhaustive
def test_all_modes_are_the_default(capsys):
    names, _ = rows_of(capsys)
    assert names == ["tiny", "small", "base", "large", "gundam", "gundam-m"]


@pytest.mark.exhaustive
def test_stages_and_memory_are_those_of_the_report(capsys):
    options = ["--page", "1191x1684", "--max-new-tokens", "50"]
    analytic = ["--engine", "analytic", "--mode", "gundam", "-q", "--json", "report.json"]
    assert main([*analytic, *options]) == 0
    report = json.loads(Path("report.json").read_text())
    _, rows = rows_of(capsys, "gundam", *options)
    for stage in ("sam", "clip", "projector", "prefill"):
        assert rows[stage, "FLOPs"]["values"] == [report["stages"][stage]["flops"]]
    assert rows["KV cache at the end", "bytes"]["values"] == [61_440 * (913 + 49)]
    assert rows["page", "FLOPs"]["values"] == [report["total"]["page"]["flops"]]


def test_saved_reports_can_be_compared_with_modes(capsys):
    assert main(["--engine", "analytic", "--mode", "small", "-q", "--json", "small.json"]) == 0
    _, rows = rows_of(capsys, "small.json", "small")
    for row in rows.values():
        assert row["differences"] == [0, 0]


@pytest.mark.exhaustive
def test_both_engines_agree(capsys):
    small = ["--page", "600x500", "--max-new-tokens", "1", "64", "128"]
    _, analytic = rows_of(capsys, *small)
    _, traced = rows_of(capsys, *small, "--engine", "trace")
    for key in analytic:
        if key[0] in ("sam", "clip", "projector", "prefill pass, matrix", "weights",
                      "KV cache at the end"):  # fmt: skip
            assert analytic[key]["values"] == traced[key]["values"]


@pytest.mark.exhaustive
def test_reports_of_several_models_are_told_apart_in_the_first_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["--engine", "analytic", "--mode", "tiny", "-q", "--json", "eager.json"]) == 0
    flash = ["--use-flash-attn", "1", "--json", "flash.json"]
    assert main(["--engine", "analytic", "--mode", "tiny", "-q", *flash]) == 0
    assert main(["compare", "eager.json", "flash.json"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("Ran: eager.json: built-in reference model")
    assert "flash.json: " in first
    assert "flash_attention_2" in first


def test_csv_has_a_line_for_each_quantity_and_report(capsys):
    assert main(["compare", "tiny", "small", "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {line["report"] for line in lines} == {"tiny", "small"}
    tokens = [line for line in lines if line["quantity"] == "visual tokens"]
    assert [int(line["value"]) for line in tokens] == [73, 111]
    assert [int(line["difference"]) for line in tokens] == [0, 38]


def test_markdown_goes_to_a_file(capsys):
    assert main(["compare", "tiny", "small", "--format", "markdown", "--output", "c.md"]) == 0
    assert capsys.readouterr().out == ""
    text = Path("c.md").read_text()
    assert text.startswith("Ran: built-in reference model")
    assert "\n\n| quantity | unit | tiny | small |\n" in text


def test_the_terminal_shows_every_value(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["compare", "tiny", "small", "base"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Ran: built-in reference model")
    assert "Against tiny" in out.splitlines()[2]
    assert "1.521 x" in out  # 111 / 73


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["huge"], "huge"),
        (["missing.json"], "missing.json"),
        (["broken.json"], "not JSON"),
        (["other.json"], "schema_version"),
        (["part.json"], "metadata"),
        (["tiny", "--format", "xml"], "xml"),
        (["tiny", "--engine", "guess"], "guess"),
        (["20"], "20"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(capsys, arguments, named):
    Path("broken.json").write_text("{")
    Path("other.json").write_text("{}")
    Path("part.json").write_text('{"schema_version": "1"}')
    assert main(["compare", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert named in captured.err


@pytest.mark.exhaustive
def test_closed_forms_execute_nothing_of_a_model_directory(capsys, tmp_path):
    config = (DEFAULT.reference / "config.json").read_text()
    Path("model").mkdir()
    Path("model/config.json").write_text(config)
    Path("model/modeling_deepseekocr.py").write_text("raise SystemExit('executed')")
    assert main(["compare", "tiny", "--model", "model", "--format", "csv"]) == 0
    assert main(["--engine", "analytic", "--model", "model", "-q"]) == 0
    assert main(["--model", "model", "-q"]) == 2


@pytest.mark.parametrize("item", ["3/640", "1024/0"])
def test_sizes_that_are_not_possible_are_named_as_they_were_given(capsys, item):
    assert main(["compare", item]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert f"mode '{item}' is invalid" in told.err
    assert "--base-size" not in told.err
