"""The command line: what it prints, writes and refuses, how it ends, and what it leaves behind."""

import ast
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import typer
from command_line import run
from PIL import Image
from process_state import process_settings
from sampling import first, sampled

from dsocr_analyze.cli import main
from dsocr_analyze.cli.commands import app
from dsocr_analyze.cli.docs import command_reference
from dsocr_analyze.cli.words import OPTIONS, in_options

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


SMALL = ("--page", "600x500", "--crop-mode", "0", "--image-size", "64", "--max-new-tokens", "1")
"""The smallest workload: one view of one visual token."""


class TestMainJob:
    def test_it_prints_the_table_and_writes_both_files(self, capsys):
        code, out, err = run(capsys, "--base-size", 1024, "--image-size", 640)
        assert (code, err) == (0, "")
        assert out.startswith("model   deepseek-ocr (reference), trace on meta, bfloat16")
        assert "4.591 TFLOPs" in out
        document = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())
        assert document["workload"]["page"] == [1240, 1754]
        assert document["workload"]["seq_len"] == 913
        text = Path("tmp/dsocr-static-ops/static_compute.md").read_text()
        assert text.startswith("Ran: built-in reference model")

    @pytest.mark.exhaustive
    def test_json_can_be_piped(self, capsys):
        code, out, err = run(capsys, *SMALL, "--json", "-")
        assert (code, err) == (0, "")
        assert json.loads(out) == json.loads(
            Path("tmp/dsocr-static-ops/static_compute.json").read_text()
        )

    @pytest.mark.exhaustive
    def test_json_goes_to_a_file_too(self, capsys, tmp_path):
        code, out, _ = run(capsys, *SMALL, "--json", tmp_path / "report.json", "--quiet")
        assert (code, out) == (0, "")
        assert json.loads((tmp_path / "report.json").read_text())["schema_version"] == "2"

    @pytest.mark.exhaustive
    def test_markdown_on_stdout_is_the_file(self, capsys):
        _, out, _ = run(capsys, *SMALL, "--format", "markdown", "--output", "here")
        assert out == Path("here/static_compute.md").read_text()

    @pytest.mark.exhaustive
    def test_quiet_prints_nothing(self, capsys):
        assert run(capsys, *SMALL, "--quiet") == (0, "", "")

    def test_version(self, capsys):
        from dsocr_analyze import __version__

        assert run(capsys, "--version") == (0, f"dsocr-analyze {__version__}\n", "")

    @pytest.mark.exhaustive
    def test_a_mode_sets_the_sizes(self, capsys):
        run(capsys, "--mode", "base", "--page", "letter", "--max-new-tokens", 1, "-q")
        workload = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())[
            "workload"
        ]
        assert workload["crop_mode"] is False
        assert workload["image_size"] == 1024
        assert workload["page"] == [1275, 1650]

    @pytest.mark.exhaustive
    def test_the_page_is_taken_from_an_image_as_it_is_seen(self, capsys, tmp_path):
        exif = Image.Exif()
        exif[0x0112] = 6  # rotated by 90 degrees
        Image.new("RGB", (300, 200)).save(tmp_path / "scan.jpg", exif=exif)
        run(capsys, *SMALL[2:], "--image", "scan.jpg", "-q")
        workload = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())[
            "workload"
        ]
        assert workload["page"] == [200, 300]

    @pytest.mark.exhaustive
    def test_flash_attention_needs_no_package_where_nothing_is_computed(self, capsys):
        code, _, err = run(capsys, *SMALL, "--use-flash-attn", 1, "-q")
        assert (code, err) == (0, "")
        document = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())
        assert document["metadata"]["attention"] == "flash_attention_2"
        assert "flash_attention" in document["operator_ledger"]["counted"]

    @pytest.mark.exhaustive
    def test_a_config_of_another_network_can_be_run(self, capsys, tmp_path):
        reference = ROOT / "src/dsocr_analyze/architectures/deepseek_ocr/reference/config.json"
        config = json.loads(reference.read_text()) | {"num_hidden_layers": 2, "vocab_size": 1000}
        (tmp_path / "small.json").write_text(json.dumps(config))
        code, _, _ = run(capsys, *SMALL, "--config", "small.json", "-q")
        document = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())
        assert code == 0
        assert document["stages"]["decode"]["params"] == 1000 * 1280

    @pytest.mark.exhaustive
    def test_a_sequence_beyond_the_positions_is_warned_of_and_counted(self, capsys):
        code, _, err = run(capsys, *SMALL, "--text-tokens", 9000, "-q")
        assert code == 0
        assert err.count("\n") == 1
        assert "8192" in err

    @pytest.mark.exhaustive
    def test_strict_turns_a_warning_into_a_failure_after_writing(self, capsys):
        code, _, err = run(capsys, *SMALL, "--text-tokens", 9000, "-q", "--strict")
        assert code == 3
        assert "--strict" in err
        assert Path("tmp/dsocr-static-ops/static_compute.json").exists()


