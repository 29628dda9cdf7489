"""A campaign of hostile input as long as CI has time for; `make campaign` runs the long one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hostile.kinds import KINDS, TRACED
from hostile.oracle import run_case

TESTS = Path(__file__).parent
EACH, EACH_TRACED = 40, 6


NO_FAULTS = ("--killed", 0, "--interrupted", 0, "--full-disk", 0, "--two-writers", 0)


def run(*arguments, path=()):
    """A campaign's exit code, stdout and stderr; `path` comes before the program's own."""
    folders = map(str, (*path, TESTS.parent / "src", TESTS))
    ended = subprocess.run(
        [sys.executable, "-m", "hostile", "--processes", "1", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout, ended.stderr


def test_no_case_of_a_quick_kind_breaks_a_promise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for seed, kind in enumerate(kind for kind in KINDS if kind not in TRACED):
        assert run_case(kind, seed, tmp_path / "case").findings == (), (kind, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_no_case_breaks_a_promise(kind):
    count = EACH_TRACED if kind in TRACED else EACH
    code, said, err = run("--kind", kind, "--cases", count, *NO_FAULTS)
    assert (code, err) == (0, ""), said + err
    assert f"{count} cases, 0 findings" in said


@pytest.mark.exhaustive
def test_no_fault_breaks_a_promise():
    faults = ("--killed", 5, "--interrupted", 5, "--full-disk", 8, "--two-writers", 3)
    code, said, err = run("--cases", 0, *faults)
    assert (code, err) == (0, ""), said + err
    assert "killed: 5 times; exit codes: " in said
    assert "21 faults, 0 findings" in said


@pytest.mark.exhaustive
def test_a_broken_promise_is_found(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "from dsocr_analyze.model import directory\n"
        "def broken(path):\n    raise ZeroDivisionError('\\x1b[2K' + 'x' * 600)\n"
        "directory.read_config = broken\n"
    )
    code, said, _ = run("--kind", "config", "--cases", 3, *NO_FAULTS, path=[tmp_path])
    assert code == 1
    assert "FOUND config --seed 0: exit code 70" in said
