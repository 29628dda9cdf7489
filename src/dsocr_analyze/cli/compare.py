"""Models, modes, sizes and saved reports side by side."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.cli import completion, html, options, page_options, time_options
from dsocr_analyze.cli.counting import Engine
from dsocr_analyze.cli.printing import Said, assumptions, emit, rendered
from dsocr_analyze.cli.words import print_config_findings, warn_of_sizes
from dsocr_analyze.engine import ENGINES
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.cli.compared_columns import Column, Saved
    from dsocr_analyze.cli.time_options import TimeRequest
    from dsocr_analyze.pictures.picture import Picture
    from dsocr_analyze.report.comparison import Comparison
    from dsocr_analyze.report.document import Report
    from dsocr_analyze.workload import Workload

__all__ = ["compare"]

_QUANTITIES: Final = ("flops", "bytes", "seconds")

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
PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="What one page costs, stacked stage by stage, as FILE.png or FILE.svg. Needs the extra"
        " 'plot'.",
    ),
]
QuantityOption = Annotated[
    str | None,
    typer.Option(
        "--quantity",
        metavar="|".join(_QUANTITIES),
        autocompletion=completion.one_of(*_QUANTITIES),
        help=f"What is stacked; seconds need --gpu. Default: {_QUANTITIES[0]}.",
    ),
]


@time_options.of_a_page(runtime="serving", concurrency="1")
@page_options.of_a_page("mode", "base_size", "image_size", "crop_mode")
def compare(
    context: typer.Context,
    what: WhatArgument = None,
    mode: Annotated[str | None, "modes"] = None,
    model: str | None = None,
    arch: str | None = None,
    config: Annotated[list[Path] | None, "configs"] = None,
    sliding_window: int | None = None,
    trust_remote_code: bool = False,
    dtype: Annotated[str, "dtypes"] = "bfloat16",
    use_flash_attn: Annotated[str, "attentions"] = "0",
    engine: str = "analytic",
    output_format: FormatOption = "table",
    output: Path | None = None,
    html_file: html.HtmlOption = None,
    plot: PlotOption = None,
    quantity: QuantityOption = None,
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Put architectures, modes, configs and saved reports side by side."""
    engine = options.chosen("--engine", engine, ENGINES)
    html.check_html(html_file)
    asked = time_options.request_with_report(context)
    from dsocr_analyze.cli.compared_columns import Column, Models, columns_of, named_files
    from dsocr_analyze.report import comparison

    # The analytic engine reads a directory's config without executing its code.
    executable = trust_remote_code or engine == "analytic"
    models = Models(model, arch, named_files(config or ()), executable, sliding_window)
    columns = columns_of(
        what or (), mode, models, page_options.dtypes_from(dtype),
        page_options.attentions_from(use_flash_attn),
    )  # fmt: skip
    stacked = _stacked(plot, quantity, columns, asked)

    counted = list(dict.fromkeys(each for each in columns if isinstance(each, Column)))
    _print_all_config_findings(context, counted, by_closed_forms=engine == "analytic")
    workloads = {each: _planned(context, each) for each in counted}
    for column, workload in workloads.items():
        warn_of_sizes(context, column.model.directory, workload)
    engines = {
        each.way: Engine(
            engine, each.model.directory, each.setting.dtype.name, each.setting.flash_attention,
            trust_remote_code=trust_remote_code, time=asked,
        )
        for each in counted
    }  # fmt: skip
    reports = [
        (each.name, engines[each.way].report(workloads[each]) if isinstance(each, Column)
         else each.report)
        for each in columns
    ]  # fmt: skip
    result = comparison.compare(
        reports,
        models.config_values(),
        with_page=len(engines) > 1,
        options=options.options_used(context),
    )
    files = {} if html_file is None else {html_file: html.comparison_page(result, reports)}
    pictures = {} if plot is None else {plot: _picture(result, columns, reports, stacked)}
    _show(context, result, output_format, output, files, pictures)


def _stacked(
    plot: Path | None,
    quantity: str | None,
    columns: Sequence[Column | Saved],
    asked: TimeRequest | None,
) -> str:
    """The quantity that the picture of `--plot` stacks; both are checked before any work."""
    from dsocr_analyze.cli.compared_columns import Saved

    chosen = options.chosen(
        "--quantity", _QUANTITIES[0] if quantity is None else quantity, _QUANTITIES
    )
    if plot is None:
        if quantity is not None:
            raise WorkloadError(f"--quantity {chosen} is for a picture; give --plot FILE too")
        return chosen
    from dsocr_analyze.pictures.stage_chart import refuse_many_bars

    options.check_files(None, plot)
    bars = len(columns)
    if chosen == "seconds":  # one bar per GPU and runtime
        bars = 0
        for each in columns:
            if isinstance(each, Saved):
                if not each.report.time:
                    raise WorkloadError(
                        f"--quantity seconds needs predicted seconds, and {each.name!r} has none;"
                        " save it with --gpu, or leave it out"
                    )
                bars += len(each.report.time)
            elif asked is None:
                raise WorkloadError("--quantity seconds needs predicted seconds; give --gpu too")
            else:
                bars += len(asked.profiles) * len(asked.jobs)
    refuse_many_bars(bars)
    return chosen


def _picture(
    result: Comparison,
    columns: Sequence[Column | Saved],
    reports: Sequence[tuple[str, Report]],
    stacked: str,
) -> Picture:
    """What one page costs in each column."""
    from dsocr_analyze.cli.compared_columns import Column
    from dsocr_analyze.pictures.stage_chart import Compared, stage_picture

    compared = [
        Compared(name, report, each.model.config if isinstance(each, Column) else None)
        for name, each, (_, report) in zip(result.document.names, columns, reports, strict=True)
    ]
    return stage_picture(compared, stacked)


def _planned(context: typer.Context, column: Column) -> Workload:
    """The page in a column's mode."""
    sizes = column.setting.mode
    return page_options.workload_of(
        context, column.model.directory, mode=None, base_size=sizes.base_size,
        image_size=sizes.image_size, crop_mode=int(sizes.crop_mode),
    )  # fmt: skip


def _print_all_config_findings(
    context: typer.Context, columns: Sequence[Column], *, by_closed_forms: bool
) -> None:
    """Print each model's config warnings once, with its name if there are several models."""
    models = dict.fromkeys(each.model for each in columns)
    for model in models:
        name = (model.config or model.architecture.name) if len(models) > 1 else None
        print_config_findings(context, model.directory, by_closed_forms=by_closed_forms, name=name)


def _show(
    context: typer.Context,
    result: Comparison,
    output_format: str,
    output: Path | None,
    files: Mapping[Path, str],
    pictures: Mapping[Path, Picture],
) -> None:
    """Write `files`, the picture, and the comparison to `output`, or to stdout if it is None."""

    def document() -> object:
        return result.document

    def said() -> Said:
        opening = f"{result.headline()}\n{result.opening()}"
        below = [assumptions(result.document.assumptions)]
        return Said(opening, (result.table(), result.config_table()), below, list(pictures))

    text = result.as_csv() if output_format == "csv" else None
    if output is not None:
        files = {**files, output: text or rendered(output_format, document, said)}
    if files or pictures:
        from dsocr_analyze.output_files import write_files

        context.obj.begin_writing()
        write_files(files)
    for path, picture in pictures.items():
        picture.save(path)
    if output is None and text is None:
        emit(output_format, document, said)
    elif output is None:
        sys.stdout.write(text or "")
