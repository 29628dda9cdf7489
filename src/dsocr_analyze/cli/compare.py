"""Models, modes, sizes and saved reports side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsocr_analyze.analysis import ENGINES, Engine, TimeRequest
from dsocr_analyze.cli import completion, html, options, page_options, time_options
from dsocr_analyze.cli.printing import Said, assumptions, emit
from dsocr_analyze.cli.streams import announced_steps
from dsocr_analyze.cli.words import print_config_findings, warn_of_sizes
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.cli.compared_columns import Column, Models, Saved
    from dsocr_analyze.pictures.picture import Picture

__all__ = ["compare"]

_QUANTITIES: Final = ("flops", "bytes", "seconds")


@time_options.of_a_page(runtime="serving", concurrency="1")
@page_options.of_a_page("mode", "base_size", "image_size", "crop_mode")
def compare(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT",
            autocompletion=completion.compared,
            help="Modes (gundam), sizes (1024/640 with crops, 640 without), architectures"
            " (deepseek-ocr-2, deepseek-ocr:gundam) or saved reports (report.json); the others are"
            " compared with the first. Default: all modes, or the default mode if configs, types or"
            " kinds of attention are compared.",
        ),
    ] = None,
    mode: Annotated[str | None, "modes"] = None,
    model: str | None = None,
    arch: str | None = None,
    config: Annotated[list[Path] | None, "configs"] = None,
    sliding_window: int | None = None,
    trust_remote_code: bool = False,
    dtype: Annotated[str, "dtypes"] = "bfloat16",
    use_flash_attn: Annotated[str, "attentions"] = "0",
    engine: str = "analytic",
    output_format: Annotated[
        str, options.format_option("table", "markdown", "json", "csv")
    ] = "table",
    output: Path | None = None,
    html_file: Path | None = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="What one page costs, stacked stage by stage, as FILE.png or FILE.svg. Needs the"
            " extra 'plot'.",
        ),
    ] = None,
    quantity: Annotated[
        str | None,
        typer.Option(
            "--quantity",
            metavar="|".join(_QUANTITIES),
            autocompletion=completion.one_of(*_QUANTITIES),
            help=f"What is stacked; seconds need --gpu. Default: {_QUANTITIES[0]}.",
        ),
    ] = None,
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Put architectures, modes, configs and saved reports side by side."""
    engine = options.chosen("--engine", engine, ENGINES)
    options.check_files(html=html_file)
    time = time_options.request_with_report(context)
    from dsocr_analyze.cli.compared_columns import Models, columns_of, named_files

    # The analytic engine reads a directory's config without executing its code.
    executable = trust_remote_code or engine == "analytic"
    models = Models(model, arch, named_files(config or ()), executable, sliding_window)
    columns = columns_of(
        what or (), mode, models, page_options.dtypes_from(dtype),
        page_options.attentions_from(use_flash_attn),
    )  # fmt: skip
    stacked = _stacked(plot, quantity, columns, time)
    _compare(context, engine, time, models, columns, stacked)


def _compare(
    context: typer.Context,
    engine: str,
    time: TimeRequest | None,
    models: Models,
    columns: Sequence[Column | Saved],
    stacked: str,
) -> None:
    """Count what is not saved, and show everything side by side."""
    from dsocr_analyze.cli.compared_columns import Column
    from dsocr_analyze.report import comparison

    given = context.params
    counted = list(dict.fromkeys(each for each in columns if isinstance(each, Column)))
    used = dict.fromkeys(each.model for each in counted)
    for each in used:
        name = (each.config or each.architecture.name) if len(used) > 1 else None
        print_config_findings(
            context, each.directory, by_closed_forms=engine == "analytic", name=name
        )
    workloads = {
        column: page_options.workload_of(
            context, column.model.directory, mode=None, base_size=sizes.base_size,
            image_size=sizes.image_size, crop_mode=int(sizes.crop_mode),
        )
        for column in counted
        for sizes in [column.setting.mode]
    }  # fmt: skip
    for column, workload in workloads.items():
        warn_of_sizes(context, column.model.directory, workload)
    engines = {
        each.way: Engine(
            engine, each.model.directory, each.setting.dtype.name, each.setting.flash_attention,
            trust_remote_code=given["trust_remote_code"], time=time, announced=announced_steps,
        )
        for each in counted
    }  # fmt: skip
    reports = [
        (each.name, engines[each.way].report(workloads[each]) if isinstance(each, Column)
         else each.report)
        for each in columns
    ]  # fmt: skip
    result = comparison.compare(
        reports, models.config_values(), with_page=len(engines) > 1,
        options=options.options_used(context),
    )  # fmt: skip
    found = result.document

    def said() -> Said:
        return Said(
            f"{result.headline()}\n{result.opening()}",
            (result.table(), result.config_table()),
            [assumptions(found.assumptions)],
            [given["plot"]],
            result.as_csv,
            partial(html.comparison_page, result, reports),
        )

    def picture() -> Picture:
        from dsocr_analyze.pictures.stage_chart import Compared, stage_picture

        configs = [each.model.config if isinstance(each, Column) else None for each in columns]
        counted = [report for _, report in reports]
        return stage_picture(list(map(Compared, found.names, counted, configs)), stacked)

    emit(
        context, found, said, files={given["html_file"]: "html"}, instead=given["output"],
        picture=picture,
    )  # fmt: skip


def _stacked(
    plot: Path | None,
    quantity: str | None,
    columns: Sequence[Column | Saved],
    time: TimeRequest | None,
) -> str:
    """The quantity that the picture of `--plot` stacks; both are checked before any work."""
    chosen = options.chosen(
        "--quantity", _QUANTITIES[0] if quantity is None else quantity, _QUANTITIES
    )
    if plot is None:
        if quantity is not None:
            raise WorkloadError(f"--quantity {chosen} is for a picture; give --plot FILE too")
        return chosen
    from dsocr_analyze.cli.compared_columns import Saved
    from dsocr_analyze.pictures.stage_chart import refuse_many_bars

    options.check_files(None, plot)
    bars = [1] * len(columns)
    if chosen == "seconds":  # one bar per GPU and runtime
        counted = 0 if time is None else len(time.profiles) * len(time.jobs)
        bars = [len(each.report.time) if isinstance(each, Saved) else counted for each in columns]
    if 0 in bars:
        each = columns[bars.index(0)]
        right = "; give --gpu too"
        if isinstance(each, Saved):
            right = f", and {each.name!r} has none; save it with --gpu, or leave it out"
        raise WorkloadError(f"--quantity seconds needs predicted seconds{right}")
    refuse_many_bars(sum(bars))
    return chosen
