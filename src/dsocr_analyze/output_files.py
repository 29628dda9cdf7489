"""Files that are written, all here: a reader sees the old file or the whole new one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dsocr_analyze.errors import OutputError
from dsocr_analyze.interruption import held, point_of_no_return, safe_point

if sys.platform != "win32":
    import fcntl

__all__ = ["locked", "prepare_directory", "replacing", "write_files", "write_texts"]

_PREFIX: Final = ".dsocr-"
_ABANDONED: Final = re.compile(rf"{re.escape(_PREFIX)}[0-9a-f]{{16}}")
_LONGEST_WAIT_SECONDS: Final = 10.0


def prepare_directory(directory: Path, *, may_lead_out: bool = True) -> None:
    """Makes the output directory and finds out, before any work, whether it can be written.

    Args:
        directory: The directory.
        may_lead_out: Whether links may lead out of the current folder: they may if the user named
            the directory, since others may have put the links there.
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

    A link is replaced itself, never what it points to, except below /dev and /proc. Into a device
    or a pipe, the result is written.
    The body is held: an interruption waits for a safe point of its, and `target` stays.
    """
    with held(), _written_aside(target) as aside:
        with _named(target):
            yield aside.temporary
        _put_in_place([aside])


def write_texts(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes files of one directory as `write_files` does."""
    return write_files({directory / name: text for name, text in texts.items()})


def write_files(texts: Mapping[Path, str], *, mode: int = 0o666) -> list[Path]:
    """Writes files that belong together, by path, and returns their paths.

    All are complete on disk before the first is replaced, and no interruption comes between the
    first and the last; only an end of the machine or of the process by force could.

    Args:
        texts: Content by path.
        mode: Permissions, of which the process's umask takes some.
    """
    with held(), contextlib.ExitStack() as stack:
        written = []
        for target, text in texts.items():
            aside = stack.enter_context(_written_aside(target, mode))
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
def _written_aside(target: Path, mode: int = 0o666) -> Iterator[_Aside]:
    """Makes a temporary file beside `target`; removes what is left of it, and of earlier ones."""
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
        yield _Aside(target, temporary, is_special)


@contextlib.contextmanager
def _claimed(folder: Path, mode: int) -> Iterator[Path]:
    """A new temporary file, which nobody takes for abandoned while the body runs."""
    path, descriptor = _locked_file(folder, mode)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)


def _locked_file(folder: Path, mode: int) -> tuple[Path, int | None]:
    """A new file, and the descriptor that holds its lock."""
    while True:
        path = folder / f"{_PREFIX}{os.urandom(8).hex()}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        if sys.platform == "win32":  # where an open file can be neither moved nor removed
            os.close(descriptor)
            return path, None
        with contextlib.suppress(OSError):  # no locks on this disk, so nobody removes it either
            _lock(descriptor, is_waiting=True)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # somebody took it for abandoned before it was locked


def _remove_abandoned(folder: Path) -> None:
    """Removes temporary files of processes that were killed: those that nobody holds a lock on."""
    if sys.platform == "win32":
        return
    with os.scandir(folder) as entries:
        names = [each.name for each in entries if _ABANDONED.fullmatch(each.name)]
    for name in names:
        with contextlib.suppress(OSError):  # another's, or gone, or held
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                _lock(descriptor, is_waiting=False)
                (folder / name).unlink()
            finally:
                os.close(descriptor)


def _lock(descriptor: int, *, is_waiting: bool) -> None:
    """Locks an open file; BlockingIOError where another holds it, OSError where none can be."""
    if sys.platform != "win32":
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if is_waiting else fcntl.LOCK_NB))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While the body runs, no other process is in a body like this of the same folder.

    Windows, which cannot lock a folder, does without.

    Raises:
        OutputError: The folder cannot be locked, or others kept it for ten seconds.
    """
    if sys.platform == "win32":
        yield
        return
    with _named(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + _LONGEST_WAIT_SECONDS
        while True:
            with contextlib.suppress(BlockingIOError), _named(folder):
                _lock(descriptor, is_waiting=False)
                break
            if time.monotonic() > end:
                raise OutputError(f"{str(folder)!r} is locked by another process; try again")
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


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
    except BlockingIOError:
        raise
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot write {str(target)!r}: {reason}") from error
