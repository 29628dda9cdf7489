"""The command line: what it prints and writes, how it ends, and what it leaves behind."""

import ast
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import reduce
from operator import getitem
from pathlib import Path
from unittest import mock

import pytest
from command_line import run
from PIL import Image
from process_state import process_settings
from sampling import first, sampled

from dsocr_analyze import __version__, cli
from dsocr_analyze.cli import commands, docs
from dsocr_analyze.cli.words import OPTIONS, in_options

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "src/dsocr_analyze/architectures/deepseek_ocr/reference"
REPORT = Path("tmp/dsocr-static-ops/static_compute.json")
EVERY_COMMAND = (commands.application, *commands.application.commands.values())

SMALL = ("--page", "600x500", "--crop-mode", "0", "--image-size", "64", "--max-new-tokens", "1")
"""The smallest workload: one view of one visual token."""

ANALYTIC = ("--engine", "analytic", "-q")


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def report():
    return json.loads(REPORT.read_text())


TOKENIZER = {
    "model": {"type": "WordLevel", "unk_token": "[UNK]",
              "vocab": {"[UNK]": 0, "Convert": 1, "the": 2, "document": 3}},
    "pre_tokenizer": {"type": "Whitespace"},
}  # fmt: skip


def model_with_tokenizer(path):
    """The reference, and a tokenizer of three words."""
    shutil.copytree(REFERENCE, path, ignore=shutil.ignore_patterns("__pycache__"))
    (path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return path


# What is printed and written ---------------------------------------------------------------------


def test_the_main_job_prints_the_answer_and_writes_both_files(capsys):
    code, out, err = run(capsys, *SMALL)
    assert (code, err) == (0, "")
    assert out.startswith("model   deepseek-ocr (reference), trace on meta, bfloat16")
    assert "trace and closed forms agree in all 38 counts" in out
    assert report()["workload"]["page"] == [600, 500]
    assert "\n\nRan: built-in reference model" in REPORT.with_suffix(".md").read_text()


JOBS = [
    ("--base-size 1024 --image-size 640", {"workload.page": [1240, 1754], "workload.seq_len": 913}),
    ("--mode base --page letter",
     {"workload.crop_mode": False, "workload.image_size": 1024, "workload.page": [1275, 1650]}),
    # As it is seen, not as it is stored.
    ("--image scan.jpg", {"workload.page": [200, 300]}),
    ("--config small.json", {"stages.decode.params": 1000 * 1280}),
    # BOS and three words.
    ("--model m --prompt '<image> Convert the document'", {"workload.text_tokens": 1 + 3}),
    ("--use-flash-attn 1", {"metadata.attention": "flash_attention_2"}),
]  # fmt: skip


def test_options_set_what_is_counted(capsys, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    Image.new("RGB", (300, 200)).save("scan.jpg", exif=exif)
    config = json.loads((REFERENCE / "config.json").read_text())
    Path("small.json").write_text(json.dumps({**config, "vocab_size": 1000}))
    model_with_tokenizer(tmp_path / "m")
    for line, figures in JOBS:
        code, out, _ = run(capsys, *ANALYTIC, *shlex.split(line))
        assert (code, out) == (0, ""), line
        for path, value in figures.items():
            assert reduce(getitem, path.split("."), report()) == value, line


def test_what_is_printed_is_what_is_written(capsys):
    for line, printed in (
        ("--json -", REPORT),
        ("--format markdown --output here", Path("here/static_compute.md")),
        ("--json - --quiet", REPORT),
        ("--json also.json --quiet", None),
    ):
        ended = run(capsys, "--engine", "analytic", "--mode", "tiny", *line.split())
        assert ended == (0, "" if printed is None else printed.read_text(), ""), line
    assert Path("also.json").read_text() == REPORT.read_text()


def test_a_sequence_beyond_the_positions_is_warned_of_and_fails_only_if_strict(capsys):
    long = (*ANALYTIC, "--text-tokens", 9000)
    code, _, err = run(capsys, *long)
    assert (code, err.count("\n"), "8192" in err) == (0, 1, True)
    REPORT.unlink()
    code, _, strict = run(capsys, *long, "--strict")
    assert (code, REPORT.exists()) == (3, True)
    assert strict.startswith(f"{err}dsocr-analyze: --strict: ")
    # The last of 8,110 new tokens is at no position, and the prompt has 83.
    rows = ("--mode", "tiny", "--max-new-tokens", "8110,8111", "--output", "rows.csv")
    assert "warning: 1 of 2 workloads exceed" in run(capsys, "sweep", *rows)[2]


def test_version_and_help(capsys):
    assert run(capsys, "--version") == (0, f"dsocr-analyze {__version__}\n", "")
    assert "--install-completion" in run(capsys, "--help-all")[1]
    committed = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert docs.command_reference() in committed, "write it again: dsocr-analyze docs"
    for command in EVERY_COMMAND:
        assert any("--debug" in parameter.opts for parameter in command.params), command.name


def test_shell_completion_is_shown(capsys, monkeypatch):
    for shell in ("bash", "zsh", "fish"):
        monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)  # noqa: B023
        code, out, err = run(capsys, "--show-completion")
        assert (code, err, "_DSOCR_ANALYZE_COMPLETE" in out) == (0, "", True)


@pytest.mark.exhaustive
def test_the_seed_script_takes_the_seeds_command_line(tmp_path):
    line = (
        "--device meta --model reference --base-size 1024 --image-size 640 --seq-len 1024"
        " --crop-mode 1 --use-flash-attn 1 --output"
    )
    script = ROOT / "scripts/deepseek-ocr-static-analysis.py"
    command = [sys.executable, script, *line.split(), tmp_path / "ops"]
    subprocess.run(command, capture_output=True, check=True)
    document = json.loads((tmp_path / "ops/static_compute.json").read_text())
    lengths = [document["workload"][each] for each in ("seq_len", "text_tokens")]
    assert lengths == [1024, 1024 - 903]
    assert "flash_attention" in document["operator_ledger"]["counted"]


# What is refused; test_command_lines.py lists more -----------------------------------------------


@pytest.mark.exhaustive
def test_every_option_with_one_value_is_refused_with_two(capsys):
    for command in EVERY_COMMAND:
        name = [] if command is commands.application else [command.name]
        for each in command.params:
            if each.param_type_name != "option" or each.is_flag or each.multiple:
                continue
            said = f"dsocr-analyze: {each.opts[0]} has several values, '1' and 'word'; "
            for one, other in itertools.product(each.opts, repeat=2):
                code, out, err = run(capsys, *name, one, "1", other, "word")
                assert (code, out, err.count("\n")) == (2, "", 1), (name, one, other)
                assert err.startswith(said)


def test_the_same_value_flags_and_options_for_several_values_may_be_repeated(capsys):
    once = run(capsys, "compare", "tiny", "--gpu", "l4,l40s", "--format", "csv")
    again = "--gpu l4 --gpu l40s --format csv --format csv --trust-remote-code --trust-remote-code"
    assert run(capsys, "compare", "tiny", *again.split()) == once
    assert once[0] == 0


def test_types_of_sixteen_bits_are_the_models_own(capsys):
    plain, named = (
        json.loads(run(capsys, "time", "l4", *types, "--format", "json")[1])["time"]
        for types in ((), ("--weights-dtype", "bf16", "--kv-dtype", "fp16"))
    )
    assert plain == named


@pytest.mark.skipif(
    "torch" in sys.modules and __import__("torch").cuda.is_available(), reason="has a CUDA device"
)
def test_cuda_where_there_is_none_is_refused(capsys):
    code, _, err = run(capsys, "--device", "cuda:0")
    assert (code, "no CUDA GPU" in err) == (2, True)


def test_an_output_folder_that_cannot_be_written_is_refused_before_any_work(capsys, monkeypatch):
    monkeypatch.setattr("dsocr_analyze.analysis.Engine.report", None)
    assert run(capsys, "--output", "/proc/out")[:2] == (74, "")


def test_a_tokenizer_that_cannot_be_read_is_refused(capsys, tmp_path):
    (model_with_tokenizer(tmp_path / "m") / "tokenizer.json").write_text("{")
    code, _, err = run(capsys, *ANALYTIC, "--model", "m", "--prompt", "x")
    assert (code, err.count("\n"), "tokenizer.json" in err) == (2, 1, True)


@pytest.fixture
def untrusted():
    """A directory where the program looks by default, whose code says that it ran."""
    auto_map = {"AutoConfig": "code.A", "AutoModel": "code.DeepseekOCRForCausalLM"}
    folder = Path("models/deepseek-ocr")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"auto_map": auto_map}))
    (folder / "code.py").write_text("raise RuntimeError('ran')\n")
    return folder