def _truncated_png(path: Path) -> Path:
    path.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00")
    return path


REFUSED = {
    "size not positive": (("--base-size", 0), ["--base-size 0", "64"]),
    "size below a visual token": (("--image-size", 63), ["63", "64"]),
    "size absurd": (("--base-size", 10**9), ["1000000000", "16384"]),
    "size no number": (("--base-size", "big"), ["--base-size"]),
    "sequence below the visual tokens": (("--seq-len", 903), ["903", "904"]),
    "two lengths that contradict": (("--seq-len", 950, "--text-tokens", 3), ["950", "3"]),
    "no text token": (("--text-tokens", 0), ["--text-tokens 0"]),
    "unknown mode": (("--mode", "huge"), ["huge", "gundam-m"]),
    "mode and size": (("--mode", "tiny", "--image-size", 640), ["--mode", "--image-size"]),
    "crop mode no switch": (("--crop-mode", 2), ["--crop-mode 2", "0 or 1"]),
    "unknown device": (("--device", "tpu"), ["tpu", "meta"]),
    "device with an odd index": (("--device", "cuda:x"), ["cuda:x"]),
    "unknown dtype": (("--dtype", "int8"), ["int8", "bfloat16"]),
    "unknown page": (("--page", "a99"), ["a99", "letter"]),
    "page without area": (("--page", "0x10"), ["0 x 10"]),
    "page and image": (("--page", "a4", "--image", "x.png"), ["--page", "--image"]),
    "missing image": (("--image", "none.png"), ["none.png"]),
    "image that is a directory": (("--image", "."), ["'.'"]),
    "missing model": (("--model", "nowhere"), ["nowhere"]),
    "model without config": (("--model", "."), ["config.json"]),
    "missing config": (("--config", "none.json"), ["none.json"]),
    "prompt without tokenizer": (("--prompt", "hi"), ["--prompt", "tokenizer"]),
    "flash attention on the CPU": (
        ("--device", "cpu", "--use-flash-attn", 1),
        ["--use-flash-attn 1", "--use-flash-attn 0"],
    ),
    "batch of none": (("--batch-size", 0), ["--batch-size 0"]),
    "batch too large to trace": (("--batch-size", 1025), ["1025", "1024", "--engine analytic"]),
    "no new token": (("--max-new-tokens", 0), ["--max-new-tokens 0"]),
    "unknown format": (("--format", "xml"), ["xml", "markdown"]),
    "unknown option": (("--colour",), ["--colour"]),
    "unknown command": (("frobnicate",), ["frobnicate"]),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("arguments", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_input_gets_one_line_and_exit_code_2(capsys, tmp_path, arguments, named):
    (tmp_path / "file").write_text("")
    earlier = tmp_path / "tmp/dsocr-static-ops/static_compute.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("earlier report")
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("dsocr-analyze: ")
    assert err.count("\n") == 1
    for text in named:
        assert text in err
    assert earlier.read_text() == "earlier report"
    assert sorted(p.name for p in earlier.parent.iterdir()) == ["static_compute.json"]


def every_option():
    main_command = typer.main.get_command(app)
    for name, command in [("", main_command), *main_command.commands.items()]:
        for option in command.params:
            if option.param_type_name == "option":
                yield [name] if name else [], option


class TestRepeatedOptions:
    @pytest.mark.exhaustive
    def test_every_option_with_one_value_is_refused_with_two(self, capsys):
        for command, option in every_option():
            if option.is_flag or option.multiple:
                continue
            for first_one, second in itertools.product(option.opts, repeat=2):
                arguments = (*command, first_one, "1", second, "word")
                code, out, err = run(capsys, *arguments)
                assert (code, out) == (2, ""), arguments
                expected = (
                    f"dsocr-analyze: {option.opts[0]} is given more than once, as '1' and 'word'; "
                )
                assert err.startswith(expected), arguments
                assert err.count("\n") == 1

    @pytest.mark.parametrize(
        ("arguments", "right"),
        [
            (("compare", "--model", "A", "--model=B"),
             "compare --config A/config.json --config B/config.json"),
            (("advise", "--mode=base", "--mode", "small"), "give one list: --mode base,small"),
            (("--page", "a4", "--page", "letter"), "give one, or several to dsocr-analyze sweep"),
            (("fit", "h100-sxm", "--config", "1", "--config", "2"),
             "give one, or several to dsocr-analyze compare"),
            (("--json", "a", "--json", "b", "--json", "c"), "as 'a', 'b' and 'c'; give one"),
            (("infer", ".", "--image", "a.png", "-i", "b.png"), "--image is given more than once"),
        ],
    )  # fmt: skip
    def test_the_message_says_where_several_are_taken(self, capsys, arguments, right):
        code, out, err = run(capsys, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert right in err

    def test_the_same_value_flags_and_options_for_several_values_may_be_repeated(self, capsys):
        once = run(capsys, "compare", "tiny", "--gpu", "l4,l40s", "--format", "csv")
        again = ("--gpu", "l4", "--gpu", "l40s", "--format", "csv", "--format", "csv")
        assert run(capsys, "compare", "tiny", *again, "--offline", "--offline")[0] == 0
        assert run(capsys, "compare", "tiny", *again) == once
        assert once[0] == 0

    def test_a_value_that_looks_like_the_option_is_not_a_repetition(self, capsys):
        code, out, err = run(capsys, "--page", "--page", "-q")
        assert (code, out) == (2, "")
        assert "no page size '--page'" in err


@pytest.mark.skipif(
    "torch" in sys.modules and __import__("torch").cuda.is_available(), reason="has a CUDA device"
)
def test_cuda_where_there_is_none_is_refused(capsys):
    code, _, err = run(capsys, "--device", "cuda:0")
    assert code == 2
    assert "no CUDA GPU" in err


def test_a_malformed_image_is_refused(capsys, tmp_path):
    _truncated_png(tmp_path / "cut.png")
    code, _, err = run(capsys, "--image", "cut.png")
    assert code == 2
    assert "cut.png" in err


def test_a_malformed_config_is_refused(capsys, tmp_path):
    for text, said in (("{", "not JSON"), ("[]", "list"), ("{}", "lacks")):
        (tmp_path / "config.json").write_text(text)
        code, _, err = run(capsys, "--config", "config.json")
        assert code == 2
        assert said in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "output", ["file/out", "/proc/out"], ids=["below a file", "where nobody may write"]
)
def test_an_output_directory_that_cannot_be_written_is_refused_before_any_work(
    capsys, tmp_path, monkeypatch, output
):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("dsocr_analyze.analysis.Engine.report", None)
    code, out, err = run(capsys, "--output", output)
    assert (code, out) == (74, "")
    assert output in err
    assert err.count("\n") == 1


def _small_model(path: Path, **values) -> Path:
    """The reference's code with a decoder that runs on a CPU in a blink."""
    reference = ROOT / "src/dsocr_analyze/architectures/deepseek_ocr/reference"
    shutil.copytree(reference, path, ignore=shutil.ignore_patterns("__pycache__"))
    config = json.loads((path / "config.json").read_text())
    del config["language_config"]  # nothing reads it, and it would repeat the published values
    config |= {"num_hidden_layers": 2, "vocab_size": 64, "n_routed_experts": 8}
    config |= {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "intermediate_size": 32}
    (path / "config.json").write_text(json.dumps(config | values))
    return path


COPIES_DO_NOT_CHANGE = ("params", "macs", "matrix_flops", "vector_flops", "flops", "activations")


class TestModelDirectory:
    @pytest.mark.exhaustive
    @pytest.mark.directory
    def test_a_prompt_is_counted_with_the_directorys_tokenizer(self, capsys, tmp_path):
        words = {"[UNK]": 0, "Convert": 1, "the": 2, "document": 3}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        directory = _small_model(tmp_path / "m")
        tokenizer.save(str(directory / "tokenizer.json"))
        prompt = "<image> Convert the document"
        code, _, err = run(
            capsys, *SMALL, "--model", directory, "--trust-remote-code", "--prompt", prompt, "-q"
        )
        assert (code, err) == (0, "")
        workload = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())[
            "workload"
        ]
        assert workload["text_tokens"] == 1 + 3  # BOS and three words

    def test_a_tokenizer_that_cannot_be_read_is_refused(self, capsys, tmp_path):
        directory = _small_model(tmp_path / "m")
        (directory / "tokenizer.json").write_text("{")
        code, _, err = run(
            capsys, "--model", directory, "--trust-remote-code", "--prompt", "x", "-q"
        )
        assert code == 2
        assert "tokenizer.json" in err
        assert err.count("\n") == 1

    @pytest.mark.exhaustive
    @pytest.mark.directory
    def test_the_first_line_names_the_directory(self, capsys, tmp_path):
        directory = _small_model(tmp_path / "m")
        _, out, _ = run(capsys, *SMALL, "--model", directory, "--trust-remote-code")
        assert out.startswith("model   deepseek-ocr in m, trace on meta")

    @pytest.mark.exhaustive
    @pytest.mark.directory
    def test_the_real_forward_pass_on_the_cpu_gives_the_counts_of_meta(self, capsys, tmp_path):
        directory = _small_model(tmp_path / "m")
        documents = []
        for device in ("meta", "cpu"):
            code, _, _ = run(
                capsys, *SMALL, "--model", directory, "--trust-remote-code", "--device", device,
                "--dtype", "float32", "-q",
            )  # fmt: skip
            assert code == 0
            document = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())
            # Either device's own kernels, with the copies that they make, are those of the closed
            # forms; everything else is equal.
            assert document["agreement"]["agrees"] is True
            assert document["metadata"]["kernels_of"] == "cuda"
            documents.append(
                {
                    name: {key: stage[key] for key in COPIES_DO_NOT_CHANGE}
                    for name, stage in (*document["stages"].items(), ("total", document["total"]))
                }
            )
        assert documents[0] == documents[1]


