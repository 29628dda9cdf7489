"""The repository's own files agree with each other."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import run as script
from conditions import is_within, rounds
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from sampling import first, sampled

from dsocr_analyze.model.loading import VENDOR_TRANSFORMERS

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("analyze", "audit", "base", "build", "dev", "newest")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def pyproject() -> dict[str, Any]:
    return tomllib.loads(read("pyproject.toml"))


@cache
def project_files() -> list[Path]:
    """Files that are in the repository, or would be after `git add --all`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True)
    if listing.returncode:
        pytest.skip("needs a git checkout")
    names = os.fsdecode(listing.stdout).split("\0")
    return [path for path in (ROOT / name for name in sorted(names) if name) if path.is_file()]


# Tasks -------------------------------------------------------------------------------------------


def test_every_list_of_tasks_is_that_of_the_run_script():
    tasks = script.TASKS
    [makefile] = re.findall(r"^TASKS := (.+)$", read("Makefile"), re.MULTILINE)
    contributing = re.findall(r"^\| `make (\w+)` \|", read("CONTRIBUTING.md"), re.MULTILINE)
    assert set(makefile.split()) == set(contributing) == set(tasks)
    pixi = tomllib.loads(read("pixi.toml"))["tasks"]
    assert pixi == {name: f"python scripts/run.py --active {name}" for name in tasks}


# The run script ----------------------------------------------------------------------------------


COPIED = (
    "pyproject.toml",
    *(f"requirements/{name}.txt" for name in ("torch", "torch-cpu", *LOCKS)),
)


@pytest.fixture
def bare_project(tmp_path, monkeypatch):
    """The run script moved to a project without an environment; what it would run is recorded."""
    (tmp_path / "requirements").mkdir()
    for name in COPIED:
        (tmp_path / name).write_text(read(name), encoding="utf-8")
    steps = []
    for name in ("PYTHON", "DSOCR_TORCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script.Environment, "python", Path(sys.executable))
    monkeypatch.setattr(script, "find_python", lambda: sys.executable)
    monkeypatch.setattr(script, "_run", steps.append)
    for environment in (script.PINNED, script.NEWEST):
        environment.folder.mkdir()
    return steps, tmp_path


def installed(steps: list[list[str]]) -> list[str]:
    """The file or package of every installation."""
    return [step[-1].rpartition("/")[2] for step in steps if "install" in step]


def test_setup_installs_by_hash_then_torch_by_version_then_the_project_alone(bare_project):
    steps, folder = bare_project
    script.ensure_environment("dev.txt")
    build, everything, torch, project = [step for step in steps if "install" in step]
    for step, name in ((build, "build.txt"), (everything, "dev.txt")):
        assert {"--require-hashes", "--no-deps", "--no-build-isolation"}.issubset(step)
        assert step[-2:] == ["--requirement", str(folder / "requirements" / name)]
        assert step[step.index("--only-binary") + 1] == ":all:"
        assert step[step.index("--no-binary") + 1] == "fvcore,iopath"
    assert torch[-1] == "torch"
    assert torch[torch.index("--constraint") + 1] == str(folder / "requirements/torch.txt")
    assert project[-2:] == ["--editable", "."]
    assert {"--no-deps", "--no-build-isolation"}.issubset(project)
    assert any(step[-1] == "check" for step in steps)
    assert all("--no-compile" in step for step in (build, everything, torch))
    assert steps[-1][-1] == str(folder / "src")


def test_what_needs_no_torch_is_installed_without_it(bare_project):
    steps, _ = bare_project
    script.install_packages("python", script.BASE_LOCK)
    assert installed(steps) == ["build.txt", "base.txt"]


def test_without_a_gpu_torch_too_is_installed_by_hash(bare_project, monkeypatch):
    steps, _ = bare_project
    monkeypatch.setenv("DSOCR_TORCH", "cpu")
    script.ensure_environment("analyze.txt")
    *others, project = [step for step in steps if "install" in step]
    assert installed(others) == ["build.txt", "analyze.txt", "torch-cpu.txt"]
    assert all({"--require-hashes", "--no-deps"}.issubset(step) for step in others)
    assert project[-2:] == ["--editable", "."]


def test_torchs_cpu_builds_are_those_of_its_version_for_every_python():
    """Three for each of Linux on x86-64 and ARM, and macOS."""
    lines = [line for line in lock_lines("torch-cpu") if not line.startswith("--")]
    wanted = [Requirement(line.partition("--hash")[0].strip()) for line in lines]
    assert {version_of(each).removesuffix("+cpu") for each in wanted} == {
        version_of(pins("torch")["torch"])
    }
    builds = {}
    for each, line in zip(wanted, lines, strict=True):
        assert each.name == "torch"
        builds[str(each.marker)] = hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})(?= |$)", line)
        assert len({*hashes}) == len(hashes) == line.count("--hash")
    assert {marker: len(each) for marker, each in builds.items()} == {
        'sys_platform == "linux"': 2 * len(script.SUPPORTED),
        'sys_platform == "darwin"': len(script.SUPPORTED),
    }


