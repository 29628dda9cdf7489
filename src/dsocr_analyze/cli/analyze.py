"""The main job: one page, its report in the terminal and in two files."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import html, options, time_options
from dsocr_analyze.cli.counting import ENGINES, Engine
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.errors import DeviceError, StrictError, WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.report.document import Report

__all__ = ["analyze"]

DEFAULT_OUTPUT = Path("tmp/dsocr-static-ops")
FORMATS = ("table", "markdown", "json")


def _print_version(wanted: bool) -> None:
    if wanted:
        from dsocr_analyze.version import VERSION

        print(f"dsocr-analyze {VERSION}")
        raise typer.Exit


EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="|".join(ENGINES),
        help="trace runs the model under hooks; analytic evaluates closed forms, without torch.",
    ),
]
OutputOption = Annotated[
    Path,
    typer.Option(
        "--output", metavar="DIR", help="Where static_compute.json and static_compute.md go."
    ),
]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="|".join(FORMATS), help="What is printed on stdout.")
]
JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Also write the JSON report here; - prints it instead."
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on stdout.")]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit with 3 where there is a warning; still write.")
]
VersionOption = Annotated[
    bool,
    typer.Option(
        "--version",
        help="Print the version and exit.",
        is_eager=True,
        expose_value=False,
        callback=_print_version,
    ),
]


def analyze(
    context: typer.Context,
    model: options.ModelOption = None,
    arch: options.ArchOption = None,
    config: options.ConfigOption = None,
    stages: options.StagesOption = None,
    hf_config: options.HfConfigOption = None,
    sliding_window: options.SlidingWindowOption = None,
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
    prompt_pages: options.PromptPagesOption = 1,
    engine: EngineOption = "trace",
    gpu: time_options.GpuOption = None,
    runtime: time_options.RuntimeOption = "eager",
    concurrency: time_options.ConcurrencyOption = "1",
    preprocess_ms: time_options.PreprocessOption = None,
    workers: time_options.WorkersOption = 1,
    price: time_options.PriceOption = None,
    corrections: time_options.CorrectionsOption = 1,
    output: OutputOption = DEFAULT_OUTPUT,
    output_format: FormatOption = "table",
    json_file: JsonOption = None,
    html_file: html.HtmlOption = None,
    quiet: QuietOption = False,
    strict: StrictOption = False,
    version: VersionOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Count one page: parameters, FLOPs, bytes and activations of every stage."""
    if context.invoked_subcommand is not None:
        return
    _check(output_format, engine, device, prompt, (text_tokens, seq_len))
    # The analytic engine reads the directory's config and executes nothing of it.
    executable = trust_remote_code or engine == "analytic"
    directory = options.model_directory_from(
        model, arch, config, trust_remote_code=executable, sliding_window=sliding_window,
        stages=stages, hf_config=hf_config,
    )  # fmt: skip
    text_tokens = text_tokens if prompt is None else options.prompt_tokens(prompt, directory)
    workload = options.any_workload_from(
        directory.architecture, mode=mode, base_size=base_size, image_size=image_size,
        crop_mode=crop_mode, page=page, image=image, seq_len=seq_len, text_tokens=text_tokens,
        batch_size=batch_size, max_new_tokens=max_new_tokens, prompt_pages=prompt_pages,
    )  # fmt: skip
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    _prepare(output, html_file)
    asked = time_options.request_with_report(
        context, gpu, runtime=runtime, concurrency=concurrency, preprocess_ms=preprocess_ms,
        workers=workers, price=price, corrections=corrections, max_new_tokens=max_new_tokens,
    )  # fmt: skip
    counts = Engine(engine, directory, dtype, flash_attention, device, trust_remote_code, asked)
    report = counts.report(workload)
    pages = html.report_pages(html_file, report, counts, workload, corrections)
    written = _write(context, report, output, json_file, pages)
    if not quiet:
        _print(report, "json" if json_file == "-" else output_format, written)
    _warn(report, strict=strict)


def _check(
    output_format: str, engine: str, device: str, prompt: str | None, lengths: Sequence[int | None]
) -> None:
    """Refuses options that contradict each other; `lengths` are those that a prompt replaces."""
    options.check_choice("--format", output_format, FORMATS)
    options.check_choice("--engine", engine, ENGINES)
    if engine == "analytic" and device != "meta":
        raise DeviceError(f"--engine analytic runs nothing; leave out --device {device}")
    if prompt is not None and any(length is not None for length in lengths):
        raise WorkloadError("--prompt sets the text tokens; leave out --text-tokens and --seq-len")


def _warn(report: Report, *, strict: bool) -> None:
    for warning in report.warnings:
        complain(f"warning: {warning}")
    if strict and report.warnings:
        raise StrictError(f"--strict: {'; '.join(report.warnings)}")


def _prepare(output: Path, html_file: Path | None) -> None:
    """Finds out, before any work, whether the files can be written."""
    options.prepare_output(output)
    html.check_html(html_file)


def _write(
    context: typer.Context,
    report: Report,
    output: Path,
    json_file: str | None,
    pages: Mapping[Path, str],
) -> list[Path]:
    from dsocr_analyze.report.files import dump_json, write_files
    from dsocr_analyze.report.markdown import render_markdown

    json_text = dump_json(report)
    texts = {
        output / "static_compute.json": json_text,
        output / "static_compute.md": render_markdown(report),
        **pages,
    }
    if json_file not in (None, "-"):
        texts[Path(str(json_file))] = json_text
    context.obj.begin_writing()
    return write_files(texts)


def _print(report: Report, output_format: str, written: Sequence[Path]) -> None:
    if output_format == "json":
        from dsocr_analyze.report.files import dump_json

        sys.stdout.write(dump_json(report))
    elif output_format == "markdown":
        from dsocr_analyze.report.markdown import render_markdown

        sys.stdout.write(render_markdown(report))
    else:
        from dsocr_analyze.cli.printing import print_report

        print_report(report, written)
