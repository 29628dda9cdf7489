"""Modes, sizes, architectures, configs, types and saved reports side by side."""

import csv
import io
import json
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
from command_line import run
from sampling import first, sampled

from dsocr_analyze.architectures import ARCHITECTURES

LAYERS = "num_hidden_layers"
ANALYTIC = ("--engine", "analytic", "--quiet", "--json")
FIGURES = {
    "visual_tokens": "workload visual_tokens",
    "page_flops": "total page flops",
    "prefill_pass_flops": "total flops",
    "weights_bytes": "memory weights_bytes",
    "kv_cache_bytes": "memory kv_cache_bytes",
}
"""Where a report has what a comparison has."""

STAGES = [
    "sam_flops", "clip_flops", "encoder_flops", "projector_flops", "prefill_flops",
    "decode_step_flops",
]  # fmt: skip


def config_file(path, arch="deepseek-ocr", **changes):
    """A config of the reference with some keys changed, wherever in it they stand."""
    config = json.loads((ARCHITECTURES[arch].reference / "config.json").read_text())
    for section in (config, *(each for each in config.values() if isinstance(each, dict))):
        section.update({key: value for key, value in changes.items() if key in section})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    config_file(folder / "one.json")
    config_file(folder / "few.json", **{LAYERS: 1, "n_routed_experts": 8})
    config_file(folder / "six.json", **{LAYERS: 6})
    config_file(folder / "odd.json", made_up=1)
    config_file(folder / "a/config.json")
    config_file(folder / "b/config.json", **{LAYERS: 3})
    config_file(folder / "two.json", "deepseek-ocr-2", **{LAYERS: 6})
    return folder