@pytest.mark.directory
def test_only_trusted_code_runs_and_a_changed_file_ends_the_trust(capsys, untrusted):
    for line, wanted, words in (
        (("--model", untrusted), 2, ["code.py", "dsocr-analyze trust"]),
        (("--model", untrusted, "--trust-remote-code"), 2, ["RuntimeError: ran"]),
        (("trust", untrusted), 0, ["code.py"]),
        (("--model", untrusted), 2, ["RuntimeError: ran"]),
    ):
        code, out, err = run(capsys, *line)
        assert (code, [each for each in words if each not in out + err]) == (wanted, []), line
        assert ("RuntimeError" in err) == ("RuntimeError: ran" in words), line
    (untrusted / "code.py").write_text("raise RuntimeError('changed')\n")
    said = run(capsys, "--model", untrusted)[2]
    assert "changed since they were trusted (code.py)" in said


@pytest.mark.exhaustive
@pytest.mark.usefixtures("untrusted")
def test_an_untrusted_default_directory_gives_the_reference_and_says_so(capsys):
    code, out, err = run(capsys, *SMALL)
    assert (code, "is not trusted" in err) == (0, True)
    assert out.startswith("model   deepseek-ocr (reference), ")


# Words -------------------------------------------------------------------------------------------

LIBRARY = [
    file
    for file in (ROOT / "src/dsocr_analyze").rglob("*.py")
    if not {"cli", "reference"} & set(file.relative_to(ROOT).parts)
]
"""What lies below the command line; the reference is a model."""

