"""The command line: the only package that prints or knows about options."""

from dsocr_analyze.cli.exits import main as main
