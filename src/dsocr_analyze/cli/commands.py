"""Which command a command line names: in any case, and what a word may mean that names none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.errors import DeviceError, PageError, WorkloadError
from dsocr_analyze.input_files import is_folder, is_regular
from dsocr_analyze.names import did_you_mean, in_any_case

__all__ = ["Command", "Commands"]

_NAME = "dsocr-analyze"


class Command(TyperCommand):
    """A command; what its parser refuses says whose it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the arguments into the context; errors know the context."""
        with _known(ctx):
            return super().parse_args(ctx, args)


class Commands(TyperGroup):
    """The commands; a word that is none is answered with what it may have been meant as."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the arguments into the context; errors know the context."""
        with _known(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first of the arguments names, and the others.

        Raises:
            WorkloadError: There is none of that name.
        """
        word = args[0]
        found = in_any_case(word, self.commands)
        if found is not None:
            return found, self.commands[found], args[1:]
        if word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        meant = did_you_mean(word, self.commands) or _meant(word)
        right = f"see {_NAME} --help" if meant else f"there are {', '.join(self.commands)}"
        raise WorkloadError(f"no command {word!r}; {meant}{right}")


@contextlib.contextmanager
def _known(context: Any) -> Iterator[None]:
    """Gives an error of the parser the context that some kinds of them lack."""
    try:
        yield
    except typer.TyperException as error:
        if getattr(error, "ctx", context) is None:
            error.ctx = context  # type: ignore[attr-defined]  # of a kind that Typer does not export
        raise


def _meant(word: str) -> str:
    """What a word says that some option takes, as a question; empty where it is nothing known."""
    from dsocr_analyze.hardware.devices import catalogue_name, gpu_catalogue
    from dsocr_analyze.workload import parse_page

    modes = {mode: name for name, each in ARCHITECTURES.items() for mode in each.modes}
    mode = in_any_case(word, modes)
    if mode is not None:
        is_default = mode in next(iter(ARCHITECTURES.values())).modes
        arch = "" if is_default else f" --arch {modes[mode]}"
        return f"did you mean {_NAME}{arch} --mode {mode}? "
    architecture = in_any_case(word, ARCHITECTURES)
    if architecture is not None:
        return f"did you mean {_NAME} --arch {architecture}? "
    path = Path(word)
    if is_folder(path):
        has_config = is_regular(path / "config.json")
        return f"did you mean {_NAME} {'--model' if has_config else 'archive'} {word}? "
    if is_regular(path):
        option = {".json": "compare"}.get(path.suffix.lower(), "--image")
        return f"did you mean {_NAME} {option} {word}? "
    try:
        parse_page(word)
    except PageError:
        pass
    else:
        return f"did you mean {_NAME} --page {word}? "
    try:
        gpu = catalogue_name(word, gpu_catalogue())
    except DeviceError:
        return did_you_mean(word, modes).replace("mean ", "mean --mode ", 1)
    return f"did you mean {_NAME} time {gpu}? "
