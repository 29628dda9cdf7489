#!/usr/bin/env python3
"""Replaces the output shown in README.md by that of a run of the command named above it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"(<!-- output: dsocr-analyze ([^\n]*) -->\n```text\n)(.*?)(```)", re.DOTALL)
SHOWN = ("Ran:", "Stages", "Totals", "Memory", "h100-sxm", "GPUs")


def shown_part(output: str) -> str:
    """The first line and the tables that the README shows, blank lines within them dropped."""
    kept: list[str] = []
    showing = False
    for line in output.splitlines():
        if line[:1].strip():
            showing = line.startswith(SHOWN)
            if showing and kept:
                kept.append("")
        if showing and line.strip():
            # A digest of the code would change with every comment in it.
            kept.append(re.sub(r"code \S+, config", "code ..., config", line.rstrip()))
    return "\n".join(kept) + "\n"


def main() -> None:
    """Runs every command that README.md shows the output of."""

    def with_output(match: re.Match[str]) -> str:
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-m", "dsocr_analyze", *shlex.split(match[2])]
            done = subprocess.run(
                command, cwd=directory, capture_output=True, text=True, check=True
            )
        return match[1] + shown_part(done.stdout) + match[4]

    README.write_text(BLOCK.sub(with_output, README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
