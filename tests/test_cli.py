"""The command line: what it prints, writes and refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tokenizers
from PIL import Image

from dsocr_analyze.cli import main
from dsocr_analyze.cli.app import app
from dsocr_analyze.cli.reference import command_reference

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(capsys, *arguments):
    """Exit code, stdout and stderr of one command."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


SMALL = ("--page", "600x500", "--crop-mode", "0", "--image-size", "64", "--max-new-tokens", "1")
"""The smallest workload: one view of one visual token."""


class TestMainJob:
    def test_it_prints_the_table_and_writes_both_files(self, capsys):
        code, out, err = run(capsys, "--base-size", 1024, "--image-size", 640)
        assert (code, err) == (0, "")
        assert out.startswith("Ran: built-in reference model")
        assert "4.568 T" in out
        document = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())
        assert document["workload"]["page"] == [1240, 1754]
        assert document["workload"]["seq_len"] == 913
        text = Path("tmp/dsocr-static-ops/static_compute.md").read_text()
        assert text.startswith("Ran: built-in reference model")

    def test_json_can_be_piped(self, capsys):
        code, out, err = run(capsys, *SMALL, "--json", "-")
        assert (code, err) == (0, "")
        assert json.loads(out) == json.loads(
            Path("tmp/dsocr-static-ops/static_compute.json").read_text()
        )

    def test_json_goes_to_a_file_too(self, capsys, tmp_path):
        code, out, _ = run(capsys, *SMALL, "--json", tmp_path / "report.json", "--quiet")
        assert (code, out) == (0, "")
        assert json.loads((tmp_path / "report.json").read_text())["schema_version"] == "1"

    def test_markdown_on_stdout_is_the_file(self, capsys):
        _, out, _ = run(capsys, *SMALL, "--format", "markdown", "--output", "here")
        assert out == Path("here/static_compute.md").read_text()

    def test_quiet_prints_nothing(self, capsys):
        assert run(capsys, *SMALL, "--quiet") == (0, "", "")

    def test_version(self, capsys):
        from dsocr_analyze import __version__

        assert run(capsys, "--version") == (0, f"dsocr-analyze {__version__}\n", "")

    def test_a_mode_sets_the_sizes(self, capsys):
        run(capsys, "--mode", "base", "--page", "letter", "--max-new-tokens", 1, "-q")
        workload = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())[
            "workload"
        ]
        assert workload["crop_mode"] is False
        assert workload["image_size"] == 1024
        assert workload["page"] == [1275, 1650]

    def test_the_page_is_taken_from_an_image_as_it_is_seen(self, capsys, tmp_path):
        exif = Image.Exif()
        exif[0x0112] = 6  # rotated by 90 degrees
        Image.new("RGB", (300, 200)).save(tmp_path / "scan.jpg", exif=exif)
        run(capsys, *SMALL[2:], "--image", "scan.jpg", "-q")
        workload = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())[
            "workload"
        ]
        assert workload["page"] == [200, 300]

    def test_flash_attention_needs_no_package_where_nothing_is_computed(self, capsys):
        code, _, err = run(capsys, *SMALL, "--use-flash-attn", 1, "-q")
        assert (code, err) == (0, "")
        document = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())
        assert document["metadata"]["attention"] == "flash_attention_2"
        assert "flash_attention" in document["operator_ledger"]["counted"]

    def test_a_config_of_another_network_can_be_run(self, capsys, tmp_path):
        reference = ROOT / "src/dsocr_analyze/model/reference/config.json"
        config = json.loads(reference.read_text()) | {"num_hidden_layers": 2, "vocab_size": 1000}
        (tmp_path / "small.json").write_text(json.dumps(config))
        code, _, _ = run(capsys, *SMALL, "--config", "small.json", "-q")
        document = json.loads(Path("tmp/dsocr-static-ops/static_compute.json").read_text())
        assert code == 0
        assert document["stages"]["decode"]["params"] == 1000 * 1280

    def test_a_sequence_beyond_the_positions_is_warned_of_and_counted(self, capsys):
        code, _, err = run(capsys, *SMALL, "--text-tokens", 9000, "-q")
        assert code == 0
        assert err.count("\n") == 1
        assert "8192" in err

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
    "output below a file": (("--output", "file/out"), ["file/out"]),
}


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


