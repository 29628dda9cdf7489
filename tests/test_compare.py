"""Reports side by side: which rows there are, what they hold, and what a user puts there."""

import csv
import io
import json
from dataclasses import replace
from functools import cache, reduce
from operator import getitem
from pathlib import Path

import pytest
from command_line import run
from hand_built import CREATED, FIGURES, STAGES, batch_of, traced
from msgspec import structs
from relatives import FAMILY
from sampling import first, sampled

from dsocr_analyze import analyze
from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.cli import main
from dsocr_analyze.report.comparison import compare, config_differences
from dsocr_analyze.report.document import build_report
from dsocr_analyze.report.opening import dump_json


def report_of(figures):
    return build_report(figures, None, CREATED)


ONE = report_of(FIGURES)
OF_THREE = report_of(batch_of(3))


def rows_of(*reports):
    found = compare([(str(index), report) for index, report in enumerate(reports)])
    return {row.key: row for row in found.rows}


def test_every_quantity_has_a_key_a_name_and_a_unit():
    rows = [(row.key, row.quantity, row.unit, row.values[0]) for row in rows_of(ONE).values()]
    assert rows == [
        ("visual_tokens", "visual tokens", "tokens", 73),
        ("seq_len", "prompt", "tokens", 83),
        ("views", "views", "views", 1),
        ("eye_flops", "eye", "FLOPs", 4052),
        ("prefill_flops", "prefill", "FLOPs", 2812),
        ("decode_step_flops", "decode step", "FLOPs", 181),
        ("prefill_pass_flops", "prefill pass", "FLOPs", 6864),
        ("prefill_pass_matrix_flops", "prefill pass, matrix", "FLOPs", 6800),
        ("page_flops", "page", "FLOPs", 7228),
        ("prefill_pass_bytes", "prefill pass", "bytes", 4 * 34 + 6 * 60),
        ("decode_step_bytes", "decode step", "bytes", 34),
        ("page_bytes", "page", "bytes", 401),
        ("weights_bytes", "weights", "bytes", 1686),
        ("kv_cache_bytes", "KV cache at the end", "bytes", 1700),
        ("peak_activation_bytes", "peak activation", "bytes", 5000),
        ("max_new_tokens", "new tokens", "tokens", 3),
    ]


def other(stages=STAGES, weights_bytes=FIGURES.memory.weights_bytes, total=843):
    return report_of(replace(
        FIGURES, stages=stages, memory=replace(FIGURES.memory, weights_bytes=weights_bytes),
        parameters=replace(FIGURES.parameters, total=total),
    ))  # fmt: skip


EAR = replace(STAGES["eye"], name="ear")
DECODE = {"decode": STAGES["decode"]}
ROWS = [
    # The reports, a row, and its values, differences and ratios, all against the first.
    ((ONE, OF_THREE), "page_flops", (7228, 7228 / 3), (0, 7228 / 3 - 7228), (1, 7228 / 3 / 7228)),
    ((ONE, OF_THREE), "batch_flops", (7228, 7228), (0, 0), (1, 1)),
    ((ONE, OF_THREE), "batch_bytes", (401, 401), (0, 0), (1, 1)),
    ((ONE, other(weights_bytes=843)), "weights_bytes", (1686, 843), (0, -843), (1, 0.5)),
    # A quantity that is zero in the first has no ratio; a stage that is missing has nothing.
    ((other({**STAGES, "eye": replace(STAGES["eye"], kernels=())}), ONE), "eye_flops",
     (0, 4052), (0, 4052), (None, None)),
    ((ONE, other({"ear": EAR, **DECODE})), "eye_flops", (4052, None), (0, None), (1, None)),
    ((ONE, other({"ear": EAR, **DECODE})), "ear_flops", (None, 4052), (None, None), (None, None)),
    ((ONE, other(total=1000)), "params", (843, 1000), (0, 157), (1, 1000 / 843)),
]  # fmt: skip


