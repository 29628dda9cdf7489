"""The files that the commands of docs/tasks.md name."""

from __future__ import annotations

import json
from pathlib import Path

import pypdf
from PIL import Image

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.model.directory import read_config

BUDGETS = """
[workloads.page]
config = "config.json"

[[workloads.page.budgets]]
key = "total.page.flops"
max = 6_000_000_000_000
"""


def write_task_files(folder: Path) -> None:
    """Writes what the first paragraph of the documentation names, except the saved report."""
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
    (folder / "lengths.csv").write_text("new_tokens\n300\n900\n8192\n")
