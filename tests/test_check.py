"""`dsocr-analyze check`, its action and comment: exit codes, revisions, outputs, hostile input."""

import contextlib
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from functools import reduce
from operator import getitem
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import gated
import jsonschema
import pytest
import yaml
from command_line import run
from hypothesis import given, settings, strategies as st
from markdown_it import MarkdownIt
from run import TASKS
from write_schema import schemas

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.gate import compared, judge, renderers
from dsocr_analyze.gate.budgets import budgets_in

WORKLOAD = '[workloads.page]\nconfig = "config.json"\npage = "800x600"\nmax_new_tokens = 5\n'
BUDGET = '[[workloads.page.budgets]]\nkey = "total.flops"\n'
LIMITED = f"{WORKLOAD}{BUDGET}max = 1e14\n"
OTHER = f'{WORKLOAD}[workloads.other]\nmode = "tiny"\n'
SAVING = ("--engine", "analytic", "-q", "--output", "saved", "--config", "config.json", "--page",
          "800x600", "--max-new-tokens", 5)  # fmt: skip
SAVED = "saved/static_compute.json"


BELOW = WORKLOAD.replace("config.json", "../config.json")
"""The workload for budgets in a folder."""


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """A repository with one workload on a small config, which there is beside it too."""
    here = tmp_path_factory.mktemp("committed") / "a repository"
    configs = dict.fromkeys(("config.json", "old.json", "../x.json"), json.dumps(gated.small()))
    gated.repository(here, WORKLOAD, **configs, **{"a/budgets.toml": BELOW})
    return here


@pytest.fixture
def folder(committed, tmp_path, monkeypatch):
    """A copy of it, with no summary of a job that runs the tests and no record of trust."""
    here = shutil.copytree(committed.parent, tmp_path / "copy") / committed.name
    monkeypatch.chdir(here)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config-home"))
    monkeypatch.setenv("COLUMNS", "80")
    return here


@pytest.fixture
def check(capsys, folder):
    """A check with some options must end with a code, and say some words if lines are joined."""

    def checked(options, code, *said, more=()):
        found, out, err = run(capsys, "check", *options.split(), *more)
        text = " ".join(f"{out} {err}".split())
        assert (found, [words for words in said if words not in text]) == (code, []), text

    return checked


def write(budgets=None, **values):
    """Other budgets, and a config with other values, in the current folder."""
    if budgets is not None:
        Path("dsocr-budgets.toml").write_text(budgets)
    if values:
        Path("config.json").write_text(json.dumps(gated.small(**values)))


# Answers and exit codes --------------------------------------------------------------------------


LOOSER = "limits are looser than the baseline's"
CONFIG, MORE = "config.json", "max_new"
ONE = f"{WORKLOAD}{BUDGET}max = 1\n"
WARN = f'{ONE}level = "warn"'

OF_THIS_FOLDER = {
    "a limit is kept": (LIMITED, None, "", 0, "1 limit kept"),
    "above": (ONE, None, "", 1, "FAILED (1 error)"),
    "below": (LIMITED.replace("max = 1e14", "min = 9e15"), None, "", 1,
              "below 9e+15 (min 9,000,000,000,000,000)"),
    "a warning": (WARN, None, "", 0, "passed with warnings (1 warning)"),
    "a warning, strictly": (WARN, None, "--strict", 3, "--strict: 1 warnings"),
    "an error, strictly": (ONE, None, "--strict", 1, "FAILED"),
    "a typing error": (ONE.replace("max =", "maks ="), None, "", 2,
                       "'workloads.page.budgets[0].maks' is unknown"),
    "no room": (LIMITED, None, "--junit gone/x.xml", 74, "cannot write 'gone/x.xml'"),
    "two for a report": (OTHER, None, "--against r.json", 2,
                         "name the matching one: --workload NAME"),
    "no such workload": (ONE, None, "--workload paeg", 2, "did you mean page? it has 'page'"),
}  # fmt: skip
"""Budgets, none in a revision, options, the exit code and words of the answer."""