def test_differences_and_ratios_are_against_the_first():
    for reports, *wanted in ROWS:
        row = rows_of(*reports)[wanted[0]]
        assert [row.key, row.values, row.differences, row.ratios] == wanted
    assert "params" not in rows_of(ONE, ONE)  # which are compared where they differ


def stages_of(*names):
    """Figures with stages of these names, of which the last is the decode step."""
    *others, decode = names
    made = {name: replace(STAGES["eye"], name=name) for name in others}
    return replace(FIGURES, stages={**made, decode: replace(STAGES["decode"], name=decode)})


def order_of(*reports):
    keys = [key for key, row in rows_of(*reports).items() if row.unit == "FLOPs"]
    return [key.removesuffix("_flops") for key in keys[: keys.index("prefill_pass_flops")]]


def test_the_order_of_stages_is_the_same_whichever_report_stands_first():
    for one, other, merged in (
        ("sam clip projector prefill decode", "sam encoder projector prefill decode",
         "sam clip encoder projector prefill decode_step"),
        ("vision prefill decode", "prefill decode", "vision prefill decode_step"),
        ("a b c prefill decode", "x prefill decode", "a b c x prefill decode_step"),
        ("eye prefill decode", "eye llm generate", "eye llm prefill decode_step generate_step"),
    ):  # fmt: skip
        reports = [report_of(stages_of(*names.split())) for names in (one, other)]
        assert order_of(*reports) == order_of(*reversed(reports)) == merged.split()
    # Contradicting orders, and a stage that is called like another row.
    reports = [report_of(stages_of(*names, "decode")) for names in ("ab", "ba")]
    assert order_of(*reports) == ["a", "b", "decode_step"]
    assert rows_of(report_of(stages_of("batch", "decode")))["batch_flops"].values == (4052,)


def test_names_that_are_given_twice_are_numbered():
    names = compare([(name, ONE) for name in ("a", "a", "a (2)", "b", "a")]).names
    assert names == ("a", "a (2)", "a (2) (2)", "b", "a (3)")


def of_architecture(name):
    model = structs.replace(FIGURES.provenance.model, architecture=name, code_digest=str(name) * 12)
    provenance = structs.replace(FIGURES.provenance, model=model)
    return report_of(replace(FIGURES, provenance=provenance))


ANALYTIC = "by the analytic engine, bfloat16, eager attention"


@pytest.mark.parametrize(
    ("reports", "first", "middle", "last"),
    [
        ({"x.json": of_architecture("one"), "two:base": of_architecture("two")},
         "Ran: x.json: one: model directory my-model", "; two:base: model directory my-model",
         ANALYTIC),
        ({"one": of_architecture("one"), "two": of_architecture("two")}, "Ran: one: model",
         "; two: model", ANALYTIC),
        ({"a": of_architecture("one"), "b": of_architecture(None)}, "Ran: a: ", "; b: ", ANALYTIC),
        ({"a": ONE, "b": OF_THREE}, "Ran: model directory my-model", "", ANALYTIC),
        ({"a": ONE, "b": report_of(traced())}, "Ran: a: model directory my-model",
         "; b: model directory my-model", ""),
    ],
)  # fmt: skip
def test_what_ran_says_what_names_leave_out(reports, first, middle, last):
    found = compare(list(reports.items()))
    own = [each.metadata.model.architecture for each in reports.values()]
    assert list(found.architectures) == own
    line = found.headline()
    assert (line.startswith(first), middle in line, line.endswith(last)) == (True, True, True), line


CONFIGS = {
    "a": {"layers": 2, "same": [1, 2], "text": {"heads": 4, "rope": None}, "on": True},
    "b": {"layers": 3, "same": [1, 2], "text": {"heads": 4}, "on": 1},
}
TWO = [("a", ONE), ("b", ONE)]


