"""Input that would hang, fill the memory or talk past the tool is refused, in one line."""

import contextlib
import faulthandler
import gzip
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from random import Random
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run as call
from hostile_cases import KINDS, TRACED
from sampling import first, sampled

from dsocr_analyze import errors, row_files
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.deepseek_ocr import ClipModelDimensions
from dsocr_analyze.model import directory, loading
from dsocr_analyze.toml_table import parse_toml
from dsocr_analyze.workload import image_file as page_files

CONFIG = json.loads((DEFAULT.reference / "config.json").read_text())


def refused(capsys, *arguments):
    """The one line with which a command refuses its input."""
    code, _, message = call(capsys, *arguments)
    assert (code, message.count("\n"), len(message) < 500) == (2, 1, True)
    return message


def test_experts_of_all_layers_together_are_bounded():
    fits = {**CONFIG, "num_hidden_layers": 1024, "n_routed_experts": 9}
    assert ClipModelDimensions.from_config(fits).decoder.moe_layers == 1023
    with pytest.raises(errors.ConfigError, match="at most 9 to each of 1,023 MoE layers"):
        ClipModelDimensions.from_config({**fits, "n_routed_experts": 10})


def test_a_directory_that_builds_without_end_is_stopped(monkeypatch, capsys):
    monkeypatch.setattr(loading, "_MOST_MODULES", 1000)
    assert "more than 1,000 modules" in refused(capsys, "--model", DEFAULT.reference)
    monkeypatch.setattr(loading, "_MOST_MODULES", 5000)
    assert call(capsys, "tree", "--leaves")[0] == 0  # nothing stays counted afterwards


QWEN2_MOE = {
    "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "vocab_size": 128,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "num_experts": 6,
    "moe_intermediate_size": 32,
}  # fmt: skip
STAGES = """
name = "small"
[[stages]]
name = "prefill"
prefixes = ["model"]
role = "prefill"
[prompt]
tokens = 4
"""


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_hidden_layers", 2000, "has 2000 layers; give at most 256"),
        ("num_experts", 6000, "has num_experts 6000; give at most 1024"),
    ],
)
def test_what_is_traced_one_by_one_is_bounded(key, value, said, tmp_path, capsys):
    config, stages = tmp_path / "config.json", tmp_path / "stages.toml"
    config.write_text(json.dumps({**QWEN2_MOE, key: value}))
    stages.write_text(STAGES)
    assert said in refused(capsys, "tree", "--hf-config", config, "--stages", stages)


def test_blank_lines_are_bounded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(row_files, "_MOST_BLANK_LINES", 10)
    few, many = (tmp_path / f"{blank}.csv.gz" for blank in (10, 11))
    for file in (few, many):
        with gzip.open(file, "wt") as rows:
            rows.write("width,height\n" + " \n" * int(file.name[:2]) + "640,640\n")
    assert call(capsys, "archive", few, "--mode", "tiny")[0] == 0
    assert "more than 10 blank lines" in refused(capsys, "archive", many)


def test_a_header_that_never_ends_is_not_read_to_its_end(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page_files, "_MOST_READS", 1000)
    short, long = (tmp_path / f"{length}.ppm" for length in (500, 5000))
    for image in (short, long):
        comment = b"x" * int(image.stem)
        image.write_bytes(b"P6\n#" + comment + b"\n10 10\n255\n" + bytes(300))
    options = ["--engine", "analytic", "--output", tmp_path, "--image"]
    assert call(capsys, *options, short)[0] == 0
    assert "header does not end" in refused(capsys, *options, long)


PARTS = ("a", '"b.c"', r'"\""', "'d'", "e-1 ")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("written", ["{} = 1", " {} = 1", "x = {{ {} = 1 }}", "[{}]", "[[ {} ]]"])
def test_keys_of_many_parts_are_refused_before_they_take_all_memory(part, written):
    """40 KB of them take 1.6 GB."""
    most, more = (written.format(" . ".join([part] * count)) for count in (64, 65))
    assert parse_toml(most) == tomllib.loads(most)
    for text in (more, f"a = 1\n{more}"):
        with pytest.raises(ValueError, match="more than 64 parts"):
            parse_toml(text)


def test_dots_that_stand_in_no_key_are_read():
    text = (
        f"x = [{', '.join(['0.5'] * 99)}]\ny = '{'a.b, ' * 99}'\nz = '{'.' * 999}'\n# {'. ' * 99}"
    )
    assert parse_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize("part", ["a", "a ", "'", '"', '"\\', " ", "a.", ".", "''.", ",'", '"a" .'])
def test_looking_for_such_keys_takes_no_time(part):
    start = time.process_time()
    with contextlib.suppress(ValueError):
        parse_toml(part * ((1 << 20) // len(part)))
    assert time.process_time() - start < 3


TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
    "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
}  # fmt: skip
PANICS = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}


