#!/usr/bin/env python3
"""Write the files of hashes in requirements/ again, from pyproject.toml. It needs uv.

    python3 scripts/lock.py              keep the versions that still fit
    python3 scripts/lock.py --upgrade    take the newest ones

Further arguments go to every `uv pip compile`. scripts/run.py installs what these files name, and
nothing else but torch and what is built against it (requirements/torch.txt, by version).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = "3.11"

LOCKS = {
    "audit.txt": ("--group", "audit"),
    "build.txt": ("--group", "build"),
    "base.txt": ("pyproject.toml",),
    "analyze.txt": ("pyproject.toml", "--extra", "vendor"),
    "dev.txt": ("pyproject.toml", "--extra", "vendor", "--extra", "dev", "--extra", "profiles"),
    "newest.txt": ("pyproject.toml", "--extra", "test"),
}


def main() -> int:
    """Write each file; the exit status is that of the first one that fails, or 0."""
    for name, wanted in LOCKS.items():
        command = [
            "uv", "pip", "compile", *wanted, "--output-file", f"requirements/{name}",
            "--config-file", "requirements/uv.toml", "--constraint", "requirements/torch.txt",
            "--no-emit-package", "torch", "--universal", "--python-version", OLDEST_PYTHON,
            "--fork-strategy", "fewest", "--generate-hashes", "--quiet",
            "--custom-compile-command", "python3 scripts/lock.py", *sys.argv[1:],
        ]  # fmt: skip
        status = subprocess.run(command, cwd=ROOT).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
