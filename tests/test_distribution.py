"""What is built to be published holds what is tracked, and nothing that lies about."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the tracked files under a folder called tmp, whose contents .gitignore names."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    copy = tmp_path_factory.mktemp("tmp") / "dsocr-analyze"
    for name in filter(None, tracked):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy, set(filter(None, tracked))


LEFT_ABOUT = (
    ".env", "tests/.env", "tests/secret.txt", "src/dsocr_analyze/.env", "src/notes.md",
    ".venv/lib/x.py", "tmp/report.json", "models/deepseek-ocr/config.json", "scratch.py",
    "src/dsocr_analyze/__pycache__/x.cpython-311.pyc", "src/dsocr_analyze/model/id_rsa",
)  # fmt: skip


@pytest.fixture(scope="module")
def shipped(checkout, tmp_path_factory):
    copy, _ = checkout
    for name in LEFT_ABOUT:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("secret")
    built = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", built],
        cwd=copy, check=True, capture_output=True,
    )  # fmt: skip
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


def test_nothing_that_lies_about_is_shipped(checkout, shipped):
    _, tracked = checkout
    assert shipped - tracked == {"PKG-INFO"}


def test_the_package_and_its_tests_are_shipped_whole(checkout, shipped):
    _, tracked = checkout
    wanted = {name for name in tracked if name.startswith(("src/", "tests/"))}
    assert wanted - shipped == set()
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= shipped
