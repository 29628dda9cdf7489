"""The module documentation: written from the model, checked while it is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dsocr_analyze.cli import options

__all__ = ["docs"]


def docs(
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Folder to write into.")
    ] = Path("docs"),
    config: options.ConfigOption = None,
) -> None:
    """Write the module catalogue, the formulations and a page for every module."""
    from dsocr_analyze.knowledge.generate import documents, write_documents
    from dsocr_analyze.model.directory import read_config
    from dsocr_analyze.report.files import prepare_directory

    values = None if config is None else read_config(config)
    prepare_directory(output)
    written = write_documents(documents(values), output)
    sys.stdout.write(f"wrote {len(written)} documents to {output}\n")