AGAINST_A_REVISION = {
    "equal": (WORKLOAD, WORKLOAD, "--strict", 0, "figures equal the baseline's"),
    "a change": (f'{WORKLOAD}{BUDGET}max_increase = "1 %"', WORKLOAD, "", 0, "1 limit kept"),
    "another page": (WORKLOAD.replace("800x600", "80x60"), WORKLOAD, "", 1,
                     "workload page: 800 x 600 -> 80 x 60"),
    "another config": (WORKLOAD.replace(CONFIG, "old.json"), WORKLOAD, "--strict", 3,
                       "another workload is counted than in the baseline: config"),
    "its name": (WORKLOAD.replace(CONFIG, "old.json"), WORKLOAD, "", 0,
                 "workload config: config.json -> old.json"),
    "a new config": (WORKLOAD.replace(CONFIG, "new.json"), "", "", 0,
                     "no baseline: HEAD has no 'new.json'"),
    "one of two": (OTHER, OTHER, "--workload page --strict", 0, "figures equal"),
    "one is gone": (WORKLOAD, OTHER, "--strict", 3, "workload 'other' of HEAD is gone"),
    "broken there": (WORKLOAD, "[workload.x]\n", "", 0, "the baseline's budgets cannot be read"),
    "none there": (WORKLOAD, WORKLOAD, "--budgets other.toml --strict", 3,
                   "HEAD has no budgets in other.toml"),
    "in a subfolder": ("", WORKLOAD, "--budgets a/budgets.toml --strict", 0, "figures equal"),
    "outside": (WORKLOAD.replace(CONFIG, "../x.json"), "", "", 2, "outside the repository"),
    "a way outside": (WORKLOAD.replace(CONFIG, "a/../../x.json"), "", "", 2,
                      "outside the repository"),
    "tighter": (LIMITED.replace("1e14", "9e13"), LIMITED, "--strict", 0,
                "budget changed: total.flops: max 100,000,000,000,000 (error) -> max 90,"),
    "looser": (LIMITED.replace("1e14", "2e14"), LIMITED, "--strict", 3, f"{LOOSER}: total.flops"),
    "an engine": (LIMITED.replace(MORE, 'engine = "analytic"\nmax_new'), LIMITED, "--strict", 3,
                  "another workload is counted than in the baseline: engine"),
    "renamed": (LIMITED.replace("s.page", "s.renamed"), LIMITED, "--strict", 3,
                "workload 'page' of HEAD is gone"),
}  # fmt: skip
"""Budgets here and in the revision, options, the exit code and words of the answer.

A pull request cannot change what its own check looks at without a doubt that names it.
"""


@pytest.mark.parametrize(
    ("budgets", "before", "options", "code", "said"),
    [*OF_THIS_FOLDER.values(), *AGAINST_A_REVISION.values()],
    ids=[*OF_THIS_FOLDER, *AGAINST_A_REVISION],
)
def test_a_check_of_this_folder_or_against_a_revision(
    folder, check, budgets, before, options, code, said
):
    if before is not None:
        options += " --against HEAD"
        write(before)
        gated.commit(folder)
        shutil.copy("config.json", "new.json")
        Path("other.toml").write_text(budgets)
    write(budgets)
    check(options, code, said)


def test_a_file_that_comes_first_does_not_hide_the_baselines(folder, check):
    table = WORKLOAD.replace("[workloads", "[tool.dsocr-analyze.check.workloads")
    (folder / "dsocr-budgets.toml").rename("pyproject.toml").write_text(table)
    gated.commit(folder)
    for budgets, code, said in (
        (None, 0, ""),
        ('[workloads.easy]\nmode = "tiny"\n', 3, "workload 'page' of HEAD is gone"),
        (WORKLOAD.replace("800x600", "80x60"), 1, ""),
    ):
        write(budgets)
        check("--against HEAD --strict", code, said)