@pytest.fixture
def model(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return directory


def run_process(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", ["null", json.dumps({**TOKENIZER, **PANICS}), "[" * 100_000])
def test_a_tokenizer_that_panics_says_one_line(model, text):
    (model / "tokenizer.json").write_text(text)
    ended = run_process(
        "-P", "-m", "dsocr_analyze", "--model", model, "--engine", "analytic",
        "--prompt", "<image>\nabc", env={**os.environ, "RUST_BACKTRACE": "full"},
    )  # fmt: skip
    assert ended.returncode == 2
    [complaint] = [line for line in ended.stderr.splitlines() if "warning:" not in line]
    assert "tokenizer.json" in complaint


FROM_SOURCE = {
    **os.environ, "PYTHONPATH": str(Path(page_files.__file__).parents[2]), "PYTHONSAFEPATH": "",
}  # fmt: skip


def test_modules_in_the_current_folder_are_not_imported(tmp_path):
    for name in ("typer", "json", "rich", "msgspec", "typing", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('foreign code ran')\n")
    ended = run_process("-m", "dsocr_analyze", "--version", cwd=tmp_path, env=FROM_SOURCE)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("dsocr-analyze ")


GONE = "dsocr-analyze: the current folder has been removed; change to another one\n"


@sampled(
    ("arguments", "code", "said"),
    [
        (["tree", "--leaves"], 2, GONE),
        (["--version"], 0, ""),
        (
            ["--engine", "analytic", "-q"],
            74,
            "dsocr-analyze: cannot write to 'tmp/dsocr-static-ops': No such file or directory; give"
            " a directory that can be written\n",
        ),
    ],
    first(1),
)
def test_in_a_folder_that_has_been_removed(tmp_path, arguments, code, said):
    (tmp_path / "gone").mkdir()
    ended = run_process(
        "-m", "dsocr_analyze", *arguments, cwd=tmp_path / "gone",
        preexec_fn=(tmp_path / "gone").rmdir, env=FROM_SOURCE,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (code, said)


def test_no_file_takes_the_place_of_a_stream_that_is_closed():
    code = (
        "import dsocr_analyze.cli, dsocr_analyze.__main__ as process\n"
        "dsocr_analyze.cli.main = lambda: open('/dev/null').fileno()\n"
        "process.run()"
    )
    ended = run_process("-c", code, preexec_fn=lambda: os.closerange(0, 3))
    assert ended.returncode > 2


def test_a_broken_default_directory_is_said_and_the_reference_counted(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    broken = Path("models/deepseek-ocr")
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{")
    code, out, err = call(capsys, "--engine", "analytic")
    assert (code, "(reference)" in out, err.count("\n")) == (0, True, 1)
    assert f"{broken} cannot be used, so the built-in reference runs" in err
    assert "is not JSON" in refused(capsys, "--engine", "analytic", "--model", broken)


NAME = '<script>x</script>|`*\x1b[2K\u202e\n#"]-->'
ACTING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]|<script")


def test_names_of_a_models_files_cannot_forge_the_listing_of_trust(model, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(model.parent / "config"))
    for name in ("evil\r\x1b[2K.py", "a\n0000  fake.py", "\u202eyp.x.py"):
        (model / name).write_text("")
    code, out, _ = call(capsys, "trust", model)
    assert (code, len(out.splitlines()), ACTING.findall(out)) == (0, 4, [])


@pytest.mark.exhaustive
def test_a_models_name_stays_within_the_report(model, capsys):
    named = model.rename(model.parent / NAME.replace("/", "_"))
    options = ["--output", model.parent / "out", "--format", "markdown"]
    code, out, _ = call(capsys, "--engine", "analytic", "--model", named, *options)
    assert (code, ACTING.findall(out)) == (0, [])


# pyarrow hands over texts that are not UTF-8 and fails only where Python asks for their characters.
DAMAGED = b"\xff\xfeyyzz"
PARQUET = [
    ({"width": ["640", "xxyyzz"], "height": ["480", "480"]}, ["archive", "--mode", "tiny"], 0,
     "row 2: width '(string that is not UTF-8)' is not a whole number"),
    ({"new_tokens": ["640", "xxyyzz"]}, ["time", "h100", "--new-tokens-from"], 2, "not UTF-8"),
    ({"xxyyzz": [640], "height": [480]}, ["archive"], 2, "as a list of pages"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "arguments", "code", "said"), PARQUET)
def test_parquet_that_is_not_utf8(tmp_path, capsys, columns, arguments, code, said):
    file = tmp_path / "pages.parquet"
    pq.write_table(pa.table(columns), file, compression="none", use_dictionary=False)
    file.write_bytes(file.read_bytes().replace(b"xxyyzz", DAMAGED))
    found, _, err = call(capsys, *arguments, file)
    assert (found, said in err) == (code, True)
    assert code == 0 or (err.count("\n"), len(err) < 500) == (1, True)


# --- drawn at random -------------------------------------------------------------------------

EACH, EACH_TRACED = (10_000, 1_500) if os.environ.get("DSOCR_CAMPAIGN") == "long" else (40, 6)
"""Cases of a kind."""
LONGEST_SECONDS = 10.0 + 3.0
"""Ten beyond the job itself, of which a traced one takes up to three."""
ENDS_SECONDS = 120
MOST_BYTES = 1 << 30
ACTS = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
    "\\ufff9-\\ufffb\\ud800-\\udfff\\U000e0000-\\U000e007f]"
)
WRITTEN = {
    "static_compute.json", "static_compute.md", "page.html", "compared.html", "c.md", "rows.csv",
    "tree.mmd", "tree.dot", "out.csv", "out.html", "out.svg",
}  # fmt: skip
"""What commands of the cases write; other files are input."""


def broken_by(code, out, err, seconds, grown):
    """The promises that what a command says, and takes, breaks."""
    lines = err.splitlines()
    if code not in (0, 1, 2, 3, 74):
        yield f"exit code {code}"
    if code == 2 and all(" warning: " in line or " note: " in line for line in lines):
        yield "refused without a word"
    yield from (f"stderr has {line[:300]!r}" for line in lines
                if not line.startswith("dsocr-analyze: ") or "internal error" in line)  # fmt: skip
    yield from (f"a message of {len(line)} characters" for line in lines if len(line) > 500)
    yield from (f"{found!r} acts" for found in ACTS.findall(out + err))
    if "Traceback" in out:
        yield "stdout has a traceback"
    if seconds > LONGEST_SECONDS or grown > MOST_BYTES:
        yield f"took {seconds:.1f} s and {grown / MOST_BYTES:.1f} GiB"


def broken_in(folder):
    """The promises that files break."""
    for path in folder.rglob("*"):
        if re.match(r"\.dsocr-|\.trust-|tmp", path.name):
            yield f"left {path.name}"
        elif path.name in WRITTEN and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            # The page's own, that of its libraries included; and where markup is text.
            text = re.sub(r"(?s)(?<=\n)<script.*?</script>", "", text)
            text = re.sub("`[^`\n]*`", "", text) if path.suffix == ".md" else text
            if "<script" in text and path.suffix != ".json":
                yield f"{path.name} has a name as markup"
            yield from (f"{path.name} has {found!r}, which acts" for found in ACTS.findall(text))


def peak_bytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture
def findings(tmp_path, monkeypatch, capsys):
    """Runs the case of a kind and seed in a folder of its own; the promises that it breaks.

    Memory is bounded, and a case without an end ends the process, with a traceback.
    """
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, before[1]))
    monkeypatch.setenv("COLUMNS", "100")

    def run_case(kind, seed):
        folder = tmp_path / f"{kind} {seed}"
        (folder / "here").mkdir(parents=True)
        monkeypatch.chdir(folder / "here")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        arguments = KINDS[kind](Random(seed))
        faulthandler.dump_traceback_later(ENDS_SECONDS, exit=True, file=sys.__stderr__)
        start, peak = time.process_time(), peak_bytes()
        ended = call(capsys, *arguments)
        taken = time.process_time() - start, peak_bytes() - peak
        faulthandler.cancel_dump_traceback_later()
        broken = [*broken_by(*ended, *taken), *broken_in(folder)]
        shutil.rmtree(folder, ignore_errors=True)
        return [(kind, seed, arguments, broken)] if broken else []

    yield run_case
    resource.setrlimit(resource.RLIMIT_DATA, before)


def test_no_case_of_a_quick_kind_breaks_a_promise(findings):
    for seed, kind in enumerate(kind for kind in KINDS if kind not in TRACED):
        assert findings(kind, seed) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_no_case_breaks_a_promise(kind, findings):
    count = EACH_TRACED if kind in TRACED else EACH
    assert [found for seed in range(count) for found in findings(kind, seed)] == []


def test_a_broken_promise_is_found(findings, monkeypatch):
    error = ZeroDivisionError("\x1b[2K" + "x" * 600)
    monkeypatch.setattr(directory, "read_config", mock.Mock(side_effect=error))
    monkeypatch.setattr("dsocr_analyze.cli.streams.visible", lambda text: text)
    monkeypatch.setattr("dsocr_analyze.cli.streams._LONGEST_MESSAGE", 600)
    monkeypatch.setattr("dsocr_analyze.cli.streams._LONGEST_WORD", 600)
    [(*_, broken)] = findings("config", 0)
    assert [each[:13] for each in broken] == [
        "exit code 70", "stderr has 'd", "a message of ", "'\\x1b' acts",
    ]  # fmt: skip
