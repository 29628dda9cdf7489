"""Writes result files atomically: a reader sees the old file or the whole new one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dsocr_analyze.errors import OutputError

__all__ = ["dump_json", "prepare_directory", "replacing", "write_texts"]

_PRETTY_DEPTH = 4
"""Levels of a document that get lines of their own; a module's row stays on one line."""


_encoded = json.JSONEncoder(allow_nan=False).encode
"""One encoder for all values: `json.dumps` would make one for each."""


def dump_json(value: object) -> str:
    """JSON text of a typed document, indented down to where the rows are; ends with a newline."""
    return _dump(msgspec.to_builtins(value), 0) + "\n"


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
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".dsocr-"):
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
    """
    if target.is_symlink():
        target = target.resolve()
    is_special = target.exists() and not target.is_file()
    if target.is_dir():
        raise OutputError(f"cannot write {str(target)!r}: it is a folder; give a file's name")
    folder = Path(tempfile.gettempdir()) if is_special else target.parent
    try:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{target.name}-")
        os.close(descriptor)
    except OSError as error:
        raise OutputError(f"cannot write {str(target)!r}: {error.strerror}") from error
    temporary = Path(name)
    try:
        yield temporary
        if is_special:
            with temporary.open("rb") as source, target.open("wb") as device:
                shutil.copyfileobj(source, device)
            return
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except OSError as error:
        raise OutputError(f"cannot write {str(target)!r}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_texts(directory: Path, texts: dict[str, str]) -> list[Path]:
    """Writes files that belong together: all are complete on disk before the first is replaced."""
    with contextlib.ExitStack() as stack:
        targets = []
        for name, text in texts.items():
            target = directory / name
            temporary = stack.enter_context(replacing(target))
            try:
                temporary.write_text(text, encoding="utf-8")
            except OSError as error:
                raise OutputError(f"cannot write {str(target)!r}: {error.strerror}") from error
            targets.append(target)
    return targets