class TestTrust:
    def _directory(self, path: Path) -> Path:
        path.mkdir()
        (path / "config.json").write_text(
            json.dumps(
                {"auto_map": {"AutoConfig": "code.A", "AutoModel": "code.DeepseekOCRForCausalLM"}}
            )
        )
        (path / "code.py").write_text("raise RuntimeError('ran')\n")
        return path

    def test_untrusted_code_is_not_run_and_its_files_are_named(self, capsys, tmp_path):
        code, _, err = run(capsys, "--model", self._directory(tmp_path / "m"))
        assert code == 2
        assert "code.py" in err
        assert "dsocr-analyze trust" in err
        assert "ran" not in err.replace("--trust", "")

    @pytest.mark.directory
    def test_trusted_code_runs_and_a_changed_file_ends_the_trust(self, capsys, tmp_path):
        directory = self._directory(tmp_path / "m")
        code, out, _ = run(capsys, "trust", directory)
        assert code == 0
        assert "code.py" in out
        code, _, err = run(capsys, "--model", directory)
        assert code == 2
        assert "RuntimeError: ran" in err
        (directory / "code.py").write_text("raise RuntimeError('changed')\n")
        _, _, err = run(capsys, "--model", directory)
        assert "changed since they were trusted (code.py)" in err

    @pytest.mark.directory
    def test_the_flag_runs_it_without_a_record(self, capsys, tmp_path):
        directory = self._directory(tmp_path / "m")
        _, _, err = run(capsys, "--model", directory, "--trust-remote-code")
        assert "RuntimeError: ran" in err

    @pytest.mark.exhaustive
    def test_an_untrusted_default_directory_gives_the_reference_and_says_so(self, capsys, tmp_path):
        (tmp_path / "models").mkdir()
        self._directory(tmp_path / "models/deepseek-ocr")
        code, out, err = run(capsys, *SMALL)
        assert code == 0
        assert out.startswith("model   deepseek-ocr (reference), ")
        assert "is not trusted" in err


