"""The command line: the only room that prints, and the only one that knows its options."""

from __future__ import annotations

from dsocr_analyze.cli.process import main

__all__ = ["main"]
