"""`dsocr-analyze check` from the command line: exit codes, revisions, outputs, hostile input."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from functools import reduce
from operator import getitem
from pathlib import Path
from xml.etree import ElementTree as ET

import gated
import jsonschema
import pytest
from command_line import run

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.cli.documents import schemas

WORKLOAD = '[workloads.page]\nconfig = "config.json"\npage = "800x600"\nmax_new_tokens = 5\n'
BUDGET = '[[workloads.page.budgets]]\nkey = "total.flops"\n'
LIMITED = f"{WORKLOAD}{BUDGET}max = 1e14\n"
OTHER = f'{WORKLOAD}[workloads.other]\nmode = "tiny"\n'
V1 = Path(__file__).parent / "data" / "report_v1_analytic.json.gz"
SAVING = ("--engine", "analytic", "-q", "--output", "saved", "--config", "config.json", "--page",
          "800x600", "--max-new-tokens", 5)  # fmt: skip
SAVED = "saved/static_compute.json"


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """A repository with one workload on a small config."""
    here = tmp_path_factory.mktemp("committed")
    gated.repository(here, WORKLOAD, **{"config.json": json.dumps(gated.small())})
    return here


@pytest.fixture(autouse=True)
def folder(committed, tmp_path, monkeypatch):
    """A copy of it, with no summary of a job that runs the tests and no record of trust."""
    here = shutil.copytree(committed, tmp_path / "a repository")
    monkeypatch.chdir(here)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config-home"))
    monkeypatch.setenv("COLUMNS", "80")
    return here


@pytest.fixture
def check(capsys):
    """A check with some options must end with a code, and say some words if lines are joined."""

    def checked(options, code, *said, more=()):
        found, out, err = run(capsys, "check", *options.split(), *more)
        text = " ".join(f"{out} {err}".split())
        assert (found, [words for words in said if words not in text]) == (code, []), text

    return checked


def write(budgets=None, config=None, **values):
    """Other budgets, and a config with other values, in the current folder."""
    if budgets is not None:
        Path("dsocr-budgets.toml").write_text(budgets)
    if values or config is not None:
        changed = gated.with_values(config or gated.small(), **values)
        Path("config.json").write_text(json.dumps(changed))


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
    "in a subfolder": (WORKLOAD.replace(CONFIG, "../config.json"),
                       WORKLOAD.replace(CONFIG, "../config.json"),
                       "--budgets a/budgets.toml --strict", 0, "figures equal"),
    "outside": (WORKLOAD.replace(CONFIG, "../x.json"), "", "", 2, "outside the repository"),
    "a way outside": (WORKLOAD.replace(CONFIG, "a/../../x.json"), "", "", 2,
                      "outside the repository"),
    "tighter": (LIMITED.replace("1e14", "9e13"), LIMITED, "--strict", 0,
                "budget changed: total.flops: max 100,000,000,000,000 (error) -> max 90,"),
    "looser": (LIMITED.replace("1e14", "2e14"), LIMITED, "--strict", 3, f"{LOOSER}: total.flops"),
    "looser, shown": (LIMITED.replace("1e14", "2e14"), LIMITED, "", 0, f"{LOOSER}: total.flops"),
    "a warning": (f'{LIMITED}level = "warn"\n', LIMITED, "--strict", 3, f"{LOOSER}: total.flops"),
    "tolerant": (LIMITED.replace(MORE, 'tolerance = "1 %"\nmax_new'), LIMITED, "--strict", 3,
                 "tolerance: 0 -> 1 %"),
    "a first budget": (f"{LIMITED}{BUDGET.replace('flops', 'params')}max = 9e15\n", LIMITED,
                       "--strict", 3, f"{LOOSER}: total.params"),
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
        (folder / "a").mkdir()
        (folder / "a" / "budgets.toml").write_text(before)
        for file in ("old.json", "../x.json"):
            shutil.copy("config.json", file)
        write(before)
        gated.commit(folder)
        (folder / "new.json").write_text(json.dumps(gated.small(vocab_size=9)))
        (folder / "other.toml").write_text(budgets)
    write(budgets)
    check(options, code, said)


def test_a_file_that_comes_first_does_not_hide_the_baselines(folder, check):
    (folder / "pyproject.toml").write_text(
        WORKLOAD.replace("[workloads", "[tool.dsocr-analyze.check.workloads")
    )
    (folder / "dsocr-budgets.toml").unlink()
    gated.commit(folder)
    check("--against HEAD --strict", 0)
    write('[workloads.easy]\nmode = "tiny"\n')
    check("--against HEAD --strict", 3, "workload 'page' of HEAD is gone")
    write(WORKLOAD.replace("800x600", "80x60"))
    check("--against HEAD --strict", 1)


def test_an_internal_error_is_no_exceeded_budget(check, monkeypatch):
    monkeypatch.setattr("dsocr_analyze.cli.check.judge", lambda *_: 1 // 0)
    check("", 70, "internal error")


def test_without_budgets_an_update_creates_some_and_keeps_what_is_meant(folder, check):
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (folder / "dsocr-budgets.toml").unlink()
    check("", 2, "--update creates a file")
    check("-q --update", 0)
    check("-q", 0)


def test_a_change_that_is_meant_is_written_down(folder, check):
    write(f"# mine\n{WORKLOAD}{BUDGET}max = 1 # few\n")
    gated.commit(folder)
    write(num_experts_per_tok=7)
    for more, code in (("", 1), ("--update", 0), ("", 0)):
        check(f"--against HEAD -q {more}", code)
    text = (folder / "dsocr-budgets.toml").read_text()
    assert (text[:7], text.count("# few")) == ("# mine\n", 1)
    write(num_experts_per_tok=8)
    check("--against HEAD -q", 1)


# Saved reports -----------------------------------------------------------------------------------


def test_an_altered_report_is_no_baseline(check, capsys):
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


def test_a_report_is_a_baseline_and_cannot_take_a_revisions_place(check, capsys):
    run(capsys, *SAVING)
    write(num_experts_per_tok=8)
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


def test_a_report_of_version_1_is_a_baseline(folder, capsys):
    (folder / "v1.json").write_bytes(gzip.decompress(V1.read_bytes()))
    write('[workloads.a]\nmode = "tiny"\n')
    code, out, _ = run(capsys, "check", "--against", "v1.json", "--json", "-")
    keys = {each["key"] for each in json.loads(out)["workloads"][0]["changed"]}
    # That version counted the causal share and two operators otherwise; never the products.
    assert code in (0, 1)
    assert not {key for key in keys if "matrix_flops" in key or "params" in key}
    assert "memory.inputs_bytes" not in keys


# Revisions: a repository may be a stranger's; nothing of it runs, and nothing leads out of it -----


@pytest.mark.parametrize(
    "name", ["-x", "--upload-pack=touch mark", "--output=mark", "", "no-such", "HEAD\n", "a\0b",
             "HEAD:config.json", "HEAD..HEAD", "HEAD^{tree}"]
)  # fmt: skip
def test_what_is_no_revision_is_refused(folder, check, name):
    check("", 2, more=[f"--against={name}"])
    assert not (folder / "mark").exists()


def test_outside_of_a_repository(tmp_path, monkeypatch, check):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    write("[workloads.page]\n")
    check("--against main", 2, "not a git repository")


def test_the_work_tree_the_index_and_the_branch_stay(folder, check):
    def state():
        status = gated.git(folder, "status", "--porcelain=v2", "--branch")
        return status, (folder / ".git" / "index").read_bytes()

    write(num_experts_per_tok=7)
    (folder / "untracked").write_text("x")
    gated.git(folder, "add", "config.json")
    before = state()
    check("--against HEAD", 1)
    assert state() == before


def script(file, mark):
    """A program that leaves a mark."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\ntouch '{mark}'\ncat\n")
    file.chmod(0o755)
    return str(file)


