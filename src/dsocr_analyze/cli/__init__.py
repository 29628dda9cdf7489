"""The command line: the only package that prints or knows about options."""

from __future__ import annotations

from dsocr_analyze.cli.process import main

__all__ = ["main"]
