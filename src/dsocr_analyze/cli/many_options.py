"""Shared by `sweep` and `archive`: options that take lists, output files, and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import completion, options
from dsocr_analyze.dtypes import MODEL_DTYPES
from dsocr_analyze.engine import ENGINES
from dsocr_analyze.errors import OutputError, WorkloadError
from dsocr_analyze.input_files import is_folder

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
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
    "dtypes_from",
    "settings_from",
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


def settings_from(
    architecture: Architecture,
    mode: str | None,
    dtype: str,
    use_flash_attn: str,
    sliding_window: str | None,
) -> list[Setting]:
    """Every combination of the modes, data types, kinds of attention and windows in the options."""
    from dsocr_analyze.columns.setting import settings_of
    from dsocr_analyze.sweep.axes import parse_modes

    modes = parse_modes("mode", mode or architecture.default_mode, architecture)
    windows = windows_from(architecture, sliding_window)
    return settings_of(dtypes_from(dtype), attentions_from(use_flash_attn), modes, windows)


def dtypes_from(text: str) -> tuple[Dtype, ...]:
    """The distinct data types in `--dtype`."""
    from dsocr_analyze.dtypes import dtype_named
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
