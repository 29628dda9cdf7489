"""All files that are written: a reader sees the old file or the whole new one."""

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from dsocr_analyze.errors import OutputError
from dsocr_analyze.interruption import held, point_of_no_return, safe_point

if sys.platform != "win32":
    import fcntl

_PREFIX: Final = ".dsocr-"
_LONGEST_LOCK_SECONDS: Final = 10.0
_ABANDONED: Final = re.compile(rf"{re.escape(_PREFIX)}[0-9a-f]{{16}}")


class _Aside(NamedTuple):
    """What is written before it takes the target's place.

    Attributes:
        file: Open, since others may put a link in its place in a folder that they share.
        is_special: Whether the target, a device or a pipe, takes the content and stays.
    """

    target: Path
    temporary: Path
    file: BinaryIO
    is_special: bool


def prepare_directory(directory: Path, *, may_lead_out: bool = True) -> None:
    """Makes the output directory, and finds out before any work whether it can be written.

    Its links may lead out of the current folder only if the user named the directory.
    """
    try:
        if not may_lead_out and not directory.resolve().is_relative_to(Path.cwd().resolve()):
            raise OutputError(
                f"{str(directory)!r} leads out of the current folder, to"
                f" {str(directory.resolve())!r}; if you want that, name this folder as the output"
            )
        directory.mkdir(parents=True, exist_ok=True)
        with held(), _claimed(directory, 0o600):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write to {str(directory)!r}: {error.strerror};"
            " give a directory that can be written"
        ) from error


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Yields a temporary file beside `target` that replaces it when the body succeeds.

    A link itself is replaced, except below /dev and /proc; a device or a pipe is written into. An
    interruption waits for one of the body's safe points, and `target` stays.
    """
    with held(), _written_aside(target) as aside:
        with _named(target):
            yield aside.file
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
                aside.file.write(text.encode())
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
            temporary, file = stack.enter_context(_claimed(folder, mode))
        yield _Aside(target, temporary, file, is_special)


@contextlib.contextmanager
def _claimed(folder: Path, mode: int) -> Iterator[tuple[Path, BinaryIO]]:
    """A new temporary file, locked while the body runs, so that nobody removes it."""
    while True:
        path = folder / f"{_PREFIX}{os.urandom(8).hex()}"
        descriptor: int = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        file = open(descriptor, "w+b")  # noqa: SIM115  # it outlives the loop
        if sys.platform == "win32" or _is_locked(file):
            break
        file.close()  # somebody took it for abandoned before it was locked
        path.unlink(missing_ok=True)
    try:
        yield path, file
    finally:
        with contextlib.suppress(OSError):  # what it still holds is not wanted
            file.close()
        path.unlink(missing_ok=True)


def _is_locked(file: BinaryIO) -> bool:
    """Locks a new file, and says whether it is still there."""
    with contextlib.suppress(OSError):  # no locks on this disk, so nobody removes it either
        if not _has_lock(file.fileno()):
            return False
    return os.fstat(file.fileno()).st_nlink > 0


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

    Windows does without. Raises OutputError for a folder that cannot be locked, or that another
    process, perhaps another user's, does not let go.
    """
    if sys.platform == "win32":
        yield
        return
    with _named(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ends = time.monotonic() + _LONGEST_LOCK_SECONDS
        while True:
            with _named(folder):
                if _has_lock(descriptor):
                    break
            if time.monotonic() > ends:
                raise OutputError(
                    f"cannot write in {str(folder)!r}, which another process has locked for"
                    f" {_LONGEST_LOCK_SECONDS:g} s"
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _has_lock(descriptor: int) -> bool:
    """Locks a file or a folder, unless another process has."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _put_in_place(written: Sequence[_Aside]) -> None:
    """Replaces every target; first those that take as long as a reader likes."""
    for aside in written:
        with _named(aside.target):
            aside.file.flush()
            if aside.is_special:
                safe_point()
                aside.file.seek(0)
                with aside.target.open("wb") as device:
                    shutil.copyfileobj(aside.file, device)
            elif sys.platform == "win32":  # where an open file cannot be moved
                aside.file.close()
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
