"""All files that are read, regular ones within a size; and the folder of a user's own.

A pipe waits for a writer, and a device may never end. These and what is too large are refused by an
OSError whose `strerror` says why.
"""

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dsocr_analyze.errors import OwnFolderError

MEBIBYTE: Final = 1 << 20

CONFIG_BYTES: Final = 8 * MEBIBYTE
SOURCE_BYTES: Final = 8 * MEBIBYTE
"""The most bytes of one Python file of a model."""
CODE_BYTES: Final = 64 * MEBIBYTE
"""The most bytes of all Python files of a model."""
DOCUMENT_BYTES: Final = 64 * MEBIBYTE
"""The most bytes of a tokenizer, a saved report or a server's benchmark."""
SETTINGS_BYTES: Final = MEBIBYTE
"""The most bytes of what people write: budgets, stages files, device profiles."""

exists: Final = os.path.exists
is_folder: Final = os.path.isdir
is_regular: Final = os.path.isfile
"""Unlike methods of `Path`, false for impossible names."""

_KINDS: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """A regular file, or a link to one, for reading in binary; raises OSError without one."""
    _refuse_special(path, path.stat().st_mode)  # before opening, which some devices act upon
    # What is there may be another file by now: a pipe is opened without waiting, and looked at.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    descriptor: int = os.open(path, flags | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        _refuse_special(path, os.fstat(file.fileno()).st_mode)
        yield file


def _refuse_special(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    kind = next((name for applies, name in _KINDS if applies(mode)), "no regular file")
    raise OSError(errno.EINVAL, f"it is {kind}; give a regular file", str(path))


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file; raises OSError without one of at most `most_bytes`."""
    with opened(path) as file:
        return content(file, path, most_bytes)


def content(file: io.BufferedReader, path: Path, most_bytes: int) -> bytes:
    """The content of an open file; raises OSError if it has more than `most_bytes`."""
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(
            errno.EFBIG, f"it has more than {most_bytes / MEBIBYTE:g} MiB, the most that is read",
            str(path),
        )  # fmt: skip
    return data


# --- the folder of a user's own things: what they trust, profiles, benchmarks --------------------


def own_folder() -> Path | None:
    """`$XDG_CONFIG_HOME/dsocr-analyze` or `~/.config/dsocr-analyze`; None without a home.

    Raises OwnFolderError if the variable, or the home's, holds no absolute path.
    """
    variable, named = "XDG_CONFIG_HOME", os.environ.get("XDG_CONFIG_HOME")
    folder = Path(named or "")
    if not named:
        if os.environ.get("HOME") == "":  # Python would take the root folder for a home
            return None
        try:
            variable, folder = "HOME", Path.home()
        except RuntimeError:  # neither $HOME nor an entry for the user, as in many containers
            return None
    if not folder.is_absolute():
        raise OwnFolderError(
            f"{variable} is {str(folder)!r}, which depends on where a command runs; give an"
            " absolute path, or unset it"
        )
    return folder / ("dsocr-analyze" if named else ".config/dsocr-analyze")


def own_files(kind: str, suffix: str) -> list[Path]:
    """Files in a folder of the user's own, by name; raises OwnFolderError if it is another's."""
    if (own := own_folder()) is None:
        return []
    try:
        return sorted(each for each in (own / kind).iterdir() if each.suffix == suffix)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise OwnFolderError(
            f"cannot read {str(own / kind)!r}: {error.strerror}; set XDG_CONFIG_HOME to a folder of"
            " yours"
        ) from error


def own_folder_to_write() -> Path:
    """The same to keep things in; raises OwnFolderError if there is no place."""
    folder = own_folder()
    if folder is None:
        raise OwnFolderError(
            "there is no home directory to keep anything in; set HOME, or XDG_CONFIG_HOME to an"
            " absolute path"
        )
    return folder