def test_without_budgets_an_update_creates_some_and_keeps_what_is_meant(folder, check):
    (folder / "dsocr-budgets.toml").rename("pyproject.toml").write_text('[project]\nname = "x"\n')
    for options, code, said in (("", 2, "--update creates a file"), ("-q --update", 0, ""),
                                ("-q", 0, "")):  # fmt: skip
        check(options, code, said)


# Saved reports -----------------------------------------------------------------------------------


def test_a_report_is_a_baseline_unless_altered_and_takes_no_revisions_place(check, capsys):
    """The witness of the command; tests/test_gate.py alters everything else."""
    run(capsys, *SAVING, "--gpu", "h100")
    saved = Path(SAVED).read_text()
    write(f'{WORKLOAD}gpu = "h100"\n')
    for path, value, code in (
        (("workload", "page", 0), 800, 0),  # as it is
        (("workload", "page", 0), 801, 1),
        (("time", 0, "page_seconds"), 9.0, 1),
        (("metadata", "dtype"), "float16", 3),
        (("stages", "sam", "calls"), "many", 2),
    ):
        report = json.loads(saved)
        reduce(getitem, path[:-1], report)[path[-1]] = value
        Path(SAVED).write_text(json.dumps(report))
        check(f"--against {SAVED} --strict", code)
    write(WORKLOAD, num_experts_per_tok=8)
    Path(SAVED).write_text(saved)
    check(f"--against {SAVED}", 1, "changed: language_config.num_experts_per_tok: 6 -> 8")
    run(capsys, *SAVING)
    shutil.copy(SAVED, "main")
    check(f"--against {SAVED}", 0)
    check("--against main", 1)


@pytest.mark.exhaustive
def test_a_traced_report_is_compared_with_a_trace(check, capsys):
    write('[workloads.a]\nmode = "tiny"\nmax_new_tokens = 2\n')
    run(capsys, "-q", "--output", "saved", "--mode", "tiny", "--max-new-tokens", 2)
    check(f"--against {SAVED}", 0, "figures equal the baseline's")


# Revisions: a repository may be a stranger's; nothing of it runs, and nothing leads out of it -----


@pytest.mark.parametrize(
    "name", ["-x", "--upload-pack=touch mark", "--output=mark", "", "no-such", "HEAD\n", "a\0b",
             "HEAD:config.json", "HEAD..HEAD", "HEAD^{tree}"]
)  # fmt: skip
def test_what_is_no_revision_is_refused(folder, check, name):
    check("", 2, more=[f"--against={name}"])
    assert not (folder / "mark").exists()


def test_outside_of_a_repository(folder, monkeypatch, check):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))
    shutil.rmtree(folder / ".git")
    check("--against main", 2, "not a git repository")


def test_the_work_tree_the_index_and_the_branch_stay(folder, check):
    write(num_experts_per_tok=7)
    (folder / "untracked").write_text("x")
    gated.git(folder, "add", "config.json")
    states = set()
    for _ in range(2):
        status = gated.git(folder, "status", "--porcelain=v2", "--branch")
        states.add((status, (folder / ".git" / "index").read_bytes()))
        check("--against HEAD", 1)
    assert len(states) == 1


