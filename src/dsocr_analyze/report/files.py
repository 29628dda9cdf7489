"""Writes result files atomically: a reader sees the old file or the whole new one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dsocr_analyze.errors import OutputError
from dsocr_analyze.escaping import as_json
from dsocr_analyze.interruption import held, point_of_no_return, safe_point

__all__ = ["dump_json", "prepare_directory", "replacing", "write_files", "write_texts"]

_PRETTY_DEPTH = 4
"""Levels of a document that get lines of their own; a module's row stays on one line."""


_encoded = json.JSONEncoder(allow_nan=False).encode
"""One encoder for all values: `json.dumps` would make one for each."""


def dump_json(value: object) -> str:
    """JSON text of a typed document, indented down to where the rows are; ends with a newline."""
    return as_json(_dump(msgspec.to_builtins(value), 0)) + "\n"


def _dump(value: Any, depth: int) -> str:
    if isinstance(value, dict) and value:
        if depth == _PRETTY_DEPTH:  # a module's row: thousands of them, integers and names
            return msgspec.json.encode(value).decode()
        indent = "  " * (depth + 1)
        items = (
            f"{indent}{_encoded(key)}: {_dump(item, depth + 1)}" for key, item in value.items()
        )
        return "{\n" + ",\n".join(items) + "\n" + "  " * depth + "}"
    if isinstance(value, list | tuple) and any(isinstance(item, dict | str) for item in value):
        indent = "  " * (depth + 1)
        items = (f"{indent}{_encoded(item)}" for item in value)
        return "[\n" + ",\n".join(items) + "\n" + "  " * depth + "]"
    return _encoded(value)


def prepare_directory(directory: Path) -> None:
    """Makes the output directory and finds out, before any work, whether it can be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with held(), tempfile.NamedTemporaryFile(dir=directory, prefix=".dsocr-"):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write to {str(directory)!r}: {error.strerror};"
            " give a directory that can be written"
        ) from error


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yields a temporary path beside `target` that replaces it when the body succeeds.

    Of a link, what it points to is replaced; into a device or a pipe, the result is written.
    The body is held: an interruption waits for a safe point of its, and `target` stays.
    """
    with held(), _written_aside(target) as aside:
        with _named(target):
            yield aside.temporary
        _put_in_place([aside])


def write_texts(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes files of one directory as `write_files` does."""
    return write_files({directory / name: text for name, text in texts.items()})


def write_files(texts: Mapping[Path, str]) -> list[Path]:
    """Writes files that belong together, by path, and returns their paths.

    All are complete on disk before the first is replaced, and no interruption comes between the
    first and the last; only an end of the machine or of the process by force could.
    """
    with held(), contextlib.ExitStack() as stack:
        written = []
        for target, text in texts.items():
            aside = stack.enter_context(_written_aside(target))
            with _named(target):
                aside.temporary.write_text(text, encoding="utf-8")
            written.append(aside)
        _put_in_place(written)
    return list(texts)


class _Aside(NamedTuple):
    """A file that is written before it takes another's place."""

    target: Path
    temporary: Path
    is_special: bool
    """Whether the target is a device or a pipe, which takes the content and stays."""


@contextlib.contextmanager
def _written_aside(target: Path) -> Iterator[_Aside]:
    """Makes a temporary file beside `target`, and removes what is left of it."""
    with _named(target):
        if target.is_symlink():
            target = target.resolve()
        if target.is_dir():
            raise OutputError(f"cannot write {str(target)!r}: it is a folder; give a file's name")
        is_special = target.exists() and not target.is_file()
        folder = Path(tempfile.gettempdir()) if is_special else target.parent
        temporary = folder / f".dsocr-{os.urandom(8).hex()}"
        temporary.touch(exist_ok=False)  # with the permissions that any new file gets
    try:
        yield _Aside(target, temporary, is_special)
    finally:
        temporary.unlink(missing_ok=True)


def _put_in_place(written: Sequence[_Aside]) -> None:
    """Replaces every target; first what may take as long as a reader likes."""
    for aside in written:
        if aside.is_special:
            safe_point()
            with (
                _named(aside.target),
                aside.temporary.open("rb") as source,
                aside.target.open("wb") as device,
            ):
                shutil.copyfileobj(source, device)
    point_of_no_return()
    for aside in written:
        if not aside.is_special:
            with _named(aside.target):
                aside.temporary.replace(aside.target)


@contextlib.contextmanager
def _named(target: Path) -> Iterator[None]:
    """Names the file in what the system says of it."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot write {str(target)!r}: {reason}") from error
