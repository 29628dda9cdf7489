"""Parts hold every test once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from parts import Part

TESTS = [f"tests/test_{file}.py::test_{name}" for file in "abcdefgh" for name in range(40)]


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_every_test_is_in_one_part(of):
    parts = [
        {test for test in TESTS if Part(number, of).holds(test)} for number in range(1, of + 1)
    ]
    assert sorted(test for part in parts for test in part) == sorted(TESTS)
    assert all(0.5 < len(part) * of / len(TESTS) < 1.5 for part in parts)


def test_a_group_is_in_one_part(tmp_path):
    (tmp_path / "test_them.py").write_text(
        "import pytest\n"
        "@pytest.mark.xdist_group(name='together')\n"
        "@pytest.mark.parametrize('case', range(40))\n"
        "def test_group(case): pass\n"
        "@pytest.mark.parametrize('case', range(40))\n"
        "def test_alone(case): pass\n"
    )
    counts = []
    for number in (1, 2, 3):
        arguments = ["-n0", "-q", "--part", f"{number}/3", "-p", "conftest", "test_them.py"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=tmp_path, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        )  # fmt: skip
        counts.append(int(done.stdout.split(" passed")[0].split()[-1]))
    assert sum(counts) == 80
    assert sum(count >= 40 for count in counts) == 1


def test_a_part_is_read():
    assert Part.parse("2/3") == Part(2, 3)
    assert Part.parse("12/12") == Part(12, 12)


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "1/0", "-1/3", "1/3/5", "a/b", " 1/3"])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(pytest.UsageError, match="give a part as K/N, from 1/N to N/N"):
        Part.parse(text)
