"""Shared by `sweep` and `archive`: options that take lists, output files, and predicted seconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsocr_analyze.analysis import ENGINES, check_precision
from dsocr_analyze.cli import completion, options, time_options
from dsocr_analyze.cli.command_options import adding
from dsocr_analyze.dtypes import MODEL_DTYPES, dtype_named
from dsocr_analyze.errors import OutputError, WorkloadError
from dsocr_analyze.input_files import is_folder

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.archive.totals import ListTime
    from dsocr_analyze.columns.evaluate import TimeRequested
    from dsocr_analyze.columns.setting import Setting
    from dsocr_analyze.dtypes import Dtype

__all__ = [
    "AXES",
    "RESULT",
    "AttentionsOption",
    "DtypesOption",
    "EngineOption",
    "ModesOption",
    "QuietOption",
    "WindowsOption",
    "attentions_from",
    "check_files",
    "check_place",
    "check_quiet",
    "deadline_hours",
    "dtypes_from",
    "list_time",
    "of_many_pages",
    "settings_from",
    "time_requested",
    "windows_from",
]

AXES = "Axes (lists and ranges: 10,100:1000:100)"
RESULT = "Result"
MODES = "Modes: names, all, or sizes like 1024/640 (crops) and 512:1280:64 (no crops)."

ModesOption = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="LIST",
        autocompletion=completion.list_of_modes,
        help=MODES,
        rich_help_panel=AXES,
    ),
]
DtypesOption = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="LIST",
        autocompletion=completion.list_of(*MODEL_DTYPES),
        help="Data types of weights and activations: bfloat16, float16, float32.",
        rich_help_panel=AXES,
    ),
]
AttentionsOption = Annotated[
    str,
    typer.Option(
        "--use-flash-attn",
        metavar="LIST",
        autocompletion=completion.list_of("0", "1"),
        help="Decoder attention: 0 eager, 1 FlashAttention-2.",
        rich_help_panel=AXES,
    ),
]
WindowsOption = Annotated[
    str | None,
    typer.Option(
        "--sliding-window",
        metavar="LIST",
        autocompletion=completion.list_of("0", "1"),
        help=options.SLIDING_WINDOW,
        rich_help_panel=AXES,
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="|".join(ENGINES),
        autocompletion=completion.one_of(*ENGINES),
        help="trace runs the model under hooks; analytic evaluates closed forms, without torch.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only what is asked for.")]

_SWITCHES = {"0": False, "1": True}

_CONCURRENCY: Final = 16
_HOURS: Final = {"m": 1 / 60, "h": 1.0, "d": 24.0, "": 1.0}
_DEADLINE: Final = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?) *(?P<unit>[mhd]?)")

_RuntimeOption = Annotated[
    str,
    typer.Option(
        "--runtime",
        metavar="eager|serving",
        autocompletion=completion.one_of("eager", "serving"),
        help="What runs the model: eager (its own code under generate) or serving (a serving"
        " engine).",
        rich_help_panel=time_options.PANEL,
    ),
]
_ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        metavar="PAGES",
        help="Pages of the list in flight at a time on a GPU. Default: 16.",
        rich_help_panel=time_options.PANEL,
    ),
]
_DeadlineOption = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="Compute how many GPUs finish the list in this time: 90m, 12h, 3d, or hours.",
        rich_help_panel=time_options.PANEL,
    ),
]


def settings_from(architecture: Architecture, given: Mapping[str, Any]) -> list[Setting]:
    """Every combination of the modes, data types, kinds of attention and windows in the options."""
    from dsocr_analyze.columns.setting import settings_of
    from dsocr_analyze.sweep.axes import parse_modes

    modes = parse_modes("mode", given["mode"] or architecture.default_mode, architecture)
    windows = windows_from(architecture, given["sliding_window"])
    attentions = attentions_from(given["use_flash_attn"])
    return settings_of(dtypes_from(given["dtype"]), attentions, modes, windows)


def dtypes_from(text: str) -> tuple[Dtype, ...]:
    """The distinct data types in `--dtype`."""
    from dsocr_analyze.sweep.axes import parse_names

    return tuple(dict.fromkeys(dtype_named(name) for name in parse_names("dtype", text)))


def attentions_from(text: str) -> tuple[bool, ...]:
    """Whether attention is FlashAttention, for each value in `--use-flash-attn`."""
    return _switches("flash_attention", "--use-flash-attn", text)


def windows_from(architecture: Architecture, text: str | None) -> tuple[bool, ...]:
    """Whether the sliding window is on, for each value in `--sliding-window`.

    Raises:
        WorkloadError: The architecture has no sliding window, or a value is neither 0 nor 1.
    """
    if text is None:
        return (True,)
    options.require_window(architecture, text)
    return _switches("sliding_window", "--sliding-window", text)


def _switches(argument: str, option: str, text: str) -> tuple[bool, ...]:
    from dsocr_analyze.sweep.axes import parse_names

    names = parse_names(argument, text)
    for name in names:
        if name not in _SWITCHES:
            raise WorkloadError(f"{option} {name!r} is invalid; give 0, 1 or 0,1")
    return tuple(dict.fromkeys(_SWITCHES[name] for name in names))


def check_quiet(results: Mapping[str, object]) -> None:
    """Raise if a command that prints nothing would have no result at all.

    Args:
        results: The options that ask for a result, None for those that are not given.
    """
    if all(value is None for value in results.values()):
        *most, last = results
        raise WorkloadError(
            f"--quiet leaves nothing to show; give {', '.join(most)} or {last} too, or leave out"
            " --quiet"
        )


def check_files(output: Path | None, plot: Path | None) -> None:
    """Check, before any work, that files can be written."""
    from dsocr_analyze.columns.table_files import table_format
    from dsocr_analyze.pictures.picture import picture_format

    for path, format_of in ((output, table_format), (plot, picture_format)):
        if path is None:
            continue
        format_of(path)
        check_place(path)


def check_place(path: Path) -> None:
    """Raise for a path that is a folder, or whose folder does not exist."""
    if is_folder(path):
        raise OutputError(f"cannot write {str(path)!r}: it is a folder; give a file's name")
    if not is_folder(path.parent):
        raise OutputError(f"cannot write {str(path)!r}: no folder {str(path.parent)!r}; create it")


# --- predicted seconds --------------------------------------------------------------------------


def of_many_pages() -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options for the predicted seconds of many pages to a command.

    They are read by `time_requested`, and those about lists of pages by `list_time`.
    """
    return adding(
        {
            "gpu": (options.GpuOption, None),
            "runtime": (_RuntimeOption, "serving"),
            "concurrency": (_ConcurrencyOption, None),
            "deadline": (_DeadlineOption, None),
            **time_options.OF_EVERY_PREDICTION,
        }
    )


