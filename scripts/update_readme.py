#!/usr/bin/env python3
"""Runs what the README and docs/*.md name: commands, for output and pictures, and benchmarks."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"(<!-- output: dsocr-analyze ([^\n]*) -->\n```text\n)(.*?)(```)", re.DOTALL)
FIRST = re.compile(
    r"(<!-- first (\d+) lines: dsocr-analyze ([^\n]*) -->\n```text\n)(.*?)(```)", re.DOTALL
)
TABLE = re.compile(r"(<!-- table: ([^:\n]*): dsocr-analyze ([^\n]*) -->\n)((?:\n?\|[^\n]*\n)*)")
PICTURE = re.compile(r"<!-- picture: dsocr-analyze ([^\n]*) -->")
BENCHMARK = re.compile(r"^- [^\n]*(?:\n  [^\n]*)*?\(`(benchmarks/\w+\.py)`\)\.\n", re.MULTILINE)
"""A bullet whose figures are a benchmark's, which prints it with --sentence."""
LONGEST_ANSWER = 12


def shown_part(output: str) -> str:
    """What a document shows: an answer as it is, and of longer outputs the tables."""
    if len(output.splitlines()) <= LONGEST_ANSWER:
        return output
    tables = [part.strip("\n") for part in output.split("\n\n") if "\n\u2500\u2500" in part]
    return "\n\n".join(tables) + "\n"


def first_lines(output: str, count: int) -> str:
    """As many lines of an output."""
    return "".join(output.splitlines(keepends=True)[:count])


def shown_table(output: str, heading: str) -> str:
    """The table below a heading of an output in Markdown."""
    return output.partition(f"## {heading}\n")[2].strip().partition("\n\n")[0] + "\n"


def run(command: str, directory: Path) -> str:
    """What a command, run in a directory, prints to a terminal of 100 columns."""
    done = subprocess.run(
        [sys.executable, "-m", "dsocr_analyze", *shlex.split(command)],
        cwd=directory,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    # A digest of the code would change with every comment in it.
    return re.sub(r"code \w{12}, config", "code ..., config", done.stdout)


@cache
def output_of(command: str) -> str:
    """What a command prints, run where its files disturb nobody."""
    with tempfile.TemporaryDirectory() as directory:
        return run(command, Path(directory))


def bullet_of(script: str) -> str:
    """What a benchmark says of itself, as a bullet."""
    done = subprocess.run(
        [sys.executable, ROOT / script, "--sentence"], capture_output=True, text=True, check=True
    )
    return textwrap.fill(f"- {done.stdout.strip()}", 100, subsequent_indent="  ") + "\n"


def main() -> None:
    """Runs everything that the documents show the output, the picture or the figures of."""
    for document in DOCUMENTS:
        text = before = document.read_text(encoding="utf-8")
        for command in PICTURE.findall(text):
            run(command, ROOT)
        text = BLOCK.sub(lambda m: m[1] + shown_part(output_of(m[2])) + m[4], text)
        text = FIRST.sub(lambda m: m[1] + first_lines(output_of(m[3]), int(m[2])) + m[5], text)
        text = TABLE.sub(lambda m: f"{m[1]}\n{shown_table(output_of(m[3]), m[2])}", text)
        text = BENCHMARK.sub(lambda m: bullet_of(m[1]), text)
        if text != before:
            document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