OF_OTHER_PROGRAMS = {"--format=csv,noheader", "--quiet"}  # of nvidia-smi and git


def options_named_in(text):
    known = {opt for command in EVERY_COMMAND for each in command.params for opt in each.opts}
    return known.intersection(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


IN_OPTIONS = [
    # An error's message, its arguments, and what is said.
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
]  # fmt: skip


def test_only_arguments_that_an_error_lists_are_translated_each_to_an_option_that_exists():
    assert [in_options(*each[:2]) for each in IN_OPTIONS] == [said for _, _, said in IN_OPTIONS]
    for option in OPTIONS.values():
        assert options_named_in(option) == {option.split()[0]}


@pytest.mark.exhaustive
def test_the_library_lists_arguments_that_have_an_option_and_names_no_option():
    for file in LIBRARY:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "arguments":
                listed = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                assert set(listed) <= set(OPTIONS), file
            elif isinstance(value := getattr(node, "value", None), str):
                named = options_named_in(value)
                assert not named or value in OF_OTHER_PROGRAMS, f"{file}:{node.lineno}"


# What is left behind -----------------------------------------------------------------------------


class TestTheCallersProcess:
    """`main` leaves every setting as it was."""

    @sampled(
        ("line", "code"),
        [
            ("--engine analytic -q", 0),
            ("--help", 0),
            ("--version", 0),
            ("fit l4", 0),
            ("fit l4 --batch-size 1000000", 1),
            ("compare tiny base", 0),
            ("sweep --output rows.parquet", 0),
            ("tree --no-trace", 0),
            ("--base-size 3", 2),
            ("frobnicate", 2),
            (f"{' '.join(SMALL)} -q", 0),
            (f"{' '.join(SMALL)} -q --text-tokens 9000 --strict", 3),
        ],
        first(2),
    )
    def test_after_success_and_failure(self, capsys, line, code):
        before = process_settings()
        assert cli.main(line.split()) == code
        assert process_settings() == before

    def test_after_an_interruption_and_an_internal_error(self, capsys, monkeypatch):
        before = process_settings()
        for error, code, said in (
            (KeyboardInterrupt(), 130, "interrupted; nothing was written"),
            (RuntimeError("seven\nteen"), 70,
             "internal error: RuntimeError: seven teen (--debug shows where)"),
            (MemoryError(), 70, "internal error: out of memory"),
        ):  # fmt: skip
            fail = mock.Mock(side_effect=error)
            monkeypatch.setattr("dsocr_analyze.analysis.Engine.report", fail)
            assert run(capsys, *ANALYTIC) == (code, "", f"dsocr-analyze: {said}\n")
            assert process_settings() == before
            for line in (("--debug", *ANALYTIC), (*ANALYTIC, "--debug"), ("compare", "--debug")):
                assert ("Traceback" in run(capsys, *line)[2]) == (code == 70), line


@pytest.mark.parametrize("link", ["tmp", "tmp/dsocr-static-ops"])
def test_a_link_in_a_folder_of_others_does_not_lead_out_of_it(capsys, tmp_path, link):
    """A repository may hold links where results go unless the user names a folder."""
    tiny = ("--mode", "tiny", *ANALYTIC)
    Path("here", link).parent.mkdir(parents=True)
    os.chdir("here")
    Path(link).symlink_to(tmp_path)
    before = sorted(map(str, tmp_path.rglob("*")))
    code, out, err = run(capsys, *tiny)
    assert (code, out, "leads out of the current folder" in err) == (74, "", True)
    assert sorted(map(str, tmp_path.rglob("*"))) == before
    assert run(capsys, *tiny, "--output", link)[0] == (0 if link == "tmp" else 74)


def test_a_link_in_the_default_folder_is_not_followed(capsys):
    mine, written = Path("mine").absolute(), REPORT.with_suffix(".md")
    mine.write_text("mine")
    written.parent.mkdir(parents=True)
    written.symlink_to(mine)
    assert run(capsys, "--mode", "tiny", *ANALYTIC)[0] == 0
    assert (mine.read_text(), written.is_symlink()) == ("mine", False)
    assert written.read_text().startswith("# Static compute of one page\n\nRan: ")


@pytest.mark.parametrize("room_bytes", [0, 1, 4096, 20_000])
def test_a_full_disk_leaves_both_files_as_they_were(capsys, room_bytes):
    resource = pytest.importorskip("resource", reason="has no limits of files")
    files = [REPORT, REPORT.with_suffix(".md")]
    REPORT.parent.mkdir(parents=True)
    for file in files:
        file.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
    code, _, err = run(capsys, "--mode", "tiny", *ANALYTIC)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (code, err.count("\n")) == (74, 1)
    assert {file.read_text() for file in files} == {"old"}
    assert sorted(REPORT.parent.iterdir()) == files


# As a program ------------------------------------------------------------------------------------


def program(*arguments, python=(), **options):
    """A process of its own, run to its end."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    command = [sys.executable, *python, "-m", "dsocr_analyze", *arguments]
    return subprocess.run(command, text=True, check=False, **options)


HELP = ("devices", "--help")


@sampled(
    ("python", "environment", "arguments"),
    [
        (("-OO",), {"PYTHONWARNINGS": "error"}, HELP),
        (("-I", "-X", "utf8"), {}, HELP),
        (("-W", "error"), {}, HELP),
        *(
            ((), environment, line.split())
            for environment in ({"PYTHONWARNINGS": "error"}, {"PYTHONOPTIMIZE": "2"})
            for line in ("sweep --help", "tree", "--mode tiny", "docs --arch deepseek-ocr")
        ),
    ],
    first(1),
)
def test_nothing_that_python_is_told_of_warnings_or_docstrings_changes_a_result(
    capsys, monkeypatch, python, environment, arguments
):
    monkeypatch.setenv("COLUMNS", "100")
    done = program(*arguments, python=python, env={**os.environ, **environment})
    assert done.stderr == "" or arguments != HELP
    assert (done.returncode, done.stdout) == run(capsys, *arguments)[:2]


@pytest.mark.exhaustive
def test_the_trace_is_imported_without_a_warning():
    code = "import dsocr_analyze.trace.operators"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


LINES = ["--engine analytic", "--help", "--version", "compare tiny base --format csv", "fit",
         "sweep --mode all", "tree --no-trace"]  # fmt: skip

ENDED = [
    ("--engine analytic -q", "", 0, ""),
    ("fit l4 h200-sxm --batch-size 30", "", 1, ""),
    ("fit --batch-size 30", "", 0, ""),
    ("--base-size 3", "", 2, "--base-size 3 is too small; give 64 to 16384 pixels per side"),
    ("--base-size 3", "no stderr", 2, ""),
    ("--engine analytic -q", "no stdout", 0, ""),
    *((line, "no stdout", 74, "cannot write to stdout: it is closed") for line in LINES),
    *((line, "full", 74, "cannot write to stdout: No space left on device") for line in LINES),
    *((line, "no reader", 141, "") for line in LINES),
]
"""What runs, under which circumstances; the exit code, and what is said."""


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no /dev/full")
@pytest.mark.parametrize(("line", "how", "code", "said"), ENDED)
def test_a_program_ends_with_its_exit_code_and_one_line(line, how, code, said):
    reading, writing = os.pipe()
    os.close(reading)
    with Path("/dev/full").open("w") as full, os.fdopen(writing, "w") as pipe:
        options = {
            "": {}, "full": {"stdout": full}, "no reader": {"stdout": pipe},
            "no stdout": {"preexec_fn": lambda: os.close(1)},
            "no stderr": {"preexec_fn": lambda: os.close(2)},
        }  # fmt: skip
        done = program(*line.split(), **options[how])
    assert done.returncode == code
    assert done.stderr == (f"dsocr-analyze: {said}\n" if said else "")
    assert not done.stdout or code < 2