@pytest.mark.exhaustive
def test_the_seed_script_takes_the_seeds_command_line(tmp_path):
    command = [
        sys.executable, ROOT / "scripts/deepseek-ocr-static-analysis.py",
        "--device", "meta", "--model", "reference", "--output", tmp_path / "ops",
        "--base-size", "1024", "--image-size", "640", "--seq-len", "1024",
        "--crop-mode", "1", "--use-flash-attn", "1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "ops/static_compute.json").read_text())
    assert document["workload"]["seq_len"] == 1024
    assert document["workload"]["text_tokens"] == 1024 - 903


def test_shell_completion_is_offered(capsys):
    _, out, _ = run(capsys, "--help")
    assert "--install-completion" in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_is_shown(shell, capsys, monkeypatch):
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    code, out, err = run(capsys, "--show-completion")
    assert (code, err) == (0, "")
    assert "_DSOCR_ANALYZE_COMPLETE" in out


def test_the_committed_command_reference_is_what_help_says():
    committed = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert command_reference() in committed, "write it again: dsocr-analyze docs"


LIBRARY = [
    file
    for file in (ROOT / "src/dsocr_analyze").rglob("*.py")
    if not {"cli", "reference"} & set(file.relative_to(ROOT).parts)
]
"""What lies below the command line; the reference is a model."""


class TestWords:
    """An error's arguments are options on the command line, and nothing else is."""

    @pytest.mark.parametrize(
        ("message", "arguments", "told"),
        [
            ("base_size 3 is too small", ["base_size"], "--base-size 3 is too small"),
            ("give seq_len=914", ["seq_len"], "give --seq-len 914"),
            ("use the analytic engine", ["the analytic engine"], "use --engine analytic"),
            ("give page=a4, please", ["page"], "give --page a4, please"),
            ("flash_attention=True needs", ["flash_attention"], "--use-flash-attn 1 needs"),
            ("flash_attention=False runs", ["flash_attention"], "--use-flash-attn 0 runs"),
            ("pass trust_remote_code=True", ["trust_remote_code"], "pass --trust-remote-code"),
            ("text_tokens 0 in column text_tokens", [], "text_tokens 0 in column text_tokens"),
            ("no column 'page' in page", ["page"], "no column 'page' in --page"),
            ("my_dtype, dtype_of, x.dtype", ["dtype"], "my_dtype, dtype_of, x.dtype"),
            ("on_batch is missing", ["on_batch"], "on_batch is missing"),
            ("stages=F, which `dsocr-analyze stages` drafts", ["stages"],
             "--stages F, which `dsocr-analyze stages` drafts"),
        ],
    )  # fmt: skip
    def test_only_names_that_are_listed_are_translated(self, message, arguments, told):
        assert in_options(message, arguments) == told

    def test_every_option_of_the_mapping_exists(self):
        assert {option.split()[0] for option in OPTIONS.values()} <= options_of_every_command()

    @pytest.mark.exhaustive
    def test_every_argument_that_an_error_lists_has_an_option(self):
        for file in LIBRARY:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.keyword) and node.arg == "arguments":
                    listed = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                    assert set(listed) <= set(OPTIONS), file

    @pytest.mark.exhaustive
    def test_the_library_names_no_option(self):
        known = options_of_every_command()
        found = {
            f"{file.relative_to(ROOT)}:{node.lineno}: {option}"
            for file in LIBRARY
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if node.value not in OF_OTHER_PROGRAMS
            for option in known.intersection(re.findall(r"(?<![\w-])--[a-z][a-z-]*", node.value))
        }
        assert found == set()


