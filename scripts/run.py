#!/usr/bin/env python3
"""Set up the project's environment where that is needed, then run one task in it.

    python3 scripts/run.py analyze           the main job
    python3 scripts/run.py test -k ledger    further arguments go to the task's last command

The environment is `.venv` beside `pyproject.toml`, with the versions of `constraints.txt`; the task
`newest` has `.venv-newest`, where those of `constraints-newest.txt` stand in their place. Either is
made and filled on the first call and left alone after that, until `pyproject.toml` or its pins
change. `PYTHON` names the interpreter to make it with. With `--active` the task runs in the
environment that is active now and nothing is installed: that is how `pixi.toml` calls this script.

Standard library only, and it must start on an old Python to be able to say that it is too old.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# tokenizers 0.20, which transformers 4.46 needs, has no wheels beyond the last of these.
SUPPORTED = ((3, 11), (3, 12), (3, 13))
SUPPORTED_NAMES = [f"python{major}.{minor}" for major, minor in SUPPORTED]

PYTEST = ("python", "-m", "pytest", "-n", "auto", "--maxprocesses", "8", "--dist", "worksteal")
# Minutes are few: what the versions could change, and the figures that were recorded outside.
NEWEST_TESTS = (
    "tests/test_versions.py",
    "tests/test_golden.py::test_every_stage_counts_what_was_recorded",
    "tests/test_golden.py::test_parameters_are_the_checkpoints",
    "tests/test_key_value_cache.py",
    "tests/test_passes.py",
    "tests/test_reference_model.py",
    "tests/test_tree.py",
)
LINT = (("ruff", "check", "."), ("ruff", "format", "--check", "."))
TYPES = (("mypy",),)


@dataclass(frozen=True)
class Environment:
    """Where packages are installed, and in which versions.

    Attributes:
        name: Of its folder.
        pins: Files of exact versions; what a later one names, it names in place of the others.
        extras: What it holds whatever the task.
    """

    name: str
    pins: tuple[str, ...]
    extras: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where it is."""
        return ROOT / self.name

    @property
    def bin(self) -> Path:
        """Where its programs are."""
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.bin / ("python.exe" if os.name == "nt" else "python")

    @property
    def stamp(self) -> Path:
        """What a setup that ended well has written."""
        return self.folder / "dsocr-analyze-setup.json"


PINNED = Environment(".venv", ("constraints.txt",), extras=("vendor",))
NEWEST = Environment(".venv-newest", ("constraints.txt", "constraints-newest.txt"))


@dataclass(frozen=True)
class Task:
    """What a task needs installed and what it runs, in order, until something fails."""

    summary: str
    extras: tuple[str, ...] = ("dev",)
    commands: tuple[tuple[str, ...], ...] = ()
    environment: Environment = PINNED


TASKS = {
    "analyze": Task(
        "run the main job: the table, and reports in tmp/dsocr-static-ops",
        extras=(),
        commands=(("dsocr-analyze", "--base-size", "1024", "--image-size", "640"),),
    ),
    "test": Task("run the tests", commands=(PYTEST,)),
    "newest": Task(
        "run the tests of the built-in network under the newest transformers",
        extras=("test",),
        commands=((*PYTEST, *NEWEST_TESTS),),
        environment=NEWEST,
    ),
    "lint": Task("check style and formatting", commands=LINT),
    "types": Task("check types", commands=TYPES),
    "check": Task("lint, types and tests", commands=(*LINT, *TYPES, PYTEST)),
    "format": Task(
        "mend style and formatting where that can be done by machine",
        commands=(("ruff", "check", "--fix", "."), ("ruff", "format", ".")),
    ),
    "docs": Task(
        "write the generated part of docs/ again",
        commands=(("dsocr-analyze", "docs", "--output", "docs"),),
    ),
    "site": Task(
        "build docs/ into a site, build/site (needs npm)",
        extras=("docs",),
        commands=(
            ("npm", "ci", "--prefix", "website", "--no-audit", "--no-fund"),
            ("mkdocs", "build", "--strict"),
        ),
    ),
    "campaign": Task(
        "attack with 100,000 hostile inputs, 200 kills and 1,000 interruptions (an hour or two)",
        commands=(("python", "scripts/campaign.py"),),
    ),
    "benchmarks": Task("run every benchmarks/bench_*.py", extras=("dev", "profiles")),
    "setup": Task("only set up the environment; arguments name further extras"),
    "clean": Task("remove caches, builds and the contents of tmp/", extras=()),
}