def list_time(context: typer.Context, requested: TimeRequested | None) -> ListTime | None:
    """How to time a list of pages; None if no seconds were requested.

    Raises:
        WorkloadError: A value is invalid.
    """
    if requested is None:
        return None
    from dsocr_analyze.archive.totals import ListTime

    given = context.params
    concurrency = _CONCURRENCY if given["concurrency"] is None else given["concurrency"]
    if not 1 <= concurrency <= time_options.MOST_CONCURRENCY:
        raise WorkloadError(
            f"--concurrency {concurrency} is out of range; give 1 to"
            f" {time_options.MOST_CONCURRENCY}"
        )
    hours = None if given["deadline"] is None else deadline_hours(given["deadline"])
    return ListTime(requested, concurrency, hours, _lengths_are_given(context))


def _lengths_are_given(context: typer.Context) -> bool:
    """Whether the options give output lengths, not just their maximum."""
    given = context.params
    return given["new_tokens_from"] is not None or given["mean_new_tokens"] is not None


def deadline_hours(text: str) -> float:
    """Hours of a deadline like 90m, 12h, 3d, or a number of hours.

    Raises:
        WorkloadError: The text is not such a time, or not above 0.
    """
    found = _DEADLINE.fullmatch(text.strip().lower())
    hours = float(found["number"]) * _HOURS[found["unit"]] if found else 0.0
    if not hours:
        raise WorkloadError(
            f"--deadline {text!r} is invalid; give a time above 0 like 90m, 12h, 3d, or hours"
        )
    return hours


def time_requested(context: typer.Context) -> TimeRequested | None:
    """The predictions requested by the options of `of_many_pages`; None without a GPU.

    Raises:
        AnalyzeError: A value is invalid.
    """
    given = context.params
    if not given["gpu"]:
        time_options.refuse_without_gpu(context)
        return None
    from dsocr_analyze.cli.kept_files import corrections_asked_for
    from dsocr_analyze.columns.evaluate import TimeRequested
    from dsocr_analyze.hardware.timed_device import Device
    from dsocr_analyze.timing.assumptions import JobAssumptions, lengths_sentence
    from dsocr_analyze.timing.runtimes import EAGER, RUNTIMES, server_named

    runtime = options.chosen("--runtime", given["runtime"], RUNTIMES)
    profiles = time_options.profiles_named(given["gpu"], given["profile"])
    host = server_named(given["server"])
    precision = time_options.precision_of(given["weights_dtype"], given["kv_dtype"], [runtime])
    for each in profiles:
        check_precision(Device(each), precision)
    file, mean, at_limit = (
        given[name] for name in ("new_tokens_from", "mean_new_tokens", "share_at_limit")
    )
    lengths = time_options.lengths_by_limit(context)
    milliseconds = given["preprocess_ms"]
    job = JobAssumptions(
        EAGER if runtime == "eager" else host, lengths,
        None if milliseconds is None else milliseconds / 1e3, given["workers"], precision,
        given["reserved"], given["price"], given["offline"],
        corrections_asked_for(
            given["corrections"], given["server_version"], profiles, given["server"]
        ),
    )  # fmt: skip
    said = "every page generates the most tokens it may"
    if file is not None:
        said = lengths_sentence(lengths(1))
    elif mean is not None:
        said = (
            f"pages that end on their own generate {mean:g} tokens on average;"
            f" {100 * at_limit:g} % of pages generate the most tokens they may"
        )
    if _lengths_are_given(context):
        said += "; FLOPs and bytes are counted for the most tokens that pages may generate"
    return TimeRequested(profiles, job, tuple(job.sentences(said, profiles)))