def test_nothing_of_the_repositorys_settings_runs(folder, check):
    mark = folder / "mark"
    evil = script(folder / "evil.sh", mark)
    (folder / ".gitattributes").write_text("* filter=evil diff=evil\n")
    for hook in ("post-checkout", "reference-transaction", "post-index-change"):
        script(folder / ".git" / "hooks" / hook, mark)
    gated.commit(folder)
    programs = ("core.fsmonitor", "filter.evil.smudge", "filter.evil.clean", "diff.evil.textconv",
                "diff.external", "core.pager", "core.sshCommand", "core.askPass", "gpg.program",
                "credential.helper")  # fmt: skip
    for key in programs:
        gated.git(folder, "config", key, evil)
    gated.git(folder, "config", "alias.rev-parse", f"!{evil}")
    mark.unlink(missing_ok=True)
    check("--against HEAD -q", 0)
    assert not mark.exists()


def test_missing_objects_are_not_fetched(folder, check):
    mark = folder.parent / "mark"
    for key, value in {
        "core.repositoryformatversion": "1", "extensions.partialClone": "origin",
        "remote.origin.url": str(folder), "remote.origin.promisor": "true",
        "remote.origin.uploadpack": script(folder / "upload.sh", mark),
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
    gated.git(folder, "replace", first, gated.commit(folder))
    check(f"--against {first}", 1)
    gated.repository(tmp_path / "other", "[workloads.page]\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other" / ".git" / "index"))
    check("--against HEAD", 0)