class SetupError(Exception):
    """Something that the person at the keyboard has to mend."""


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _run(command: list[str]) -> None:
    """Run a step of the setup; its output goes to stderr, stdout is the task's."""
    if subprocess.run(command, cwd=ROOT, stdout=sys.stderr.fileno()).returncode:
        raise SetupError(f"this failed: {' '.join(command)}")


# Python ------------------------------------------------------------------------------------------


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _version_of(python: str) -> tuple[int, int] | None:
    """Major and minor version of an interpreter, or None where it does not run."""
    code = "import sys; print(sys.version_info[0], sys.version_info[1])"
    try:
        answer = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    if answer.returncode:
        return None
    major, minor = answer.stdout.split()
    return int(major), int(minor)


def find_python() -> str:
    """Interpreter to make the environment with: `PYTHON`, this one, or one on the path."""
    named = os.environ.get("PYTHON")
    if named:
        version = _version_of(named)
        if version is None:
            raise SetupError(f"PYTHON={named} does not run")
        if version < SUPPORTED[0]:
            raise SetupError(f"PYTHON={named} is Python {_dotted(version)}; 3.11 to 3.13 work")
        return named
    candidates = [sys.executable, *SUPPORTED_NAMES, "python3"]
    for candidate in candidates:
        if _version_of(candidate) in SUPPORTED:
            return candidate
    raise SetupError(
        f"no Python 3.11, 3.12 or 3.13 found (this is {_dotted(sys.version_info[:2])}): "
        "install one, or name one with PYTHON=/path/to/python"
    )


def _make_venv(python: str, environment: Environment) -> None:
    if subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True).returncode:
        raise SetupError(
            f"{python} cannot make environments: on Debian or Ubuntu, 'apt-get install "
            f"python{_dotted(_version_of(python) or SUPPORTED[0])}-venv' mends that"
        )
    _say(f"making {environment.name} with {python}")
    _run([python, "-m", "venv", "--clear", str(environment.folder)])


# Installation ------------------------------------------------------------------------------------


