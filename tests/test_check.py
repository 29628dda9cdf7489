"""`dsocr-analyze check` from the command line: exit codes, revisions, outputs, hostile input."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import gated
import jsonschema
import msgspec
import pytest
from command_line import run
from sampling import first, sampled

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.cli.documents import schemas
from dsocr_analyze.gate.judge import Check

WORKLOAD = '[workloads.page]\nconfig = "config.json"\npage = "800x600"\nmax_new_tokens = 5\n'
BUDGET = '[[workloads.page.budgets]]\nkey = "total.flops"\n'


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No summary of a job that runs the tests, no settings of git, no record of trust."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config-home"))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A committed repository with one workload on a published config."""
    here = tmp_path / "a repository"
    gated.repository(here, WORKLOAD, **{"config.json": json.dumps(gated.published())})
    monkeypatch.chdir(here)
    return here


OPTIONS = ("--config", "config.json", "--page", "800x600", "--max-new-tokens", 5)


def numbers_in(value):
    if isinstance(value, dict | list):
        return sum(map(numbers_in, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def write_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config))


def result_of(capsys, *arguments):
    code, out, _ = run(capsys, "check", "--json", "-", *arguments)
    return code, msgspec.json.decode(out, type=Check)


class TestAnswers:
    @pytest.mark.exhaustive
    def test_an_unchanged_model_is_an_empty_difference(self, folder, capsys):
        code, out, err = run(capsys, "check", "--against", "HEAD")
        assert (code, err) == (0, "")
        run(capsys, "--engine", "analytic", "-q", "--output", folder.parent / "saved", *OPTIONS)
        report = json.loads((folder.parent / "saved" / "static_compute.json").read_text())
        assert f"all {numbers_in(report):,} figures equal the baseline's" in out
        assert "moved" not in out
        code, check = result_of(capsys, "--against", "HEAD")
        [workload] = check.workloads
        assert (code, workload.moved, workload.changed, workload.inputs) == (0, (), (), ())
        assert check.baseline.commit == gated.git(folder, "rev-parse", "HEAD")

    @sampled("name", list(ARCHITECTURES), first(1))
    @pytest.mark.parametrize(
        "seeded", [{"num_experts_per_tok": 64}, {"moe_intermediate_size": 897}]
    )
    def test_a_seeded_mistake_heads_the_difference(
        self, tmp_path, monkeypatch, capsys, name, seeded
    ):
        config = gated.published(name)
        gated.repository(tmp_path / "r", WORKLOAD, **{"config.json": json.dumps(config)})
        monkeypatch.chdir(tmp_path / "r")
        write_config(tmp_path / "r", gated.with_values(config, **seeded))
        code, out, err = run(capsys, "check", "--against", "HEAD")
        assert (code, err) == (1, "")
        lines = out.splitlines()
        [(key, value)] = seeded.items()
        assert key in lines[2]
        assert lines[2].endswith(f"-> {value}")
        assert any("moved most, module: model.layers.*.mlp" in line for line in lines[:9])
        assert max(map(len, lines)) <= 80

    def test_budgets_in_a_subfolder_name_a_config_above_it(self, folder, monkeypatch, capsys):
        below = folder / "budgets"
        below.mkdir()
        budgets = WORKLOAD.replace('"config.json"', '"../config.json"')
        (below / "dsocr-budgets.toml").write_text(budgets)
        gated.commit(folder)
        monkeypatch.chdir(below)
        code, out, err = run(capsys, "check", "--against", "HEAD")
        assert (code, err) == (0, "")
        assert "figures equal the baseline's" in out

    @pytest.mark.exhaustive
    def test_a_saved_report_is_a_baseline(self, folder, capsys):
        run(capsys, "--engine", "analytic", "-q", "--output", "saved", *OPTIONS)
        against = ("check", "--against", "saved/static_compute.json")
        assert run(capsys, *against)[0] == 0
        write_config(folder, gated.with_values(gated.published(), num_experts_per_tok=7))
        code, out, _ = run(capsys, *against)
        assert code == 1
        assert "language_config.num_experts_per_tok: 6 -> 7" in out.splitlines()[2]

    def test_an_altered_report_is_no_baseline(self, folder, capsys):
        """The witness of the command; tests/test_gate.py alters everything else."""
        run(capsys, "--engine", "analytic", "-q", "--output", "saved", *OPTIONS, "--gpu", "h100")
        file = folder / "saved" / "static_compute.json"
        text = file.read_text()
        (folder / "dsocr-budgets.toml").write_text(WORKLOAD + 'gpu = "h100"\n')
        against = ("check", "--against", file, "--strict", "-q")
        assert run(capsys, *against)[0] == 0
        for path, value, code in (
            (("workload", "page", 0), 801, 1),
            (("time", 0, "page_seconds"), 9.0, 1),
            (("metadata", "dtype"), "float16", 3),
            (("stages", "sam", "calls"), "many", 2),
        ):
            report = json.loads(text)
            place = report
            for name in path[:-1]:
                place = place[name]
            place[path[-1]] = value
            file.write_text(json.dumps(report))
            assert run(capsys, *against)[0] == code, path

    @pytest.mark.exhaustive
    def test_a_traced_report_is_compared_with_a_trace(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "b.toml").write_text('[workloads.a]\nmode = "tiny"\nmax_new_tokens = 2\n')
        run(capsys, "-q", "--output", "saved", "--mode", "tiny", "--max-new-tokens", 2)
        code, out, _ = run(
            capsys, "check", "--budgets", "b.toml", "--against", "saved/static_compute.json"
        )
        assert code == 0, out
        assert "moved" not in out

    def test_a_report_of_version_1_is_a_baseline(self, tmp_path, monkeypatch, capsys):
        import gzip
        from pathlib import Path

        data = Path(__file__).parent / "data" / "report_v1_analytic.json.gz"
        (tmp_path / "v1.json").write_bytes(gzip.decompress(data.read_bytes()))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "dsocr-budgets.toml").write_text('[workloads.a]\nmode = "tiny"\n')
        code, check = result_of(capsys, "--against", "v1.json")
        keys = {each.key for each in check.workloads[0].changed}
        # That version counted the causal share and two operators otherwise; never the products.
        assert code in (0, 1)
        assert not {key for key in keys if "matrix_flops" in key or "params" in key}
        assert "memory.inputs_bytes" not in keys

    def test_a_report_is_of_one_workload(self, folder, capsys):
        (folder / "dsocr-budgets.toml").write_text(WORKLOAD + "[workloads.other]\n")
        (folder / "r.json").write_text("{}")
        code, _, err = run(capsys, "check", "--against", "r.json")
        assert code == 2
        assert "--workload NAME" in err
        code, _, err = run(capsys, "check", "--workload", "paeg")
        assert code == 2
        assert "did you mean page?" in err

    @pytest.mark.exhaustive
    def test_what_a_workload_was_counts_as_it_was(self, folder, capsys):
        (folder / "dsocr-budgets.toml").write_text(WORKLOAD.replace("800x600", "80x60"))
        code, check = result_of(capsys, "--against", "HEAD")
        assert code == 1
        first = check.workloads[0].inputs[0]
        assert (first.kind, first.key, first.before, first.after) == (
            "workload", "page", "800 x 600", "80 x 60")  # fmt: skip

    @pytest.mark.exhaustive
    def test_a_workload_that_is_gone_and_a_changed_budget_are_said(self, folder, capsys):
        (folder / "dsocr-budgets.toml").write_text(
            WORKLOAD + BUDGET + "max = 1e14\n[workloads.extra]\n"
        )
        gated.commit(folder)
        (folder / "dsocr-budgets.toml").write_text(WORKLOAD + BUDGET + "max = 1e15\n")
        code, out, _ = run(capsys, "check", "--against", "HEAD")
        assert code == 0
        assert "workload 'extra' of HEAD is gone" in out
        assert "total.flops: max 100,000,000,000,000 (error) -> max" in out
        assert run(capsys, "check", "--against", "HEAD", "--strict")[0] == 3

    @pytest.mark.exhaustive
    def test_what_the_baseline_lacks_is_said_not_guessed(self, folder, capsys):
        (folder / "new.json").write_text(json.dumps(gated.published("unlimited-ocr")))
        (folder / "dsocr-budgets.toml").write_text('[workloads.new]\nconfig = "new.json"\n')
        code, out, _ = run(capsys, "check", "--against", "HEAD")
        assert code == 0
        assert "no baseline: HEAD has no 'new.json'" in out


