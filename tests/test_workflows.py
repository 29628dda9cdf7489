"""The GitHub workflows are valid and do what they are there for."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(name: str) -> dict[str, Any]:
    # BaseLoader: YAML 1.1 would read the key `on` as true.
    text = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=yaml.BaseLoader)


def steps_of(name: str) -> list[dict[str, Any]]:
    return [step for job in load(name)["jobs"].values() for step in job["steps"]]


def scripts_of(name: str) -> list[str]:
    return [step["run"] for step in steps_of(name) if "run" in step]


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_is_valid_by_githubs_schema(path):
    # The schema is SchemaStore's github-workflow.json, a copy of which check-jsonschema carries.
    check = [sys.executable, "-m", "check_jsonschema"]
    result = subprocess.run(
        [*check, "--builtin-schema", "vendor.github-workflows", str(path)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.exhaustive
def test_the_schema_check_can_fail(tmp_path):
    broken = tmp_path / "broken.yml"
    broken.write_text("on: push\njobs: {build: {steps: []}}\n", encoding="utf-8")
    check = [sys.executable, "-m", "check_jsonschema"]
    result = subprocess.run(
        [*check, "--builtin-schema", "vendor.github-workflows", str(broken)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "runs-on" in result.stdout + result.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_inputs_reach_scripts_through_the_environment_only(path):
    # An expression pasted into a script is a way to run anything on the runner.
    assert not any("${{" in script for script in scripts_of(path.name))


def test_ci_runs_what_ci_run_runs():
    (step,) = [step for step in steps_of("ci.yml") if step.get("run") == ".ci/run"]
    assert step["if"] == "matrix.versions == 'pinned'"
    matrix = load("ci.yml")["jobs"]["check"]["strategy"]["matrix"]
    assert matrix["versions"] == ["pinned"]
    assert len(matrix["python"]) == 3
    # Together they run every part of what `make test` leaves out.
    assert step["env"] == {"DSOCR_TEST_PART": "${{ matrix.part }}"}
    parts = [each for each in matrix["include"] if each["versions"] == "pinned"]
    assert [each["python"] for each in parts] == matrix["python"]
    assert [each["part"] for each in parts] == ["1/3", "2/3", "3/3"]


def test_ci_runs_under_the_newest_torch_and_transformers_without_pins():
    (step,) = [step for step in steps_of("ci.yml") if "newest" in step.get("if", "")]
    install, run = step["run"].splitlines()
    assert step["if"] == "matrix.versions == 'newest'"
    assert "--upgrade torch transformers" in install
    assert "constrain" not in step["run"]
    assert run == "python scripts/run.py --active newest"
    *_, included = load("ci.yml")["jobs"]["check"]["strategy"]["matrix"]["include"]
    assert included["versions"] == "newest"


def test_the_audit_asks_for_every_pin_and_fails_but_for_the_vendors_transformers(tmp_path):
    """The scripts themselves, with a pip-audit that only says what it was given."""
    _, audit, of_vendor = scripts_of("audit.yml")
    (tmp_path / "requirements").mkdir()
    wanted = []
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        (tmp_path / "requirements" / path.name).write_text(text, encoding="utf-8")
        pins = re.findall(r"^([A-Za-z0-9][^\s;]*==[^\s;]+)", text, re.MULTILINE)
        wanted += [pin for pin in pins if not pin.startswith("transformers==4")]
    command = tmp_path / "pip-audit"
    command.write_text("#!/bin/sh\ncat audited.txt >> asked.txt\nexit $FOUND\n", encoding="utf-8")
    command.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def exit_code(script, found):
        shell = ["bash", "-eo", "pipefail", "-c", script]
        return subprocess.run(shell, cwd=tmp_path, env=env | {"FOUND": found}).returncode

    assert exit_code(audit, found="0") == 0
    assert (tmp_path / "asked.txt").read_text(encoding="utf-8").split() == wanted
    vendor = (tmp_path / "vendor.txt").read_text(encoding="utf-8").split()
    assert set(vendor) == {"transformers==4.46.3"}
    assert exit_code(audit, found="1") == 1
    assert exit_code(of_vendor, found="1") == 0


def gpu_step(text: str) -> dict[str, Any]:
    (step,) = [step for step in steps_of("gpu.yml") if text in str(step)]
    return step


def shell(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A step's script as GitHub runs it."""
    env["PATH"] = os.environ["PATH"]
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=env, capture_output=True, text=True
    )