def program(file, script):
    """A stand-in for a program."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def test_nothing_of_the_repositorys_settings_runs(folder, check):
    mark = folder / "mark"
    leave_a_mark = f"touch '{mark}'\ncat"
    evil = program(folder / "evil.sh", leave_a_mark)
    (folder / ".gitattributes").write_text("* filter=evil diff=evil\n")
    for hook in ("post-checkout", "reference-transaction", "post-index-change"):
        program(folder / ".git" / "hooks" / hook, leave_a_mark)
    gated.commit(folder)
    for key in ("core.fsmonitor", "filter.evil.smudge", "filter.evil.clean", "diff.evil.textconv",
                "diff.external", "core.pager", "core.sshCommand", "core.askPass", "gpg.program",
                "credential.helper", "alias.rev-parse"):  # fmt: skip
        gated.git(folder, "config", key, f"!{evil}" if key.startswith("alias") else evil)
    mark.unlink(missing_ok=True)
    check("--against HEAD -q", 0)
    assert not mark.exists()


def test_missing_objects_are_not_fetched(folder, check):
    mark = folder.parent / "mark"
    for key, value in {
        "core.repositoryformatversion": "1", "extensions.partialClone": "origin",
        "remote.origin.url": str(folder), "remote.origin.promisor": "true",
        "remote.origin.uploadpack": program(folder / "upload.sh", f"touch '{mark}'"),
        "protocol.file.allow": "always",
    }.items():  # fmt: skip
        gated.git(folder, "config", key, value)
    blob = gated.git(folder, "rev-parse", "HEAD:config.json")
    (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    check("--against HEAD", 2, "is not in this clone")
    assert not mark.exists()


def test_another_commit_or_repository_cannot_stand_for_the_one_that_is_asked_for(
    folder, check, monkeypatch, tmp_path
):
    first = gated.git(folder, "rev-parse", "HEAD")
    write(num_experts_per_tok=7)
    gated.commit(folder)
    gated.git(folder, "replace", first, gated.git(folder, "rev-parse", "HEAD"))
    check(f"--against {first}", 1)
    gated.repository(tmp_path / "other", "[workloads.page]\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other" / ".git" / "index"))
    check("--against HEAD", 0)


def test_a_link_is_not_followed(folder, check):
    shutil.move("config.json", "../secret.json")
    Path("config.json").symlink_to("../secret.json")
    gated.commit(folder)
    Path("config.json").unlink()
    write(num_hidden_layers=2)
    check("--against HEAD", 2, "is a symbolic link")


# A model directory in the repository: closed forms read it, a trace needs trust ------------------


NET = '[workloads.page]\nmodel = "net"\nmode = "tiny"\nmax_new_tokens = 2\n'


@pytest.fixture
def source(folder):
    """One of the directory's Python files."""
    shutil.copytree(ARCHITECTURES["deepseek-ocr"].reference, folder / "net",
                    ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    shutil.copy("config.json", "net")
    write(NET)
    gated.commit(folder)
    return min((folder / "net").glob("modeling*.py"))


def test_a_directorys_config_and_code_are_those_of_the_revision(source, check):
    check("--against HEAD", 0)
    (source.parent / "config.json").write_text(json.dumps(gated.small(num_hidden_layers=1)))
    source.write_text(f"{source.read_text()}\n# a change\n")
    check("--against HEAD", 1, "num_hidden_layers: 2 -> 1",
          "Python files differ from the baseline's")  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.directory
def test_a_revisions_code_runs_under_the_trust_of_its_very_files(folder, source, check, capsys):
    write(f'{NET}engine = "trace"\n')
    gated.commit(folder)
    run(capsys, "trust", "net")
    check("--against HEAD", 0, "figures equal the baseline's")
    text = source.read_text()
    source.write_text(f"{text}\nopen({str(folder / 'mark')!r}, 'w').close()\n")
    gated.commit(folder)
    check("--against HEAD", 2, "dsocr-analyze trust")
    source.write_text(text)
    check("--against HEAD", 2, "'net' of HEAD contains Python code", 'engine = "analytic"')
    assert not (folder / "mark").exists()


# Outputs -----------------------------------------------------------------------------------------


HOSTILE = (
    "a`|\\ </b> @all [x](http://x) <!-- \x1b[31m \u202e \u2066\u2028 ]]> &amp; '\" #1\n::error"
)


def test_hostile_names_stay_names_in_every_output(folder, capsys):
    name, config = json.dumps(HOSTILE), {**gated.small(num_experts_per_tok=8), HOSTILE: HOSTILE}
    write(LIMITED.replace("s.page", f"s.{name}").replace("1e14", "1"))
    Path("config.json").write_text(json.dumps(config))
    files = ("--junit", "c.xml", "--markdown", "c.md", "--json", "c.json")
    code, out, _ = run(capsys, "check", "--against", "HEAD", *files)
    assert code == 1
    assert not {"\x1b", "\u202e", "\u2066", "\u2028"} & {*out, *Path("c.xml").read_text()}
    suites = ET.parse("c.xml").getroot()
    shown = suites.find("testsuite").get("name")
    assert shown.startswith("a`|\\ </b> @all")
    assert r"\u2066\u2028" in shown
    assert int(suites.get("failures")) == len(suites.findall(".//failure")) > 10
    found = json.loads(Path("c.json").read_text())
    [workload] = found["workloads"]
    assert (workload["name"], "800 x 600" in workload["title"]) == (HOSTILE, True)
    jsonschema.validate(found, schemas()["schema-check.json"])
    assert found["baseline"]["commit"] == gated.git(folder, "rev-parse", "HEAD")
    outside = re.sub(r"`[^`|\n]+`", "", Path("c.md").read_text())
    assert re.fullmatch(r"[\w .,:;|+\-%()#'\n]*", outside, re.ASCII), outside


def test_every_case_in_junit_has_a_name(check):
    write(f"{WORKLOAD}{BUDGET}max = 1e15\n")
    check("--against HEAD --junit c.xml", 0)
    names = re.findall('<testcase classname="page" name="(.*)" />', Path("c.xml").read_text())
    assert re.fullmatch(
        "total.flops: max 1,000,000,000,000,000; all [0-9,]+ figures equal the baseline's",
        "; ".join(names),
    )


def test_the_summary_of_a_step_is_added_to_and_bounded(folder, check, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "summary.md"))
    for before, added, said in (
        ("what another step said\n", "## Cost check: passed\n", []),
        ("x" * (2**20 - 100), "## Cost check: passed\n", []),
        ("x" * (2**20 - 5), "", ["is full"]),
    ):
        Path("summary.md").write_text(before)
        check("-q", 0, *said)
        text = Path("summary.md").read_text()
        assert text.startswith(f"{before}{added}")
        assert (len(text) < 2**20, len(text) > len(before)) == (True, bool(added))


