"""Drafts a stages file for any transformers model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dsocr_analyze.analysis import start_torch
from dsocr_analyze.cli import options, page_options
from dsocr_analyze.cli.streams import announced_steps
from dsocr_analyze.errors import WorkloadError

__all__ = ["stages"]


def stages(
    context: typer.Context,
    model: str | None = None,
    hf_config: Path | None = None,
    model_class: Annotated[
        str | None,
        options.option(
            "NAME",
            "Class of transformers to build. Default: the first of the config's 'architectures',"
            " else one that generates, else the base class.",
            "--class",
        ),
    ] = None,
    trust_remote_code: bool = False,
    output: Path | None = None,
    debug: bool = False,
) -> None:
    """Draft a stages file for a model that transformers implements, and try it out on meta."""
    directory = page_options.undescribed_model(model, None, None, hf_config)
    if directory is None:
        raise WorkloadError(
            "name a model: --hf-config FILE or --model DIR"
            if model in (None, "reference")
            else f"--model {model} is of a known architecture, which needs no stages file"
        )
    with announced_steps() as announce:
        announce("importing torch, building the model")
        start_torch()
        from dsocr_analyze.model.draft import drafted

        text = drafted(
            directory, model_class, trust_remote_code=trust_remote_code, on_progress=announce
        )
    if output is None:
        sys.stdout.write(text)
        return
    from dsocr_analyze.output_files import write_files

    context.obj.begin_writing()
    write_files({output: text})
