"""Models, modes, sizes and saved reports side by side."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import (
    compared_picture,
    completion,
    html,
    many_options,
    options,
    page_options,
    time_options,
)
from dsocr_analyze.cli.counting import Engine
from dsocr_analyze.cli.printing import Said, assumptions, emit, rendered
from dsocr_analyze.cli.used_options import options_used
from dsocr_analyze.cli.warnings import StrictOption, print_config_findings, warn_of_sizes
from dsocr_analyze.engine import ENGINES

if TYPE_CHECKING:
    from dsocr_analyze.cli.compared_columns import Column, ComparedModel, Saved
    from dsocr_analyze.report.comparison import Comparison
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.workload import Workload

__all__ = ["compare"]

WhatArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WHAT",
        autocompletion=completion.compared,
        help="Modes (gundam), sizes (1024/640 with crops, 640 without), architectures"
        " (deepseek-ocr-2, deepseek-ocr:gundam) or saved reports (report.json); the others are"
        " compared with the first. Default: all modes, or the default mode if configs, types or"
        " kinds of attention are compared.",
    ),
]
FormatOption = Annotated[str, options.format_option("table", "markdown", "json", "csv")]


@time_options.of_a_page(runtime="serving", concurrency="1")
@page_options.of_a_page("mode", "base_size", "image_size", "crop_mode")
def compare(
    context: typer.Context,
    what: WhatArgument = None,
    mode: many_options.ModesOption = None,
    model: options.ModelOption = None,
    arch: options.ArchOption = None,
    config: options.ConfigsOption = None,
    sliding_window: options.SlidingWindowOption = None,
    trust_remote_code: options.TrustOption = False,
    dtype: many_options.DtypesOption = "bfloat16",
    use_flash_attn: many_options.AttentionsOption = "0",
    engine: many_options.EngineOption = "analytic",
    output_format: FormatOption = "table",
    output: options.OutputFileOption = None,
    html_file: html.HtmlOption = None,
    plot: compared_picture.PlotOption = None,
    quantity: compared_picture.QuantityOption = None,
    strict: StrictOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Put architectures, modes, configs and saved reports side by side."""
    engine = options.chosen("--engine", engine, ENGINES)
    html.check_html(html_file)
    asked = time_options.request_with_report(context)
    from dsocr_analyze.cli.compared_columns import Column, Models, columns_of
    from dsocr_analyze.report import comparison

    # The analytic engine reads a directory's config without executing its code.
    executable = trust_remote_code or engine == "analytic"
    models = Models(
        model, arch, config or (), trust_remote_code=executable, sliding_window=sliding_window
    )
    columns = columns_of(
        what or (), mode, models, many_options.dtypes_from(dtype),
        many_options.attentions_from(use_flash_attn),
    )  # fmt: skip

    picture = compared_picture.picture_asked(plot, quantity, columns, asked)

    @functools.cache
    def engine_of(column_model: ComparedModel, dtype: str, flash_attention: bool) -> Engine:
        return Engine(
            engine, column_model.directory, dtype, flash_attention,
            trust_remote_code=trust_remote_code, time=asked,
        )  # fmt: skip

    _print_all_config_findings(context, columns, by_closed_forms=engine == "analytic")
    workloads = {each: _planned(context, each) for each in columns if isinstance(each, Column)}
    for column, workload in workloads.items():
        warn_of_sizes(context, column.model.directory, workload)
    reports = _reports_of(columns, workloads, engine_of)
    ways = {(each.model, each.setting.dtype, each.setting.flash_attention)
            for each in columns if isinstance(each, Column)}  # fmt: skip
    result = comparison.compare(
        reports, models.config_values(), with_page=len(ways) > 1, options=options_used(context)
    )
    files = {} if html_file is None else {html_file: html.comparison_page(result, reports)}
    draw = None if picture is None else picture.drawn(result, columns, reports)
    _show(context, result, output_format, output, files, draw)


def _planned(context: typer.Context, column: Column) -> Workload:
    """The page in a column's mode."""
    sizes = column.setting.mode
    return page_options.workload_of(
        context, column.model.directory, mode=None, base_size=sizes.base_size,
        image_size=sizes.image_size, crop_mode=int(sizes.crop_mode),
    )  # fmt: skip


def _print_all_config_findings(
    context: typer.Context, columns: Sequence[Column | Saved], *, by_closed_forms: bool
) -> None:
    """Print each model's config warnings once, with its name if there are several models."""
    from dsocr_analyze.cli.compared_columns import Column

    models = dict.fromkeys(each.model for each in columns if isinstance(each, Column))
    for model in models:
        name = (model.config or model.architecture.name) if len(models) > 1 else None
        print_config_findings(context, model.directory, by_closed_forms=by_closed_forms, name=name)


def _reports_of(
    columns: Sequence[Column | Saved],
    workloads: Mapping[Column, Workload],
    engine_of: Callable[[ComparedModel, str, bool], Engine],
) -> list[tuple[str, Report]]:
    """Each column's name and its report, counted or read.

    Args:
        columns: The columns.
        workloads: The page in each column's mode.
        engine_of: The engine for a model, a data type and a kind of attention.
    """
    from dsocr_analyze.cli.compared_columns import Column

    reports = []
    for each in columns:
        if isinstance(each, Column):
            dtype, flash_attention = each.setting.dtype.name, each.setting.flash_attention
            engine = engine_of(each.model, dtype, flash_attention)
            reports.append((each.name, engine.report(workloads[each])))
        else:
            reports.append((each.item, each.report))
    return reports


def _show(
    context: typer.Context,
    result: Comparison,
    output_format: str,
    output: Path | None,
    files: Mapping[Path, str],
    draw: compared_picture.Drawn | None,
) -> None:
    """Write `files`, the picture, and the comparison to `output`, or to stdout if it is None."""

    def document() -> object:
        return result.document

    def said() -> Said:
        return _said(result, draw and draw.path)

    if output is not None:
        is_csv = output_format == "csv"
        text = result.as_csv() if is_csv else rendered(output_format, document, said)
        files = {**files, output: text}
    if files or draw is not None:
        from dsocr_analyze.output_files import write_files

        context.obj.begin_writing()
        write_files(files)
    if draw is not None:
        draw.write()
    if output is not None:
        return
    if output_format == "csv":
        sys.stdout.write(result.as_csv())
    else:
        emit(output_format, document, said)


def _said(result: Comparison, picture: Path | None) -> Said:
    opening = f"{result.headline()}\n{result.opening()}"
    tables = result.table(), result.config_table()
    return Said(opening, tables, [assumptions(result.document.assumptions)], [picture])
