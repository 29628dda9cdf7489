"""The GitHub workflows, actions and examples of them are valid and do what they are there for."""

import os
import re
import subprocess
import sys
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import gpu
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION, COMMENT = ROOT / "action.yml", ROOT / ".github" / "actions" / "comment" / "action.yml"
PAGE = ROOT / "docs" / "check.md"
EXAMPLES = dict(
    re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
)
CHECKING, COMMENTING = ".github/workflows/cost.yml", ".github/workflows/cost-comment.yml"


def load(text: str) -> dict[str, Any]:
    # BaseLoader: YAML 1.1 would read the key `on` as true.
    return yaml.load(text, Loader=yaml.BaseLoader)


def workflow(name: str) -> dict[str, Any]:
    return load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))


CI, GPU, AUDIT = workflow("ci.yml"), workflow("gpu.yml"), workflow("audit.yml")
COST, COST_COMMENT = load(EXAMPLES[CHECKING]), load(EXAMPLES[COMMENTING])


def steps_of(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    jobs = workflow["jobs"].values() if "jobs" in workflow else [workflow["runs"]]
    return [step for job in jobs for step in job["steps"]]


def step_of(workflow: dict[str, Any], text: str) -> dict[str, Any]:
    """The only step with some text in it."""
    (step,) = [step for step in steps_of(workflow) if text in str(step)]
    return step


def scripts_of(workflow: dict[str, Any]) -> list[str]:
    return [step["run"] for step in steps_of(workflow) if "run" in step]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("schema", "text", "said"),
    [
        *(("workflows", path.read_text("utf-8"), "") for path in WORKFLOWS),
        *(("workflows", EXAMPLES[name], "") for name in (CHECKING, COMMENTING)),
        *(("actions", path.read_text("utf-8"), "") for path in (ACTION, COMMENT)),
        ("workflows", "on: push\njobs: {build: {steps: []}}\n", "runs-on"),
    ],
)
def test_it_is_valid_by_githubs_schema(tmp_path, schema, text, said):
    # The schemas are SchemaStore's, copies of which check-jsonschema carries.
    file = tmp_path / "file.yml"
    file.write_text(text, encoding="utf-8")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    done = subprocess.run(
        [*check, f"vendor.github-{schema}", str(file)], capture_output=True, text=True
    )
    assert done.returncode == bool(said), done.stdout + done.stderr
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION, COMMENT], ids=lambda path: path.name)
def test_inputs_reach_scripts_through_the_environment_only(path):
    # An expression pasted into a script is a way to run anything on the runner.
    scripts = scripts_of(load(path.read_text(encoding="utf-8")))
    assert not any("${{" in script for script in scripts)
    is_action = path in (ACTION, COMMENT)
    assert not is_action or not any(re.search(r"python3? (?!-I)", each) for each in scripts)


@pytest.mark.parametrize("path", [*WORKFLOWS, PAGE], ids=lambda path: path.name)
def test_actions_are_named_by_digest_and_no_checkout_leaves_credentials_behind(path):
    text = path.read_text(encoding="utf-8")
    lines = re.findall(r"^ *(?:- )?uses: (.*)$", text, re.MULTILINE)
    assert lines
    for line in lines:
        assert re.fullmatch(r"\S+@[0-9a-f]{40}(?: # v\d+\.\d+\.\d+)?", line), line
        assert " # v" in line or line.startswith("OWNER/")
    steps = re.split(r"^ *- ", text, flags=re.MULTILINE)
    checkouts = [step for step in steps if step.startswith("uses: actions/checkout@")]
    assert checkouts
    assert all("persist-credentials: false" in step for step in checkouts)


@pytest.mark.parametrize(
    ("of", "keys", "value"),
    [
        # Together they run every part of what `make test` leaves out.
        (CI, "jobs check strategy matrix versions", ["pinned"]),
        (CI, "jobs check strategy matrix python", ["3.11", "3.12", "3.13"]),
        (CI, "jobs check strategy matrix include", [
            {"versions": "pinned", "python": "3.11", "part": "1/3"},
            {"versions": "pinned", "python": "3.12", "part": "2/3"},
            {"versions": "pinned", "python": "3.13", "part": "3/3"},
            {"versions": "newest", "python": "3.13"},
        ]),
        # What runs a pull request's files can only read; what may write runs nothing of it.
        (COST, "on", "pull_request"),
        (COST, "permissions", {"contents": "read"}),
        (COST_COMMENT, "on",
         {"workflow_run": {"workflows": [COST["name"]], "types": ["completed"]}}),
        (COST_COMMENT, "permissions", {}),
        (COST_COMMENT, "jobs comment permissions", {"actions": "read", "pull-requests": "write"}),
        (GPU, "jobs analyze if", "vars.GPU_RUNNER"),
        (GPU, "on workflow_dispatch inputs revision type", "choice"),
        (step_of(CI, "'.ci/run'"), "if", "matrix.versions == 'pinned'"),
        (step_of(CI, "'.ci/run'"), "env", {"DSOCR_TEST_PART": "${{ matrix.part }}"}),
        (step_of(CI, "--active newest"), "if", "matrix.versions == 'newest'"),
        (step_of(COST, "upload-artifact"), "if", "always()"),
        # Nothing depends on it.
        (step_of(GPU, "setup flash-attn"), "continue-on-error", "true"),
        (step_of(GPU, "setup flash-attn"), "if", "inputs.flash-attn"),
        # It keeps its environment, and no earlier result or checkout.
        (step_of(GPU, "actions/checkout"), "with",
         {"clean": "false", "persist-credentials": "false"}),
    ],
)  # fmt: skip
def test_it_says_so(of, keys, value):
    assert reduce(getitem, keys.split(), of) == value


