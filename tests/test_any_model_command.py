"""Any model on the command line, and the documentation's example of one."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from any_models import IS_5, LLAMA, MODELS
from command_line import run

from dsocr_analyze.cli import main

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/any-model.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples/any_model"
BLOCKS = dict(re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = [
    line.removeprefix("dsocr-analyze ")
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in block.replace("\\\n", "").splitlines()
]

needs_4 = pytest.mark.skipif(IS_5, reason="the example is written for transformers 4")


class TestDocumentation:
    def test_the_stages_file_shown_is_the_examples(self):
        assert BLOCKS["toml"] == (EXAMPLE / "qwen2_vl.toml").read_text(encoding="utf-8")

    @pytest.mark.exhaustive
    @needs_4
    def test_the_output_shown_is_a_real_runs(self, capsys, monkeypatch, tmp_path):
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "examples").symlink_to(ROOT / "examples")
        assert main(shlex.split(COMMANDS[0])) == 0
        printed = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
        shown = BLOCKS["text"].splitlines()
        assert len(shown) > 8
        assert [line for line in shown if line.rstrip() not in printed] == []

    @pytest.mark.exhaustive
    def test_every_other_command_runs_as_it_stands(self, capsys, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "config.json").write_text((EXAMPLE / "config.json").read_text())
        drafts, runs = COMMANDS[1:]
        for command in (drafts, runs):
            assert main(shlex.split(command)) == 0, command
        assert "a prompt of 288 tokens" in capsys.readouterr().out

    @pytest.mark.exhaustive
    @needs_4
    def test_the_python_prints_what_it_says(self, capsys, monkeypatch):
        monkeypatch.chdir(ROOT)
        exec(compile(BLOCKS["python"], "any-model.md", "exec"), {})
        promised = re.findall(r"^print\(.*\)\s+# (.*)$", BLOCKS["python"], re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == promised != []

    def test_every_key_is_described(self):
        """Those that the reader of the file knows, by asking it for what it knows."""
        source = (ROOT / "src/dsocr_analyze/architectures/any_model/description.py").read_text()
        keys = set(
            re.findall(r"\.(?:text|texts|choice|flag|whole|value|tables?)\(\s*\"(\w+)\"", source)
        )
        assert len(keys) > 20
        for key in keys - {"start", "count", "value"}:
            assert f"`{key}`" in PAGE or f"[{key}]" in PAGE or f"[[{key}]]" in PAGE, key

    def test_the_config_of_the_example_is_of_its_published_size(self):
        config = json.loads((EXAMPLE / "config.json").read_text())
        stages = tomllib.loads(BLOCKS["toml"])
        rows, columns = stages["inputs"]["image_grid_thw"]["values"][0][1:]
        side = config["vision_config"]["patch_size"]
        assert (columns * side, rows * side) == (1036, 1456)
        assert stages["inputs"]["pixel_values"]["shape"] == [rows * columns, 3 * 2 * side * side]
        assert stages["prompt"]["placed"][1]["count"] == rows * columns // 4


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return LLAMA.write(tmp_path)


class TestCommand:
    @pytest.mark.exhaustive
    def test_a_report_is_written_and_printed(self, capsys, files):
        stages, config = files
        code, out, err = run(
            capsys, "--stages", stages, "--hf-config", config, "--strict", "--batch-size", 2,
            "--seq-len", 30, "--max-new-tokens", 5,
        )  # fmt: skip
        assert (code, err) == (0, "")
        assert "30 tokens" in out
        assert "pixels a side" not in out
        document = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())
        assert document["workload"] == {
            **dict.fromkeys(
                ("page", "base_size", "image_size", "crop_mode", "grid", "views", "visual_tokens",
                 "text_tokens", "prompt_pages")
            ),
            "seq_len": 30, "batch_size": 2, "max_new_tokens": 5,
        }  # fmt: skip
        assert document["metadata"]["model"]["source"] == "config"

    def test_a_model_that_does_not_decode_has_no_step(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        stages, config = MODELS["clip"].write(tmp_path)
        code, out, err = run(capsys, "--stages", stages, "--hf-config", config, "--strict")
        assert (code, err) == (0, "")
        assert "decode step" not in out
        document = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())
        assert document["total"]["decode_step"] is None
        assert list(document["stages"]) == ["image", "text", "similarity"]
        assert document["memory"]["kv_cache_bytes"] == 0
        batch, prefill = document["total"]["batch"], document["total"]
        assert batch["flops"] == prefill["flops"]
        assert (batch["max_new_tokens"], batch["decode_steps"]) == (0, 0)

    @pytest.mark.parametrize(
        "options", [["--engine", "analytic"], ["--gpu", "a10"]], ids=["analytic", "gpu"]
    )
    def test_what_needs_closed_forms_says_that_there_are_none(self, capsys, files, options):
        stages, config = files
        code, _, err = run(capsys, "--stages", stages, "--hf-config", config, *options)
        assert code == 2
        assert err == "dsocr-analyze: small has no closed forms; it can only be traced\n"

    def test_a_tree_has_its_stages(self, capsys, files):
        stages, config = files
        code, out, _ = run(capsys, "tree", "--stages", stages, "--hf-config", config)
        assert code == 0
        assert re.search(r"lm_head: Linear\s+decode\s+8,192", out)
        code, out, _ = run(
            capsys, "tree", "--stages", stages, "--hf-config", config, "--stage", "x", "--no-trace"
        )
        assert code == 2

    @pytest.mark.exhaustive
    def test_a_saved_report_compares_with_another(self, capsys, files):
        stages, config = files
        for name, length in (("one", 20), ("two", 40)):
            arguments = ["--stages", stages, "--hf-config", config, "--seq-len", length]
            assert run(capsys, *arguments, "-q", "--json", f"{name}.json")[0] == 0
        code, out, _ = run(capsys, "compare", "one.json", "two.json")
        assert code == 0
        assert "visual tokens" not in out

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--stages", "small.toml"], "name it: --model DIR or --hf-config FILE"),
            (["--hf-config", "small.json"], "--stages FILE"),
            (["--stages", "small.toml", "--hf-config", "small.json", "--model", "x"],
             "leave out --model x"),
            (["--stages", "small.toml", "--hf-config", "small.json", "--arch", "deepseek-ocr"],
             "leave out --arch deepseek-ocr"),
            (["--stages", "small.toml", "--hf-config", "small.json", "--page", "a4"],
             "--page applies only to models that read pages"),
            (["--stages", "small.toml", "--hf-config", "small.json", "--mode", "gundam"],
             "--mode applies only to models that read pages"),
            (["--stages", "small.toml", "--hf-config", "small.json", "--prompt", "x"],
             "give --seq-len"),
            (["--stages", "none.toml", "--hf-config", "small.json"], "cannot read 'none.toml'"),
            (["--stages", "small.toml", "--hf-config", "none.json"], "no config at 'none.json'"),
        ],
    )  # fmt: skip
    def test_what_contradicts_is_named(self, capsys, files, options, message):
        code, _, err = run(capsys, *options)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1

    @pytest.mark.parametrize("command", [(), ("time",), ("fit",), ("sweep",), ("compare",)])
    def test_an_unknown_directory_says_what_it_needs(self, capsys, files, command):
        folder = Path("folder")
        folder.mkdir()
        (folder / "config.json").write_text(files[1].read_text())
        code, _, err = run(capsys, *command, "--model", folder)
        assert code == 2
        assert "it is a llama model (LlamaForCausalLM)" in err
        assert "describe it with --stages FILE" in err
        assert err.count("\n") == 1
