"""The documentation: its computed parts filled in place, checked, or written for another config."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsocr_analyze.architectures import architecture_of
from dsocr_analyze.cli import options
from dsocr_analyze.cli.exits import NO
from dsocr_analyze.cli.progress import announced_steps
from dsocr_analyze.cli.reference import command_reference
from dsocr_analyze.cli.tasks import task_table
from dsocr_analyze.cli.torch_start import start_torch
from dsocr_analyze.cli.warnings import print_config_findings
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture

__all__ = ["docs"]


def docs(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Folder to write all pages into. Default: the checkout's own, in place.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Write nothing; name every computed part that is stale, and exit with 1.",
        ),
    ] = False,
    arch: options.ArchOption = None,
    config: options.ConfigOption = None,
    debug: options.DebugOption = False,
) -> None:
    """Compute the figures, formulas and tables of the documentation.

    The pages are Markdown, and people edit them; computed parts stand between invisible markers and
    are filled in place. With --output, the pages go into another folder, with --arch or --config
    for that model alone.
    """
    if output is None and (arch is not None or config is not None):
        raise WorkloadError("pages for another model need a folder", arguments=["--output"])
    if output is not None and check:
        raise WorkloadError(
            "--check is about the pages in place", arguments=["--check", "--output"]
        )
    from dsocr_analyze.documents.library import Library, filled_documents
    from dsocr_analyze.documents.markdown import DATA, Sources
    from dsocr_analyze.output_files import write_files

    sources = Sources()
    if output is None and sources.folder == DATA:
        raise WorkloadError(
            "this is no checkout, whose pages could be filled in place; give a folder",
            arguments=["--output"],
        )
    architecture, values = _model(context, arch, config)
    for folder in () if output is None else (output, output / "modules"):
        options.prepare_output(folder)
    library = Library(sources, architecture, values, {"commands": _commands, "tasks": task_table})
    with announced_steps() as announce:
        announce("computing the figures of all pages")
        pages = filled_documents(library, start_torch)
    stale = {path: page for path, page in pages.items() if page.changed}
    if check:
        for path, page in stale.items():
            for marker in page.changed:
                sys.stdout.write(f"{path}: {marker} is stale\n")
        sys.stdout.write(f"{len(stale)} of {len(pages)} pages are stale\n")
        raise typer.Exit(NO if stale else 0)
    written = stale if output is None else pages
    context.obj.begin_writing()
    write_files({(output or sources.folder) / path: page.text for path, page in written.items()})
    sys.stdout.write(f"wrote {len(written)} of {len(pages)} pages\n")


def _commands() -> str:
    """The reference of all commands."""
    from dsocr_analyze.cli.app import app

    return command_reference(typer.main.get_command(app))


def _model(
    context: typer.Context, arch: str | None, config: Path | None
) -> tuple[Architecture | None, dict[str, Any] | None]:
    """The only architecture to document, and its config; None for all, and for the published."""
    if arch is None and config is None:
        return None, None
    directory = options.model_directory_from("reference", arch, config, trust_remote_code=False)
    if config is None:
        return architecture_of(directory.config), None
    print_config_findings(context, directory, by_closed_forms=True)
    return architecture_of(directory.config), directory.config
