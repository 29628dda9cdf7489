#!/usr/bin/env python3
"""Set up the project's environment where that is needed, then run one task in it.

    python3 scripts/run.py analyze           the main job
    python3 scripts/run.py test -k ledger    further arguments go to the task's last command

The environment is `.venv` beside `pyproject.toml`; the task `newest` has `.venv-newest`. Either is
made and filled on the first call and left alone after that, until `pyproject.toml` or its locks
change. `requirements/` lists the packages, every file by its hash, so pip resolves nothing; torch,
whose builds differ by platform, is listed by version. `PYTHON` names the interpreter to make an
environment with. With `--active` the task runs in the environment that is active now and
nothing is installed: that is how `pixi.toml` calls this script.

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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# tokenizers 0.20, which transformers 4.46 needs, has no wheels beyond the last of these.
SUPPORTED = ((3, 11), (3, 12), (3, 13))
SUPPORTED_NAMES = [f"python{major}.{minor}" for major, minor in SUPPORTED]

# All tests of a file in one process: what they share is made once.
PYTEST = ("python", "-m", "pytest", "-n", "auto", "--maxprocesses", "8", "--dist", "loadfile")
# What takes long, in whatever process is free.
EXHAUSTIVE = ("-m", "exhaustive and not gpu and not benchmark", "--dist", "worksteal")
# Minutes are few: what the versions could change, and the figures that were recorded outside.
NEWEST_TESTS = (
    "tests/test_versions.py",
    "tests/test_any_model.py",
    "tests/test_generate_witness.py",
    "tests/test_golden.py::test_every_stage_counts_what_was_recorded",
    "tests/test_golden.py::test_parameters_are_the_checkpoints",
    "tests/test_key_value_cache.py",
    "tests/test_neighbour_pages.py",
    "tests/test_neighbours.py",
    "tests/test_passes.py",
    "tests/test_reference_networks.py",
    "tests/test_resizing.py",
    "tests/test_tree.py",
)
LINT = (
    ("dsocr-analyze", "docs", "--check"),
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
)
TYPES = (("mypy",),)


@dataclass(frozen=True)
class Environment:
    """Where packages are installed, and in which versions.

    Attributes:
        name: Of its folder.
        locks: Files of `requirements/` that it can hold, each with more than the one before.
    """

    name: str
    locks: tuple[str, ...]

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


PINNED = Environment(".venv", ("analyze.txt", "dev.txt"))
NEWEST = Environment(".venv-newest", ("newest.txt",))
BASE_LOCK = "base.txt"  # what is installed without an extra, and so without torch
BUILD_LOCK = "build.txt"  # pip, and what builds the packages that come as sources
VERSIONS = "torch.txt"  # of torch, and of what is built against it
CPU_BUILDS = "torch-cpu.txt"  # of torch, by hash, for DSOCR_TORCH=cpu


@dataclass(frozen=True)
class Task:
    """What a task needs installed and what it runs, in order, until something fails."""

    summary: str
    lock: str = "dev.txt"
    commands: tuple[tuple[str, ...], ...] = ()
    environment: Environment = PINNED


TASKS = {
    "analyze": Task(
        "run the main job: the table, and reports in tmp/dsocr-static-ops",
        lock="analyze.txt",
        commands=(("dsocr-analyze", "--base-size", "1024", "--image-size", "640"),),
    ),
    "test": Task("run the tests", commands=(PYTEST,)),
    "exhaustive": Task("run the tests that test leaves out", commands=((*PYTEST, *EXHAUSTIVE),)),
    "newest": Task(
        "run tests of the built-in reference and of lone configs under the newest transformers",
        lock="newest.txt",
        commands=(
            # All of these would take ten minutes.
            (*PYTEST, "tests/test_confinement.py", "tests/test_ties.py"),
            (*PYTEST, "-m", "not gpu and not benchmark", *NEWEST_TESTS),
        ),
        environment=NEWEST,
    ),
    "lint": Task("check style, formatting and computed documents", commands=LINT),
    "types": Task("check types", commands=TYPES),
    "check": Task("lint, types and tests", commands=(*LINT, *TYPES, PYTEST)),
    "format": Task(
        "mend style and formatting where that can be done by machine",
        commands=(("ruff", "check", "--fix", "."), ("ruff", "format", ".")),
    ),
    "docs": Task(
        "write the generated part of docs/ again",
        commands=(("dsocr-analyze", "docs"),),
    ),
    "site": Task(
        "build docs/ into a site, build/site (needs npm)",
        commands=(
            ("npm", "ci", "--prefix", "website", "--no-audit", "--no-fund"),
            ("mkdocs", "build", "--strict"),
        ),
    ),
    "distributions": Task(
        "build the wheel and the sdist, and run each in clean environments, with and without torch",
        commands=(("python", "scripts/distributions.py"),),
    ),
    "benchmarks": Task("run every benchmarks/bench_*.py"),
    "ratios": Task(
        "run the benchmarks that CI runs, with a fifth of slack",
        commands=tuple(
            ("python", f"benchmarks/bench_{name}.py", "--slack", "1.2")
            for name in ("main_job", "trace", "sweep", "count")
        ),
    ),
    "setup": Task("only set up the environment; arguments: flash-attn, torchvision"),
    "clean": Task("remove caches, builds and the contents of tmp/"),
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


def _requirements(name: str) -> Path:
    return ROOT / "requirements" / name


def _fingerprint(environment: Environment) -> str:
    names = (BUILD_LOCK, VERSIONS, CPU_BUILDS, *environment.locks)
    paths = (ROOT / "pyproject.toml", *map(_requirements, names))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()


def _built_against_torch() -> list[str]:
    """Packages besides torch that are installed by version."""
    lines = _requirements(VERSIONS).read_text(encoding="utf-8").splitlines()
    names = [line.partition("==")[0] for line in lines if line and not line.startswith("#")]
    return [name for name in names if name != "torch"]


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


def install_packages(python: str, lock: str, built_against_torch: Iterable[str] = ()) -> None:
    """Everything but this project: by its hash, and torch by version if the lock is of traces."""
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    install += ["--no-compile"]  # pip compiles in one process: `_compile` takes half as long
    # Only these two come as sources; no other package runs code of its own here.
    hashed = [*install, "--require-hashes", "--no-deps", "--no-build-isolation"]
    hashed += ["--only-binary", ":all:", "--no-binary", "fvcore,iopath"]
    versioned = [*install, "--constraint", str(_requirements(VERSIONS)), "--no-build-isolation"]
    for name in (BUILD_LOCK, lock):
        _run([*hashed, "--requirement", str(_requirements(name))])
    if lock == BASE_LOCK:
        return
    if os.environ.get("DSOCR_TORCH") == "cpu":
        _run([*hashed, "--requirement", str(_requirements(CPU_BUILDS))])
    else:
        _run([*versioned, "torch"])  # with the CUDA packages of its build, where it has any
    if built_against_torch:
        _run([*versioned, "--no-deps", *built_against_torch])


def install_project(python: str, *what: str) -> None:
    """This project, from the checkout or a file, and a look at whether anything is missing."""
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", *what])
    _run([*pip, "check"])


def _install(environment: Environment, lock: str, packages: list[str]) -> None:
    python = str(environment.python)
    _say(f"installing {lock} into {environment.name} (this takes minutes the first time)")
    install_packages(python, lock, packages)
    install_project(python, "--editable", ".")
    _compile(python)


def _compile(python: str) -> None:
    """Compile what is installed and this project, on all cores.

    Files for another Python, which do not compile, stay as they are.
    """
    code = (
        "import compileall, sys, sysconfig\n"
        "for folder in (sysconfig.get_path('purelib'), *sys.argv[1:]):\n"
        "    compileall.compile_dir(folder, quiet=2, workers=0)\n"
    )
    _run([python, "-c", code, str(ROOT / "src")])


def ensure_environment(
    lock: str, environment: Environment = PINNED, packages: Iterable[str] = ()
) -> None:
    """Make it hold this project, what `lock` names and `packages`; do nothing where it does."""
    stamp = _read_stamp(environment)
    if _is_stale(stamp) or _version_of(str(environment.python)) is None:
        _make_venv(find_python(), environment)
        stamp = {}
    fingerprint = _fingerprint(environment)
    held, listed = stamp.get("lock"), stamp.get("packages")
    present = {str(each) for each in listed} if isinstance(listed, list) else set()
    largest = max(lock, held if held in environment.locks else lock, key=environment.locks.index)
    wanted = sorted(present.union(packages))
    entry = {
        "root": str(ROOT), "python": list(_version_of(str(environment.python)) or ()),
        "fingerprint": fingerprint, "lock": largest, "packages": wanted,
    }  # fmt: skip
    if stamp == entry:
        return
    _install(environment, largest, wanted)
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
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process compiles anew
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
    environment, packages = TASKS[name].environment, []
    if name == "setup":
        packages, arguments = arguments, []
        unknown = set(packages).difference(_built_against_torch())
        if unknown:
            raise SetupError(
                f"setup takes {' and '.join(_built_against_torch())}, not {min(unknown)};"
                " every other extra is installed in any case"
            )
    if not active:
        ensure_environment(TASKS[name].lock, environment, packages)
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
