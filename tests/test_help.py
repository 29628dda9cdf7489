"""Help: commands first, options in groups, at most 60 lines; `--help-all` has every option."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import infer_like
import pytest
from any_models import LLAMA
from both_engines import small_directory
from command_line import run
from sampling import sampled
from test_inference import SMALL_VIEW, TRIAL
from test_measuring import RUN
from test_time_command import VLLM

from dsocr_analyze.cli import help_text, options
from dsocr_analyze.cli.commands import COMMANDS, application
from dsocr_analyze.hardware.profile import profile_from_file

ROOT = Path(__file__).parent.parent
GROUPS = ["Arguments", "Options", "Model", "Page", "Prediction", "Output", "Help"]
EVERY = {(): application, **{(name,): application.commands[name] for name in COMMANDS}}


def groups_of(text):
    """The lines below each title, in order."""
    groups = {}
    for line in text.splitlines():
        if re.match(r"\w.*:$", line):
            groups[line[:-1]] = lines = []
        elif groups:
            lines.append(line)
    return groups


def spelled_in(lines):
    """Every option that opens a line of the list."""
    names = (re.findall(r"(?<![\w-])--?[\w-]+", line.strip().split("  ")[0]) for line in lines)
    entries = [found for found, line in zip(names, lines, strict=True) if line[:3] == "  -"]
    return [name for found in entries for name in found]


@pytest.mark.parametrize("columns", ["80", None, "200"])
def test_every_help_is_at_most_60_lines_of_80_columns(capsys, monkeypatch, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    for command in EVERY:
        code, out, err = run(capsys, *command, "--help")
        lines = out.splitlines()
        assert (code, err, len(lines) <= 60) == (0, "", True), (command, len(lines))
        assert max(map(len, lines)) <= 80, command


def test_the_main_command_lists_commands_first_each_with_a_whole_sentence(capsys):
    groups = groups_of(run(capsys, "--help")[1])
    listed = [line.split()[0] for title in groups if title not in GROUPS for line in groups[title]
              if line]  # fmt: skip
    assert listed == [*COMMANDS]
    assert list(groups)[-len(GROUPS) + 2 :] == GROUPS[2:]
    for title in groups.keys() - GROUPS:
        assert all(line.endswith(".") and "..." not in line for line in groups[title] if line)


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_every_option_is_in_one_group_of_help_all_and_the_usual_ones_in_help(capsys, command):
    usual, every = (groups_of(run(capsys, *command, way)[1]) for way in ("--help", "--help-all"))
    for groups in (usual, every):
        titles = [title for title in groups if title in GROUPS]
        assert titles == [title for title in GROUPS if title in groups]
    has = {
        name
        for each in EVERY[command].params
        if each.param_type_name == "option"
        for name in (*each.opts, *each.secondary_opts)
    }
    listed = Counter(name for lines in every.values() for name in spelled_in(lines))
    assert listed == dict.fromkeys({*has, "-h", "--help"}, 1)
    for title, lines in usual.items():
        assert set(spelled_in(lines)) <= set(spelled_in(every[title]))
    assert {"--help", "--help-all"} <= set(spelled_in(usual["Help"]))


def test_an_option_is_in_the_same_group_of_every_command():
    groups, usual = defaultdict(set), set()
    for command in EVERY.values():
        for each in command.params:
            if each.param_type_name == "option" and each.help == getattr(
                options.SHARED.get(each.name), "help", None
            ):
                groups[each.opts[0]].add((each.rich_help_panel, type(each.rich_help_panel)))
                if not isinstance(each.rich_help_panel, help_text.Seldom):
                    usual.add(each.opts[0])
    assert {name: found for name, found in groups.items() if len(found) > 1} == {}
    asked_most = {"--model", "--page", "--mode", "--max-new-tokens", "--gpu", "--price", "--json"}
    assert asked_most <= usual


def test_help_imports_no_torch_and_a_page_of_another_width_is_laid_out_for_it():
    code = (
        "import sys; from dsocr_analyze.cli import main; main(['--help']); main(['--help-all']);"
        " sys.exit(not {'torch', 'transformers', 'rich'}.isdisjoint(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        env={**os.environ, "COLUMNS": "60"}, check=True,
    )  # fmt: skip
    wide = [line for line in done.stdout.splitlines() if len(line) > 60]
    assert [line for line in wide if " " in line.strip()] == []


# --quiet ------------------------------------------------------------------------------------------


ANALYTIC = ("--engine", "analytic", "--mode", "tiny")
MEASURED = ("--config", "measured.config.json", *itertools.chain(*RUN.items()))
QUIET = [
    # What runs, the code it ends with, and the file that it writes.
    (ANALYTIC, 0, "tmp/dsocr-static-ops/static_compute.json"),
    (("compare", "tiny", "base", "--output", "both.md"), 0, "both.md"),
    (("advise", "--minimum-dpi", "1"), 0, None),
    (("advise", "--minimum-dpi", "9999"), 1, None),
    (("sweep", "--mode", "tiny", "--gpu", "h100", "--output", "rows.csv"), 0, "rows.csv"),
    (("archive", "pages.csv", "--output", "rows.csv"), 0, "rows.csv"),
    (("check", "--budgets", "exceeded.toml"), 1, None),
    (("check", "--budgets", "exceeded.toml", "--update"), 0, "exceeded.toml"),
    (("time", "--dtype", "float16", "--plot", "curve.svg"), 0, "curve.svg"),
    (("time", "h100", "--from-benchmark", VLLM), 0, None),
    (("plan", "--pages", "9", "--gpu", "h100", "--first-token", "1ms"), 1, None),
    (("fit", "h100"), 0, None),
    (("fit", "l4", "--batch-size", "999"), 1, None),
    (("devices", "h100", "--forget", "all"), 0, None),
    (("tree", "--no-trace", "--output", "tree.txt"), 0, "tree.txt"),
    (("trust", "small"), 0, None),
    (("measure", *MEASURED, "--json", "measured.json"), 0, "measured.json"),
    (("infer", "--model", "small", "--image", "page.png", *TRIAL, *SMALL_VIEW), 0,
     "tmp/dsocr-infer-one/infer_one.json"),
    (("stages", "--hf-config", "llama.json", "--output", "stages.toml"), 0, "stages.toml"),
    (("calibrate",), 0, None),
    (("docs", "--output", "pages"), 0, "pages/commands.md"),
]  # fmt: skip
QUICK = {"--engine", "compare", "advise", "sweep", "archive", "check", "fit", "devices", "trust"}

NOTHING = {
    "compare": "--output, --html or --plot",
    "advise": "--minimum-dpi, --maximum-compression or --json",
    "sweep": "--output or --plot",
    "archive pages.csv": "--output",
    "archive pages.csv --format json": "--output",
    "time h100": "--plot or --from-benchmark",
    "plan --pages 9": "--first-token",
    "fit": "GPU or --gpu",
    "devices": "--forget",
    "tree": "--output",
    "stages --hf-config llama.json": "--output",
    "measure": "--json",
}
"""Commands that quiet leaves nothing of, and what they need."""


@pytest.fixture
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    infer_like.write(tmp_path / "small")
    infer_like.picture(tmp_path / "page.png")
    for name, text in (
        ("pages.csv", "width,height\n100,200\n"),
        ("measured.config.json", json.dumps(small_directory(num_hidden_layers=1).config)),
        ("llama.json", json.dumps(LLAMA.config)),
        ("exceeded.toml", '[workloads.page]\nmode = "tiny"\n[[workloads.page.budgets]]\n'
                          'key = "stages.sam.flops"\nmax = 1\n'),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)


def test_every_command_takes_quiet_by_one_declaration():
    commands = {line[0] if line[0] in COMMANDS else "" for line, *_ in QUIET}
    assert commands == {"", *COMMANDS}
    found = [each for of in EVERY.values() for each in of.params if "--quiet" in each.opts]
    assert [each.opts for each in found] == [["--quiet", "-q"]] * len(EVERY)
    assert len({each.help for each in found}) == 1


@sampled(("line", "code", "written"), QUIET, lambda _, case: case[0][0] in QUICK)
@pytest.mark.usefixtures("_files")
def test_quiet_prints_nothing_but_writes_and_answers(capsys, monkeypatch, line, code, written):
    profile = profile_from_file(ROOT / "benchmarks/measured/cpu-amd-epyc-2-threads.toml")
    monkeypatch.setattr("dsocr_analyze.cli.device_runs.calibrated", lambda _, **__: profile)
    before = written and Path(written).is_file() and Path(written).read_text()
    assert run(capsys, *line, "-q") == (code, "", "")
    assert written is None or Path(written).read_text() != before


@pytest.mark.parametrize(("line", "needed"), NOTHING.items())
@pytest.mark.usefixtures("_files")
def test_quiet_that_leaves_nothing_is_refused_before_any_work(capsys, line, needed):
    said = f"--quiet leaves nothing to show; give {needed} too, or leave out --quiet"
    assert run(capsys, *line.split(), "--quiet") == (2, "", f"dsocr-analyze: {said}\n")


@pytest.mark.usefixtures("_files")
def test_quiet_keeps_warnings_and_what_json_asks_for(capsys):
    long = (*ANALYTIC, "--text-tokens", "9000", "-q")
    code, out, err = run(capsys, *long, "--json", "-")
    assert (code, json.loads(out)["workload"]["text_tokens"]) == (0, 9000)
    assert err.startswith("dsocr-analyze: warning: ")
    assert run(capsys, *long) == (0, "", err)