OF_OTHER_PROGRAMS = {"--format=csv,noheader", "--quiet"}  # of nvidia-smi and git


def options_of_every_command() -> set[str]:
    main_command = typer.main.get_command(app)
    return {
        option
        for command in (main_command, *main_command.commands.values())
        for parameter in command.params
        for option in parameter.opts
    }


ANALYTIC = ("--engine", "analytic", "-q")


class TestTheCallersProcess:
    """`main` leaves every setting as it was."""

    @sampled(
        ("arguments", "code"),
        [
            (ANALYTIC, 0),
            (("--help",), 0),
            (("--version",), 0),
            (("fit", "l4"), 0),
            (("fit", "l4", "--batch-size", "1000000"), 1),
            (("compare", "tiny", "base"), 0),
            (("sweep", "--output", "rows.parquet"), 0),
            (("tree", "--no-trace"), 0),
            (("--base-size", "3"), 2),
            (("frobnicate",), 2),
            ((*SMALL, "-q"), 0),
            ((*SMALL, "-q", "--text-tokens", "9000", "--strict"), 3),
        ],
        first(2),
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_after_success_and_failure(self, capsys, arguments, code):
        before = process_settings()
        assert main(arguments) == code
        assert process_settings() == before

    @pytest.mark.parametrize(
        ("error", "code"),
        [(KeyboardInterrupt(), 130), (RuntimeError("x"), 70), (MemoryError(), 70)],
        ids=repr,
    )
    def test_after_an_interruption_and_an_internal_error(self, capsys, monkeypatch, error, code):
        def fail(*_, **__):
            raise error

        monkeypatch.setattr("dsocr_analyze.analysis.Engine.report", fail)
        before = process_settings()
        assert main(ANALYTIC) == code
        assert process_settings() == before

    @pytest.mark.exhaustive
    def test_torchs_settings_too(self, capsys):
        import torch

        def settings():
            return torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()

        before = settings()
        assert main([*SMALL, "-q"]) == 0
        assert settings() == before


PROGRAM = [sys.executable, "-m", "dsocr_analyze"]


def program(*arguments, **options):
    """A process of its own, run to its end."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run([*PROGRAM, *arguments], text=True, check=False, **options)


class TestLinksInAFolderOfOthers:
    """A repository may hold links where results go unless the user names a folder."""

    @pytest.mark.parametrize("link", ["tmp", "tmp/dsocr-static-ops"])
    def test_the_default_folder_does_not_lead_out_of_the_current_one(self, capsys, tmp_path, link):
        Path("here/tmp").mkdir(parents=True)
        os.chdir("here")
        if link == "tmp":
            Path(link).rmdir()
        Path(link).symlink_to(tmp_path)
        before = sorted(map(str, tmp_path.rglob("*")))
        code, out, err = run(capsys, "--mode", "tiny", "--engine", "analytic")
        assert (code, out) == (74, "")
        assert "leads out of the current folder" in err
        assert sorted(map(str, tmp_path.rglob("*"))) == before
        code, _, _ = run(capsys, "--mode", "tiny", "--engine", "analytic", "--output", link)
        assert code == (0 if link == "tmp" else 74)

    def test_a_link_in_the_default_folder_is_not_followed(self, capsys):
        Path("mine").write_text("mine")
        report = Path("tmp/dsocr-static-ops/static_compute.md")
        report.parent.mkdir(parents=True)
        report.symlink_to(Path("mine").absolute())
        assert run(capsys, "--mode", "tiny", "--engine", "analytic")[0] == 0
        assert Path("mine").read_text() == "mine"
        assert report.read_text().startswith("Ran: ")
        assert not report.is_symlink()


class TestTheInterpretersOptions:
    """Nothing that Python is told of warnings or docstrings changes a result."""

    @pytest.mark.parametrize("environment", [{"PYTHONWARNINGS": "error"}, {"PYTHONOPTIMIZE": "2"}])
    @pytest.mark.parametrize(
        "arguments",
        [
            ["sweep", "--help"],
            pytest.param(["tree"], marks=pytest.mark.exhaustive),
            pytest.param(["--mode", "tiny"], marks=pytest.mark.exhaustive),
            pytest.param(["docs", "--arch", "deepseek-ocr"], marks=pytest.mark.exhaustive),
        ],
    )
    def test_of_the_environment(self, arguments, environment, tmp_path):
        def outcome(name, variables):
            (tmp_path / name).mkdir()
            ended = program(*arguments, env={**os.environ, **variables}, cwd=tmp_path / name)
            files = {
                str(file.relative_to(tmp_path / name)): file.read_bytes()
                for file in (tmp_path / name).rglob("*.md")
                if arguments[0] == "docs"
            }
            return ended.returncode, ended.stdout, files

        assert outcome("a", environment) == outcome("b", {})

    @pytest.mark.parametrize("options", [["-OO"], ["-OO", "-I", "-X", "utf8"], ["-W", "error"]])
    def test_of_the_command_line(self, options):
        told = [sys.executable, *options, "-m", "dsocr_analyze", "devices", "--help"]
        ended = subprocess.run(told, capture_output=True, text=True, check=True)
        assert ended.stdout == program("devices", "--help").stdout
        assert ended.stderr == ""

    def test_the_trace_is_imported_without_a_warning(self):
        code = "import dsocr_analyze.trace.operators"
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def program_that_fails(statement, *arguments):
    """A process in which counting a page executes `statement`."""
    code = (
        "import os, signal, sys; from dsocr_analyze.__main__ import run\n"
        "from dsocr_analyze.analysis import Engine\n"
        f"def report(*_):\n    {statement}\n"
        f"Engine.report = report; sys.argv[1:] = {list(arguments)!r}; run()"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


COMMANDS = [
    ANALYTIC[:2],
    ("--help",),
    ("--version",),
    ("compare", "tiny", "base", "--format", "csv"),
    ("fit",),
    ("sweep", "--mode", "all"),
    ("tree", "--no-trace"),
]


class TestExitCodes:
    @pytest.mark.exhaustive
    def test_0_where_it_is_done(self):
        done = program(*ANALYTIC)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    @pytest.mark.exhaustive
    def test_1_where_a_gpu_that_was_named_is_too_small(self):
        done = program("fit", "l4", "h200-sxm", "--batch-size", "30")
        assert (done.returncode, done.stderr) == (1, "")
        assert "h200-sxm" in done.stdout
        assert program("fit", "--batch-size", "30").returncode == 0

    @pytest.mark.exhaustive
    def test_2_for_bad_input(self):
        done = program("--base-size", "3")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            "dsocr-analyze: --base-size 3 is too small; give 64 to 16384 pixels per side\n"
        )

    @pytest.mark.exhaustive
    def test_3_for_a_warning_under_strict(self):
        done = program(*ANALYTIC, "--text-tokens", "9000", "--strict")
        assert done.returncode == 3
        assert done.stderr.splitlines()[-1].startswith("dsocr-analyze: --strict: ")

    @pytest.mark.exhaustive
    def test_70_for_an_internal_error_on_one_line(self):
        done = program_that_fails("raise KeyError('seven\\nteen')", *ANALYTIC)
        assert done.returncode == 70
        assert done.stderr.startswith("dsocr-analyze: internal error: KeyError: ")
        assert done.stderr.count("\n") == 1

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("arguments", [("--debug", *ANALYTIC), (*ANALYTIC, "--debug")])
    def test_70_with_the_traceback_under_debug(self, arguments):
        done = program_that_fails("raise KeyError(17)", *arguments)
        assert done.returncode == 70
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("dsocr-analyze: internal error: KeyError")

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("arguments", [("--debug", "compare", "tiny"),
                                           ("compare", "tiny", "--debug")])  # fmt: skip
    def test_debug_stands_before_or_after_the_command(self, arguments):
        assert "Traceback" in program_that_fails("raise KeyError(17)", *arguments).stderr

    def test_every_command_has_debug(self):
        main_command = typer.main.get_command(app)
        for command in (main_command, *main_command.commands.values()):
            assert any("--debug" in parameter.opts for parameter in command.params), command.name

    @pytest.mark.exhaustive
    def test_70_where_memory_runs_out(self):
        done = program_that_fails("raise MemoryError", *ANALYTIC)
        assert done.returncode == 70
        assert done.stderr == "dsocr-analyze: internal error: out of memory\n"

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no /dev/full")
    def test_74_where_stdout_is_full(self, arguments):
        with Path("/dev/full").open("w") as full:
            done = program(*arguments, stdout=full)
        assert done.returncode == 74
        assert done.stderr == "dsocr-analyze: cannot write to stdout: No space left on device\n"

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
    @pytest.mark.skipif(os.name == "nt", reason="closes a POSIX descriptor")
    def test_74_where_stdout_is_closed(self, arguments):
        done = program(*arguments, preexec_fn=lambda: os.close(1))
        assert done.returncode == 74
        assert done.stderr == "dsocr-analyze: cannot write to stdout: it is closed\n"

    @pytest.mark.exhaustive
    @pytest.mark.skipif(os.name == "nt", reason="closes a POSIX descriptor")
    def test_a_closed_stdout_does_not_matter_where_nothing_is_printed(self):
        assert program(*ANALYTIC, preexec_fn=lambda: os.close(1)).returncode == 0

    @pytest.mark.exhaustive
    @pytest.mark.skipif(os.name == "nt", reason="closes a POSIX descriptor")
    def test_without_stderr_an_error_is_not_printed_on_stdout(self):
        done = program("--base-size", "3", preexec_fn=lambda: os.close(2))
        assert (done.returncode, done.stdout) == (2, "")

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
    def test_141_in_silence_where_the_reader_of_a_pipe_has_gone(self, arguments):
        reading, writing = os.pipe()
        os.close(reading)
        try:
            done = program(*arguments, stdout=writing)
        finally:
            os.close(writing)
        assert (done.returncode, done.stderr) == (141, "")

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("name", "code", "word"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")]
    )
    def test_130_and_143_after_signals(self, name, code, word):
        earlier = Path("tmp/dsocr-static-ops/static_compute.json")
        earlier.parent.mkdir(parents=True)
        earlier.write_text("earlier report")
        done = program_that_fails(f"os.kill(os.getpid(), signal.{name})", *ANALYTIC)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr == f"dsocr-analyze: {word}; nothing was written\n"
        assert earlier.read_text() == "earlier report"

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
    def test_a_signal_that_python_ignores_still_ends_the_program(self, name, code):
        # An exception in a finalizer is ignored, whatever it is.
        statement = (
            f"class Last:\n        def __del__(_): os.kill(os.getpid(), signal.{name})\n"
            "    Last(); from types import SimpleNamespace; return SimpleNamespace(warnings=())"
        )
        done = program_that_fails(statement, *ANALYTIC)
        assert done.returncode == code
        assert done.stderr.count("\n") == 1
        assert not Path("tmp/dsocr-static-ops/static_compute.json").exists()

    @pytest.mark.exhaustive
    @pytest.mark.skipif(os.name == "nt", reason="sends a POSIX signal")
    @pytest.mark.parametrize("module", ["typer", "torch", "dsocr_analyze.cli.options"])
    def test_130_while_start_up_imports_are_under_way(self, module):
        code = (
            "import importlib.abc, os, signal, sys\n"
            "class Interrupter(importlib.abc.MetaPathFinder):\n"
            "    def find_spec(self, name, *_):\n"
            f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
            "sys.meta_path.insert(0, Interrupter())\n"
            "from dsocr_analyze.__main__ import run; sys.argv[1:] = []; run()"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 130
        assert done.stderr in ("", "dsocr-analyze: interrupted; nothing was written\n")

    def test_an_interruption_while_results_are_written_does_not_deny_it(self, capsys, monkeypatch):
        def interrupt(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr("dsocr_analyze.cli.printing.show", interrupt)
        code, _, err = run(capsys, *ANALYTIC[:2])
        assert code == 130
        assert err == "dsocr-analyze: interrupted; its results may be incomplete\n"
        assert Path("tmp/dsocr-static-ops/static_compute.json").exists()


def test_control_characters_do_not_reach_the_terminal(capsys, tmp_path):
    _, _, err = run(capsys, "--model", "no\x1b[2Kwhere\x07")
    assert "\x1b" not in err
    assert "\x07" not in err
    directory = _small_model(tmp_path / "m")
    (directory / "evil\r\x1b[2K.py").write_text("")
    _, out, _ = run(capsys, "trust", directory)
    assert "\x1b" not in out
    assert "\r" not in out
