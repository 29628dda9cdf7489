"""Architectures, configs, types and kinds of attention side by side."""

import csv
import io
import itertools
import json
from pathlib import Path

import pytest
from command_line import run
from sampling import every, sampled

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT

OCR2 = ARCHITECTURES["deepseek-ocr-2"]
LAYERS = "num_hidden_layers"


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def compared(capsys, *arguments):
    code, out, err = run(capsys, "compare", *arguments, "--format", "json")
    assert code == 0, err
    return json.loads(out)


def values_of(comparison):
    return {row["key"]: row["values"] for row in comparison["rows"]}


def report_of(capsys, *arguments):
    code, out, err = run(capsys, "--engine", "analytic", "--json", "-", *arguments)
    assert code == 0, err
    return json.loads(out)


def config_file(name, architecture=DEFAULT, **changes):
    """A config of the reference with some keys changed, wherever in it they stand."""
    config = json.loads((architecture.reference / "config.json").read_text())
    for section in (config, *(each for each in config.values() if isinstance(each, dict))):
        section.update({key: value for key, value in changes.items() if key in section})
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(json.dumps(config))
    return name


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_runs_in_its_default_mode_or_in_the_one_named(capsys, name):
    architecture = ARCHITECTURES[name]
    page = ["--page", "900x1300", "--max-new-tokens", "7"]
    mode = list(architecture.modes)[-1]
    comparison = compared(capsys, name, f"{name}:{mode}", *page)
    assert comparison["names"] == [name, f"{name}:{mode}"]
    assert comparison["architectures"] == [name, name]
    assert comparison["pages"] == [[900, 1300]] * 2
    values = values_of(comparison)
    for index, each in enumerate((architecture.default_mode, mode)):
        report = report_of(capsys, "--arch", name, "--mode", each, *page)
        assert values["visual_tokens"][index] == report["workload"]["visual_tokens"]
        assert values["page_flops"][index] == report["total"]["page"]["flops"]
        assert values["kv_cache_bytes"][index] == report["memory"]["kv_cache_bytes"]


@pytest.mark.exhaustive
def test_all_architectures_stand_side_by_side_with_their_own_stages(capsys):
    comparison = compared(capsys, *ARCHITECTURES, "--page", "a4")
    values = values_of(comparison)
    for index, name in enumerate(ARCHITECTURES):
        report = report_of(capsys, "--arch", name, "--page", "a4")
        assert values["params"][index] == report["total"]["params"]
        for stage in {key for arch in ARCHITECTURES.values() for key in arch.stage_names}:
            row = values["decode_step_flops" if stage == "decode" else f"{stage}_flops"]
            own = report["stages"].get(stage)
            assert row[index] == (None if own is None else own["flops"])
    assert comparison["names"] == list(ARCHITECTURES)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "items", [("deepseek-ocr", "deepseek-ocr-2:base"), ("deepseek-ocr-2:base", "deepseek-ocr")]
)
def test_a_stage_that_one_model_lacks_is_empty_and_stands_in_the_same_place(capsys, items):
    comparison = compared(capsys, *items)
    keys = [row["key"] for row in comparison["rows"]]
    start = keys.index("sam_flops")
    assert keys[start : start + 6] == [
        "sam_flops", "clip_flops", "encoder_flops", "projector_flops", "prefill_flops",
        "decode_step_flops",
    ]  # fmt: skip
    lacking = {"clip_flops": items.index("deepseek-ocr-2:base"),
               "encoder_flops": items.index("deepseek-ocr")}  # fmt: skip
    rows = {row["key"]: row for row in comparison["rows"]}
    for key, index in lacking.items():
        assert rows[key]["values"][index] is None
        assert rows[key]["values"][1 - index] > 0
        assert rows[key]["ratios"][1] is None
        assert rows[key]["differences"][1] is None
    _, out, _ = run(capsys, "compare", *items, "--format", "csv")
    lines = {(line["key"], line["report"]): line for line in csv.DictReader(io.StringIO(out))}
    for key, index in lacking.items():
        assert lines[key, items[index]]["value"] == ""
        assert lines[key, items[1 - index]]["value"] != ""
    _, out, _ = run(capsys, "compare", *items, "--format", "markdown")
    [clip] = [line for line in out.splitlines() if line.startswith("| clip |")]
    assert "- |" in clip
    assert " x" not in clip


