"""Where torch and all else that runs models is not installed: what answers, and what says so."""

import os
import re
import shlex
import subprocess
import sys

import any_models
import infer_like
import pytest
from command_line import run
from PIL import Image
from sampling import named, sampled

from dsocr_analyze import extras
from dsocr_analyze.cli.docs import TASKS
from dsocr_analyze.errors import AnalyzeError, ExtraError

BLOCKED = (
    "torch", "transformers", "fvcore", "safetensors", "tokenizers", "jinja2", "huggingface_hub",
    "iopath",
)  # fmt: skip
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({BLOCKED}))\n"
"""As in an environment that lacks them: `import` fails, and none is found."""

COMMAND = f"{WITHOUT}from dsocr_analyze.__main__ import run; run()"
NEEDS = (
    "running a model needs torch, transformers, fvcore, the optional extra 'trace'; install it with"
    " pip install 'dsocr-analyze[trace]'"
)


def without_trace(arguments, folder):
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], cwd=folder, capture_output=True, text=True
    )


def answers(task):
    """The arguments that give the same where the trace is installed; none for what runs."""
    words = shlex.split(task)
    is_main = not words or words[0].startswith("-")
    engine = ["--engine", "analytic"] if is_main and "--engine" not in words else []
    return None if words[:1] == ["tree"] else [*words, *engine]


def outputs(folder, text):
    """What is printed and written, without the moment that reports state."""
    paths = [*folder.glob("*.svg"), *folder.glob("*.csv"), *folder.glob("page.html")]
    found = {"": text} | {path.name: path.read_text("utf-8") for path in paths}
    return {
        name: re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*", "", each)
        for name, each in found.items()
    }


@sampled(
    "task", TASKS.values(),
    named("", "time h100 --price 2.50", "check --against report.json"),
    ids=lambda task: task or "alone",
)  # fmt: skip
def test_every_task_has_the_same_answer_or_says_what_it_needs(
    task_folder, capsys, monkeypatch, task
):
    monkeypatch.chdir(task_folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(task_folder / "config"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert run(capsys, "--engine", "analytic", "--json", "report.json", "-q")[0] == 0
    done, arguments = without_trace(shlex.split(task), task_folder), answers(task)
    found = outputs(task_folder, done.stdout)
    if arguments is None:
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"dsocr-analyze: {NEEDS}\n"
        return
    code, out, err = run(capsys, *arguments)
    assert (done.returncode, found) == (code, outputs(task_folder, out))
    note = f"dsocr-analyze: note: closed forms are evaluated instead of a trace: {NEEDS}\n"
    assert done.stderr == err + note * (arguments != shlex.split(task))


REFUSED = (
    "--engine trace", "--device cpu", "--model reference --trust-remote-code",
    "--hf-config llama.json --stages llama.toml", "compare base gundam --engine trace",
    "time h100 --hf-config llama.json --stages llama.toml", "--arch glm-ocr --engine trace",
    "tree", "tree --arch glm-ocr --no-trace", "measure", "calibrate --seconds 20",
    "stages --hf-config llama.json", "docs --output pages", "check --budgets traced.toml",
    "infer --image page.png --model vendor --random-weights",
)  # fmt: skip
"""What runs something, whatever else is asked."""

REFUSALS = f"""{WITHOUT}
import shlex
from dsocr_analyze.cli import main
for line in {REFUSED}:
    print(f"{{line}}: {{main(shlex.split(line))}}", flush=True)
import dsocr_analyze
from dsocr_analyze.errors import AnalyzeError, ExtraError
for ask in (lambda: dsocr_analyze.DeepSeekOCRSession, lambda: dsocr_analyze.count,
            lambda: dsocr_analyze.analyze(engine="trace"),
            lambda: dsocr_analyze.analyze(trust_remote_code=True)):
    try:
        ask()
    except ExtraError as error:
        assert isinstance(error, (AnalyzeError, ImportError))
        print(error)
print(dsocr_analyze.analyze().metadata.engine)
"""


def test_whatever_runs_a_model_is_refused_in_one_sentence(tmp_path):
    """Python's session and functions too; a page is counted all the same."""
    any_models.LLAMA.write(tmp_path, "llama")
    infer_like.write(tmp_path / "vendor")
    (tmp_path / "traced.toml").write_text('[workloads.page]\nengine = "trace"\n')
    Image.new("L", (64, 64)).save(tmp_path / "page.png")
    done = subprocess.run(
        [sys.executable, "-c", REFUSALS], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines == [*(f"{line}: 2" for line in REFUSED), *[NEEDS] * 4, "analytic"]
    said = done.stderr.splitlines()
    assert [line for line in said if not line.endswith(NEEDS)] == []
    assert len(said) == len(REFUSED)
    assert not (tmp_path / "pages").exists()


def test_a_prompt_needs_the_extra_that_reads_tokenizers(tmp_path):
    directory = infer_like.write(tmp_path / "m")
    (directory / "tokenizer.json").write_text("{}")
    done = without_trace(["--model", str(directory), "--prompt", "text"], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dsocr-analyze: --prompt needs tokenizers, the optional extra")


@pytest.mark.parametrize("error", ["ImportError", "OSError"])
def test_a_broken_torch_is_said_to_be_broken_and_not_to_be_missing(tmp_path, error):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"raise {error}('libcudart.so: no such file')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "dsocr_analyze"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "dsocr-analyze: torch is installed, but cannot be imported: libcudart.so: no such file\n"
    )


def test_what_is_missing_is_named_and_a_folder_without_code_is_missing(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "left_behind").mkdir()
    extras.require_extra("a picture", "plot", "json", "importlib")
    with pytest.raises(ExtraError, match=r"^a table needs left_behind, nowhere, the optional"):
        extras.require_extra("a table", "pandas", "left_behind", "json", "nowhere")
    assert issubclass(ExtraError, AnalyzeError)
