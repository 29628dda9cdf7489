"""The GitHub workflows are valid and do what they are there for."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("flash_attention", [0, 1])
def test_gpu_workflow_analyses_the_vendor_on_cuda(flash_attention):
    (analysis,) = gpu_scripts("dsocr-analyze --model", f"--use-flash-attn {flash_attention}")
    assert "--device cuda:0" in analysis
    assert "dsocr-analyze --model models/deepseek-ocr" in analysis


def gpu_scripts(*parts: str) -> list[str]:
    """Scripts of the GPU workflow in which all of these stand."""
    return [script for script in scripts_of("gpu.yml") if all(part in script for part in parts)]


def option_in(script: str, option: str) -> str:
    found = re.search(rf'{option} "?([^\s")]+)', script)
    assert found is not None, f"{option} in {script}"
    return found[1]


def test_gpu_workflow_calibrates_before_it_measures_with_that_profile():
    scripts = scripts_of("gpu.yml")
    (calibration,) = gpu_scripts("dsocr-analyze calibrate")
    measurements = gpu_scripts("dsocr-analyze measure")
    assert option_in(calibration, "--device") == "cuda:0"
    assert measurements
    for script in measurements:
        assert scripts.index(calibration) < scripts.index(script)
        assert option_in(script, "--profile") == option_in(calibration, "--output")


@pytest.mark.parametrize("flash_attention", [0, 1])
def test_gpu_workflow_measures_the_vendor_for_programs_and_for_readers(flash_attention):
    (script,) = gpu_scripts("dsocr-analyze measure", f"--use-flash-attn {flash_attention}")
    assert option_in(script, "--model") == "models/deepseek-ocr"
    assert option_in(script, "--device") == "cuda:0"
    assert "for format in json markdown; do" in script
    assert option_in(script, "--format") == "$format"


def test_gpu_workflow_shows_and_keeps_predicted_against_measured(tmp_path):
    summary, upload = (
        next(step for step in steps_of("gpu.yml") if text in str(step))
        for text in ("GITHUB_STEP_SUMMARY", "upload-artifact")
    )
    kept = upload["with"]["path"]
    for script in gpu_scripts("dsocr-analyze measure"):
        (target,) = re.findall(r'^ *measured="(.*)"$', script, re.MULTILINE)
        assert option_in(script, ">") == "$measured"
        target = target.replace("$format", "markdown")
        assert target.startswith(kept)
        (tmp_path / target).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / target).write_text(f"measured: {target}\n", encoding="utf-8")
    shown = tmp_path / "summary.md"
    subprocess.run(
        ["bash", "-e", "-c", summary["run"]],
        cwd=tmp_path,
        env={"GITHUB_STEP_SUMMARY": str(shown), "PATH": os.environ["PATH"]},
        check=True,
    )
    lines = shown.read_text(encoding="utf-8").splitlines()
    measured = [line for line in lines if line.startswith("measured: ")]
    assert len(measured) == 2
    assert "# flash-attn-off" in lines
    assert "# flash-attn-on" in lines


def test_gpu_workflow_trusts_before_it_runs():
    scripts = scripts_of("gpu.yml")
    trusts = [n for n, script in enumerate(scripts) if "dsocr-analyze trust models/" in script]
    runs = [n for n, script in enumerate(scripts) if "--device cuda:0" in script]
    assert len(trusts) == 1
    assert trusts[0] < min(runs)


def test_gpu_workflow_runs_the_gpu_tests_and_keeps_the_reports():
    steps = steps_of("gpu.yml")
    assert any("pytest -m gpu" in step.get("run", "") for step in steps)
    assert any("GITHUB_STEP_SUMMARY" in step.get("run", "") for step in steps)
    upload = next(step for step in steps if "upload-artifact" in step.get("uses", ""))
    for script in (step["run"] for step in steps if "--output" in step.get("run", "")):
        output = re.search(r"--output (\S+)", script)
        assert output is not None
        assert output[1].startswith(upload["with"]["path"])


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
