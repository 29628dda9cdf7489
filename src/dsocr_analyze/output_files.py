"""All files that are written: a reader sees the old file or the whole new one."""

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from dsocr_analyze.errors import OutputError
from dsocr_analyze.interruption import held, point_of_no_return, safe_point

if sys.platform != "win32":
    import fcntl

_PREFIX: Final = ".dsocr-"
_ABANDONED: Final = re.compile(rf"{re.escape(_PREFIX)}[0-9a-f]{{16}}")

_Aside: TypeAlias = tuple[Path, Path, bool]
"""The target, the file written before it takes the target's place, and whether the target is one
that takes the content and stays: a device or a pipe.
"""


def prepare_directory(directory: Path, *, may_lead_out: bool = True) -> None:
    """Makes the output directory, and finds out before any work whether it can be written.

    Its links may lead out of the current folder only if the user named the directory.
    """
    if not may_lead_out and not directory.resolve().is_relative_to(Path.cwd().resolve()):
        raise OutputError(
            f"{str(directory)!r} leads out of the current folder, to"
            f" {str(directory.resolve())!r}; if you want that, name this folder as the output"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with held(), _claimed(directory, 0o600):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write to {str(directory)!r}: {error.strerror};"
            " give a directory that can be written"
        ) from error


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yields a temporary path beside `target` that replaces it when the body succeeds.

    A link itself is replaced, except below /dev and /proc; a device or a pipe is written into. An
    interruption waits for one of the body's safe points, and `target` stays.
    """
    with held(), _written_aside(target) as aside:
        with _named(target):
            yield aside[1]
        _put_in_place([aside])


def write_files(texts: Mapping[Path, str], *, mode: int = 0o666) -> list[Path]:
    """Writes files that belong together, by path, and returns their paths.

    All are complete on disk before the first is replaced, and no interruption splits them. The
    umask restricts the permissions `mode`.
    """
    with held(), contextlib.ExitStack() as stack:
        written = []
        for target, text in texts.items():
            aside = stack.enter_context(_written_aside(target, mode))
            with _named(target):
                aside[1].write_text(text, encoding="utf-8")
            written.append(aside)
        _put_in_place(written)
    return list(texts)


@contextlib.contextmanager
def _written_aside(target: Path, mode: int = 0o666) -> Iterator[_Aside]:
    """A temporary file beside `target`; removes what is left of it and of earlier ones."""
    with _named(target):
        if target.is_dir():
            raise OutputError(f"cannot write {str(target)!r}: it is a folder; give a file's name")
        if is_open := target.parts[1:2] in (("dev",), ("proc",)) and target.is_absolute():
            target = target.resolve() if target.is_file() else target  # such as /dev/stdout
        is_special = (
            target.exists() and not target.is_file() and (is_open or not target.is_symlink())
        )
        if is_special:  # it is written into, so the temporary file need not lie beside it
            folder, mode = Path(tempfile.gettempdir()), 0o600
        else:
            folder = target.parent
        _remove_abandoned(folder)
    with contextlib.ExitStack() as stack:
        with _named(target):
            temporary = stack.enter_context(_claimed(folder, mode))
        yield target, temporary, is_special


@contextlib.contextmanager
def _claimed(folder: Path, mode: int) -> Iterator[Path]:
    """A new temporary file, locked while the body runs, so that nobody removes it."""
    while True:
        path = folder / f"{_PREFIX}{os.urandom(8).hex()}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        if sys.platform == "win32":  # where an open file can be neither moved nor removed
            os.close(descriptor)
            break
        with contextlib.suppress(OSError):  # no locks on this disk, so nobody removes it either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # somebody took it for abandoned before it was locked
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        if sys.platform != "win32":
            os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    """Removes temporary files of killed processes, on which nobody holds a lock."""
    if sys.platform == "win32":
        return
    for path in folder.iterdir():
        if not _ABANDONED.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):  # another's, or gone, or held
            descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While the body runs, no other process is in such a body for the same folder.

    Windows does without. Raises OutputError for a folder that cannot be locked.
    """
    if sys.platform == "win32":
        yield
        return
    with _named(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _named(folder):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _put_in_place(written: Sequence[_Aside]) -> None:
    """Replaces every target; first those that take as long as a reader likes."""
    for target, temporary, is_special in written:
        if is_special:
            safe_point()
            with _named(target), temporary.open("rb") as source, target.open("wb") as device:
                shutil.copyfileobj(source, device)
    point_of_no_return()
    for target, temporary, is_special in written:
        if not is_special:
            with _named(target):
                temporary.replace(target)


@contextlib.contextmanager
def _named(target: Path) -> Iterator[None]:
    """Names the file in what the system says of it."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot write {str(target)!r}: {reason}") from error
