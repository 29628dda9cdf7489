"""Drafts a stages file for any transformers model."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze import architectures
from dsocr_analyze.cli import options
from dsocr_analyze.cli.progress import announced_steps, start_torch
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.model.directory import ModelDirectory

__all__ = ["stages", "undescribed_model"]

ClassOption = Annotated[
    str | None,
    typer.Option(
        "--class",
        metavar="NAME",
        help="Class of transformers to build. Default: the first of the config's 'architectures',"
        " else one that generates, else the base class.",
    ),
]


def stages(
    context: typer.Context,
    model: options.ModelOption = None,
    hf_config: options.HfConfigOption = None,
    model_class: ClassOption = None,
    trust_remote_code: options.TrustOption = False,
    output: options.OutputFileOption = None,
    debug: options.DebugOption = False,
) -> None:
    """Draft a stages file for a model that transformers implements, and try it out on meta."""
    directory = undescribed_model(model, None, None, hf_config)
    if directory is None:
        raise WorkloadError(
            "name a model: --hf-config FILE or --model DIR"
            if model in (None, "reference")
            else f"--model {model} is of a known architecture, which needs no stages file"
        )
    with announced_steps() as announce:
        announce("importing torch, building the model")
        start_torch()
        from dsocr_analyze.drafting.draft import drafted

        text = drafted(
            directory, model_class, trust_remote_code=trust_remote_code, on_progress=announce
        )
    if output is None:
        sys.stdout.write(text)
        return
    from dsocr_analyze.output_files import write_texts

    context.obj.begin_writing()
    write_texts(output.parent, {output.name: text})


def undescribed_model(
    model: str | None, arch: str | None, config: Path | None, hf_config: Path | None
) -> ModelDirectory | None:
    """The model of transformers' own code that the options name without a stages file.

    None if they name another one, or none.
    """
    from dsocr_analyze.model.directory import ModelDirectory, read_config

    if hf_config is not None:
        options.refuse_beside(hf_config, model, config)
        if arch is not None:
            raise WorkloadError(
                f"--hf-config {hf_config} is of no known architecture; leave out --arch {arch}"
            )
        values = read_config(hf_config)
        return ModelDirectory.of_config(hf_config, architectures.undescribed(values))
    if model in (None, "reference") or arch is not None:
        return None
    directory = ModelDirectory.read(Path(str(model)))
    if config is not None:
        directory = directory.with_config(read_config(config), config)
    if directory.recognized is not None:
        return None
    return dataclasses.replace(directory, described=architectures.undescribed(directory.config))
