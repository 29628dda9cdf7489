"""A campaign of hostile input as long as CI has time for; `make campaign` runs the long one."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hostile.kinds import KINDS, TRACED

TESTS = Path(__file__).parent
EACH, EACH_TRACED = 40, 6


def run(*arguments):
    source = TESTS.parent / "src"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(TESTS)))}
    return subprocess.run(
        [sys.executable, "-m", "hostile", "--processes", "1", *map(str, arguments)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


NO_FAULTS = ("--killed", 0, "--interrupted", 0, "--full-disk", 0, "--two-writers", 0)


def test_no_case_of_a_quick_kind_breaks_a_promise():
    quick = [kind for kind in KINDS if kind not in TRACED]
    kinds = itertools.chain(*(("--kind", kind) for kind in quick))
    ended = run(*kinds, "--cases", len(quick), *NO_FAULTS)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    assert f"{len(quick)} cases, 0 findings" in ended.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_no_case_breaks_a_promise(kind):
    count = EACH_TRACED if kind in TRACED else EACH
    ended = run("--kind", kind, "--cases", count, *NO_FAULTS)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    assert f"{count} cases, 0 findings" in ended.stdout


@pytest.mark.exhaustive
def test_no_fault_breaks_a_promise():
    ended = run("--cases", 0, "--killed", 5, "--interrupted", 5, "--full-disk", 8,
                "--two-writers", 3)  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    assert "killed: 5 times; exit codes: " in ended.stdout
    assert "21 faults, 0 findings" in ended.stdout


@pytest.mark.exhaustive
def test_a_broken_promise_is_found(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "from dsocr_analyze.model import directory\n"
        "def broken(path):\n    raise ZeroDivisionError('\\x1b[2K' + 'x' * 600)\n"
        "directory.read_config = broken\n"
    )
    source = TESTS.parent / "src"
    path = os.pathsep.join(map(str, (tmp_path, source, TESTS)))
    ended = subprocess.run(
        [sys.executable, "-m", "hostile", "--processes", "1", "--kind", "config", "--cases", "3",
         *map(str, NO_FAULTS)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "FOUND config --seed 0: exit code 70" in ended.stdout
