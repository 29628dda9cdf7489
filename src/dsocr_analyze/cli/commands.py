"""The application and its commands, which are imported when used.

They are found ignoring case, with suggestions for unknown words.
"""

from __future__ import annotations

import contextlib
import gc
from collections import UserDict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from dsocr_analyze import input_files, names
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.cli import options, words
from dsocr_analyze.cli.analyze import analyze
from dsocr_analyze.errors import DeviceError, PageError, WorkloadError
from dsocr_analyze.interruption import interruptible
from dsocr_analyze.workload import parse_page

__all__ = ["BESIDE", "COMMANDS", "app"]

_NAME = "dsocr-analyze"

COMMANDS: Final = (
    "advise",
    "check",
    "compare",
    "fit",
    "time",
    "calibrate",
    "measure",
    "infer",
    "devices",
    "sweep",
    "archive",
    "trust",
    "stages",
    "tree",
    "docs",
)
"""In the order of the help. Each is a function in the module of its name, but for `BESIDE`."""

BESIDE: Final = {"calibrate": "measure", "fit": "devices", "infer": "measure"}
"""Commands that stand in the module of another one."""

_SHORT: Final = frozenset({"docs", "fit", "devices", "trust", "tree"})
"""Those that, like the main job, end after a few passes at most. Garbage is collected in all
others, which loop: the program itself is started without (`__main__.py`)."""


class _Parsed:
    """A command whose parser errors carry its context, and which refuses repeated options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the arguments into the context; errors know the context."""
        try:
            _check_repeated(self, ctx, args)
            return super().parse_args(ctx, args)  # type: ignore[misc,no-any-return]  # Typer's
        except typer.TyperException as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]  # Typer does not export the type
            raise


class _Command(_Parsed, TyperCommand):
    """One of `COMMANDS`."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; garbage is collected meanwhile unless it is a short one."""
        if self.name in _SHORT or gc.isenabled():
            return super().invoke(ctx)
        gc.enable()
        try:
            return super().invoke(ctx)
        finally:
            gc.disable()


class _Commands(_Parsed, TyperGroup):
    """The commands; an unknown word raises an error with suggestions."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _CommandsByName({name: name for name in COMMANDS})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command named by the first argument, and the remaining arguments.

        Raises:
            WorkloadError: There is no such command.
        """
        word = args[0]
        if found := names.in_any_case(word, self.commands):
            return found, self.commands[found], args[1:]
        if word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        meant = names.did_you_mean(word, self.commands) or _meant(word)
        right = f"see {_NAME} --help" if meant else f"there are {', '.join(self.commands)}"
        raise WorkloadError(f"no command {word!r}; {meant}{right}")


class _CommandsByName(UserDict[str, Any]):
    """The commands; only those that are asked for are imported, which shortens every start."""

    def __getitem__(self, name: str) -> TyperCommand:
        return _command(self.data[name])


@cache
def _command(name: str) -> TyperCommand:
    module = import_module(f"dsocr_analyze.cli.{BESIDE.get(name, name)}")
    function = options.declared(getattr(module, name))
    only = typer.Typer(add_completion=False, rich_markup_mode=None)
    # Interrupts are held back while parsing, which temporarily changes settings of the process; a
    # running command may be interrupted anywhere.
    only.command(name, cls=_Command)(interruptible()(function))
    command = typer.main.get_command(only)
    assert isinstance(command, TyperCommand)
    return command


def _check_repeated(command: Any, context: Any, arguments: list[str]) -> None:
    """Raise for a repeated option that takes one value; the parser would keep only the last value.

    Repeating the same value or a flag is harmless.
    """
    if context.resilient_parsing:  # shell completion
        return
    single = [
        each
        for each in command.params
        if each.param_type_name == "option" and not (each.is_flag or each.multiple or each.count)
    ]
    parser = command.make_parser(context)
    for option in single:
        parser.add_option(option, option.opts, option.name, action="append")
    given = parser.parse_args(list(arguments))[0]
    for option in single:
        values = list(dict.fromkeys(given.get(option.name, ())))
        if len(values) > 1:
            raise WorkloadError(words.repeated(option, values, context))


def _meant(word: str) -> str:
    """A suggestion if the word is a known option value, as a question; otherwise empty."""
    from dsocr_analyze.hardware.devices import catalogue_name, gpu_catalogue

    modes = {mode: name for name, each in ARCHITECTURES.items() for mode in each.modes}
    path = Path(word)
    if mode := names.in_any_case(word, modes):
        arch = "" if mode in DEFAULT.modes else f"--arch {modes[mode]} "
        meant = f"{arch}--mode {mode}"
    elif architecture := names.in_any_case(word, ARCHITECTURES):
        meant = f"--arch {architecture}"
    elif input_files.is_folder(path):
        meant = f"{'--model' if input_files.is_regular(path / 'config.json') else 'archive'} {word}"
    elif input_files.is_regular(path):
        meant = f"{'compare' if path.suffix.lower() == '.json' else '--image'} {word}"
    else:
        with contextlib.suppress(PageError):
            parse_page(word)
            return f"did you mean {_NAME} --page {word}? "
        try:
            meant = f"time {catalogue_name(word, gpu_catalogue())}"
        except DeviceError:
            return names.did_you_mean(word, modes).replace("mean ", "mean --mode ", 1)
    return f"did you mean {_NAME} {meant}? "


app = typer.Typer(
    name=_NAME,
    cls=_Commands,
    help="What a page costs on DeepSeek-OCR: FLOPs, bytes and memory, stage by stage.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(invoke_without_command=True)(interruptible()(options.declared(analyze)))