# The action of docs/check.md, and what a stranger can do there ------------------------------------


ROOT = Path(__file__).resolve().parent.parent
STEPS = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
COMMENT = ROOT / ".github" / "actions" / "comment" / "comment.py"


def test_the_budgets_of_the_page_are_budgets():
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    [text] = re.findall(r"^```toml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    found = budgets_in(text, "docs/check.md", is_pyproject=False)
    assert {name: len(each.budgets) for name, each in found.items()} == {
        "gundam": 3, "batch": 0, "on-the-runner": 1,
    }  # fmt: skip


def test_the_action_installs_what_the_main_job_needs_by_hash(tmp_path):
    """The run script installs by hash: tests/test_repository.py."""
    program(tmp_path / "bin" / "python3", 'printf "%s\\n" "$@" > "$ASKED"')
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "ACTION_PATH": str(ROOT),
        "ASKED": str(tmp_path / "asked"),
    }  # fmt: skip
    [install, check] = [step["run"] for step in STEPS]
    assert STEPS[0]["env"]["DSOCR_TORCH"] == "cpu"  # by which torch is, too
    subprocess.run(["bash", "-e", "-c", install], cwd=tmp_path, env=environment, check=True)
    isolated, script, task, *options = (tmp_path / "asked").read_text().splitlines()
    assert (isolated, Path(script), options) == ("-I", ROOT / "scripts" / "run.py", ["--version"])
    assert (TASKS[task].lock, "pip" in install + check) == ("analyze.txt", False)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({"AGAINST": "HEAD"}, 0),
        ({"AGAINST": "HEAD", "BUDGETS": "dsocr-budgets.toml", "STRICT": "true"}, 0),
        ({"AGAINST": "$(touch mark)"}, 2),
        ({"AGAINST": "--trust-remote-code"}, 2),
        ({"BUDGETS": "x; touch mark"}, 2),
    ],
)
def test_the_actions_script_checks(tmp_path, inputs, code):
    here = tmp_path / "r"
    gated.repository(here, '[workloads.a]\nmode = "tiny"\n')
    program(tmp_path / "action" / ".venv" / "bin" / "dsocr-analyze",
            f'exec "{sys.executable}" -m dsocr_analyze "$@"')  # fmt: skip
    environment = os.environ | {
        "BUDGETS": "", "AGAINST": "", "STRICT": "false", "OUTPUT": "out put",
        "ACTION_PATH": str(tmp_path / "action"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    } | inputs  # fmt: skip
    done = subprocess.run(
        ["bash", "-e", "-c", STEPS[-1]["run"]], cwd=here, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, (here / "mark").exists()) == (code, False), done.stderr
    if code == 0:
        written = {file.name for file in (here / "out put").iterdir()}
        assert written == {"check.json", "check.xml", "check.md"}
        assert (tmp_path / "summary").read_text().startswith("## Cost check: passed")


# The comment --------------------------------------------------------------------------------------


comment = SimpleNamespace(**runpy.run_path(str(COMMENT)))
PARSER = MarkdownIt("gfm-like", {"linkify": False})

SNIPPETS = [
    *"`|\n@#/-+*_<>[]()!:~ ", "``", "\n\n", "## ", "- ", "| a | b |\n| --- | --- |\n", "GH-1", "#1",
    "/approve", "bors r+", "@all", "a" * 40, "1234567", "http://x.y", "www.x.y", "&amp;", "passed",
    "Cost check: ", "`x`", "    ", "\u2060", "\r",
]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "hello @all", "[a](b)", "![a](b)", "<b>", "<!-- x", "see http://x", "www.x.y",
        "fixes #1", "`a``b` @x", "``a` @x`", "| `a | @x` |", "`a", "a\\`b", "&commat;",
        "[a]: b", "~~~", "`a` @x `b`", "$x$", "x^2", "{{", "é@",
        "GH-12", "fixes gh-12", "us/model#12", "#12", "## #12", "- #12", "| #12 |",
        "0123abc", "deadbeef", "1234567", "in " + "0123456789" * 4, "us/model@" + "a" * 40,
        "/approve", "- /lgtm cancel", "  /retest", "bors r+", "- bors try", "!merge",
        "retest this please", "ok to test", "Closes: GH-3", "all@x.org", "CVE-2026-12345",
        "    |", "-     |",
    ],
)  # fmt: skip
def test_what_could_be_obeyed_is_fenced(line):
    first, *shown, last = comment.shown(f"## fine\n{line}\n").split("\n")
    assert re.fullmatch("`+", last)
    assert (first, last in line) == (f"{last}text", False)
    assert all(each.startswith("| ") for each in shown)