def _fingerprint(environment: Environment) -> str:
    parts = [(ROOT / name).read_bytes() for name in ("pyproject.toml", *environment.pins)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _constraints(environment: Environment) -> Path:
    """One file of all its pins, which pip takes."""
    pins = {}
    for name in environment.pins:
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                pins[line.partition("==")[0].lower()] = line
    merged = environment.folder / "constraints.txt"
    merged.write_text("".join(f"{line}\n" for line in pins.values()), encoding="utf-8")
    return merged


def _read_stamp(environment: Environment) -> dict[str, object]:
    """What an earlier setup wrote, or nothing where there was none that ended well."""
    try:
        stamp = json.loads(environment.stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _is_stale(stamp: dict[str, object]) -> bool:
    """Whether an environment of ours belongs to another place or another Python."""
    if not stamp:
        return False
    named = os.environ.get("PYTHON")
    moved = stamp.get("root") != str(ROOT)
    return moved or (named is not None and list(_version_of(named) or ()) != stamp.get("python"))


def _install(environment: Environment, extras: list[str]) -> None:
    python = str(environment.python)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install"]
    pip += ["--constraint", str(_constraints(environment))]
    ordinary = [extra for extra in extras if extra != "flash-attn"]
    target = f".[{','.join(ordinary)}]" if ordinary else "."
    _say(f"installing {target} into {environment.name} (this takes minutes the first time)")
    _run([*pip, "--quiet", "--upgrade", "pip"])
    _run([*pip, "--quiet", "--editable", target])
    # pip compiles what it installs, but not what it only points at.
    _run([python, "-m", "compileall", "-q", str(ROOT / "src")])
    if "flash-attn" in extras:  # its build imports torch, so it cannot be isolated
        _run([*pip, "--quiet", "ninja", "packaging", "psutil", "setuptools", "wheel"])
        _run([*pip, "--no-build-isolation", "flash-attn"])


def ensure_environment(extras: tuple[str, ...], environment: Environment = PINNED) -> None:
    """Make it hold this project and `extras`; do nothing where it does."""
    extras = (*environment.extras, *extras)
    stamp = _read_stamp(environment)
    if _is_stale(stamp) or _version_of(str(environment.python)) is None:
        _make_venv(find_python(), environment)
        stamp = {}
    fingerprint = _fingerprint(environment)
    listed = stamp.get("extras")
    present = {str(extra) for extra in listed} if isinstance(listed, list) else set()
    if stamp.get("fingerprint") == fingerprint and present.issuperset(extras):
        return
    wanted = sorted(present.union(extras))
    _install(environment, wanted)
    version = _version_of(str(environment.python))
    entry = {"root": str(ROOT), "python": version, "fingerprint": fingerprint, "extras": wanted}
    environment.stamp.write_text(json.dumps(entry), encoding="utf-8")


# Tasks -------------------------------------------------------------------------------------------


def clean() -> None:
    """Remove what tasks leave behind. Environments and `models/` stay."""
    for name in (".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "build", "dist"):
        shutil.rmtree(ROOT / name, ignore_errors=True)
    for folder in ("src", "tests", "scripts", "benchmarks"):
        for cache in list((ROOT / folder).rglob("__pycache__")):
            shutil.rmtree(cache)
    for entry in (ROOT / "tmp").iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != ".gitignore":
            entry.unlink()


def _commands(name: str) -> list[tuple[str, ...]]:
    if name != "benchmarks":
        return list(TASKS[name].commands)
    scripts = sorted((ROOT / "benchmarks").glob("bench_*.py"))
    if not scripts:
        raise SetupError("there is no benchmarks/bench_*.py")
    return [("python", str(script.relative_to(ROOT))) for script in scripts]


def _variables(environment: Environment | None) -> dict[str, str]:
    """What a task's commands find; None is the environment that is active now."""
    folder = Path(sys.executable).parent if environment is None else environment.bin
    env = dict(os.environ)
    env["PATH"] = os.pathsep.join([str(folder), env.get("PATH", os.defpath)])
    env.setdefault("NO_MKDOCS_2_WARNING", "1")  # the theme's notice of its successor is no warning
    if environment is not None:
        env["VIRTUAL_ENV"] = str(environment.folder)
        env.pop("PYTHONHOME", None)
    return env


def run_task(name: str, arguments: list[str], *, active: bool = False) -> int:
    """Run a task; the exit status is that of its first command to fail, or 0."""
    if name == "clean":
        clean()
        return 0
    extras, environment = TASKS[name].extras, TASKS[name].environment
    if name == "setup":
        extras, arguments = (*extras, *arguments), []
    if not active:
        ensure_environment(extras, environment)
    commands = _commands(name)
    env = _variables(None if active else environment)
    for number, command in enumerate(commands, start=1):
        program = shutil.which(command[0], path=env["PATH"])
        if program is None:
            raise SetupError(f"{command[0]} is not installed in this environment")
        rest = arguments if number == len(commands) else []
        status = subprocess.run([program, *command[1:], *rest], cwd=ROOT, env=env).returncode
        if status:
            return status
    return 0


def main() -> int:
    """Read the command line and run the task it names."""
    width = max(map(len, TASKS))
    listing = "\n".join(f"  {name:<{width}}  {task.summary}" for name, task in TASKS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/run.py",
        description="Set up an environment where that is needed, then run one task in it.",
        epilog=f"tasks:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--active", action="store_true", help="use the active environment as it is")
    parser.add_argument("task", choices=list(TASKS), metavar="TASK")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    options = parser.parse_args()
    try:
        return run_task(options.task, options.arguments, active=options.active)
    except SetupError as error:
        _say(f"run.py: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
