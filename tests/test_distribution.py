"""What is built to be published holds what is tracked, and nothing that lies about."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


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