@settings(max_examples=50)
@given(st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=9)), max_size=12))
def test_nothing_is_obeyed_and_no_line_is_a_command(parts):
    shown = comment.shown("".join(parts))
    assert re.findall("@(?!\u2060)", shown) == []
    for line in shown.split("\n"):
        first = re.match(r"\s*([^\s.,:;()|#-]*)", line)[1]
        assert line.startswith(("`", "|", "#", "-")) or first in {"", *comment.WORDS} or (
            re.fullmatch("[0-9]{1,3}", first))  # fmt: skip
    seen = []
    for block in PARSER.parse(shown):
        assert block.type not in ("html_block", "code_block")
        seen += [each for each in block.children or () if each.type != "code_inline"]
    assert {each.type for each in seen} <= {"text", "softbreak", "hardbreak"}
    words = re.split(r"[\s.,:;()|#-]+", " ".join(each.content for each in seen))
    assert all(each in comment.WORDS or re.fullmatch("[0-9]{0,3}", each) for each in words)


def test_a_check_says_nothing_but_its_words():
    """With and without a baseline, changes, budgets, doubts and room."""
    amounts = compared.Amounts(before=1_000_000, after=3_000_000)
    stages, modules, operators, kinds = (
        12 * (compared.Move(level=level, stage="s", name="n", modules=1, flops=amounts,
                            bytes=amounts, params=None, share=0.5),)
        for level in ("stage", "module", "operator", "kind")
    )  # fmt: skip
    exceeded = tuple(
        judge.Verdict(key="k", rule=rule, outcome=outcome, value=1_234_567, baseline=104.1411600850,
                limit=None, message="@all GH-1")
        for rule in ("baseline", "max 1") for outcome in ("failed", "warned") for _ in range(60)
    )  # fmt: skip
    inputs = tuple(
        compared.InputChange(kind=kind, key="@all", before=None, after="#1")
        for kind in ("config", "report", "budget") for _ in range(20)
    )  # fmt: skip
    baseline, said = judge.Baseline(kind="revision", name="@all", commit="a" * 40), set()
    for outcome, moved, verdicts, changed, warnings, most in (
        ("passed", (), (), (), (), 65_536),
        ("warned", stages + modules + kinds, exceeded[:1], inputs, ("/approve",), 65_536),
        ("failed", stages + modules + operators, exceeded, inputs, ("/approve",), 65_536),
        ("failed", (), (), (), ("\u00e9" * 90,) * 40, 2_000),
    ):
        workload = judge.WorkloadCheck(
            name="GH-1", outcome=outcome, title="#1", is_compared=True, inputs=changed,
            moved=moved, changed=(), following=0, unchanged=69_915, verdicts=verdicts,
            warnings=warnings,
        )  # fmt: skip
        check = judge.whole_check("b.toml", baseline, [workload], warnings)
        text = renderers.ReadableCheck(check).markdown(most)
        assert most == 65_536 or 1_700 < len(text.encode()) < most
        assert comment.shown(text) == text.replace("@", "@\u2060")
        said |= set(re.findall(r"[A-Za-z']+", re.sub(r"`[^`]+`", "", text)))
    assert said == comment.WORDS