def test_keys_that_differ_are_named_with_every_value():
    comparison = compare(TWO, CONFIGS)
    _, table = comparison.tables(("a", "b"))
    assert table.columns == ("key", "a", "b")
    assert table.rows == (
        ("layers", "2", "3"), ("text.rope", "null", "-"), ("on", "true", "1"),
    )  # fmt: skip
    assert json.loads(dump_json(comparison))["config_differences"] == [
        {"key": "layers", "values": {"a": 2, "b": 3}},
        {"key": "text.rope", "values": {"a": None}},
        {"key": "on", "values": {"a": True, "b": 1}},
    ]
    lines = list(csv.DictReader(io.StringIO(comparison.as_csv(("a", "b")))))
    of_configs = [line for line in lines if line["unit"] == "config"]
    assert [(line["key"], line["report"], line["value"]) for line in of_configs] == [
        ("config.layers", "a", "2"), ("config.layers", "b", "3"),
        ("config.text.rope", "a", "null"), ("config.text.rope", "b", ""),
        ("config.on", "a", "true"), ("config.on", "b", "1"),
    ]  # fmt: skip


def test_objects_are_compared_key_by_key_and_lists_as_a_whole():
    for configs, differ in (
        ([{"a": {"b": 1, "c": 2}}, {}], ["a.b", "a.c"]),
        ([{"a": {}}, {}], ["a"]),
        ([{"a": {}}, {"a": {"b": 1}}], ["a.b"]),
        ([{"a": {"b": 1}}, {"a": 1}], ["a"]),
        ([{"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}], ["a"]),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], []),
        ([{"a": 1}, {"a": 1}, {"a": 2}], ["a"]),
        ([{"a": 1}, {"a": 1.0}, {"a": "1"}], ["a"]),
        ([{}, {}], []),
    ):
        named = dict(zip("abc", configs, strict=False))
        assert [key.key for key in config_differences(named)] == differ, configs


def test_configs_without_a_difference_say_so_and_one_config_says_nothing():
    _, keys = compare(TWO, {"a": {}, "b": {}}).tables(("a", "b"))
    assert keys.title == "Configs: no key differs"
    assert compare(TWO, {"a": {"x": 1}}).config_differences == ()
    assert len(compare(TWO).tables()) == 1


def test_tables_and_csv_show_differences_and_what_is_missing():
    comparison = compare(
        [("one", ONE), ("three", OF_THREE), ("ear", other({"ear": EAR, **DECODE}))]
    )
    [table] = comparison.tables()
    assert table.columns == ("quantity", "unit", "one", "three", "ear")
    assert {
        ("views", "views", "1", "1\n(+0, 1.000 x)", "1\n(+0, 1.000 x)"),
        ("eye", "FLOPs", "4.052 k", "4.052 k\n(+0, 1.000 x)", "-"),
        ("ear", "FLOPs", "-", "-", "4.052 k"),
        ("page", "FLOPs", "7.228 k", "2.409 k\n(-4.819 k, 0.333 x)", "7.228 k\n(+0, 1.000 x)"),
    } <= set(table.rows)
    lines = list(csv.DictReader(io.StringIO(comparison.as_csv())))
    assert len(lines) == 3 * len(comparison.rows)
    found = {(line["key"], line["report"]): line for line in lines}
    missing, page = found["eye_flops", "ear"], found["page_flops", "three"]
    assert [*missing.values()][-3:] == [""] * 3
    assert [float(page[key]) for key in ("value", "ratio")] == [7228 / 3, 7228 / 3 / 7228]
    assert (page["quantity"], page["unit"]) == ("page", "FLOPs")


# The command --------------------------------------------------------------------------------------


LAYERS = "num_hidden_layers"
ANALYTIC = ("--engine", "analytic", "--quiet", "--json")
IN_A_REPORT = {
    "visual_tokens": "workload visual_tokens",
    "page_flops": "total page flops",
    "prefill_pass_flops": "total flops",
    "weights_bytes": "memory weights_bytes",
    "kv_cache_bytes": "memory kv_cache_bytes",
}
"""Where a report has what a comparison has."""

STAGE_ROWS = [
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


FILES = {
    "one.json": {}, "few.json": {LAYERS: 1, "n_routed_experts": 8}, "six.json": {LAYERS: 6},
    "odd.json": {"made_up": 1}, "a/config.json": {}, "b/config.json": {LAYERS: 3},
    "two.json": {"arch": "deepseek-ocr-2", LAYERS: 6},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    for name, changes in FILES.items():
        config_file(folder / name, **changes)
    for name, asked in (("tiny.report", {"mode": "tiny"}),
                        ("dynamic.json", {"architecture": "deepseek-ocr-2"})):  # fmt: skip
        (folder / name).write_text(dump_json(analyze(engine="analytic", **asked)))
    return folder


@pytest.fixture(autouse=True)
def _there(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("COLUMNS", "1000")


def compared(capsys, line):
    """A comparison, which goes to a file instead."""
    code, out, err = run(capsys, "compare", *line.split(), "--format", "json", "--output", "c.json")
    assert (code, out) == (0, ""), err
    found = json.loads(Path("c.json").read_text())
    return found, {row["key"]: row for row in found["rows"]}


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
    (" ".join(FAMILY), {name: f"--arch {name}" for name in FAMILY}),
    *((f"{name} {name}:{mode} --page 900x1300 --max-new-tokens 7",
       {name: f"--arch {name} --page 900x1300 --max-new-tokens 7",
        f"{name}:{mode}": f"--arch {name} --mode {mode} --page 900x1300 --max-new-tokens 7"})
      for name, each in FAMILY.items() for mode in each.modes),
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
    ("--config two.json --config one.json --mode all",
     {f"{mode}, {file}": f"--config {file} --mode {mode}"
      for file, arch in (("two.json", "deepseek-ocr-2"), ("one.json", "deepseek-ocr"))
      for mode in ARCHITECTURES[arch].modes}),
    ("--config a/config.json --config b/config.json --mode tiny,small --dtype float16,float32",
     {f"{mode}, {file}, {dtype}": f"--config {file} --mode {mode} --dtype {dtype}"
      for dtype in ("float16", "float32") for file in ("a/config.json", "b/config.json")
      for mode in ("tiny", "small")}),
    ("64 128 --page 600x500 --max-new-tokens 1 --engine trace",
     {size: f"--base-size {size} --image-size {size} --crop-mode 0 --page 600x500"
            " --max-new-tokens 1" for size in ("64", "128")}),
]  # fmt: skip


@cache
def report_by(asked):
    """The JSON of the main command."""
    assert main([*asked.split(), *ANALYTIC, "asked.json"]) == 0
    return json.loads(Path("asked.json").read_text())


@sampled(("line", "columns"), COLUMNS, first(3))
def test_a_column_is_the_report_of_its_options(capsys, line, columns):
    found, rows = compared(capsys, line)
    assert found["names"] == [*columns]
    for index, asked in enumerate(columns.values()):
        report = report_by(asked)
        assert found["architectures"][index] == report["metadata"]["model"]["architecture"]
        wanted = {key: reduce(getitem, path.split(), report) for key, path in IN_A_REPORT.items()}
        for key in rows.keys() & STAGE_ROWS:
            stage = report["stages"].get(key.replace("_step", "").removesuffix("_flops"))
            wanted[key] = stage and stage["flops"]
        assert {key: rows[key]["values"][index] for key in wanted} == wanted


def test_figures_of_two_modes_by_hand(capsys):
    _, rows = compared(capsys, "base tiny --page 1191x1684")
    tokens, matrix = rows["visual_tokens"], rows["prefill_pass_matrix_flops"]["values"]
    assert (tokens["values"], tokens["differences"]) == ([273, 73], [0, 73 - 273])
    assert (tokens["ratios"], matrix) == ([1, 73 / 273], [1_469_826_109_952, 364_031_042_048])


ONE_AND_SIX = "--config one.json --config six.json --mode tiny"
SAID = [
    # The arguments, how the first line begins, and what else is said.
    ("tiny small base",
     "page [FLOPs]: tiny 1.579 T; small 1.746 T (+167.3 G, 1.106 x); base 2.706 T",
     ["\nRan: built-in reference model",
      "\nPage of 1240 x 1754 pixels, views 512 | 640 | 1024, 83 | 121 | 283 prompt tokens, batch 1,"
      " 1,024 new tokens, bfloat16, eager attention\n", "Against tiny", "1.521 x"]),  # 111 / 73
    ("640/1024 --dtype bfloat16,float16", "warning: --base-size 640 is below --image-size 1024",
     ["\n\n"]),
    ("tiny small --format markdown", "page \\[FLOPs\\]: tiny",
     ["\nRan: built-in reference model",
      "\n\n| quantity | unit | tiny | small |\n", "| visual tokens | tokens | 73 | 111"]),
    ("gundam --page a4@200 --format markdown", "page \\[FLOPs\\]: gundam",
     ["\nRan: built-in reference model",
      "\nPage of 1654 x 2339 pixels, views 1024/640 (cut 2 x 3), 913 prompt tokens, batch 1,"]),
    ("tiny small --format csv", "key,quantity,unit,report,value,difference,ratio",
     ["\nvisual_tokens,visual tokens,tokens,small,111,38,1.52"]),
    ("gundam --dtype bfloat16,float32 --page 800x600 --format markdown", "page ",
     ["\nRan: bfloat16: ", "bfloat16, eager attention; float32: ",
      "float32, eager attention\\\nPage of 800 x 600 pixels, views 1024/640",
      "\n| quantity | unit | bfloat16 | float32 |\n"]),
    ("tiny --max-new-tokens 9000",
     "warning: tiny: 83 prompt tokens and 9000 new ones reach 9082 positions",
     ["max_position_embeddings, 8192; at most 8110"]),
    ("tiny base --gpu h100 --price 2", "page [FLOPs]: tiny",  # the money, before the tables
     ["vllm: 1,000 pages, 1 at once [price]: tiny 0.7", "\nRan: built-in reference model"]),
    ("tiny.report --use-flash-attn 0 tiny", "page [FLOPs]: tiny.report",
     ["\nRan: built-in", "(+0, 1.000 x)"]),
    ("gundam dynamic.json deepseek-ocr-2",
     "page [FLOPs]: gundam 5.858 T; dynamic.json 8.427 T",
     ["Ran: gundam: deepseek-ocr: built-in reference model",
      "; dynamic.json: deepseek-ocr-2: built-in", "; deepseek-ocr-2: built-in",
      "\nPage of 1240 x 1754 pixels", "\nAgainst gundam\n"]),
    ("--config one.json --config odd.json", "warning: odd.json: ", ["made_up"]),
    (ONE_AND_SIX, f"config keys that differ: language_config.{LAYERS}, {LAYERS}\n",
     ["Ran: ", "Config keys that differ", f"\n{LAYERS} 12 6\n"]),
    (f"{ONE_AND_SIX} --format markdown", "config keys that differ: ",
     ["Ran: ", "Config keys that differ", f"\n| {LAYERS} | 12 | 6 |\n"]),
]  # fmt: skip


@sampled(("line", "begins", "said"), SAID, first(4))
def test_what_is_printed(capsys, line, begins, said):
    code, out, err = run(capsys, "compare", *line.split())
    text = "\n".join(" ".join(each.split()) for each in out.splitlines()) + "\n"
    assert code == 0
    assert err.count("\n") <= 1
    assert f"{err}{text}".removeprefix("dsocr-analyze: ").startswith(begins)
    assert [each for each in said if each not in f"{err}{text}"] == []


@pytest.mark.exhaustive
def test_closed_forms_execute_nothing_of_a_model_directory(capsys, tmp_path):
    model = tmp_path / "model"
    config_file(model / "config.json")
    (model / "modeling_deepseekocr.py").write_text("raise SystemExit('executed')")
    assert run(capsys, "compare", "tiny", "--model", model, "--format", "csv")[0] == 0
    assert run(capsys, "--model", model, *ANALYTIC, "-")[0] == 0
    assert run(capsys, "--model", model, "--quiet")[0] == 2
