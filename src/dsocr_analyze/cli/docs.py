"""The module documentation: written from the model, and checked in the process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dsocr_analyze.architectures import architecture_of
from dsocr_analyze.cli import options
from dsocr_analyze.cli.progress import announced_steps
from dsocr_analyze.cli.reference import command_reference
from dsocr_analyze.cli.tasks import tasks_page
from dsocr_analyze.cli.torch_start import start_torch
from dsocr_analyze.cli.warnings import print_config_findings

__all__ = ["docs"]

_DEFAULT_OUTPUT = Path("docs")


def docs(
    context: typer.Context,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Folder to write into.")
    ] = _DEFAULT_OUTPUT,
    arch: options.ArchOption = None,
    config: options.ConfigOption = None,
    debug: options.DebugOption = False,
) -> None:
    """Write the module catalogue, the formulations, a page for every module, and the commands.

    Covers all architectures, or just the one given by --arch or --config.
    """
    start_torch()
    from dsocr_analyze.knowledge.generate import documents, write_documents

    architecture = values = None
    if arch is not None or config is not None:
        directory = options.model_directory_from("reference", arch, config, trust_remote_code=False)
        architecture = architecture_of(directory.config)
        if config is not None:
            values = directory.config
            print_config_findings(context, directory, by_closed_forms=True)
    options.prepare_output(output, _DEFAULT_OUTPUT)
    with announced_steps() as announce:
        announce("tracing every module and checking its formulas")
        texts = documents(architecture, values)
    texts |= {
        "commands.md": command_reference(context.find_root().command),
        "tasks.md": tasks_page(),
    }
    context.obj.begin_writing()
    written = write_documents(texts, output)
    sys.stdout.write(f"wrote {len(written)} documents to {output}\n")
