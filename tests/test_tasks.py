"""What people come with: every task of the documentation is one command that works."""

import json
import shlex
from pathlib import Path

import pytest
from command_line import run
from PIL import Image
from sampling import named, sampled

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.cli.docs import TASKS, task_table
from dsocr_analyze.model.directory import read_config

DOCUMENTED = Path(__file__).parent.parent / "docs" / "tasks.md"

BUDGETS = """
[workloads.page]
config = "config.json"

[[workloads.page.budgets]]
key = "total.page.flops"
max = 6_000_000_000_000
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the first paragraph of the documentation names."""
    pypdf = pytest.importorskip("pypdf")
    folder = tmp_path_factory.mktemp("tasks")
    page = Image.new("L", (620, 877))
    page.save(folder / "page.png")
    scans = folder / "scans"
    scans.mkdir()
    for name in ("a.png", "b.jpg", "c.webp", "d.png"):
        page.save(scans / name)
    page.save(scans / "ten.tiff", save_all=True, append_images=[page] * 9)
    writer = pypdf.PdfWriter()
    for _ in range(3):
        writer.add_blank_page(595, 842)
    writer.write(scans / "three.pdf")
    (scans / "readme.txt").write_text("no page")
    config = dict(read_config(DEFAULT.reference / "config.json"))
    (folder / "config.json").write_text(json.dumps(config))
    config["num_experts_per_tok"] = 5
    config["language_config"] = {**config["language_config"], "num_experts_per_tok": 5}
    (folder / "slim.json").write_text(json.dumps(config))
    (folder / "dsocr-budgets.toml").write_text(BUDGETS)
    return folder


@pytest.fixture
def there(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def test_the_documentation_lists_thirty_and_none_twice():
    assert len({*TASKS.values()}) == len(TASKS) >= 30
    assert task_table() in DOCUMENTED.read_text(encoding="utf-8")


SAID = {
    "archive scans": ["17 pages", ".txt"],  # four images, ten frames, three pages of a PDF
    "--engine analytic --batch-size 16": ["batch 16: prefill", "1/16 of the batch"],
    "compare base --config config.json --config slim.json": ["num_experts_per_tok"],
    "--engine analytic --json - --quiet": ['"flops": 5857657126489'],
}
"""What is asked for is in what some commands print."""

QUICK = "--engine analytic --json - --quiet"


@sampled("task", TASKS.values(), named(QUICK), ids=lambda task: task or "alone")
def test_each_is_one_command(there, capsys, task):
    if "report.json" in task:
        assert run(capsys, "--engine", "analytic", "--json", "report.json", "-q")[0] == 0
    code, out, err = run(capsys, *shlex.split(task))
    assert code == 0, err
    assert out
    assert "Traceback" not in err
    assert [each for each in SAID.get(task, ()) if each not in out] == []
    assert "--html" not in task or "5857657126489" in Path("page.html").read_text(encoding="utf-8")


def test_what_is_said_is_of_a_task():
    assert SAID.keys() | {QUICK} <= {*TASKS.values()}