class TestExitCodes:
    @pytest.mark.parametrize(
        ("limit", "options", "code"),
        [
            ("max = 9e15", (), 0),
            ("max = 1", (), 1),
            ("min = 9e15", (), 1),
            ('max = 1\nlevel = "warn"', (), 0),
            ('max = 1\nlevel = "warn"', ("--strict",), 3),
            ("max = 1", ("--strict",), 1),
            ("maks = 1", (), 2),
            ('max_increase = "1 %"', ("--against", "HEAD"), 0),
        ],
    )  # fmt: skip
    def test_of_a_budget(self, folder, capsys, limit, options, code):
        (folder / "dsocr-budgets.toml").write_text(WORKLOAD + BUDGET + limit)
        assert run(capsys, "check", *options)[0] == code

    def test_an_internal_error_is_no_exceeded_budget(self, folder, capsys, monkeypatch):
        def fails(*_):
            raise ZeroDivisionError("inside")

        monkeypatch.setattr("dsocr_analyze.cli.checking.judge", fails)
        code, _, err = run(capsys, "check")
        assert code == 70
        assert "internal error" in err

    def test_outputs_that_cannot_be_written(self, folder, capsys):
        assert run(capsys, "check", "--junit", folder / "no folder" / "x.xml")[0] == 74

    def test_no_budgets_at_all(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
        code, _, err = run(capsys, "check")
        assert code == 2
        assert "--update creates a file" in err
        assert run(capsys, "check", "--update", "-q")[0] == 0
        assert run(capsys, "check", "-q")[0] == 0


class TestUpdate:
    @pytest.mark.exhaustive
    def test_a_change_that_is_meant_is_written_down(self, folder, capsys):
        (folder / "dsocr-budgets.toml").write_text(f"# mine\n{WORKLOAD}{BUDGET}max = 1 # few\n")
        gated.commit(folder)
        write_config(folder, gated.with_values(gated.published(), num_experts_per_tok=7))
        assert run(capsys, "check", "--against", "HEAD", "-q")[0] == 1
        assert run(capsys, "check", "--against", "HEAD", "-q", "--update")[0] == 0
        assert run(capsys, "check", "--against", "HEAD", "-q")[0] == 0
        text = (folder / "dsocr-budgets.toml").read_text()
        assert text.startswith("# mine\n")
        assert "# few" in text
        write_config(folder, gated.with_values(gated.published(), num_experts_per_tok=8))
        assert run(capsys, "check", "--against", "HEAD", "-q")[0] == 1


class TestRevisions:
    """A repository may be a stranger's: nothing of it runs, and nothing leads out of it."""

    @pytest.mark.parametrize(
        "name", ["-x", "--upload-pack=touch mark", "--output=mark", "", "no-such", "HEAD\n", "a\0b",
                 "HEAD:config.json", "HEAD..HEAD", "HEAD^{tree}"]
    )  # fmt: skip
    def test_what_is_no_revision_is_refused(self, folder, capsys, name):
        code, _, err = run(capsys, "check", f"--against={name}")
        assert code == 2, err
        assert not (folder / "mark").exists()

    @pytest.mark.exhaustive
    def test_a_file_cannot_take_a_revisions_place(self, folder, capsys):
        write_config(folder, gated.with_values(gated.published(), num_experts_per_tok=64))
        run(capsys, "--engine", "analytic", "-q", "--output", "saved", "--config", "config.json",
            "--page", "800x600", "--max-new-tokens", 5)  # fmt: skip
        shutil.copy("saved/static_compute.json", "main")
        assert run(capsys, "check", "--against", "main", "-q")[0] == 1

    @pytest.mark.exhaustive
    def test_the_work_tree_the_index_and_the_branch_stay(self, folder, capsys):
        write_config(folder, gated.with_values(gated.published(), num_experts_per_tok=7))
        (folder / "untracked").write_text("x")
        gated.git(folder, "add", "config.json")
        index = (folder / ".git" / "index").read_bytes()
        before = gated.git(folder, "status", "--porcelain=v2", "--branch")
        index = (folder / ".git" / "index").read_bytes()
        run(capsys, "check", "--against", "HEAD", "-q")
        assert (folder / ".git" / "index").read_bytes() == index
        assert gated.git(folder, "status", "--porcelain=v2", "--branch") == before

    def test_nothing_of_the_repositorys_settings_runs(self, folder, capsys):
        mark = folder / "mark"
        script = folder / "evil.sh"
        script.write_text(f"#!/bin/sh\ntouch '{mark}'\ncat\n")
        script.chmod(0o755)
        (folder / ".gitattributes").write_text("* filter=evil diff=evil\n")
        for hook in ("post-checkout", "reference-transaction", "post-index-change"):
            target = folder / ".git" / "hooks" / hook
            target.parent.mkdir(exist_ok=True)
            shutil.copy(script, target)
        gated.commit(folder)
        mark.unlink(missing_ok=True)
        for key in ("core.fsmonitor", "filter.evil.smudge", "filter.evil.clean",
                    "diff.evil.textconv", "diff.external", "core.pager", "core.sshCommand",
                    "core.askPass", "gpg.program", "credential.helper"):  # fmt: skip
            gated.git(folder, "config", key, str(script))
        gated.git(folder, "config", "alias.rev-parse", f"!{script}")
        mark.unlink(missing_ok=True)
        code, _, err = run(capsys, "check", "--against", "HEAD", "-q")
        assert (code, err) == (0, "")
        assert not mark.exists()

    def test_missing_objects_are_not_fetched(self, folder, capsys):
        mark = folder.parent / "mark"
        (folder / "upload.sh").write_text(f"#!/bin/sh\ntouch '{mark}'\n")
        (folder / "upload.sh").chmod(0o755)
        for key, value in {
            "core.repositoryformatversion": "1", "extensions.partialClone": "origin",
            "remote.origin.url": str(folder), "remote.origin.promisor": "true",
            "remote.origin.uploadpack": str(folder / "upload.sh"),
            "protocol.file.allow": "always",
        }.items():  # fmt: skip
            gated.git(folder, "config", key, value)
        blob = gated.git(folder, "rev-parse", "HEAD:config.json")
        (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
        code, _, err = run(capsys, "check", "--against", "HEAD", "-q")
        assert code == 2, err
        assert "is not in this clone" in err
        assert not mark.exists()

    def test_another_commit_cannot_stand_for_the_one_that_is_asked_for(self, folder, capsys):
        first = gated.git(folder, "rev-parse", "HEAD")
        write_config(folder, gated.with_values(gated.published(), num_experts_per_tok=64))
        second = gated.commit(folder)
        gated.git(folder, "replace", first, second)
        assert run(capsys, "check", "--against", first, "-q")[0] == 1

    def test_variables_of_a_hook_do_not_name_another_repository(
        self, folder, capsys, monkeypatch, tmp_path
    ):
        gated.repository(tmp_path / "other", "[workloads.page]\n")
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
        monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other" / ".git" / "index"))
        assert run(capsys, "check", "--against", "HEAD", "-q")[0] == 0

    def test_a_link_is_not_followed(self, folder, capsys, tmp_path):
        secret = tmp_path / "secret.json"
        secret.write_text(json.dumps(gated.published()))
        (folder / "config.json").unlink()
        (folder / "config.json").symlink_to(secret)
        gated.commit(folder)
        (folder / "config.json").unlink()
        write_config(folder, gated.published())
        code, _, err = run(capsys, "check", "--against", "HEAD")
        assert code == 2
        assert "is a symbolic link" in err

    @pytest.mark.parametrize("path", ["../config.json", "/etc/hostname", "a/../../x.json"])
    def test_a_path_that_leaves_the_repository_is_refused(self, folder, capsys, path):
        (folder.parent / "config.json").write_text(json.dumps(gated.published()))
        (folder.parent / "x.json").write_text(json.dumps(gated.published()))
        (folder / "a").mkdir()
        text = WORKLOAD.replace("config.json", path)
        (folder / "dsocr-budgets.toml").write_text(text)
        gated.commit(folder)
        code, _, err = run(capsys, "check", "--against", "HEAD")
        assert code == 2
        assert "outside the repository" in err or "is not JSON" in err or "no config" in err

    def test_broken_budgets_there_are_said(self, folder, capsys):
        (folder / "dsocr-budgets.toml").write_text("[workload.x]\n")
        gated.commit(folder)
        (folder / "dsocr-budgets.toml").write_text(WORKLOAD)
        code, out, _ = run(capsys, "check", "--against", "HEAD")
        assert code == 0
        assert "the baseline's budgets cannot be read" in " ".join(out.split())

    def test_outside_of_a_repository(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
        (tmp_path / "dsocr-budgets.toml").write_text("[workloads.page]\n")
        code, _, err = run(capsys, "check", "--against", "main")
        assert code == 2
        assert "not a git repository" in err


class TestRedefinedBudgets:
    """A pull request cannot change what its own check looks at without a doubt that names it."""

    LIMITED = f"{WORKLOAD}{BUDGET}max = 1e14\n"

    def strict(self, capsys, *options):
        code, out, err = run(capsys, "check", "--against", "HEAD", "--strict", *options)
        return code, " ".join(f"{out} {err}".split())

    @pytest.mark.exhaustive
    def test_an_unchanged_check_passes(self, folder, capsys):
        assert self.strict(capsys)[0] == 0

    def test_a_file_that_comes_first_does_not_hide_the_baselines(self, folder, capsys):
        budgets = folder / "dsocr-budgets.toml"
        inside = budgets.read_text().replace("[workloads", "[tool.dsocr-analyze.check.workloads")
        (folder / "pyproject.toml").write_text(inside)
        budgets.unlink()
        gated.commit(folder)
        assert self.strict(capsys)[0] == 0
        budgets.write_text('[workloads.easy]\nmode = "tiny"\n')
        code, said = self.strict(capsys)
        assert code == 3
        assert "workload 'page' of HEAD is gone" in said
        budgets.write_text(WORKLOAD.replace("800x600", "80x60"))
        assert self.strict(capsys)[0] == 1

    def test_a_config_in_place_of_the_real_one_is_named(self, folder, capsys):
        shutil.copy("config.json", "old.json")
        write_config(folder, gated.with_values(gated.published(), num_experts_per_tok=64))
        (folder / "dsocr-budgets.toml").write_text(WORKLOAD.replace("config.json", "old.json"))
        code, said = self.strict(capsys)
        assert code == 3
        assert "workload config: config.json -> old.json" in said
        assert "another workload is counted than in the baseline: config" in said
        assert run(capsys, "check", "--against", "HEAD", "-q")[0] == 0

    @sampled(
        ("new", "named"),
        [
            (WORKLOAD + BUDGET + "max = 2e14\n", "total.flops"),
            (WORKLOAD + BUDGET + 'max = 1e14\nlevel = "warn"\n', "total.flops"),
            (LIMITED.replace("max_new", 'tolerance = "1 %"\nmax_new'), "tolerance: 0 -> 1 %"),
            (LIMITED + BUDGET.replace("flops", "params") + "max = 9e15\n", "total.params"),
            (LIMITED.replace("max_new", 'engine = "analytic"\nmax_new'), "engine"),
            (LIMITED.replace("page]", "renamed]").replace("page.b", "renamed.b"), "'page' of HEAD"),
        ],
        first(2),
    )
    def test_a_looser_check_is_named(self, folder, capsys, new, named):
        (folder / "dsocr-budgets.toml").write_text(self.LIMITED)
        gated.commit(folder)
        assert self.strict(capsys)[0] == 0
        (folder / "dsocr-budgets.toml").write_text(new)
        code, said = self.strict(capsys)
        assert code == 3
        assert named in said

    @pytest.mark.exhaustive
    def test_a_tighter_check_is_no_doubt(self, folder, capsys):
        (folder / "dsocr-budgets.toml").write_text(self.LIMITED)
        gated.commit(folder)
        (folder / "dsocr-budgets.toml").write_text(self.LIMITED.replace("1e14", "9e13"))
        code, said = self.strict(capsys)
        assert code == 0
        assert "budget changed: total.flops" in said

    @pytest.mark.exhaustive
    def test_a_revision_without_budgets_is_a_doubt(self, folder, capsys):
        (folder / "other.toml").write_text(WORKLOAD)
        code, said = self.strict(capsys, "--budgets", "other.toml")
        assert code == 3
        assert "HEAD has no budgets in other.toml" in said

    @pytest.mark.exhaustive
    def test_workloads_that_are_not_asked_for_are_not_gone(self, folder, capsys):
        (folder / "dsocr-budgets.toml").write_text(f'{WORKLOAD}[workloads.other]\nmode = "tiny"\n')
        gated.commit(folder)
        assert self.strict(capsys, "--workload", "page")[0] == 0


class TestModelDirectories:
    """A model directory in the repository: closed forms read it, a trace needs trust."""

    @pytest.fixture
    def model(self, tmp_path, monkeypatch):
        here = tmp_path / "r"
        reference = ARCHITECTURES["deepseek-ocr"].reference
        here.mkdir()
        shutil.copytree(reference, here / "net", ignore=shutil.ignore_patterns("__pycache__"))
        gated.repository(
            here, '[workloads.page]\nmodel = "net"\nmode = "tiny"\nmax_new_tokens = 2\n'
        )
        monkeypatch.chdir(here)
        return here / "net"

    @pytest.mark.exhaustive
    def test_its_config_and_its_code_are_those_of_the_revision(self, model, capsys):
        assert run(capsys, "check", "--against", "HEAD", "-q")[0] == 0
        config = gated.with_values(gated.published(), num_hidden_layers=11)
        (model / "config.json").write_text(json.dumps(config))
        source = next(iter(sorted(model.glob("modeling*.py"))))
        source.write_text(source.read_text() + "\n# a change\n")
        code, out, _ = run(capsys, "check", "--against", "HEAD")
        assert code == 1
        assert "num_hidden_layers: 12 -> 11" in out
        assert "Python files differ from the baseline's" in " ".join(out.split())

    @pytest.mark.exhaustive
    def test_a_revisions_code_runs_under_the_trust_of_its_very_files(self, model, capsys):
        budgets = model.parent / "dsocr-budgets.toml"
        budgets.write_text(budgets.read_text() + 'engine = "trace"\n')
        source = next(iter(sorted(model.glob("modeling*.py"))))
        mark = model.parent / "executed"
        text = source.read_text()
        source.write_text(f"{text}\nopen({str(mark)!r}, 'w').close()\n")
        gated.commit(model.parent)
        source.write_text(text)
        code, _, err = run(capsys, "check", "--against", "HEAD", "-q")
        assert code == 2
        assert "dsocr-analyze trust" in err
        run(capsys, "trust", "net")
        code, _, err = run(capsys, "check", "--against", "HEAD", "-q")
        assert code == 2, err
        assert "'net' of HEAD contains Python code" in err
        assert 'engine = "analytic"' in err
        assert not mark.exists()

    @pytest.mark.exhaustive
    @pytest.mark.directory
    def test_files_that_were_trusted_are_trusted_in_a_revision(self, model, capsys):
        budgets = model.parent / "dsocr-budgets.toml"
        budgets.write_text(budgets.read_text() + 'engine = "trace"\n')
        gated.commit(model.parent)
        run(capsys, "trust", "net")
        code, out, err = run(capsys, "check", "--against", "HEAD")
        assert code == 0, err
        assert "figures equal the baseline's" in out


HOSTILE = "a`|\\ </b> @all [x](http://x) <!-- \x1b[31m \u202e ]]> &amp; '\" #1"


class TestOutputs:
    @pytest.fixture
    def hostile(self, folder):
        name = json.dumps(HOSTILE)
        text = WORKLOAD.replace("[workloads.page]", f"[workloads.{name}]")
        (folder / "dsocr-budgets.toml").write_text(
            text + f'[[workloads.{name}.budgets]]\nkey = "total.flops"\nmax = 1\n'
        )
        config = {**gated.published(), HOSTILE: HOSTILE}
        write_config(folder, gated.with_values(config, num_experts_per_tok=64))
        return folder

    def test_hostile_names_stay_names(self, hostile, capsys):
        code, out, _ = run(
            capsys, "check", "--against", "HEAD", "--junit", "c.xml", "--markdown", "c.md",
            "--json", "c.json",
        )  # fmt: skip
        assert code == 1
        assert "\x1b" not in out
        assert "\u202e" not in out
        suites = ET.parse(hostile / "c.xml").getroot()
        assert suites.find("testsuite").get("name").startswith("a`|\\ </b> @all")
        assert int(suites.get("failures")) == len(suites.findall(".//failure")) > 10
        found = json.loads((hostile / "c.json").read_text())
        assert found["workloads"][0]["name"] == HOSTILE
        import re

        text = (hostile / "c.md").read_text()
        for line in text.splitlines():
            outside = re.sub(r"`[^`|]+`", "", line)
            assert re.fullmatch(r"[\w .,:;|+\-%()#']*", outside, re.ASCII), line

    @pytest.mark.exhaustive
    def test_the_json_fits_its_schema(self, hostile, capsys):
        code, out, _ = run(capsys, "check", "--against", "HEAD", "--json", "-", "-q")
        assert code == 1
        schema = schemas()["schema-check.json"]
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(json.loads(out), schema)

    @pytest.mark.exhaustive
    def test_a_comment_is_never_too_long(self, folder, capsys):
        budgets = "".join(
            f'[workloads."{number}{"é" * 200}"]\nconfig = "config.json"\nmode = "tiny"\n'
            for number in range(30)
        )
        (folder / "dsocr-budgets.toml").write_text(budgets)
        small = gated.with_values(gated.published(), num_hidden_layers=2)
        write_config(folder, small)
        gated.git(folder, "commit", "-qam", "a model that is counted quickly")
        write_config(folder, gated.with_values(small, num_experts_per_tok=64))
        assert run(capsys, "check", "--against", "HEAD", "--markdown", "c.md", "-q")[0] == 1
        data = (folder / "c.md").read_bytes()
        assert 60_000 < len(data) < 65_536
        assert b"left out" in data

    def test_the_summary_of_a_step_is_added_to_and_bounded(self, folder, capsys, monkeypatch):
        summary = folder / "summary.md"
        summary.write_text("what another step said\n")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
        run(capsys, "check", "-q")
        assert summary.read_text().startswith("what another step said\n## Cost check: passed\n")
        summary.write_text("x" * (2**20 - 100))
        run(capsys, "check", "-q")
        assert len(summary.read_bytes()) < 2**20
        summary.write_text("x" * (2**20 - 5))
        code, _, err = run(capsys, "check", "-q")
        assert (code, len(summary.read_bytes())) == (0, 2**20 - 5)
        assert "is full" in err

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("width", [80, 100, 132])
    def test_no_line_is_wider_than_the_terminal(self, folder, capsys, monkeypatch, width):
        monkeypatch.setenv("COLUMNS", str(width))
        write_config(folder, gated.with_values(gated.published(), num_experts_per_tok=64))
        _, out, _ = run(capsys, "check", "--against", "HEAD")
        assert max(map(len, out.splitlines())) <= width
        assert not [line for line in out.splitlines() if line != line.rstrip()]


@pytest.mark.exhaustive
def test_a_check_imports_no_torch(folder):
    code = (
        "import sys; from dsocr_analyze.cli import main;"
        " code = main(['check', '--against', 'HEAD', '-q']);"
        " sys.exit(code or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=folder, check=False).returncode == 0


def test_a_workloads_name_acts_nowhere_in_junit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = json.dumps("a\u2066\u2028\x1b[2K\n::error::b")
    Path("dsocr-budgets.toml").write_text(f'[workloads.{name}]\nmode = "tiny"\n')
    assert run(capsys, "check", "--junit", "c.xml")[0] == 0
    text = Path("c.xml").read_text()
    assert r"a\u2066\u2028\x1b[2K" in text
    assert not {"\u2066", "\u2028", "\x1b"} & set(text)


def test_every_case_in_junit_has_a_name(folder, capsys):
    (folder / "dsocr-budgets.toml").write_text(WORKLOAD + BUDGET + "max = 1e15\n")
    assert run(capsys, "check", "--against", "HEAD", "--junit", "c.xml")[0] == 0
    limit, equal = re.findall(
        '<testcase classname="page" name="(.*)" />', Path("c.xml").read_text()
    )
    assert limit == "total.flops: max 1,000,000,000,000,000"
    assert re.fullmatch(r"all [0-9,]+ figures equal the baseline's", equal)
