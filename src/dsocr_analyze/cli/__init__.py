"""The command line: the only room that prints."""

from __future__ import annotations

from dsocr_analyze.cli.app import main

__all__ = ["main"]