DEV = ["build.txt", "dev.txt", "torch", "."]
FLASH = {"packages": ["flash-attn"]}


@pytest.mark.parametrize(
    ("before", "changed", "after", "expected"),
    [
        ([("dev", {})], None, ["dev", "analyze"], []),
        # What was there is kept.
        ([("dev", FLASH)], "analyze", ["analyze"], [*DEV[:3], "flash-attn", "."]),
        # The main job needs less than the tests, which add to it.
        ([], None, ["analyze"], ["build.txt", "analyze.txt", "torch", "."]),
        ([("analyze", {})], None, ["dev"], DEV),
        # The newest environment has a lock of its own.
        ([], None, ["newest"], ["build.txt", "newest.txt", "torch", "."]),
        ([("dev", {}), ("newest", {})], "newest", ["dev"], []),
        (
            [("dev", {}), ("newest", {})],
            "newest",
            ["newest"],
            ["build.txt", "newest.txt", "torch", "."],
        ),
    ],
)
def test_setup_installs_what_is_missing_or_changed(bare_project, before, changed, after, expected):
    steps, folder = bare_project

    def ensure(name, **options):
        environment = script.NEWEST if name == "newest" else script.PINNED
        script.ensure_environment(f"{name}.txt", environment, **options)

    for name, options in before:
        ensure(name, **options)
    steps.clear()
    if changed:
        (folder / f"requirements/{changed}.txt").write_text(
            f"{read(f'requirements/{changed}.txt')}#"
        )
    for name in after:
        ensure(name)
    assert installed(steps) == expected
    for step in steps:
        if step[-1] == "flash-attn":
            assert {"--no-deps", "--no-build-isolation", "--constraint"}.issubset(step)


def test_setup_refuses_what_is_no_package_built_against_torch(bare_project):
    steps, _ = bare_project
    with pytest.raises(script.SetupError, match="setup takes flash-attn and torchvision, not plot"):
        script.run_task("setup", ["plot"])
    assert steps == []


def test_failed_setup_is_tried_again(bare_project, monkeypatch):
    refused = script.SetupError("no network")
    monkeypatch.setattr(script, "_run", Mock(side_effect=refused))
    with pytest.raises(script.SetupError):
        script.ensure_environment("dev.txt")
    assert not script.PINNED.stamp.exists()


def test_python_without_venv_is_told_what_to_install(bare_project, monkeypatch):
    refusal = subprocess.CompletedProcess([], 1, "", "")
    monkeypatch.setattr(script.subprocess, "run", lambda *args, **kwargs: refusal)
    monkeypatch.setattr(script, "_version_of", lambda python: (3, 12))
    with pytest.raises(script.SetupError, match=r"apt-get install python3\.12-venv"):
        script._make_venv("python3", script.PINNED)


