"""The change log says which figures moved between versions, by how much, and why."""

import re
from pathlib import Path

import msgspec
import pytest
from command_line import run

from dsocr_analyze.gate.budgets import ReportKeys
from dsocr_analyze.report.document import Report

LOG = (Path(__file__).parent.parent / "CHANGELOG.md").read_text(encoding="utf-8")
VERSIONS = re.findall(r"^## \[(.*?)\].*?\n(.*?)(?=^## |\Z)", LOG, re.M | re.S)
MOVED = re.compile(r"^### Figures that moved\n(.*?)(?=^###? |\Z)", re.M | re.S)
ROW = re.compile(r"^\| `(.+?)` \| (.+?) \| (.+?) \| (.+?) \|$", re.M)
PAGE = ("--engine", "analytic", "--model", "reference", "--gpu", "h100-sxm", "--runtime",
        "eager,serving", "--concurrency", "1,16", "--corrections", "0")  # fmt: skip


@pytest.mark.parametrize(("version", "text"), VERSIONS)
def test_every_version_has_its_moved_figures_with_a_reason(version, text):
    (moved,) = MOVED.findall(text)
    for key, was, now, why in ROW.findall(moved):
        assert was != now, key
        assert len(why.split()) > 3, key


def test_the_page_that_all_versions_are_compared_by_costs_what_the_log_says(capsys, tmp_path):
    """Counts to the last digit, seconds to four; whatever moves one states it, with its reason."""
    (moved,) = MOVED.findall(VERSIONS[0][1])
    code, out, _ = run(capsys, *PAGE, "--output", tmp_path, "--json", "-", "-q")
    assert code == 0
    keys, rows = ReportKeys(msgspec.json.decode(out, type=Report)), ROW.findall(moved)
    said = {key: float(now.replace(",", "")) for key, _, now, _ in rows}
    assert len(said) == len(rows) > 10
    for key, figure in said.items():
        (found,) = keys.figures(key).values()
        assert figure == (found if float(found).is_integer() else float(f"{found:.4g}")), key
