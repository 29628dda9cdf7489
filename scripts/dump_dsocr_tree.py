#!/usr/bin/env python3
"""Write the module hierarchy to tmp/dsocr-module-tree.json and tmp/dsocr-module-tree.txt.

A row a module (name, class, stage, parameters, calls, shapes, FLOPs) and the indented tree. Further
arguments go to both runs of `dsocr-analyze tree`: --model DIR, --no-trace, --stage sam, ...
"""

import sys
from pathlib import Path

from dsocr_analyze.cli import main

OUTPUT = Path(__file__).resolve().parent.parent / "tmp"


def dump(arguments: list[str]) -> int:
    """Write both files; the exit code is that of the first run that fails, or 0."""
    OUTPUT.mkdir(exist_ok=True)
    for kind, suffix in (("json", "json"), ("text", "txt")):
        target = OUTPUT / f"dsocr-module-tree.{suffix}"
        code = main(["tree", *arguments, "--format", kind, "--output", str(target)])
        if code:
            return code
        print(target)
    return 0


if __name__ == "__main__":
    sys.exit(dump(sys.argv[1:]))