def test_examples_run_nothing_of_strangers_with_rights_and_fit_the_action_and_the_comment():
    [job], [other] = COST["jobs"].values(), COST_COMMENT["jobs"].values()
    assert "permissions" not in job
    assert "secrets" not in EXAMPLES[CHECKING]
    assert "'pull_request'" in other["if"]
    assert ["checkout" in step["uses"] for step in other["steps"]] == [False]
    [_, check, upload] = job["steps"]
    inputs, of_comment = (load(each.read_text("utf-8"))["inputs"] for each in (ACTION, COMMENT))
    assert upload["with"]["path"].rstrip("/") == inputs["output"]["default"]
    assert upload["with"]["name"] == of_comment["artifact"]["default"]
    assert set(check["with"]) <= set(inputs)


def test_the_hook_is_the_command():
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert (hook["entry"], hook["pass_filenames"]) == ("dsocr-analyze check", False)
    for file in ("dsocr-budgets.toml", "a/config.json", "pyproject.toml", "net/modeling.py"):
        assert re.search(hook["files"], file)
    [repo] = yaml.safe_load(EXAMPLES[".pre-commit-config.yaml"])["repos"]
    assert repo["hooks"][0]["id"] == hook["id"]


def test_ci_runs_under_the_newest_torch_and_transformers_without_pins():
    install, run = step_of(CI, "--active newest")["run"].splitlines()
    assert "--upgrade torch transformers" in install
    assert "constrain" not in install
    assert run == "python scripts/run.py --active newest"


def shell(script: str, folder: Path, **env: str) -> int:
    """The exit code of a step's script as GitHub runs it."""
    env = {"PATH": os.environ["PATH"]} | env
    run = ["bash", "-eo", "pipefail", "-c", script]
    return subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True).returncode


def program(file: Path, script: str) -> None:
    """A stand-in for a program."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(0o755)


def test_the_audit_asks_for_every_pin_and_fails_but_for_the_vendors_transformers(tmp_path):
    """The scripts themselves, with a pip-audit that only says what it was given."""
    _, audit, of_vendor = scripts_of(AUDIT)
    (tmp_path / "requirements").mkdir()
    wanted = []
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        (tmp_path / "requirements" / path.name).write_text(text, encoding="utf-8")
        pins = re.findall(r"^([A-Za-z0-9][^\s;]*==[^\s;]+)", text, re.MULTILINE)
        wanted += [pin for pin in pins if not pin.startswith("transformers==4")]
    program(tmp_path / "pip-audit", "cat audited.txt >> asked.txt\nexit $FOUND")
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert shell(audit, tmp_path, PATH=path, FOUND="0") == 0
    assert (tmp_path / "asked.txt").read_text(encoding="utf-8").split() == wanted
    vendor = (tmp_path / "vendor.txt").read_text(encoding="utf-8").split()
    assert set(vendor) == {"transformers==4.46.3"}
    codes = [shell(each, tmp_path, PATH=path, FOUND="1") for each in (audit, of_vendor)]
    assert codes == [1, 0]


@pytest.mark.parametrize("status", [0, 1])
def test_gpu_workflow_asks_one_command_whose_failure_is_the_jobs(tmp_path, monkeypatch, status):
    """With a Python that only says what it was given, and ends so."""
    program(tmp_path / ".venv" / "bin" / "python", f'echo "$@"\nexit {status}')
    (tmp_path / "tmp" / "gpu").mkdir(parents=True)
    assert shell(step_of(GPU, "scripts/gpu.py")["run"], tmp_path) == status
    said = (tmp_path / "tmp" / "gpu" / "gpu.txt").read_text(encoding="utf-8").split()
    script, *arguments = said
    assert script == "scripts/gpu.py"
    given = []
    monkeypatch.setattr(gpu, "run", lambda asked: given.append(asked) or 0)
    assert gpu.main(arguments) == 0
    assert given[0].device == "cuda:0"
    assert given[0].vendor == Path("models/deepseek-ocr").resolve()
    assert str(given[0].output).startswith(step_of(GPU, "upload-artifact")["with"]["path"])


def test_gpu_workflow_shows_what_the_command_said(tmp_path):
    summary, shown = step_of(GPU, "GITHUB_STEP_SUMMARY")["run"], tmp_path / "summary.md"
    assert shell(summary, tmp_path, GITHUB_STEP_SUMMARY=str(shown)) == 0
    assert not shown.exists()
    (tmp_path / "tmp" / "gpu").mkdir(parents=True)
    (tmp_path / "tmp" / "gpu" / "gpu.txt").write_text("a: ok\n", encoding="utf-8")
    assert shell(summary, tmp_path, GITHUB_STEP_SUMMARY=str(shown)) == 0
    assert shown.read_text(encoding="utf-8") == "    a: ok\n"


def test_gpu_workflow_runs_only_revisions_that_have_been_read():
    assert steps_of(GPU)[0]["run"] == "nvidia-smi"
    assert "rm -rf tmp/gpu models/deepseek-ocr\n" in step_of(GPU, "run.py setup\\n")["run"]
    revision = GPU["env"]["DEFAULT_REVISION"]
    options = GPU["on"]["workflow_dispatch"]["inputs"]["revision"]["options"]
    assert options[0] == revision
    assert all(re.fullmatch(r"[0-9a-f]{40}", each) for each in options)
    assert revision in (ROOT / "models" / "README.md").read_text(encoding="utf-8")
