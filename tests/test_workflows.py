"""What runs elsewhere: the GitHub workflows, actions and examples of them, and scripts/gpu.py.

They are valid and do what they are there for; the GPU's is tried without one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from argparse import Namespace
from contextlib import nullcontext
from functools import reduce
from importlib import metadata
from operator import getitem
from pathlib import Path
from typing import Any
from unittest import mock

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


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION, COMMENT, PAGE], ids=lambda path: path.name)
def test_scripts_have_no_inputs_pasted_in_and_actions_are_named_by_digest(path):
    text, is_action = path.read_text(encoding="utf-8"), path in (ACTION, COMMENT)
    # An expression pasted into a script is a way to run anything on the runner.
    scripts = scripts_of(load(text)) if path != PAGE else []
    assert not any("${{" in script for script in scripts)
    assert not is_action or not any(re.search(r"python3? (?!-I)", each) for each in scripts)
    lines = re.findall(r"^ *(?:- )?uses: (.*)$", text, re.MULTILINE) if not is_action else []
    for line in lines:
        assert re.fullmatch(r"\S+@[0-9a-f]{40}(?: # v\d+\.\d+\.\d+)?", line), line
        assert " # v" in line or line.startswith("OWNER/")
    # And no checkout leaves credentials behind.
    steps = re.split(r"^ *- ", text, flags=re.MULTILINE)
    checkouts = [step for step in steps if step.startswith("uses: actions/checkout@")]
    assert bool(lines) == bool(checkouts) == (not is_action)
    assert all("persist-credentials: false" in step for step in checkouts)


[JOB], [OTHER], [HOOK] = (
    COST["jobs"].values(), COST_COMMENT["jobs"].values(),
    yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")),
)  # fmt: skip
REVISION = GPU["env"]["DEFAULT_REVISION"]


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
        # It keeps its environment, and no earlier result or checkout.
        (step_of(GPU, "actions/checkout"), "with",
         {"clean": "false", "persist-credentials": "false"}),
        (steps_of(GPU)[0], "run", "nvidia-smi"),
        # The newest torch and transformers, without pins.
        (step_of(CI, "--active newest"), "run",
         "python -m pip install --upgrade torch transformers --editable '.[test]'\n"
         "python scripts/run.py --active newest\n"),
        # The hook is the command.
        (HOOK, "entry", "dsocr-analyze check"),
        (HOOK, "pass_filenames", False),
        (yaml.safe_load(EXAMPLES[".pre-commit-config.yaml"])["repos"][0]["hooks"][0], "id",
         HOOK["id"]),
    ],
)  # fmt: skip
def test_it_says_so(of, keys, value):
    assert reduce(getitem, keys.split(), of) == value


@pytest.mark.parametrize(
    ("text", "pattern", "is_there"),
    [
        *((file, HOOK["files"], True) for file in ("dsocr-budgets.toml", "a/config.json",
                                                   "pyproject.toml", "net/modeling.py")),
        # Examples run nothing of strangers with rights.
        (EXAMPLES[CHECKING], "secrets", False), (" ".join(JOB), "permissions", False),
        (OTHER["if"], "'pull_request'", True), (str(OTHER["steps"]), "checkout", False),
        # Only revisions that have been read.
        ((ROOT / "models" / "README.md").read_text(encoding="utf-8"), REVISION, True),
        ("\n".join(GPU["on"]["workflow_dispatch"]["inputs"]["revision"]["options"]) + "\n",
         rf"\A{REVISION}\n([0-9a-f]{{40}}\n)*\Z", True),
    ],
)  # fmt: skip
def test_it_has_this_and_not_that(text, pattern, is_there):
    assert bool(re.search(pattern, text)) == is_there


def test_examples_fit_the_action_and_the_comment():
    [_, check, upload] = JOB["steps"]
    inputs, of_comment = (load(each.read_text("utf-8"))["inputs"] for each in (ACTION, COMMENT))
    assert upload["with"]["path"].rstrip("/") == inputs["output"]["default"]
    assert upload["with"]["name"] == of_comment["artifact"]["default"]
    assert set(check["with"]) <= set(inputs)


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
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in locks)
    pins = re.findall(r"^([A-Za-z0-9][^\s;]*==[^\s;]+)", text, re.MULTILINE)
    program(tmp_path / "pip-audit", "cat audited.txt >> asked.txt\nexit $FOUND")
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert shell(audit, tmp_path, PATH=path, FOUND="0") == 0
    asked, vendor = ((tmp_path / f"{name}.txt").read_text().split() for name in ("asked", "vendor"))
    assert asked == [pin for pin in pins if not pin.startswith("transformers==4")]
    assert set(vendor) == {"transformers==4.46.3"}
    assert [shell(each, tmp_path, PATH=path, FOUND="1") for each in (audit, of_vendor)] == [1, 0]


def test_gpu_workflow_asks_for_what_the_script_takes_and_uploads_its_file(monkeypatch):
    line = step_of(GPU, "scripts/gpu.py")["run"].replace("\\\n", "")
    run = mock.Mock(return_value=0)
    monkeypatch.setattr(gpu, "run", run)
    assert gpu.main(re.search(r"scripts/gpu.py ([^|]*)", line)[1].replace('"', "").split()) == 0
    [[asked]] = [call.args for call in run.call_args_list]
    assert (asked.device, asked.vendor) == ("cuda:0", Path("$MODEL").resolve())
    assert str(asked.output).startswith(step_of(GPU, "upload-artifact")["with"]["path"])


# --- gpu.yml on a runner ---------------------------------------------------------------------


RUNS_IF = {
    "": lambda job: job.is_well,
    "${{ !cancelled() }}": lambda job: True,
    "${{ !cancelled() && steps.model.outcome == 'success' }}":
        lambda job: job.outcomes.get("model") == "success",
    "${{ !cancelled() && inputs.flash-attn && steps.model.outcome == 'success' }}":
        lambda job: job.flash_attn and job.outcomes.get("model") == "success",
}  # fmt: skip
"""When GitHub runs a step, by its condition."""

PYTHON_THERE = """
case "$1$2" in
  -c*compileall*) echo "compiled" >> {log} ;;
  -c*) exec {python} "$@" ;;
  scripts/gpu.py*) echo "gpu.py $@" >> {log}; exec sh {gpu} "$@" ;;
  *) echo "python $@" >> {log}; case "$*" in *{fails}*) exit 1 ;; esac ;;
