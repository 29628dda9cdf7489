"""Models, modes, sizes and saved reports side by side."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar

import typer
from msgspec import structs

from dsocr_analyze import errors, input_files
from dsocr_analyze.analysis import Engine
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT_PAGE, PageRequest
from dsocr_analyze.architectures.accuracy import published_accuracies
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.archive import axes
from dsocr_analyze.archive.setting import Setting
from dsocr_analyze.cli import help_text, options, page_options, printing, streams, words
from dsocr_analyze.errors import AnalyzeError, WorkloadError
from dsocr_analyze.kernels import Dtype
from dsocr_analyze.model.directory import read_config
from dsocr_analyze.pictures.stage_chart import (
    ChartedReport,
    accuracy_picture,
    refuse_many_bars,
    stage_picture,
)
from dsocr_analyze.report import comparison, ranking, reading
from dsocr_analyze.workload import Mode, paper_dpi, position_warnings

if TYPE_CHECKING:
    from dsocr_analyze.timing.predict import TimeRequest

_Made = TypeVar("_Made")

_COUNTING: Final = {"mode", "dtype", "use_flash_attn", "engine", *page_options.OF_A_PAGE,
                    *options.SECONDS_OF_A_PAGE}  # fmt: skip
"""What says how columns are counted, of which saved reports have their own."""
_QUANTITIES: Final = ("flops", "bytes", "seconds")
_OF_ALL: Final[options.Added] = {
    "all_models": (
        Annotated[
            bool,
            options.option(
                None,
                "All known models, each in its usual mode, and what else is named: one row per"
                " model, the best first, with published accuracies.",
                "--all",
            ),
        ],
        False,
    ),
    "sort": (
        Annotated[
            str | None,
            options.option(
                "ORDER",
                f"What --all sorts by: {', '.join(ranking.ORDERS)}, or a benchmark such as"
                " olmocr_bench. Default: pages-per-second with --gpu, else weights.",
                completes=ranking.ORDERS,
            ),
        ],
        None,
    ),
}
_AT_ONCE: Final = "1,32"  # pages in flight of all models, unless others are asked for


def _comparable() -> list[str]:
    """What can be compared, except saved reports."""
    return [
        *options.modes(),
        *ARCHITECTURES,
        *(f"{name}:{mode}" for name, each in ARCHITECTURES.items() for mode in each.modes),
    ]


def compare(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        options.option(
            "WHAT",
            "Modes (gundam), sizes (1024/640 with crops, 640 without), architectures"
            " (deepseek-ocr-2, deepseek-ocr:gundam) or saved reports (report.json); the others are"
            " compared with the first. Default: all modes, or the default mode if configs, types or"
            " kinds of attention are compared.",
            made=typer.Argument,
            completes=_comparable,
        ),
    ] = None,
    mode: Annotated[str | None, "modes"] = None,
    model: str | None = None,
    arch: str | None = None,
    config: Annotated[list[Path] | None, "configs"] = None,
    of_all: options.Added = _OF_ALL,
    sliding_window: int | None = None,
    trust_remote_code: bool = False,
    dtype: Annotated[str, "dtypes"] = "bfloat16",
    use_flash_attn: Annotated[str, "attentions"] = "0",
    of_page: options.Added = page_options.PROMPT | page_options.NEW_TOKENS | page_options.BATCH
    | page_options.PROMPT_PAGES,
    engine: str = "analytic",
    output_format: str = "table",
    output: Path | None = None,
    html_file: Path | None = None,
    plot: Annotated[
        Path | None,
        options.option(
            "FILE",
            "What one page costs, stacked stage by stage, as FILE.png or FILE.svg; with --all and"
            " --gpu, accuracy over pages per second. Needs the extra 'plot'.",
            group=help_text.OUTPUT,
        ),
    ] = None,
    quantity: Annotated[
        str | None,
        options.option(
            _QUANTITIES, f"What is stacked; seconds need --gpu. Default: {_QUANTITIES[0]}.",
            callback=options.in_any_case, group=help_text.OUTPUT,
        ),
    ] = None,
    assumptions: bool = False,
    strict: bool = False,
    debug: bool = False,
    of_time: options.Added = options.SECONDS_OF_A_PAGE,
) -> None:  # fmt: skip
    """Put architectures, modes, configs and saved reports side by side."""
    printing.check_files(html=html_file)
    what = _named(context, what or ())
    time, stacked = page_options.request_with_report(context), quantity or _QUANTITIES[0]
    models = _Models(context.params, _names_of(config or ()), time)
    columns = _columns_of(
        what, mode, models, options.dtypes_from(dtype),
        options.switches("flash_attention", use_flash_attn),
    )  # fmt: skip
    idle = [
        spelled for name, spelled in options.given_options(context).items() if name in _COUNTING
    ]
    if idle and all(isinstance(each, ChartedReport) for each in columns):
        raise WorkloadError(f"{idle[0]} has no effect on saved reports; leave it out")
    if plot is not None:
        _check_picture(plot, stacked, columns, time)
    elif quantity is not None:
        raise WorkloadError(f"--quantity {quantity} is for a picture; give --plot FILE too")
    _compare(context, models, columns, stacked)


def _named(context: typer.Context, what: Iterable[str]) -> list[str]:
    """What is compared; with `--all`, also every model."""
    given = context.params
    if given["all_models"]:
        if "concurrency" not in options.given_options(context):
            given["concurrency"] = _AT_ONCE
        usual = [f"{name}:{each.default_mode}" for name, each in ARCHITECTURES.items()]
        what = dict.fromkeys([*(ARCHITECTURES if given["mode"] else usual), *what])
    elif given["sort"] is not None:
        raise WorkloadError(f"--sort {given['sort']} is for --all; give it too, or leave it out")
    return list(what)


def _check_picture(
    plot: Path, stacked: str, columns: Sequence[_Counted | ChartedReport], time: TimeRequest | None
) -> None:
    """Raises, before any work, if `--plot` cannot be drawn."""
    printing.check_files(None, plot)
    predicted = 0 if time is None else len(time.profiles) * len(time.jobs)
    bars = [  # for seconds, one per GPU and runtime
        1 if stacked != "seconds"
        else len(each.report.time) if isinstance(each, ChartedReport) else predicted
        for each in columns
    ]  # fmt: skip
    if 0 in bars:
        each = columns[bars.index(0)]
        right = (
            f", and {each.name!r} has none; save it with --gpu, or leave it out"
            if isinstance(each, ChartedReport)
            else "; give --gpu too"
        )
        raise WorkloadError(f"--quantity seconds needs predicted seconds{right}")
    refuse_many_bars(sum(bars))


def _compare(
    context: typer.Context,
    models: _Models,
    columns: Sequence[_Counted | ChartedReport],
    stacked: str,
) -> None:
    given = context.params
    counted = list(dict.fromkeys(each for each in columns if isinstance(each, _Counted)))
    used = dict.fromkeys(each.model for each in counted)
    for model in used:
        name = models.config_of(model) or model.directory.architecture.name
        words.print_config_findings(
            context, model.directory, by_closed_forms=given["engine"] == "analytic",
            name=name if len(used) > 1 else None,
        )  # fmt: skip
    left_out: dict[str, str] | None = {} if given["all_models"] else None
    requests = _of_each(counted, partial(_request, given), left_out)
    for column, request in requests.items():
        words.warn(context, request.architecture.warnings_of(request.workload))
        positions = column.model.directory.dimensions().decoder.max_position_embeddings
        beyond = position_warnings(request.workload_of_page, positions)
        words.warn(context, [f"{column.name}: {said}" for said in beyond])
    made = _of_each([*requests], lambda each: each.model.report(requests[each]), left_out)
    charted = [
        each
        if isinstance(each, ChartedReport)
        else ChartedReport(each.name, made[each], models.config_of(each.model))
        for each in columns
        if isinstance(each, ChartedReport) or each in made
    ]
    _show(context, charted, models.configs, stacked, left_out)


def _show(
    context: typer.Context,
    charted: Sequence[ChartedReport],
    configs: Mapping[Path | None, str],
    stacked: str,
    left_out: Mapping[str, str] | None,
) -> None:
    """Shows reports beside the first, or with `left_out` as a ranking."""
    given, accuracies = context.params, {} if left_out is None else published_accuracies()

    def compared() -> comparison.ComparisonDocument:
        return comparison.compare(
            [(each.name, each.report) for each in charted],
            {name: read_config(file) for file, name in configs.items() if file},
            options=options.options_used(context), accuracies=accuracies,
        )  # fmt: skip

    found = compared()
    if left_out is not None:
        row = ranking.sorting_row(
            found, given["sort"] or ("pages-per-second" if given["gpu"] else "weights")
        )
        charted = [charted[place] for place in ranking.order_of(row)]
        found = structs.replace(compared(), ranking=comparison.Ranking(
            sorted_by=row.key,
            dpi=None if given["image"] else paper_dpi(given["page"] or DEFAULT_PAGE),
            left_out=left_out,
            accuracies=accuracies,
        ))  # fmt: skip
    reports = [each.report for each in charted]
    shown = [*configs.values()] if len(configs) > 1 else []

    def page() -> str:
        from dsocr_analyze.report.html import comparison_contents, render_html

        return render_html(comparison_contents(
            found, reports, [line for each in said.below for line in each.lines], shown
        ))  # fmt: skip

    said = printing.Said(
        "\n".join([*found.answer(), found.headline(), found.opening()]), list(found.tables(shown)),
        [printing.assumptions(context, found.assumptions, found.notes)],
        [given["html_file"], given["plot"]],
        {"csv": partial(found.as_csv, shown), "html": page},
    )  # fmt: skip
    named = [replace(each, name=name) for each, name in zip(charted, found.names, strict=True)]
    draw = partial(stage_picture, named, stacked)
    if found.ranking is not None:
        scores = [*ranking.score_lines(found, found.ranking)]
        shared = ranking.opening(found, found.ranking, reports)
        said = said._replace(
            opening="\n".join([*found.answer(), shared]),
            tables=[*ranking.ranking_tables(found, found.ranking)],
            below=[printing.Lines("Scores", scores, "Score: "), *said.below],
        )
        if given["gpu"] and given["quantity"] is None:
            draw = partial(accuracy_picture, found, found.ranking, shared)
    printing.emit(
        context, found, said, files={given["html_file"]: "html"}, instead=given["output"],
        picture=draw,
    )  # fmt: skip


def _of_each(
    columns: Sequence[_Counted], make: Callable[[_Counted], _Made], left_out: dict[str, str] | None
) -> dict[_Counted, _Made]:
    """What is made of each column; with `left_out`, which says why, others have none.

    Raises:
        AnalyzeError: Without `left_out`, or if no column has any.
    """
    made: dict[_Counted, _Made] = {}
    for column in columns:
        try:
            made[column] = make(column)
        except AnalyzeError as error:
            if left_out is None or (column is columns[-1] and not made):
                raise
            left_out[column.name] = words.in_options(str(error), error.arguments)
    return made


def _request(given: Mapping[str, Any], column: _Counted) -> PageRequest:
    """What a column asks; raises AnalyzeError."""
    setting, sizes = column.setting, column.setting.mode
    asked = page_options.page_request(
        given, column.model.directory, mode=None, base_size=sizes.base_size,
        image_size=sizes.image_size, crop_mode=sizes.crop_mode, dtype=setting.dtype.name,
        flash_attention=setting.flash_attention,
    )  # fmt: skip
    _ = asked.workload  # raises before anything is said
    return asked


# --- the models -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Models:
    """The models that options and items name, each read when first needed."""

    given: Mapping[str, Any]
    configs: Mapping[Path | None, str]
    """Names of the files of `--config`."""
    time: TimeRequest | None

    @cached_property
    def named(self) -> list[Engine]:
        """Those that a bare mode applies to: one per config."""
        return [self._read(self.given["model"], file) for file in self.configs or [None]]

    @cache  # noqa: B019  # models live as long as their command
    def of(self, name: str) -> list[Engine]:
        """Those of an architecture, or else its default."""
        model, architecture = self.given["model"], ARCHITECTURES[name]
        found = [each for each in self.named if each.directory.architecture is architecture]
        return found or [self._read(model if model == "reference" else None, arch=name)]

    def config_of(self, model: Engine) -> str | None:
        """The name of a model's config, unless that is its directory's own."""
        return self.configs.get(model.directory.config_file)

    def refuse_unused(self, used: Sequence[Engine]) -> None:
        """Raises for options without effect on what is compared."""
        given, window = self.given, self.given["sliding_window"]
        if window is not None and not any(each.directory.architecture.has_window for each in used):
            raise WorkloadError(
                f"--sliding-window {window} has no effect: nothing that is compared has a sliding"
                " window; leave it out"
            )
        named = [
            f"--{name} {given[name]}"
            for name in ("model", "arch")
            if given[name] is not None and (name, given[name]) != ("model", "reference")
        ]
        for each in self.named if named or self.configs else ():
            option = f"--config {each.directory.config_file}" if self.configs else named[0]
            if each not in used:
                raise WorkloadError(
                    f"{option} is not compared with anything; name a mode without an architecture,"
                    " or leave it out"
                )

    def _read(self, model: str | None, file: Path | None = None, arch: str | None = None) -> Engine:
        given, window = self.given, self.given["sliding_window"]
        directory = page_options.model_directory_from(
            model, arch or given["arch"], file,
            # The analytic engine reads a directory's config without executing its code.
            trust_remote_code=given["trust_remote_code"] or given["engine"] == "analytic",
        )  # fmt: skip
        if window is not None and directory.architecture.has_window:
            directory = page_options.with_window(directory, window)
        return Engine(
            directory, trust_remote_code=given["trust_remote_code"], time=self.time,
            announced=partial(streams.announced_steps, is_quiet=given["quiet"]),
            with_modules=False,
        )  # fmt: skip


def _names_of(files: Sequence[Path]) -> Mapping[Path | None, str]:
    """Their names, or paths if two have the same name."""
    if twice := [file for file in files if files.count(file) > 1]:
        raise WorkloadError(f"--config {twice[0]} is given twice; give every file once")
    names = {file.name for file in files}
    return {file: file.name if len(names) == len(files) else str(file) for file in files}


# --- the columns ----------------------------------------------------------------------------------


class _Counted(NamedTuple):
    """A column to be counted."""

    name: str
    model: Engine
    setting: Setting


_Asked: TypeAlias = tuple[str, Engine, Mode]
"""What the user named, or else the mode; the model; the mode."""

_Items: TypeAlias = list[list[_Asked | ChartedReport]]
"""Of each model, what is asked for by one name."""


def _columns_of(
    what: Sequence[str],
    mode: str | None,
    models: _Models,
    dtypes: Sequence[Dtype],
    attentions: Sequence[bool],
) -> list[_Counted | ChartedReport]:
    """Every combination of data type, attention, config and item, which varies fastest.

    Raises:
        WorkloadError: An item cannot be compared, or an option has no effect.
    """
    first, *others = itertools.product(dtypes, attentions)
    if mode is None and not (what or others or len(models.configs) > 1):
        mode = "all"
    named = [_of_item(item, mode, models) for item in what] or [_in_modes(None, mode, models.named)]
    of_models = [[*itertools.chain(*each)] for each in itertools.zip_longest(*named, fillvalue=[])]
    items = [*itertools.chain(*of_models)]
    asked = [each for each in items if not isinstance(each, ChartedReport)]
    models.refuse_unused([model for _, model, _ in asked])

    def column(each: _Asked, dtype: Dtype, flash_attention: bool) -> _Counted:
        item, model, sizes = each
        setting = Setting(sizes, dtype, flash_attention)
        parts = (
            item if max(map(len, of_models)) > 1 else "",
            models.config_of(model) if len(models.configs) > 1 else "",
            setting.dtype.name if len(dtypes) > 1 else "",
            setting.attention if len(attentions) > 1 else "",
        )
        return _Counted(", ".join(filter(None, parts)) or item, model, setting)

    return [
        *(each if isinstance(each, ChartedReport) else column(each, *first) for each in items),
        *(column(each, *other) for other in others for each in asked),
    ]


def _of_item(item: str, mode: str | None, models: _Models) -> _Items:
    path, (before, colon, own_mode) = Path(item), item.partition(":")
    if path.suffix == ".json" and not input_files.is_folder(path):
        return [[ChartedReport(item, reading.load_report(path))]]
    name = errors.in_any_case(before, ARCHITECTURES)
    found = models.named if name is None else models.of(name)
    if name is not None and not colon:
        return _in_modes(name, mode, found)
    text = item if name is None else own_mode
    architectures = [each.directory.architecture for each in found]
    lacking = [each for each in architectures if not axes.is_mode_or_sizes(each, text)]
    if name is None and lacking:
        if input_files.is_folder(path):
            raise _folder(item)
        if input_files.exists(path):
            return [[ChartedReport(item, reading.load_report(path))]]
        raise _unknown(item, lacking[0])
    if mode is not None:
        raise WorkloadError(f"{item!r} already names a mode; give it or --mode {mode}, not both")
    if lacking:
        raise WorkloadError(
            f"cannot compare {item!r}: {lacking[0].name} has no mode {text!r}; give"
            f" {', '.join(lacking[0].modes)}, or sizes like 1024/640 (crops) or 640 (no crops)"
        )
    return _in_modes(name, text, found, f"cannot compare {item!r}: " if name else "")


def _in_modes(
    name: str | None, modes: str | None, models: Sequence[Engine], wrong: str | None = None
) -> _Items:
    """Those modes of each model, by default its own; `wrong` precedes what is wrong with them."""
    items: _Items = []
    label = "{mode}" if name is None else "{name}" if modes is None else "{name}:{mode}"
    for model in models:
        architecture = model.directory.architecture
        asked = architecture.default_mode if modes is None else modes
        try:
            found = axes.parse_modes("mode", asked, architecture)
        except WorkloadError as error:
            said = f"{architecture.name}: " if wrong is None else wrong
            raise WorkloadError(f"{said}{error}", arguments=error.arguments) from error
        items.append([
            (label.format(name=name, mode=mode.name), model, mode)
            for mode in dict.fromkeys(found)
        ])  # fmt: skip
    return items


def _folder(item: str) -> WorkloadError:
    """The error for a folder says what to name instead."""
    report, config = (Path(item) / name for name in ("static_compute.json", "config.json"))
    right = f"give a saved report, such as {report.name}, or --model DIR to compare its modes"
    if input_files.is_regular(report):
        right = f"did you mean its report, {report}?"
    elif input_files.is_regular(config):
        right = (
            f"compare the modes of this model with --model {item}, models with --config {config}"
            " (once per model), or saved reports: dsocr-analyze --model"
            f" {item} --output FOLDER writes FOLDER/{report.name}"
        )
    return WorkloadError(f"cannot compare {item!r}: it is a folder; {right}")


def _unknown(item: str, architecture: Architecture) -> WorkloadError:
    others = (
        f"{each.name}:{'|'.join(each.modes)}" if len(each.modes) > 1 else each.name
        for each in ARCHITECTURES.values()
        if each is not architecture
    )
    near = errors.did_you_mean(item, [*architecture.modes, *ARCHITECTURES])
    return WorkloadError(
        f"cannot compare {item!r}; {near}give a mode of {architecture.name}"
        f" ({', '.join(architecture.modes)}), an architecture with or without a mode"
        f" ({', '.join([architecture.name, *others])}), sizes like 1024/640 (crops) or 640 (no"
        " crops), or a saved report.json"
    )
