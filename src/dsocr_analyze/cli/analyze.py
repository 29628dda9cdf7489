"""The main job: one page, its report in the terminal and in two files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dsocr_analyze.cli import options
from dsocr_analyze.cli.progress import announced_steps
from dsocr_analyze.errors import DeviceError, StrictError, WorkloadError

__all__ = ["analyze"]

DEFAULT_OUTPUT = Path("tmp/dsocr-static-ops")
FORMATS = ("table", "markdown", "json")
ENGINES = ("trace", "analytic")


def _print_version(wanted: bool) -> None:
    if wanted:
        from dsocr_analyze import __version__

        print(f"dsocr-analyze {__version__}")
        raise typer.Exit


def analyze(
    context: typer.Context,
    model: options.ModelOption = None,
    config: options.ConfigOption = None,
    trust_remote_code: options.TrustOption = False,
    device: options.DeviceOption = "meta",
    dtype: options.DtypeOption = "bfloat16",
    use_flash_attn: options.FlashOption = 0,
    mode: options.ModeOption = None,
    base_size: options.BaseSizeOption = None,
    image_size: options.ImageSizeOption = None,
    crop_mode: options.CropModeOption = None,
    page: options.PageOption = None,
    image: options.ImageOption = None,
    seq_len: options.SeqLenOption = None,
    text_tokens: options.TextTokensOption = None,
    prompt: options.PromptOption = None,
    max_new_tokens: options.NewTokensOption = 1024,
    batch_size: options.BatchOption = 1,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="|".join(ENGINES),
            help="trace runs the model under hooks; analytic evaluates closed forms, no torch.",
        ),
    ] = "trace",
    output: Annotated[
        Path,
        typer.Option(
            "--output", metavar="DIR", help="Where static_compute.json and static_compute.md go."
        ),
    ] = DEFAULT_OUTPUT,
    output_format: Annotated[
        str,
        typer.Option("--format", metavar="|".join(FORMATS), help="What is printed on stdout."),
    ] = "table",
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Also write the JSON report here; - prints it instead."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on stdout.")] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with 3 where there is a warning; still write."),
    ] = False,
    _: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Count one page: parameters, FLOPs, bytes and activations of every stage."""
    if context.invoked_subcommand is not None:
        return
    if output_format not in FORMATS:
        raise WorkloadError(f"--format {output_format!r} is unknown; use {', '.join(FORMATS)}")
    if engine not in ENGINES:
        raise WorkloadError(f"--engine {engine!r} is unknown; use {', '.join(ENGINES)}")
    if engine == "analytic" and device != "meta":
        raise DeviceError(f"--engine analytic runs nothing; leave out --device {device}")
    if json_file == "-":
        output_format = "json"
    if prompt is not None and (text_tokens is not None or seq_len is not None):
        raise WorkloadError("--prompt sets the text tokens; leave out --text-tokens and --seq-len")
    # The closed forms read the directory's config and execute nothing of it.
    executable = trust_remote_code or engine == "analytic"
    directory = options.model_directory_from(model, config, trust_remote_code=executable)
    if prompt is not None:
        text_tokens = options.prompt_tokens(prompt, directory)
    workload = options.workload_from(
        mode=mode, base_size=base_size, image_size=image_size, crop_mode=crop_mode, page=page,
        image=image, seq_len=seq_len, text_tokens=text_tokens, batch_size=batch_size,
        max_new_tokens=max_new_tokens,
    )  # fmt: skip
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)

    from dsocr_analyze.report.files import dump_json, prepare_directory, write_texts
    from dsocr_analyze.report.markdown import render_markdown

    prepare_directory(output)
    if engine == "analytic":
        from dsocr_analyze.closed_form import closed_form_document

        document = closed_form_document(
            directory, workload, dtype=dtype, flash_attention=flash_attention
        )
    else:
        with announced_steps() as on_progress:
            on_progress("importing torch")
            from dsocr_analyze.analysis import DeepSeekOCRSession

            on_progress("building the model")
            session = DeepSeekOCRSession.from_directory(
                directory,
                device=device,
                dtype=dtype,
                flash_attention=flash_attention,
                trust_remote_code=trust_remote_code,
            )
            document = session.analyze(workload, on_progress=on_progress)
    json_text, markdown_text = dump_json(document), render_markdown(document)
    written = write_texts(
        output, {"static_compute.json": json_text, "static_compute.md": markdown_text}
    )
    if json_file not in (None, "-"):
        target = Path(str(json_file))
        written += write_texts(target.parent, {target.name: json_text})
    if not quiet:
        if output_format == "json":
            sys.stdout.write(json_text)
        elif output_format == "markdown":
            sys.stdout.write(markdown_text)
        else:
            from dsocr_analyze.report.terminal import print_report

            print_report(document, written)
    for warning in document["warnings"]:
        print(f"dsocr-analyze: warning: {warning}", file=sys.stderr)
    if strict and document["warnings"]:
        raise StrictError(f"--strict: {'; '.join(document['warnings'])}")