esac
"""
HF = """
echo "hf $@" >> {log}
for last; do :; done
mkdir -p "$last"
ls "$last" | sed "s/^/held /" >> {log}
touch "$last/config.json"
"""


class Runner:
    """A machine that runs the steps of gpu.yml in a checkout, with stand-ins for a GPU's.

    `python` is this one, and so is scripts/run.py; what it would install is only written down.
    """

    def __init__(self, folder, gpu="echo measured; echo {} > tmp/gpu/gpu.json", fails="NONE"):
        self.checkout, self.log = folder / "checkout", folder / "log"
        self.environment, self.summary = folder / "environment", folder / "summary"
        for name in ("scripts", "requirements", "pyproject.toml", ".gitignore"):
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(
                ROOT / name, self._there(name)
            )
        self._there("src").mkdir()
        (folder / "gpu.sh").write_text(gpu)
        there = {"log": self.log, "python": sys.executable, "gpu": folder / "gpu.sh",
                 "fails": fails}  # fmt: skip
        programs = self._there(".venv/bin/python").parent
        program(programs / "python", PYTHON_THERE.format(**there))
        program(programs / "hf", HF.format(**there))
        program(
            programs / "dsocr-analyze",
            f'echo "dsocr-analyze $@" >> {self.log}\n'
            "mkdir -p tmp/gpu/analysis && echo '# Page' > tmp/gpu/analysis/static_compute.md",
        )
        program(folder / "bin" / "python", f'exec {sys.executable} "$@"')
        self.driver = folder / "bin" / "nvidia-smi"
        program(self.driver, f'echo "nvidia-smi $@" >> {self.log}; echo 9.0')
        run = ["git", "-C", self.checkout, "-c", "user.name=a", "-c", "user.email=a@example.org"]
        for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "a state"]):
            subprocess.run([*run, *arguments], check=True)

    def _there(self, name):
        path = self.checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def run(self, *, flash_attn=False, weights="false"):
        """The outcome of each step that ran, by name, and what was called."""
        self.is_well, self.outcomes, self.flash_attn = True, {}, flash_attn
        for file in (self.log, self.environment, self.summary):
            file.write_text("")
        outcomes = {}
        for each in steps_of(GPU):
            if "run" not in each or not RUNS_IF[each.get("if", "")](self):
                continue
            done = shell(each["run"], self.checkout, **self._variables(each, weights))
            outcomes[each["name"]] = done
            self.outcomes[each.get("id")] = "failure" if done else "success"
            self.is_well &= not done or each.get("continue-on-error") == "true"
        return outcomes, self.log.read_text().splitlines()

    def _variables(self, each, weights):
        given = {"REVISION": REVISION, "WEIGHTS": weights}
        asked = {name: given.get(name, value) for name, value in each.get("env", {}).items()}
        exported = self.environment.read_text().splitlines()
        return {
            "PATH": f"{self.driver.parent}:{os.environ['PATH']}", "HOME": str(self.checkout),
            "GITHUB_ENV": str(self.environment), "GITHUB_STEP_SUMMARY": str(self.summary),
            **asked, **dict(line.split("=", 1) for line in exported),
        }  # fmt: skip


ALL = ["Show the device", "Install", "Vendor checkout", "The main job on cuda:0",
       "Measurements and tests", "Job summary"]  # fmt: skip
CODE = f"models/deepseek-ocr-{REVISION}"


def test_the_steps_run_in_order_and_a_second_time_install_and_keep_what_is_there(tmp_path):
    runner = Runner(tmp_path)
    outcomes, calls = runner.run()
    assert outcomes == dict.fromkeys(ALL, 0)
    assert calls[0].startswith("nvidia-smi")
    assert any("--require-hashes" in call and "dev.txt" not in call for call in calls)
    [hf] = [call for call in calls if call.startswith("hf")]
    assert hf.startswith(f"hf download deepseek-ai/DeepSeek-OCR --revision {REVISION} --include")
    assert hf.endswith(f"--exclude *.safetensors* --local-dir {CODE}")
    assert calls[-2].startswith(f"dsocr-analyze --model {CODE} --trust-remote-code --device cuda:0")
    assert calls[-1].startswith(f"gpu.py scripts/gpu.py run --vendor {CODE} --minutes 45")
    # Measured once, told twice.
    assert (runner.checkout / "tmp/gpu/gpu.json").is_file()
    assert runner.summary.read_text() == "    measured\n# Page\n"
    # What git ignores stays, other files and earlier results do not.
    stale = [runner.checkout / name for name in ("stray.py", "tmp/gpu/old.json")]
    for file in stale:
        file.touch()
    outcomes, calls = runner.run()
    assert outcomes == dict.fromkeys(ALL, 0)
    assert not any(file.exists() for file in stale)
    assert [call.split()[0] for call in calls] == [
        "nvidia-smi", "hf", "held", "dsocr-analyze", "gpu.py",
    ]  # fmt: skip


def test_weights_are_in_a_folder_of_their_own(tmp_path):
    runner = Runner(tmp_path)
    runner.run()
    _, calls = runner.run(weights="true")
    [hf] = [call for call in calls if call.startswith("hf")]
    assert hf.endswith(f"--include *.py *.json *.safetensors --local-dir {CODE}-weights")
    assert not [call for call in calls if call.startswith("held")]
    assert f"--vendor {CODE}-weights" in calls[-1]


def test_flash_attention_comes_last_and_may_fail(tmp_path):
    runner = Runner(tmp_path, fails="flash-attn")
    outcomes, calls = runner.run(flash_attn=True)
    built = "Install flash-attn for this device"
    assert [*outcomes] == [*ALL[:4], built, *ALL[4:]]
    assert [name for name, status in outcomes.items() if status] == [built]
    assert runner.is_well
    installing = [each for each, call in enumerate(calls) if "pip" in call and "install" in call]
    assert "flash-attn" in calls[installing[-1]]
    assert "scripts/gpu.py" in calls[-1]


@pytest.mark.parametrize("broken", ["Show the device", "Install", "Vendor checkout"])
def test_without_a_device_an_environment_or_a_model_nothing_is_measured(tmp_path, broken):
    runner = Runner(tmp_path, fails="require-hashes" if broken == "Install" else "NONE")
    if broken == "Show the device":
        runner.driver.write_text("#!/bin/sh\nexit 9\n")
    if broken == "Vendor checkout":
        program(runner.checkout / ".venv/bin/hf", "exit 1")
    outcomes, calls = runner.run(flash_attn=True)
    assert not runner.is_well
    assert [*outcomes] == [*ALL[: ALL.index(broken) + 1], "Job summary"]
    assert outcomes[broken] != 0
    assert not [call for call in calls if call.startswith(("gpu.py", "dsocr-analyze"))]


def test_a_job_without_cuda_fails_although_the_driver_answers(tmp_path):
    """As scripts/gpu.py ends with 2 there; what it says is in the summary all the same."""
    runner = Runner(tmp_path, gpu="echo no device; exit 2")
    outcomes, _ = runner.run()
    assert [name for name, status in outcomes.items() if status] == ["Measurements and tests"]
    assert not runner.is_well
    assert runner.summary.read_text().startswith("    no device\n")


# --- scripts/gpu.py --------------------------------------------------------------------------


TORCH = 'import json; print(json.dumps({"torch": "2.11", "cuda": "13.0", "gpu": %s}))'


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with a GPU, as far as the command asks, whose folder of wheels is empty."""
    monkeypatch.setattr(gpu, "ASKED_OF_TORCH", TORCH % '{"name": "G"}')
    answer = ", ".join(f"<{name}>" for name in gpu.ASKED_OF_DRIVER.split(","))
    program(tmp_path / "nvidia-smi", f"[ $4 = 1 ] && echo '{answer}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def step(name, code, seconds=60.0, read=lambda output: {"said": output.read_text()}, **others):
    return gpu.Step(name, ("-c", code), seconds, read, **others)


def ran(machine, monkeypatch, steps, *arguments):
    """The exit status of a run of these steps, its JSON, and that of each step."""
    monkeypatch.setattr(gpu, "steps_of", lambda asked, folder, has_flash: steps)
    output = machine / "out" / "gpu.json"
    status = gpu.main(["run", "--device", "cuda:1", "--wheels", str(machine / "none"),
                       "--output", str(output), *arguments])  # fmt: skip
    document = json.loads(output.read_text(encoding="utf-8"))
    return status, document, [*document["steps"].values()]


def is_gone(pid):
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


# --- wheels that are carried -----------------------------------------------------------------


def test_what_a_machine_with_torch_and_transformers_lacks_is_carried():
    plan = gpu.planned(vendor=True, held=())
    for folder, lacking, there_or_unused in (
        ("all", "fvcore yacs msgspec tomlkit typer pydantic-core pytest iniconfig hypothesis",
         "torch transformers tokenizers numpy sympy regex pyarrow execnet"),
        # What the vendor's transformers needs in another version than the machine has.
        ("vendor", "transformers tokenizers huggingface-hub einops",
         "torch numpy regex safetensors"),
    ):  # fmt: skip
        assert plan[folder].keys() >= set(lacking.split())
        assert not plan[folder].keys() & set(there_or_unused.split())
    assert plan["vendor"]["transformers"].startswith("transformers==4.46.3 ")
    line = r"(\S+)==\S+( ;.*)?( \\\n    --hash=sha256:[0-9a-f]{64})+"
    for name, lines in (plan["all"] | plan["vendor"]).items():
        assert re.fullmatch(line, lines)[1] == name


def test_pip_gets_exactly_these_for_that_python(tmp_path, monkeypatch):
    asked = {}

    def pip(command, **_):
        [file] = [each.partition("=")[2] for each in command if "--requirement=" in each]
        names = re.findall("^([a-z0-9-]+)==", Path(file).read_text("utf-8"), re.MULTILINE)
        asked[command[3]] = set(names), set(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(gpu.subprocess, "run", pip)
    program(stale := tmp_path / "all" / "old-1.0-py3-none-any.whl", "")
    held = ["--held", "pillow"]
    assert gpu.main(["wheels", str(tmp_path), "--python", "3.13", *held]) == 0
    assert not stale.exists()
    (downloaded, command), (built, _) = asked["download"], asked["wheel"]
    assert {"--python-version=3.13", "--require-hashes", "--no-deps"} <= command
    assert built == {"fvcore", "iopath"}
    # What the machine has is not carried.
    assert downloaded | built == set(gpu.planned(vendor=False, held=())["all"]) - set(held)


EAGER = ["reference, base, eager", "reference, gundam, eager"]


# --- steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("has_flash", "asked", "names"),
    [
        # Those of most worth come first; a trial on the CPU is small and tests no CUDA.
        (False, {}, [*EAGER, "tests"]),
        (True, {}, [*EAGER, *(name.replace("eager", "flash") for name in EAGER), "tests"]),
        (False, {"vendor": Path()},
         [*EAGER, *(name.replace("reference", "vendor") for name in EAGER), "tests",
          "tests, vendor"]),
        (False, {"device": "cpu"}, ["reference, tiny, eager"]),
    ],
)  # fmt: skip
def test_what_runs_and_when(tmp_path, has_flash, asked, names):
    asked = Namespace(**{"device": "cuda:0", "vendor": None, "minutes": 10.0} | asked)
    steps = gpu.steps_of(asked, tmp_path, has_flash=has_flash)
    assert all(each.seconds <= 300 for each in steps)
    assert [each.name for each in steps if not each.missing] == names


@pytest.mark.parametrize(("skipped", "passes"), [(3, True), (4, False)])
def test_tests_that_were_all_skipped_did_not_pass(tmp_path, skipped, passes):
    results = tmp_path / "tests.xml"
    counts = f'tests="4" failures="0" errors="0" skipped="{skipped}"'
    results.write_text(f"<testsuites><testsuite {counts}/></testsuites>", encoding="utf-8")
    with nullcontext() if passes else pytest.raises(ValueError, match="no test ran"):
        assert gpu._passed(results, results)["skipped"] == skipped


@pytest.mark.exhaustive
@pytest.mark.skipif(
    shutil.which("nvidia-smi") is not None, reason="what a machine without a GPU says"
)
def test_tests_of_a_gpu_do_not_pass_without_one():
    asked = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu"]
    done = subprocess.run([*asked, "tests/test_gpu.py"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, "no test of a GPU ran" in done.stdout) == (1, True), done.stdout


@pytest.mark.exhaustive
def test_every_file_with_a_test_of_the_gpu_is_collected():
    collected = [sys.executable, "-m", "pytest", "-m", "gpu", "--collect-only", "-q"]
    said = subprocess.run(
        [*collected, "-p", "no:cacheprovider"], cwd=gpu.ROOT, capture_output=True, text=True
    ).stdout
    assert set(gpu._gpu_tests()) == set(re.findall("^(tests/[^:]+)::", said, re.MULTILINE))


@pytest.mark.exhaustive
def test_the_reference_is_really_measured_with_what_this_python_has(tmp_path):
    asked = Namespace(device="cpu", vendor=None, minutes=60.0)
    assert gpu.install(tmp_path / "none", tmp_path)
    first, *_ = gpu.steps_of(asked, tmp_path, has_flash=False)
    found = gpu.run_step(first, 300, tmp_path)
    assert found["status"] == "ok", found
    assert [*found["seconds_by_stage"]] == [
        "sam",
        "clip",
        "projector",
        "prefill",
        "decode",
        "prefill pass",
        "page",
    ]
    assert found["report"]["weights"] == "random"


# --- a run on a machine ----------------------------------------------------------------------


def test_a_step_that_fails_is_recorded_and_the_others_run(machine, monkeypatch, capsys):
    """They see this checkout, and not the user's files; the JSON has what was done so far."""
    code = (
        "import os, dsocr_analyze, importlib.metadata as m; print(dsocr_analyze.__file__,"
        " m.version('dsocr-analyze'), os.environ['DSOCR_VENDOR_DIR'])"
    )
    monkeypatch.setenv("DSOCR_VENDOR_DIR", "/elsewhere")
    steps = [
        step("asks", code),
        step("broken", "import sys; print('boom'); sys.exit('at the end')"),
        step("unreadable", "print('{')", read=gpu._measured),
        step("cannot", "", missing="no such thing here"),
        step("last", f"print(open({str(machine / 'out' / 'gpu.json')!r}).read())"),
    ]
    status, document, [asks, broken, unreadable, cannot, last] = ran(machine, monkeypatch, steps)
    statuses = ["ok", "failed", "failed", "not run", "ok"]
    assert (status, [each["status"] for each in document["steps"].values()]) == (1, statuses)
    version = re.search('^version = "(.*)"', (gpu.ROOT / "pyproject.toml").read_text(), re.M)[1]
    source = gpu.ROOT / "src" / "dsocr_analyze" / "__init__.py"
    assert asks["said"].split() == [str(source), version, os.devnull]
    assert broken["reason"] == "exit status 1"
    assert broken["output_end"].split("\n")[:2] == ["boom", "at the end"]
    assert unreadable["reason"].startswith("its result: ")
    assert cannot["reason"] == "no such thing here"
    before = json.loads(last["said"])["steps"]
    assert [each["status"] for each in before.values()] == [*statuses[:-1], "not run"]
    assert "broken: failed exit status 1" in capsys.readouterr().out
    conditions = document["conditions"]
    expected = {"gpu": {"name": "G"}, "torch": "2.11", "cuda": "13.0",
                "transformers": metadata.version("transformers")}  # fmt: skip
    assert expected == {name: conditions[name] for name in expected}
    assert conditions["driver_before"]["power.limit"] == "<power.limit>"
    assert conditions["driver_after"]["clocks.sm"] == "<clocks.sm>"
    assert re.fullmatch(r"[0-9a-f]{40}", conditions["commit"])
    assert {"python", "cpu", "cores", "date"} <= set(conditions)


@pytest.mark.parametrize(("minutes", "status", "said"), [("10", 0, "ok"), ("0", 1, "late")])
def test_a_run_succeeds_whose_steps_all_end_well_or_cannot_run_here(
    machine, monkeypatch, minutes, status, said
):
    """What there is no time for is late."""
    steps = [step("asks", ""), step("cannot", "", missing="no such thing here")]
    found, _, each = ran(machine, monkeypatch, steps, "--minutes", minutes)
    assert (found, [each["status"] for each in each]) == (status, [said, "not run"])


@pytest.mark.exhaustive
def test_no_step_takes_longer_than_its_limit_nor_all_more_than_the_time(machine, monkeypatch):
    pid = machine / "pid"
    slow = (
        "import subprocess, sys, pathlib; child = subprocess.Popen(['sleep', '60']);"
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid)); print('so far', flush=True);"
        "child.wait()"
    )
    steps = [step("slow", slow, seconds=1.5), step("slower", slow), step("last", "print(1)")]
    began = time.monotonic()
    status, _, found = ran(machine, monkeypatch, steps, "--minutes", "0.06")
    assert time.monotonic() - began < 20
    assert (status, [each["status"] for each in found]) == (1, ["late"] * 3)
    said = [found[0]["reason"], found[0]["output_end"], found[2]["reason"]]
    assert said == ["took more than 2 s", "so far\n", "no time was left"]
    assert is_gone(pid.read_text())