def test_a_mode_alone_belongs_to_the_architecture_of_the_options(capsys):
    comparison = compared(capsys, "base", "deepseek-ocr:base", "--arch", "deepseek-ocr-2")
    assert comparison["names"] == ["base", "deepseek-ocr:base"]
    assert comparison["architectures"] == ["deepseek-ocr-2", "deepseek-ocr"]
    assert values_of(comparison)["visual_tokens"] == [257, 273]
    assert compared(capsys, "base", "deepseek-ocr-2")["architectures"] == [
        "deepseek-ocr", "deepseek-ocr-2",
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_a_saved_report_of_another_architecture_stands_beside_a_mode(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    arguments = ["--engine", "analytic", "--arch", "deepseek-ocr-2", "-q", "--json", "two.json"]
    assert run(capsys, *arguments)[0] == 0
    code, out, _ = run(capsys, "compare", "gundam", "two.json", "deepseek-ocr-2")
    assert code == 0
    first = out.splitlines()[0]
    assert first.startswith("Ran: gundam: deepseek-ocr: built-in reference model")
    assert "; two.json: deepseek-ocr-2: built-in" in first
    assert "; deepseek-ocr-2: built-in" in first
    assert first.endswith("; page 1240 x 1754 pixels")
    assert out.splitlines()[1].startswith("Page of 1240 x 1754 pixels")
    assert out.splitlines()[2] == "Against gundam"
    values = values_of(compared(capsys, "gundam", "two.json", "deepseek-ocr-2"))
    assert all(first == second for _, first, second in values.values())


class TestSettings:
    @pytest.mark.exhaustive
    def test_one_column_for_each_combination_as_sweep_lists_them(self, capsys):
        lists = ["--dtype", "bfloat16,fp32", "--use-flash-attn", "0,1"]
        comparison = compared(capsys, "tiny", "small", *lists)
        settings = itertools.product(
            ("bfloat16", "float32"), ("eager", "flash_attention_2"), ("tiny", "small")
        )
        settings = list(settings)
        assert comparison["names"] == [
            f"{mode}, {dtype}, {attention}" for dtype, attention, mode in settings
        ]
        _, out, _ = run(capsys, "sweep", "--mode", "tiny,small", *lists)
        swept = list(csv.DictReader(io.StringIO(out)))
        values = values_of(comparison)
        assert [float(row["page_flops"]) for row in swept] == values["page_flops"]
        assert [(row["dtype"], row["attention"], row["mode"]) for row in swept] == settings
        for index, (dtype, attention, mode) in enumerate(settings):
            flash = str(int(attention != "eager"))
            report = report_of(capsys, "--dtype", dtype, "--use-flash-attn", flash, "--mode", mode)
            assert values["weights_bytes"][index] == report["memory"]["weights_bytes"]
            assert values["prefill_pass_bytes"][index] == (
                report["total"]["bytes_read"] + report["total"]["bytes_written"]
            )

    @pytest.mark.exhaustive
    def test_names_say_only_what_differs_and_the_first_line_the_rest(self, capsys):
        code, out, _ = run(capsys, "compare", "gundam", "--dtype", "bfloat16,float32",
                           "--page", "800x600", "--format", "markdown")  # fmt: skip
        assert code == 0
        assert "\n| quantity | unit | bfloat16 | float32 |\n" in out
        first = out.splitlines()[0]
        assert "bfloat16, eager attention; float32: " in first
        assert first.endswith("; page 800 x 600 pixels, 1024/640 (crops)\\")
        assert compared(capsys, "--use-flash-attn", "0,1")["names"] == [
            "eager", "flash_attention_2",
        ]  # fmt: skip
        assert compared(capsys, "tiny", "--dtype", "float16,half")["names"] == ["tiny"]

    @pytest.mark.exhaustive
    def test_a_saved_report_has_one_column(self, capsys):
        assert (
            run(capsys, "--engine", "analytic", "--mode", "tiny", "-q", "--json", "r.json")[0] == 0
        )
        names = compared(capsys, "r.json", "tiny", "--dtype", "bfloat16,float32")["names"]
        assert names == ["r.json", "tiny, bfloat16", "tiny, float32"]

    @pytest.mark.exhaustive
    def test_modes_of_the_option_are_those_of_what_names_none(self, capsys):
        both = ["deepseek-ocr", "deepseek-ocr-2", "--mode", "small,base"]
        comparison = compared(capsys, *both)
        assert comparison["names"] == [
            f"{arch}:{mode}" for arch in both[:2] for mode in ("small", "base")
        ]
        assert values_of(comparison)["visual_tokens"] == [111, 273, 145, 257]
        assert compared(capsys, "--mode", "all")["names"] == list(DEFAULT.modes)
        assert compared(capsys, "--mode", "512:640:128,tiny,tiny")["names"] == [
            "512", "640", "tiny",
        ]  # fmt: skip


class TestConfigs:
    @pytest.mark.exhaustive
    def test_each_config_has_a_column_and_the_keys_that_differ_are_named(self, capsys):
        six = config_file("six.json", **{LAYERS: 6})
        own = config_file("own.json")
        comparison = compared(capsys, "--config", own, "--config", six, "--mode", "tiny")
        assert comparison["names"] == ["own.json", "six.json"]
        for index, file in enumerate((own, six)):
            report = report_of(capsys, "--config", file, "--mode", "tiny")
            assert values_of(comparison)["params"][index] == report["total"]["params"]
        keys = {each["key"]: each["values"] for each in comparison["config_differences"]}
        assert keys[LAYERS] == {"own.json": 12, "six.json": 6}
        assert all(key.split(".")[-1] == LAYERS for key in keys)
        for wanted in ("table", "markdown"):
            _, out, _ = run(capsys, "compare", "--config", own, "--config", six, "--format", wanted)
            assert "Config keys that differ" in out
            [line] = [line for line in out.splitlines() if line.strip(" |").startswith(LAYERS)]
            assert line.replace("|", " ").split() == [LAYERS, "12", "6"]

    @pytest.mark.exhaustive
    def test_configs_of_several_architectures_run_in_their_own_default_modes(self, capsys):
        one, two = config_file("one.json"), config_file("two.json", OCR2)
        comparison = compared(capsys, "--config", one, "--config", two)
        assert comparison["architectures"] == ["deepseek-ocr", "deepseek-ocr-2"]
        assert values_of(comparison)["visual_tokens"] == [903, 1121]

    def test_an_architecture_runs_the_config_that_is_of_it(self, capsys):
        six = config_file("six.json", OCR2, **{LAYERS: 6})
        named = compared(capsys, "deepseek-ocr", "deepseek-ocr-2", "--config", six)
        plain = compared(capsys, "deepseek-ocr", "deepseek-ocr-2")
        assert named["names"] == plain["names"]
        layers = [values_of(each)["kv_cache_bytes"] for each in (named, plain)]
        assert layers[0] == [layers[1][0], layers[1][1] // 2]
        assert named["config_differences"] == []

    @pytest.mark.exhaustive
    def test_configs_and_modes_and_types_are_all_told_apart(self, capsys):
        one, two = config_file("a/config.json"), config_file("b/config.json", **{LAYERS: 3})
        names = compared(capsys, "--config", one, "--config", two, "--mode", "tiny,small",
                         "--dtype", "float16,float32")["names"]  # fmt: skip
        assert names == [
            f"{mode}, {file}, {dtype}"
            for dtype in ("float16", "float32") for file in (one, two) for mode in ("tiny", "small")
        ]  # fmt: skip

    @pytest.mark.exhaustive
    def test_warnings_say_which_config_they_are_of(self, capsys):
        one, two = config_file("one.json"), config_file("two.json")
        Path(two).write_text(json.dumps({**json.loads(Path(two).read_text()), "made_up": 1}))
        _, _, err = run(capsys, "compare", "--config", one, "--config", two)
        [line] = [line for line in err.splitlines() if "made_up" in line]
        assert "two.json: " in line


@sampled(
    ("arguments", "named"),
    [
        (["nonsense"], ["'nonsense'", "gundam-m", *ARCHITECTURES, "dynamic", "report.json"]),
        (["deepseek-ocr-3:base"], ["'deepseek-ocr-3:base'", *ARCHITECTURES]),
        (["dynamic"], ["'dynamic'", "deepseek-ocr-2:dynamic"]),
        (["gundam", "--arch", "deepseek-ocr-2"], ["'gundam'", "dynamic, small, base"]),
        (["deepseek-ocr-2:gundam"], ["deepseek-ocr-2 has no mode 'gundam'", "dynamic, small"]),
        (["deepseek-ocr:"], ["'deepseek-ocr:'", "gundam"]),
        (["deepseek-ocr-2:640"], ["'deepseek-ocr-2:640'", "768 or 1024"]),
        (["deepseek-ocr:3/640"], ["'deepseek-ocr:3/640'"]),
        (["deepseek-ocr-2", "--mode", "gundam"], ["deepseek-ocr-2: no mode 'gundam'", "dynamic"]),
        (["deepseek-ocr:base", "--mode", "tiny"], ["'deepseek-ocr:base'", "--mode tiny"]),
        (["base", "--mode", "tiny"], ["'base'", "--mode tiny"]),
        (["deepseek-ocr", "--arch", "deepseek-ocr-2"], ["--arch deepseek-ocr-2"]),
        (["deepseek-ocr", "--config", "two.json"], ["--config two.json"]),
        (["saved.json", "--config", "one.json"], ["--config one.json"]),
        (["saved.json", "--mode", "tiny"], ["--mode tiny", "saved reports"]),
        (["saved.json", "--dtype", "float16,float32"], ["--dtype", "saved reports"]),
        (["dynamic", "--config", "one.json", "--config", "two.json"], ["'dynamic'", "gundam"]),
        (["--config", "one.json", "--config", "./one.json"], ["one.json is given twice"]),
        (["--config", "one.json", "--config", "none.json"], ["'none.json'"]),
        (["--config", "one.json", "--arch", "deepseek-ocr-2"], ["contradicts --config one.json"]),
        (["tiny", "--use-flash-attn", "0,2"], ["--use-flash-attn '2'", "0,1"]),
        (["tiny", "--dtype", "bfloat16,int3"], ["--dtype 'int3'", "float32"]),
        (["tiny", "--dtype", "bfloat16,"], ["--dtype 'bfloat16,' has an empty item"]),
    ],
    every(4),
)
def test_what_cannot_be_compared_is_refused_in_one_line(capsys, arguments, named):
    config_file("one.json")
    config_file("two.json", OCR2)
    assert (
        run(capsys, "--engine", "analytic", "--mode", "tiny", "-q", "--json", "saved.json")[0] == 0
    )
    code, out, err = run(capsys, "compare", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for each in named:
        assert each in err


@pytest.mark.parametrize(
    ("file", "right"),
    [
        ("static_compute.json", "did you mean its report, folder.json/static_compute.json?"),
        ("config.json", "--model folder.json, models with --config folder.json/config.json"),
        ("model.py", "give a saved report, such as static_compute.json, or --model DIR"),
    ],
)
def test_for_a_folder_the_message_says_what_to_compare_instead(capsys, tmp_path, file, right):
    folder = tmp_path / "folder.json"
    folder.mkdir()
    (folder / file).write_text("{}")
    code, out, err = run(capsys, "compare", folder.name, "tiny")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("dsocr-analyze: cannot compare 'folder.json': it is a folder; ")
    assert right in err