@pytest.mark.skipif(
    "torch" in sys.modules and __import__("torch").cuda.is_available(), reason="has a CUDA device"
)
def test_cuda_where_there_is_none_is_refused(capsys):
    code, _, err = run(capsys, "--device", "cuda:0")
    assert code == 2
    assert "no CUDA device" in err


def test_a_malformed_image_is_refused(capsys, tmp_path):
    _truncated_png(tmp_path / "cut.png")
    code, _, err = run(capsys, "--image", "cut.png")
    assert code == 2
    assert "cut.png" in err


def test_a_malformed_config_is_refused(capsys, tmp_path):
    for text, named in (("{", "not JSON"), ("[]", "list"), ("{}", "lacks")):
        (tmp_path / "config.json").write_text(text)
        code, _, err = run(capsys, "--config", "config.json")
        assert code == 2
        assert named in err
        assert err.count("\n") == 1


def test_an_output_directory_that_cannot_be_written_is_refused_before_any_work(
    capsys, tmp_path, monkeypatch
):
    import tempfile

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    started = time.monotonic()
    code, _, err = run(capsys, "--output", tmp_path / "locked")
    assert code == 2
    assert "locked" in err
    assert "Permission denied" in err
    assert time.monotonic() - started < 1


@pytest.mark.skipif(os.name == "nt", reason="sends a POSIX signal")
def test_an_interruption_is_one_line_and_leaves_earlier_reports_as_they_were(tmp_path):
    earlier = tmp_path / "tmp/dsocr-static-ops/static_compute.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("earlier report")
    with subprocess.Popen(
        [sys.executable, "-m", "dsocr_analyze"], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == b""
    assert err.count(b"\n") == 1
    assert b"interrupted" in err
    assert earlier.read_text() == "earlier report"


def _small_model(path: Path, **values) -> Path:
    """The reference's code with a decoder that runs on a CPU in a blink."""
    reference = ROOT / "src/dsocr_analyze/model/reference"
    shutil.copytree(reference, path, ignore=shutil.ignore_patterns("__pycache__"))
    config = json.loads((path / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "vocab_size": 64, "n_routed_experts": 8}
    config |= {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "intermediate_size": 32}
    (path / "config.json").write_text(json.dumps(config | values))
    return path


class TestModelDirectory:
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

    def test_the_first_line_names_the_directory(self, capsys, tmp_path):
        directory = _small_model(tmp_path / "m")
        _, out, _ = run(capsys, *SMALL, "--model", directory, "--trust-remote-code")
        assert out.startswith("Ran: model directory m (")

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
            del document["metadata"]
            del document["operator_ledger"]["free"]  # questions to the host need values
            documents.append(document)
        assert documents[0] == documents[1]


class TestTrust:
    def _directory(self, path: Path) -> Path:
        path.mkdir()
        (path / "config.json").write_text(
            json.dumps({"auto_map": {"AutoConfig": "code.A", "AutoModel": "code.B"}})
        )
        (path / "code.py").write_text("raise RuntimeError('ran')\n")
        return path

    def test_untrusted_code_is_not_run_and_its_files_are_named(self, capsys, tmp_path):
        code, _, err = run(capsys, "--model", self._directory(tmp_path / "m"))
        assert code == 2
        assert "code.py" in err
        assert "dsocr-analyze trust" in err
        assert "ran" not in err.replace("--trust", "")

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

    def test_the_flag_runs_it_without_a_record(self, capsys, tmp_path):
        directory = self._directory(tmp_path / "m")
        _, _, err = run(capsys, "--model", directory, "--trust-remote-code")
        assert "RuntimeError: ran" in err

    def test_an_untrusted_default_directory_gives_the_reference_and_says_so(self, capsys, tmp_path):
        (tmp_path / "models").mkdir()
        self._directory(tmp_path / "models/deepseek-ocr")
        code, out, err = run(capsys, *SMALL)
        assert code == 0
        assert out.startswith("Ran: built-in reference model")
        assert "is not trusted" in err


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


def test_the_committed_command_reference_is_what_help_says():
    committed = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert committed == command_reference(app), "write it again: dsocr-analyze docs --output docs"
