#!/usr/bin/env python3
"""Runs the campaign of hostile input in `tests/hostile`; arguments are its own, see `--help`."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":  # processes of the campaign import this file too
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    runpy.run_module("hostile", run_name="__main__")