@pytest.mark.exhaustive
def test_carried_packages_are_found_before_the_machines_by_the_steps_they_are_for(
    machine, monkeypatch, capfd
):
    for folder, version in (("all", "1.0"), ("vendor", "2.0")):
        wheel = machine / "wheels" / folder / f"yaml-{version}-py3-none-any.whl"
        wheel.parent.mkdir(parents=True)
        about = f"yaml-{version}.dist-info/"
        with zipfile.ZipFile(wheel, "w") as file:
            for name, text in (("yaml.py", f"version = {version}"),
                               (f"{about}METADATA", f"Name: yaml\nVersion: {version}\n"),
                               (f"{about}WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n"),
                               (f"{about}RECORD", "")):  # fmt: skip
                file.writestr(name, text)
    code = "import yaml; print(yaml.version)"
    steps = [step("own", code), step("of vendor", code, vendor=machine)]
    given = "--wheels", str(machine / "wheels")
    _, _, found = ran(machine, monkeypatch, steps, *given)
    assert [each["said"] for each in found] == ["1.0\n", "2.0\n"]
    # Those for another Python are refused by their folder.
    (wheel.parent / "yaml-1.0-cp27-cp27m-win32.whl").touch()
    assert gpu.main(["run", *given, "--output", str(machine / "gpu.json")]) == 2
    assert f"{wheel.parent} could not be installed; fill it" in capfd.readouterr().err


def test_without_cuda_it_refuses_before_any_step(machine, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "ASKED_OF_TORCH", TORCH % "None")
    output = machine / "gpu.json"
    assert gpu.main(["run", "--output", str(output)]) == 2
    assert not output.exists()
    assert "torch finds no cuda:0; --device cpu" in capsys.readouterr().err