@pytest.fixture(autouse=True)
def _there(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("COLUMNS", "1000")
    if not Path("tiny.report").exists():
        assert run(capsys, "--mode", "tiny", *ANALYTIC, "tiny.report")[0] == 0
        assert run(capsys, "--arch", "deepseek-ocr-2", *ANALYTIC, "dynamic.json")[0] == 0


def compared(capsys, line):
    code, out, err = run(capsys, "compare", *line.split(), "--format", "json")
    assert code == 0, err
    comparison = json.loads(out)
    return comparison, {row["key"]: row for row in comparison["rows"]}


BOTH = ("bfloat16", "float32")
KINDS = {"eager": 0, "flash_attention_2": 1}
COLUMNS = [
    # The arguments of compare; for the name of each column, the arguments of its report.
    ("tiny small --config few.json --dtype bfloat16,fp32 --use-flash-attn 0,1",
     {f"{mode}, {dtype}, {each}":
      f"--mode {mode} --config few.json --dtype {dtype} --use-flash-attn {flag}"
      for dtype in BOTH for each, flag in KINDS.items() for mode in ("tiny", "small")}),
    ("base deepseek-ocr:base --arch deepseek-ocr-2",
     {"base": "--arch deepseek-ocr-2 --mode base", "deepseek-ocr:base": "--mode base"}),
    ("tiny.report gundam dynamic.json deepseek-ocr-2",
     {"tiny.report": "--mode tiny", "gundam": "", "dynamic.json": "--arch deepseek-ocr-2",
      "deepseek-ocr-2": "--arch deepseek-ocr-2"}),
    ("deepseek-ocr deepseek-ocr-2 --config two.json",
     {"deepseek-ocr": "", "deepseek-ocr-2": "--config two.json"}),
    ("1024/640 640 --page 1024x1024",
     {"1024/640": "--page 1024x1024",
      "640": "--page 1024x1024 --base-size 640 --image-size 640 --crop-mode 0"}),
    ("--page 900x700", {mode: f"--mode {mode} --page 900x700"
                        for mode in ARCHITECTURES["deepseek-ocr"].modes}),
    ("--mode all", {mode: f"--mode {mode}" for mode in ARCHITECTURES["deepseek-ocr"].modes}),
    (" ".join(ARCHITECTURES), {name: f"--arch {name}" for name in ARCHITECTURES}),
    *((f"{name} {name}:{mode} --page 900x1300 --max-new-tokens 7",
       {name: f"--arch {name} --page 900x1300 --max-new-tokens 7",
        f"{name}:{mode}": f"--arch {name} --mode {mode} --page 900x1300 --max-new-tokens 7"})
      for name, each in ARCHITECTURES.items() for mode in each.modes),
    ("--use-flash-attn 0,1", {each: f"--use-flash-attn {flag}" for each, flag in KINDS.items()}),
    ("tiny --dtype float16,half", {"tiny": "--mode tiny --dtype float16"}),
    ("tiny.report tiny --dtype bfloat16,float32",
     {"tiny.report": "--mode tiny",
      **{f"tiny, {dtype}": f"--mode tiny --dtype {dtype}" for dtype in BOTH}}),
    ("deepseek-ocr deepseek-ocr-2 --mode small,base",
     {f"{name}:{mode}": f"--arch {name} --mode {mode}"
      for name in ("deepseek-ocr", "deepseek-ocr-2") for mode in ("small", "base")}),
    ("--mode 512:640:128,tiny,tiny",
     {**{size: f"--base-size {size} --image-size {size} --crop-mode 0" for size in ("512", "640")},
      "tiny": "--mode tiny"}),
    ("--config one.json --config six.json --mode tiny",
     {name: f"--config {name} --mode tiny" for name in ("one.json", "six.json")}),
    ("--config one.json --config two.json",
     {name: f"--config {name}" for name in ("one.json", "two.json")}),
    ("--config a/config.json --config b/config.json --mode tiny,small --dtype float16,float32",
     {f"{mode}, {file}, {dtype}": f"--config {file} --mode {mode} --dtype {dtype}"
      for dtype in ("float16", "float32") for file in ("a/config.json", "b/config.json")
      for mode in ("tiny", "small")}),
    ("64 128 --page 600x500 --max-new-tokens 1 --engine trace",
     {size: f"--base-size {size} --image-size {size} --crop-mode 0 --page 600x500"
            " --max-new-tokens 1" for size in ("64", "128")}),
]  # fmt: skip


@sampled(("line", "columns"), COLUMNS, first(4))
def test_a_column_is_the_report_of_its_options(capsys, line, columns):
    comparison, rows = compared(capsys, line)
    assert comparison["names"] == [*columns]
    for index, asked in enumerate(columns.values()):
        report = json.loads(run(capsys, *asked.split(), *ANALYTIC, "-")[1])
        assert comparison["architectures"][index] == report["metadata"]["model"]["architecture"]
        for key, path in FIGURES.items():
            assert rows[key]["values"][index] == reduce(getitem, path.split(), report), key
        stages = report["stages"]
        for key in rows.keys() & STAGES:
            own = stages.get(key.removesuffix("_flops").replace("_step", ""), {"flops": None})
            assert rows[key]["values"][index] == own["flops"], key


def test_differences_and_ratios_are_against_the_first(capsys):
    _, rows = compared(capsys, "base tiny --page 1191x1684")
    tokens = rows["visual_tokens"]
    assert tokens["values"] == [273, 73]
    assert tokens["differences"] == [0, 73 - 273]
    assert tokens["ratios"] == [1, 73 / 273]
    matrix = rows["prefill_pass_matrix_flops"]["values"]
    assert matrix == [1_469_826_109_952, 364_031_042_048]


@sampled("items", ["deepseek-ocr deepseek-ocr-2", "deepseek-ocr-2 deepseek-ocr"], first(1))
def test_a_stage_that_one_model_lacks_is_empty_and_stands_in_the_same_place(capsys, items):
    _, rows = compared(capsys, items)
    assert [key for key in rows if key in STAGES] == STAGES
    lines = list(csv.DictReader(io.StringIO(run(capsys, "compare", *items.split(), "--format",
                                                "csv")[1])))  # fmt: skip
    for key, has in (("clip_flops", "deepseek-ocr"), ("encoder_flops", "deepseek-ocr-2")):
        index = items.split().index(has)
        assert rows[key]["values"][index] > 0
        assert rows[key]["values"][1 - index] is None
        assert rows[key]["ratios"][1] is rows[key]["differences"][1] is None
        cells = {line["report"]: line["value"] for line in lines if line["key"] == key}
        assert {name: bool(value) for name, value in cells.items()} == {
            name: name == has for name in items.split()
        }


ONE_AND_SIX = "--config one.json --config six.json --mode tiny"
SAID = [
    # The arguments, how the first line begins, and what else is said.
    ("tiny small base", "Ran: built-in reference model", ["Against tiny", "1.521 x"]),  # 111 / 73
    ("640/1024 --dtype bfloat16,float16", "warning: --base-size 640 is below --image-size 1024",
     ["\n\n"]),
    ("tiny small --format markdown", "Ran: built-in reference model",
     ["\n\n| quantity | unit | tiny | small |\n", "| visual tokens | tokens | 73 | 111"]),
    ("tiny small --format csv", "key,quantity,unit,report,value,difference,ratio",
     ["\nvisual_tokens,visual tokens,tokens,small,111,38,1.52"]),
    ("gundam --dtype bfloat16,float32 --page 800x600 --format markdown", "Ran: bfloat16: ",
     ["bfloat16, eager attention; float32: ", "; page 800 x 600 pixels, 1024/640 (crops)\\\n",
      "\n| quantity | unit | bfloat16 | float32 |\n"]),
    ("tiny.report --use-flash-attn 0 tiny", "Ran: built-in", ["(+0, 1.000 x)"]),
    ("gundam dynamic.json deepseek-ocr-2",
     "Ran: gundam: deepseek-ocr: built-in reference model",
     ["; dynamic.json: deepseek-ocr-2: built-in", "; deepseek-ocr-2: built-in",
      "; page 1240 x 1754 pixels\nPage of 1240 x 1754 pixels", "\nAgainst gundam\n"]),
    ("--config one.json --config odd.json", "warning: odd.json: ", ["made_up"]),
    (ONE_AND_SIX, "Ran: ", ["Config keys that differ", f"\n{LAYERS} 12 6\n"]),
    (f"{ONE_AND_SIX} --format markdown", "Ran: ",
     ["Config keys that differ", f"\n| {LAYERS} | 12 | 6 |\n"]),
]  # fmt: skip


@sampled(("line", "begins", "said"), SAID, first(3))
def test_what_is_printed(capsys, line, begins, said):
    code, out, err = run(capsys, "compare", *line.split())
    text = "\n".join(" ".join(each.split()) for each in out.splitlines()) + "\n"
    assert code == 0
    assert err.count("\n") <= 1
    assert f"{err}{text}".removeprefix("dsocr-analyze: ").startswith(begins)
    assert [each for each in said if each not in f"{err}{text}"] == []


@pytest.mark.exhaustive
def test_keys_that_differ_between_configs_are_listed(capsys):
    comparison, _ = compared(capsys, ONE_AND_SIX)
    keys = {each["key"]: each["values"] for each in comparison["config_differences"]}
    assert keys[LAYERS] == {"one.json": 12, "six.json": 6}
    assert all(key.split(".")[-1] == LAYERS for key in keys)
    assert compared(capsys, "deepseek-ocr-2 --config two.json")[0]["config_differences"] == []


def test_it_goes_to_a_file_instead(capsys):
    printed = run(capsys, "compare", "tiny", "--format", "markdown")[1]
    assert run(capsys, "compare", "tiny", "--format", "markdown", "--output", "c.md")[1] == ""
    assert Path("c.md").read_text() == printed


@pytest.mark.exhaustive
def test_closed_forms_execute_nothing_of_a_model_directory(capsys, tmp_path):
    model = tmp_path / "model"
    config_file(model / "config.json")
    (model / "modeling_deepseekocr.py").write_text("raise SystemExit('executed')")
    assert run(capsys, "compare", "tiny", "--model", model, "--format", "csv")[0] == 0
    assert run(capsys, "--model", model, *ANALYTIC, "-")[0] == 0
    assert run(capsys, "--model", model, "--quiet")[0] == 2
