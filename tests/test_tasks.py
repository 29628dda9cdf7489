"""What people come with: every task of the documentation is one command that works."""

import json
import shlex
from pathlib import Path

import pytest
from command_line import run
from PIL import Image
from sampling import every, sampled

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
def there(folder, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    if not Path("report.json").exists():
        assert run(capsys, "--engine", "analytic", "--json", "report.json", "-q")[0] == 0
    return folder


def test_there_are_thirty_and_none_twice():
    assert len({*TASKS.values()}) == len(TASKS) >= 30


def test_the_documentation_lists_them():
    assert task_table() in DOCUMENTED.read_text(encoding="utf-8")


@sampled("task", TASKS.values(), every(16, start=5), ids=lambda task: task or "alone")
def test_each_is_one_command(there, capsys, task):
    code, out, err = run(capsys, *shlex.split(task))
    assert code == 0, err
    assert out
    assert "Traceback" not in err


class TestAnswers:
    """What the commands are asked for is in what they print."""

    def said(self, capsys, command):
        assert command in TASKS.values()
        return run(capsys, *shlex.split(command))[1]

    @pytest.mark.exhaustive
    def test_a_folder_has_all_its_pages(self, there, capsys):
        text = self.said(capsys, "archive scans")
        assert "17 pages" in text  # four images, ten frames, three pages of a PDF
        assert ".txt" in text

    @pytest.mark.exhaustive
    def test_a_batch_and_its_page_are_told_apart(self, there, capsys):
        text = self.said(capsys, "--engine analytic --batch-size 16")
        assert "batch 16: prefill" in text
        assert "1/16 of the batch" in text

    def test_the_changed_key_is_named(self, there, capsys):
        text = self.said(capsys, "compare base --config config.json --config slim.json")
        assert "num_experts_per_tok" in text

    @pytest.mark.exhaustive
    def test_a_script_gets_json(self, there, capsys):
        text = self.said(capsys, "--engine analytic --json - --quiet")
        assert json.loads(text)["total"]["page"]["flops"] == 5_857_657_126_489

    @pytest.mark.exhaustive
    def test_the_page_for_a_colleague_is_there(self, there, capsys):
        self.said(capsys, "--engine analytic --gpu h100 --html page.html")
        assert "5857657126489" in Path("page.html").read_text(encoding="utf-8")