def test_clean_empties_tmp_but_keeps_the_folder_and_models(bare_project):
    _, folder = bare_project
    for name in (
        "tmp/reports/a.json",
        "tmp/.gitignore",
        "models/README.md",
        ".ruff_cache/x",
        "src/__pycache__/x",
        "tests/__pycache__/x",
        "scripts/__pycache__/x",
        "benchmarks/__pycache__/x",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("", encoding="utf-8")
    script.clean()
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == {"tmp/.gitignore", "models/README.md", *COPIED}


def test_a_median_above_its_limit_by_more_than_the_slack_is_missed(capsys):
    ratios = [9.0, 2.1, 1.0]  # their median is 2.1
    answers = [is_within("a / b", ratios, limit, 1.2) for limit in (1.7, 1.8, 2.2)]
    assert answers == [False, True, True]
    assert capsys.readouterr().out.splitlines()[0] == (
        "a / b: 2.10 (at most 1.7, 1.2 times that is allowed), median of 3 rounds from 1.00 to 9.00"
        " MISSED"
    )


def test_what_is_compared_runs_in_turn_after_a_round_that_does_not_count():
    calls = []
    runs = [lambda: calls.append("a") or 1.0, lambda: calls.append("b") or 2.0]
    assert (rounds(runs, 2), calls) == ([[1.0, 2.0], [1.0, 2.0]], ["a", "b"] * 3)


def test_code_that_is_shown_is_in_the_file_that_is_named():
    shown = re.findall(
        r"^<!-- code: (\S+) -->\n```python\n(.*?)\n```$", read("CONTRIBUTING.md"), re.M | re.S
    )
    assert [name for name, text in shown if text not in read(name)] == []
    assert len(shown) == 1


def test_interpreter_that_does_not_run_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHON", str(tmp_path / "no-such-python"))
    with pytest.raises(script.SetupError, match="no-such-python does not run"):
        script.find_python()


@sampled(
    ("line", "status", "said"),
    [
        ("run.py tset", 2, "analyze"),  # the tasks that there are
        ("run.py --active lint --no-such-option", 2, "--no-such-option"),
        ("run.py --active types --version", 0, "mypy"),
        ("deepseek-ocr-static-analysis.py --version", 0, metadata.version("dsocr-analyze")),
    ],
    first(2),
)
def test_scripts_run_and_hand_their_exit_status_on(line, status, said):
    name, *arguments = line.split()
    command = [sys.executable, ROOT / "scripts" / name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == status
    assert said in done.stdout + done.stderr


# Dependencies ------------------------------------------------------------------------------------


def direct_requirements() -> list[Requirement]:
    project = pyproject()["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    found = [Requirement(line) for group in groups for line in group]
    return [item for item in found if item.name != project["name"]]


def lock_lines(name: str) -> list[str]:
    """One per package: its version, its marker, its hashes."""
    text = read(f"requirements/{name}.txt").replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]


@cache
def pins(name: str = "dev") -> dict[str, Requirement]:
    found = [Requirement(line.partition("--hash")[0].strip()) for line in lock_lines(name)]
    return {canonicalize_name(item.name): item for item in found}


def version_of(pin: Requirement) -> str:
    return str(pin.specifier).removeprefix("==")  # another operator is no version


def test_what_pyproject_asks_for_is_locked():
    """What only the tests' peers need is pinned where it stands."""
    peers = map(Requirement, pyproject()["project"]["optional-dependencies"]["peers"])
    locked = pins() | pins("torch") | {canonicalize_name(each.name): each for each in peers}
    for requirement in direct_requirements():
        version = version_of(locked[canonicalize_name(requirement.name)])
        assert requirement.specifier.contains(version), requirement


@pytest.mark.parametrize("name", LOCKS)
def test_every_file_of_every_package_is_locked_by_its_hash(name):
    lines = lock_lines(name)
    for line in lines:
        hashes = re.findall(r"--hash=(\S+)", line)
        assert hashes, line
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes)
        assert version_of(Requirement(line.partition("--hash")[0].strip()))
    assert len(pins(name)) == len(lines)
    assert not {"torch", "torchvision", "flash-attn"}.intersection(pins(name))
    assert not any(each.startswith(("nvidia-", "cuda-", "triton")) for each in pins(name))


@pytest.mark.parametrize("name", ["analyze", "base"])
def test_what_runs_without_the_tests_has_their_versions(name):
    everything = pins()
    assert {key: version_of(everything[key]) for key in pins(name)} == {
        key: version_of(pin) for key, pin in pins(name).items()
    }


def test_only_the_extra_trace_brings_what_runs_models_and_all_that_run_any_include_it():
    project = pyproject()["project"]
    base = {Requirement(line).name for line in project["dependencies"]}
    others = project["optional-dependencies"]
    running = {Requirement(line).name for line in others["trace"]}
    assert not running & {*base, *pins("base")}
    assert running >= {"torch", "transformers", "fvcore"}
    assert {name for name, lines in others.items() if "dsocr-analyze[trace]" in lines} == {
        "vendor", "vision", "flash-attn", "peers", "test"
    }  # fmt: skip
    assert running - {"torch"} <= {*pins("analyze")} & {*pins("newest")}


def test_the_newest_environment_has_what_the_package_accepts_and_the_vendor_does_not():
    needed = pyproject()["project"]["optional-dependencies"]["trace"]
    newest = pins("newest")
    for name in ("transformers", "tokenizers"):
        assert bounds(needed, name).contains(version_of(newest[name]))
        assert version_of(newest[name]) != version_of(pins()[name])
    assert not VENDOR_TRANSFORMERS.contains(version_of(newest["transformers"]))


def test_torch_is_pinned_without_a_local_version():
    assert "+" not in version_of(pins("torch")["torch"])


def bounds(group: list[str], name: str) -> SpecifierSet:
    (found,) = [item.specifier for item in map(Requirement, group) if item.name == name]
    return found


def test_the_vendor_extra_pins_a_version_that_the_vendors_code_runs_on():
    vendor = pyproject()["project"]["optional-dependencies"]["vendor"]
    (pin,) = [item for item in map(Requirement, vendor) if item.name == "transformers"]
    assert VENDOR_TRANSFORMERS.contains(version_of(pin))


# Version -----------------------------------------------------------------------------------------


# Texts -------------------------------------------------------------------------------------------

FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)")


