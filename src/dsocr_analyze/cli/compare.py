"""Modes, sizes and saved reports side by side."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.architectures import architecture_of
from dsocr_analyze.cli import options, time_options
from dsocr_analyze.cli.counting import ENGINES, Engine
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.report.comparison import Comparison
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.workload import Mode, Workload

__all__ = ["compare"]

FORMATS = ("table", "markdown", "json", "csv")

WhatArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WHAT",
        help="Modes (gundam), sizes (1024/640 crops, 640 does not) or saved reports"
        " (report.json); the first is what the others are compared with. Default: all modes.",
    ),
]
EngineOption = Annotated[
    str,
    typer.Option("--engine", metavar="|".join(ENGINES), help="How modes and sizes are counted."),
]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="|".join(FORMATS), help="What is printed.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write here, not to stdout.")
]


def compare(
    context: typer.Context,
    what: WhatArgument = None,
    model: options.ModelOption = None,
    arch: options.ArchOption = None,
    config: options.ConfigOption = None,
    sliding_window: options.SlidingWindowOption = None,
    trust_remote_code: options.TrustOption = False,
    dtype: options.DtypeOption = "bfloat16",
    use_flash_attn: options.FlashOption = 0,
    page: options.PageOption = None,
    image: options.ImageOption = None,
    text_tokens: options.TextTokensOption = None,
    max_new_tokens: options.NewTokensOption = 1024,
    batch_size: options.BatchOption = 1,
    prompt_pages: options.PromptPagesOption = 1,
    engine: EngineOption = "analytic",
    gpu: time_options.GpuOption = None,
    runtime: time_options.RuntimeOption = "serving",
    concurrency: time_options.ConcurrencyOption = "1",
    preprocess_ms: time_options.PreprocessOption = None,
    workers: time_options.WorkersOption = 1,
    price: time_options.PriceOption = None,
    output_format: FormatOption = "table",
    output: OutputOption = None,
    debug: options.DebugOption = False,
) -> None:
    """Put crop modes, presets and saved reports side by side."""
    options.check_choice("--format", output_format, FORMATS)
    options.check_choice("--engine", engine, ENGINES)
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)

    asked = time_options.request_with_report(
        context, gpu, runtime=runtime, concurrency=concurrency, preprocess_ms=preprocess_ms,
        workers=workers, price=price, max_new_tokens=max_new_tokens,
    )  # fmt: skip

    @functools.cache
    def counted_by() -> Engine:
        # The analytic engine reads the directory's config and executes nothing of it.
        executable = trust_remote_code or engine == "analytic"
        directory = options.model_directory_from(
            model, arch, config, trust_remote_code=executable, sliding_window=sliding_window
        )
        options.say_of_config(directory, by_closed_forms=engine == "analytic")
        return Engine(
            engine, directory, dtype, flash_attention, trust_remote_code=trust_remote_code,
            time=asked,
        )  # fmt: skip

    def planned(mode: Mode) -> Workload:
        return options.workload_from(
            architecture_of(counted_by().directory.config), base_size=mode.base_size,
            image_size=mode.image_size, crop_mode=int(mode.crop_mode), page=page, image=image,
            text_tokens=text_tokens, batch_size=batch_size, max_new_tokens=max_new_tokens,
            prompt_pages=prompt_pages,
        )  # fmt: skip

    from dsocr_analyze.report import comparison

    items = what or list(architecture_of(counted_by().directory.config).modes)
    result = comparison.compare([(item, _report_of(item, counted_by, planned)) for item in items])
    if output is None:
        _print(result, output_format)
    else:
        from dsocr_analyze.report.files import write_texts

        text = _text(result, output_format)
        context.obj.begin_writing()
        write_texts(output.parent, {output.name: text})


def _report_of(
    item: str, counted_by: Callable[[], Engine], planned: Callable[[Mode], Workload]
) -> Report:
    """The report of a mode or sizes, counted, or of a file, read.

    Args:
        item: What the user named.
        counted_by: The engine; made when it is first asked for, since files need none.
        planned: The page in a mode.
    """
    from dsocr_analyze.columns.setting import is_mode_or_sizes, mode_or_sizes
    from dsocr_analyze.report.reading import load_report

    if Path(item).suffix == ".json":
        return load_report(Path(item))
    architecture = architecture_of(counted_by().directory.config)
    if not is_mode_or_sizes(architecture, item):
        if Path(item).exists():
            return load_report(Path(item))
        raise WorkloadError(
            f"cannot compare {item!r}; give a mode ({', '.join(architecture.modes)}), sizes"
            " like 1024/640 (crops) or 640 (does not), or a saved report.json"
        )
    return counted_by().report(planned(mode_or_sizes(architecture, item)))


def _print(result: Comparison, output_format: str) -> None:
    if output_format == "table":
        from dsocr_analyze.cli.printing import print_assumptions, print_table

        print(result.headline())
        print_table(result.table())
        print_assumptions(result.assumptions)
    else:
        sys.stdout.write(_text(result, output_format))


def _text(result: Comparison, output_format: str) -> str:
    if output_format == "json":
        return result.as_json()
    if output_format == "csv":
        return result.as_csv()
    from dsocr_analyze.report.markdown import markdown_table

    notes = "".join(f"\n- {line}" for line in result.assumptions)
    assumed = f"\nAssumed:\n{notes}\n" if notes else ""
    return f"{result.headline()}\n\n{markdown_table(result.table())}\n{assumed}"
