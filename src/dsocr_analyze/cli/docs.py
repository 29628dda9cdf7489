"""The module documentation: written from the model, checked while it is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.cli import options
from dsocr_analyze.cli.progress import announced_steps
from dsocr_analyze.cli.reference import command_reference
from dsocr_analyze.cli.torch_start import start_torch

__all__ = ["docs"]


def docs(
    context: typer.Context,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Folder to write into.")
    ] = Path("docs"),
    config: options.ConfigOption = None,
    debug: options.DebugOption = False,
) -> None:
    """Write the module catalogue, the formulations, a page for every module, and the commands."""
    start_torch()
    from dsocr_analyze.knowledge.generate import documents, write_documents
    from dsocr_analyze.model.directory import ModelDirectory, read_config
    from dsocr_analyze.report.files import prepare_directory

    values = None if config is None else read_config(config)
    if values is not None:
        directory = ModelDirectory.read(DEFAULT.reference).with_config(values)
        options.say_of_config(directory, by_closed_forms=True)
    prepare_directory(output)
    with announced_steps() as announce:
        announce("tracing every module and checking its formulas")
        texts = documents(values)
    texts |= {"commands.md": command_reference(context.find_root().command)}
    context.obj.begin_writing()
    written = write_documents(texts, output)
    sys.stdout.write(f"wrote {len(written)} documents to {output}\n")