@pytest.mark.parametrize("status", [0, 1])
def test_gpu_workflow_asks_one_command_whose_failure_is_the_jobs(tmp_path, monkeypatch, status):
    """With a Python that only says what it was given, and ends so."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n', encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / "tmp" / "gpu").mkdir(parents=True)
    assert shell(gpu_step("scripts/gpu.py")["run"], tmp_path).returncode == status
    said = (tmp_path / "tmp" / "gpu" / "gpu.txt").read_text(encoding="utf-8").split()
    script, *arguments = said
    assert script == "scripts/gpu.py"
    given = []
    monkeypatch.setattr(gpu, "run", lambda asked: given.append(asked) or 0)
    assert gpu.main(arguments) == 0
    assert given[0].device == "cuda:0"
    assert given[0].vendor == Path("models/deepseek-ocr").resolve()
    assert str(given[0].output).startswith(gpu_step("upload-artifact")["with"]["path"])


def test_gpu_workflow_shows_what_the_command_said(tmp_path):
    summary = gpu_step("GITHUB_STEP_SUMMARY")["run"]
    shown = tmp_path / "summary.md"
    assert shell(summary, tmp_path, GITHUB_STEP_SUMMARY=str(shown)).returncode == 0
    assert not shown.exists()
    (tmp_path / "tmp" / "gpu").mkdir(parents=True)
    (tmp_path / "tmp" / "gpu" / "gpu.txt").write_text("a: ok\n", encoding="utf-8")
    assert shell(summary, tmp_path, GITHUB_STEP_SUMMARY=str(shown)).returncode == 0
    assert shown.read_text(encoding="utf-8") == "    a: ok\n"


def test_gpu_workflow_waits_for_no_runner_that_is_not_there():
    assert load("gpu.yml")["jobs"]["analyze"]["if"] == "vars.GPU_RUNNER"


def test_gpu_workflow_shows_the_device_first_and_depends_on_no_flash_attention():
    first, *_ = steps_of("gpu.yml")
    assert first["run"] == "nvidia-smi"
    step = gpu_step("setup flash-attn")
    assert step["continue-on-error"] == "true"
    assert "inputs.flash-attn" in step["if"]


def test_gpu_workflow_keeps_its_environment_and_no_earlier_result_or_checkout():
    assert gpu_step("actions/checkout")["with"]["clean"] == "false"
    assert "rm -rf tmp/gpu models/deepseek-ocr\n" in gpu_step("run.py setup\\n")["run"]


def test_gpu_workflow_runs_only_revisions_that_have_been_read():
    workflow = load("gpu.yml")
    revision = workflow["env"]["DEFAULT_REVISION"]
    asked = workflow["on"]["workflow_dispatch"]["inputs"]["revision"]
    assert asked["type"] == "choice"
    assert asked["options"][0] == revision
    assert all(re.fullmatch(r"[0-9a-f]{40}", each) for each in asked["options"])
    assert revision in (ROOT / "models" / "README.md").read_text(encoding="utf-8")


ACTIONS = [*WORKFLOWS, ROOT / "docs" / "check.md"]


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.name)
def test_actions_are_named_by_digest_with_their_version_beside_it(path):
    lines = re.findall(r"^ *(?:- )?uses: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines
    for line in lines:
        assert re.fullmatch(r"\S+@[0-9a-f]{40}(?: # v\d+\.\d+\.\d+)?", line), line
        assert " # v" in line or line.startswith("OWNER/")


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.name)
def test_no_checkout_leaves_credentials_behind(path):
    steps = re.split(r"^ *- ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    checkouts = [step for step in steps if step.startswith("uses: actions/checkout@")]
    assert checkouts
    assert all("persist-credentials: false" in step for step in checkouts)