def slug(heading: str) -> str:
    """GitHub's anchor of a heading."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors_of(path: Path) -> set[str]:
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def broken_links(path: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text(encoding="utf-8")))
    broken = []
    for link in LINK.findall(text):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        aim = (path.parent / target).resolve() if target else path
        if not aim.exists() or (anchor and aim.suffix == ".md" and anchor not in anchors_of(aim)):
            broken.append(link)
    return broken


def test_links_between_documents_resolve():
    documents = [path for path in project_files() if path.suffix == ".md"]
    assert ROOT / "README.md" in documents
    found = {str(path.relative_to(ROOT)): broken_links(path) for path in documents}
    assert {name: links for name, links in found.items() if links} == {}


def test_link_check_sees_missing_files_and_anchors(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b` c\n[x](gone.md) [y](#a-b-c) [z](#d)\n```\n[q](no)\n```\n", "utf-8")
    assert broken_links(page) == ["gone.md", "#d"]


MACHINE_PATHS = re.compile(
    rb"(?<![\w.~$}-])/(?:work|opt|root)/[\w.]"  # absolute folders of one machine
    rb"|\.\./shared\b"
    rb"|file:///"
)


def test_nothing_names_a_path_of_one_machine():
    found = {
        str(path.relative_to(ROOT)): sorted(set(MACHINE_PATHS.findall(path.read_bytes())))
        for path in project_files()
        if path != Path(__file__).resolve()
    }
    assert {name: hits for name, hits in found.items() if hits} == {}


# What is built to be published ------------------------------------------------------------------


LEFT_ABOUT = (
    ".env", "tests/.env", "tests/secret.txt", "src/dsocr_analyze/.env", "src/notes.md",
    ".venv/lib/x.py", "tmp/report.json", "models/deepseek-ocr/config.json", "scratch.py",
    "src/dsocr_analyze/__pycache__/x.cpython-311.pyc", "src/dsocr_analyze/model/id_rsa",
)  # fmt: skip


@pytest.mark.exhaustive
def test_the_package_and_its_tests_are_shipped_whole_and_nothing_that_lies_about(tmp_path):
    tracked = set(filter(None, subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")))  # fmt: skip
    copy = tmp_path / "tmp" / "dsocr-analyze"  # in a folder whose contents .gitignore names
    for name in (*tracked, *LEFT_ABOUT):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if name in tracked:
            shutil.copy(ROOT / name, copy / name)
        else:
            (copy / name).write_text("secret")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path],
        cwd=copy, check=True, capture_output=True,
    )  # fmt: skip
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        shipped = {name.partition("/")[2] for name in sdist.getnames()}
    assert shipped - tracked == {"PKG-INFO"}
    wanted = {name for name in tracked if name.startswith(("src/", "tests/"))}
    assert wanted | {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= shipped
