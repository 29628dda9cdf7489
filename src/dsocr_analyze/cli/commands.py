"""The application and its commands, each imported when it is first used."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections import UserDict
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from dsocr_analyze import input_files, names
from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.cli import options, words
from dsocr_analyze.cli.analyze import analyze
from dsocr_analyze.errors import DeviceError, PageError, WorkloadError
from dsocr_analyze.interruption import interruptible
from dsocr_analyze.workload import parse_page

__all__ = ["BESIDE", "COMMANDS", "application"]

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

BESIDE: Final = {
    "calibrate": "measure",
    "fit": "devices",
    "infer": "measure",
    "stages": "models",
    "tree": "models",
    "trust": "models",
}
"""Commands that stand in a module of another name."""

_SHORT: Final = frozenset({"docs", "fit", "devices", "trust", "tree"})
"""Those that end after a few passes, as the main job does. Garbage is collected in the others,
which loop; the program starts without (`__main__.py`)."""


def _declared(command: Callable[..., None], *, loops: bool) -> Callable[..., None]:
    """A command as Typer takes it, with all its options.

    A parameter without a declaration is the shared option of its name, or of the name in its
    annotation; one whose default is a table stands for that table's options, which the command
    reads from `context.params`.
    """
    signature, parameters = inspect.signature(command, eval_str=True), []
    own = {*signature.parameters}
    for each in signature.parameters.values():
        table = {each.name: (each.annotation, each.default)}
        if isinstance(each.default, dict):
            own.remove(each.name)
            table = each.default
        for name, (annotation, default) in table.items():
            kind, info = (
                get_args(annotation) if get_origin(annotation) is Annotated else (annotation, name)
            )
            if kind is not typer.Context:
                kind = Annotated[kind, options.SHARED[info] if isinstance(info, str) else info]
            parameters.append(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
                )
            )

    @wraps(command)
    def called(**given: Any) -> None:
        for name in given.keys() - own:
            del given[name]
        collects = loops and not gc.isenabled()
        if collects:
            gc.enable()
        try:
            # Held back only while parsing, which temporarily changes settings of the process.
            with interruptible():
                command(**given)
        finally:
            if collects:
                gc.disable()

    called.__signature__ = signature.replace(  # type: ignore[attr-defined]  # Typer reads it here
        parameters=parameters
    )
    return called


class _Parsed:
    """A command whose parser errors carry the context, and which refuses repeated options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads arguments; raises WorkloadError if an option of one value has several."""
        command: Any = self
        try:
            parser = command.make_parser(ctx)
            single = []
            for each in command.params:
                takes_more = each.param_type_name != "option" or each.multiple or each.count
                if not (takes_more or each.is_flag or ctx.resilient_parsing):
                    parser.add_option(each, each.opts, each.name, action="append")
                    single.append(each)
            given = parser.parse_args([*args])[0] if single else {}
            for each in single:
                values = list(dict.fromkeys(given.get(each.name, ())))
                if len(values) > 1:
                    raise WorkloadError(words.repeated(each, values, ctx))
            return super().parse_args(ctx, args)  # type: ignore[misc,no-any-return]  # Typer's
        except typer.TyperException as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]  # Typer does not export the type
            raise


class _Command(_Parsed, TyperCommand):
    """One of `COMMANDS`."""


class _Commands(_Parsed, TyperGroup):
    """The commands, found in any case."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first argument names; raises WorkloadError with suggestions."""
        word = args[0]
        if found := names.in_any_case(word, self.commands):
            return found, self.commands[found], args[1:]
        if word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        meant = names.did_you_mean(word, self.commands) or _meant(word)
        right = f"see {_NAME} --help" if meant else f"there are {', '.join(self.commands)}"
        raise WorkloadError(f"no command {word!r}; {meant}{right}")


class _CommandsByName(UserDict[str, Any]):
    """Imports only those that are asked for."""

    def __getitem__(self, name: str) -> TyperCommand:
        if self.data[name] is None:
            module = import_module(f"dsocr_analyze.cli.{BESIDE.get(name, name)}")
            only = typer.Typer(add_completion=False, rich_markup_mode=None)
            only.command(name, cls=_Command)(
                _declared(getattr(module, name), loops=name not in _SHORT)
            )
            self.data[name] = typer.main.get_command(only)
        found: TyperCommand = self.data[name]
        return found


def _meant(word: str) -> str:
    """A question if the word is a known value of an option."""
    from dsocr_analyze.hardware.devices import catalogue_name, gpu_catalogue

    modes, path = options.modes(), Path(word)
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


_app = typer.Typer(
    name=_NAME,
    cls=_Commands,
    help="What a page costs on DeepSeek-OCR: FLOPs, bytes and memory, stage by stage.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_app.callback(invoke_without_command=True)(_declared(analyze, loops=False))

application: Final[Any] = typer.main.get_command(_app)
"""What parses a command line and runs its command."""
application.commands = _CommandsByName(dict.fromkeys(COMMANDS))
