#!/usr/bin/env python3
"""Runs the commands named in README.md: replaces the output shown below, or draws the picture."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"(<!-- output: dsocr-analyze ([^\n]*) -->\n```text\n)(.*?)(```)", re.DOTALL)
PICTURE = re.compile(r"<!-- picture: dsocr-analyze ([^\n]*) -->")
LONGEST_ANSWER = 12


def shown_part(output: str) -> str:
    """What the README shows: an answer as it is, and of longer outputs the tables."""
    # A digest of the code would change with every comment in it.
    output = re.sub(r"code \w{12}, config", "code ..., config", output)
    if len(output.splitlines()) <= LONGEST_ANSWER:
        return output
    tables = [part.strip("\n") for part in output.split("\n\n") if "\n\u2500\u2500" in part]
    return "\n\n".join(tables) + "\n"


def run(command: str, directory: Path) -> str:
    """Standard output of a command of this program, run in a directory."""
    done = subprocess.run(
        [sys.executable, "-m", "dsocr_analyze", *shlex.split(command)],
        cwd=directory,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def main() -> None:
    """Runs every command that README.md shows the output or the picture of."""

    def with_output(match: re.Match[str]) -> str:
        with tempfile.TemporaryDirectory() as directory:
            return match[1] + shown_part(run(match[2], Path(directory))) + match[4]

    text = README.read_text(encoding="utf-8")
    for command in PICTURE.findall(text):
        run(command, README.parent)
    README.write_text(BLOCK.sub(with_output, text), encoding="utf-8")


if __name__ == "__main__":
    main()