@pytest.mark.parametrize("text", ["`" * 70_000, "@" * 70_000, "é@" * 70_000])
def test_a_comment_is_never_too_long(text):
    with contextlib.suppress(comment.CommentError):
        shown = comment.shown(text[: comment.LONGEST_COMMENT])
        assert len(shown) < 65_536 - len(comment.MARKER)


def pulls(*found):
    """Open pull requests: a number, the commit and the repository that it is into."""
    return json.dumps([
        {"number": number, "head": {"sha": sha}, "base": {"repo": {"full_name": base}}}
        for number, sha, base in found
    ]).encode()  # fmt: skip


def archive(text, name="check.md"):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("pr_number", "666")
        file.writestr(name, text)
    return data.getvalue()


@pytest.fixture
def github(monkeypatch, tmp_path):
    """As much of GitHub's interface as the comment needs: its answers, and what it is asked."""
    github = SimpleNamespace(asked=[], answers={
        "/pulls": pulls((5, "a" * 40, "us/model"), (6, "b" * 40, "us/model"),
                        (8, "a" * 40, "them/model")),
        "/actions/runs/7/artifacts": b'{"artifacts": [{"id": 3}]}',
        "/actions/artifacts/3/zip": archive("## Cost check: passed\n"),
        "/issues/5/comments": b"[]",
    })  # fmt: skip

    def answer(request, timeout):
        github.asked.append(request)
        path = request.selector.partition("?")[0].removeprefix("/repos/us/model")
        return io.BytesIO(b"{}" if request.data else github.answers[path])

    monkeypatch.setattr("urllib.request.urlopen", answer)
    run = {"id": 7, "event": "pull_request", "head_sha": "a" * 40, "head_branch": "x&state=closed",
           "head_repository": {"owner": {"login": "them"}}}  # fmt: skip
    for name, value in {
        "GITHUB_EVENT_NAME": "workflow_run", "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "GITHUB_API_URL": "https://api.github.test", "TOKEN": "secret",
        "GITHUB_REPOSITORY": "us/model", "ARTIFACT": "dsocr-check",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    (tmp_path / "event.json").write_text(json.dumps({"workflow_run": run}))
    return github


def written(github):
    """The method, the path and the text of what was written."""
    return [(each.get_method(), each.selector, json.loads(each.data)["body"])
            for each in github.asked if each.data]  # fmt: skip


REFUSED = (1, [])
NEW, OLD = "/repos/us/model/issues/5/comments", "/repos/us/model/issues/comments/3"
COMMENTS = [
    {"id": 1, "user": {"login": "them"}, "body": comment.MARKER},
    {"id": 2, "user": {"login": comment.AUTHOR}, "body": f"see {comment.MARKER}"},
    {"id": 3, "user": {"login": comment.AUTHOR}, "body": f"{comment.MARKER}\nold"},
]
"""Those of somebody else, of another kind, and of an earlier check, which alone is replaced."""


def test_it_goes_to_the_pull_request_of_the_event(github):
    assert comment.main() == 0
    assert written(github) == [("POST", NEW, f"{comment.MARKER}\n## Cost check: passed\n")]
    [asked] = [each.selector for each in github.asked if "/pulls?" in each.selector]
    assert asked.endswith("/pulls?state=open&head=them%3Ax%26state%3Dclosed&per_page=100")
    # The token does not follow the artifact, which GitHub has elsewhere.
    for each in github.asked:
        assert each.get_header("Authorization") == "Bearer secret"
        elsewhere = urllib.request.HTTPRedirectHandler().redirect_request(
            each, None, 302, "", {}, "https://elsewhere.test/"
        )
        assert not elsewhere.has_header("Authorization")


@pytest.mark.parametrize(
    ("served", "event", "answer"),
    [
        ({"/pulls": b"[]"}, "workflow_run", (0, [])),
        ({"/issues/5/comments": json.dumps(COMMENTS).encode()}, "workflow_run",
         (0, [("PATCH", OLD)])),
        ({"/actions/artifacts/3/zip": b""}, "workflow_run", REFUSED),
        ({"/actions/artifacts/3/zip": b"PK"}, "workflow_run", REFUSED),
        ({"/actions/artifacts/3/zip": archive("x", name="../check.md")}, "workflow_run", REFUSED),
        ({"/actions/artifacts/3/zip": archive("x")[:-30]}, "workflow_run", REFUSED),
        ({"/actions/artifacts/3/zip": b"\0" * 500}, "workflow_run", REFUSED),
        ({}, "push", REFUSED),
        ({}, "pull_request_target", REFUSED),
    ],
)  # fmt: skip
def test_an_earlier_comment_is_replaced_and_without_an_artifact_or_the_event_nothing_is_written(
    github, monkeypatch, capsys, served, event, answer
):
    github.answers |= served
    monkeypatch.setenv("GITHUB_EVENT_NAME", event)
    assert (comment.main(), [each[:2] for each in written(github)]) == answer
    assert ("no comment" in capsys.readouterr().err) == (answer is REFUSED)


def test_hostile_text_is_fenced_and_a_bomb_is_not_unpacked(github):
    github.answers["/actions/artifacts/3/zip"] = archive("@all" + "a" * 5_000_000)
    assert comment.main() == 0
    [(_, _, body)] = written(github)
    assert body.startswith(f"{comment.MARKER}\n```text\n| @\u2060all")
    assert len(body) < 65_536