def test_a_link_is_not_followed(folder, check):
    config = folder / "config.json"
    shutil.move(config, folder.parent / "secret.json")
    config.symlink_to(folder.parent / "secret.json")
    gated.commit(folder)
    config.unlink()
    write(config=gated.small())
    check("--against HEAD", 2, "is a symbolic link")


class TestModelDirectories:
    """A model directory in the repository: closed forms read it, a trace needs trust."""

    BUDGETS = '[workloads.page]\nmodel = "net"\nmode = "tiny"\nmax_new_tokens = 2\n'

    @pytest.fixture
    def source(self, folder):
        """One of its Python files."""
        reference = ARCHITECTURES["deepseek-ocr"].reference
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(reference, folder / "net", ignore=ignored)
        shutil.copy("config.json", "net")
        write(self.BUDGETS)
        gated.commit(folder)
        return next(iter(sorted((folder / "net").glob("modeling*.py"))))

    def test_its_config_and_its_code_are_those_of_the_revision(self, source, check):
        check("--against HEAD", 0)
        (source.parent / "config.json").write_text(json.dumps(gated.small(num_hidden_layers=1)))
        source.write_text(source.read_text() + "\n# a change\n")
        said = ("num_hidden_layers: 2 -> 1", "Python files differ from the baseline's")
        check("--against HEAD", 1, *said)

    @pytest.mark.exhaustive
    @pytest.mark.directory
    def test_a_revisions_code_runs_under_the_trust_of_its_very_files(
        self, folder, source, check, capsys
    ):
        write(f'{self.BUDGETS}engine = "trace"\n')
        gated.commit(folder)
        run(capsys, "trust", "net")
        check("--against HEAD", 0, "figures equal the baseline's")
        text = source.read_text()
        source.write_text(f"{text}\nopen({str(folder / 'mark')!r}, 'w').close()\n")
        gated.commit(folder)
        check("--against HEAD", 2, "dsocr-analyze trust")
        source.write_text(text)
        said = ("'net' of HEAD contains Python code", 'engine = "analytic"')
        check("--against HEAD", 2, *said)
        assert not (folder / "mark").exists()


# Outputs -----------------------------------------------------------------------------------------


HOSTILE = (
    "a`|\\ </b> @all [x](http://x) <!-- \x1b[31m \u202e \u2066\u2028 ]]> &amp; '\" #1\n::error"
)


def test_hostile_names_stay_names_in_every_output(folder, capsys):
    name = json.dumps(HOSTILE)
    write(LIMITED.replace("s.page", f"s.{name}").replace("1e14", "1"),
          {**gated.small(), HOSTILE: HOSTILE}, num_experts_per_tok=8)  # fmt: skip
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
    assert found["baseline"]["commit"] == gated.git(folder, "rev-parse", "HEAD")
    schema = schemas()["schema-check.json"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(found, schema)
    outside = re.sub(r"`[^`|\n]+`", "", Path("c.md").read_text())
    assert re.fullmatch(r"[\w .,:;|+\-%()#'\n]*", outside, re.ASCII), outside


def test_every_case_in_junit_has_a_name(check):
    write(f"{WORKLOAD}{BUDGET}max = 1e15\n")
    check("--against HEAD --junit c.xml", 0)
    limit, equal = re.findall(
        '<testcase classname="page" name="(.*)" />', Path("c.xml").read_text()
    )
    assert limit == "total.flops: max 1,000,000,000,000,000"
    assert re.fullmatch(r"all [0-9,]+ figures equal the baseline's", equal)


def test_the_summary_of_a_step_is_added_to_and_bounded(folder, check, monkeypatch):
    summary = folder / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    summary.write_text("what another step said\n")
    check("-q", 0)
    assert summary.read_text().startswith("what another step said\n## Cost check: passed\n")
    for room, said in ((100, []), (5, ["is full"])):
        summary.write_text("x" * (2**20 - room))
        check("-q", 0, *said)
        assert summary.stat().st_size < 2**20
    assert summary.stat().st_size == 2**20 - 5
