"""Which Python code may be executed: a record of the SHA-256 of files that the user trusts."""

import json
import os
import shlex
import stat
from pathlib import Path
from typing import Final

from dsocr_analyze.errors import OutputError, TrustError
from dsocr_analyze.input_files import (
    MEBIBYTE,
    content,
    opened,
    own_folder,
    own_folder_to_write,
)
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.output_files import locked, write_files

_RECORD: Final = "trust.json"


def trust_store() -> Path | None:
    """File of the record; None if the user has no folder for it."""
    folder = own_folder()
    return None if folder is None else folder / _RECORD


def _read_store() -> dict[str, dict[str, str]]:
    store = trust_store()
    if store is None:
        return {}
    try:
        with opened(store) as file:  # what is looked at is read, whatever takes its place
            _refuse_strangers(store, os.fstat(file.fileno()))
            recorded = json.loads(content(file, store, 16 * MEBIBYTE).decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TrustError(f"cannot read the trust record {str(store)!r}: {reason}") from error
    if not isinstance(recorded, dict) or not all(isinstance(v, dict) for v in recorded.values()):
        raise TrustError(f"the trust record {str(store)!r} is not a JSON object of objects")
    return recorded


def _refuse_strangers(store: Path, record: os.stat_result) -> None:
    """Raises TrustError if another user could have changed the record, or it is a link."""
    if not hasattr(os, "geteuid"):  # Windows, where profiles are private to their users
        return
    anybody, group = stat.S_IWOTH, stat.S_IWGRP
    for path, found, writers in (
        (store.parent, store.parent.stat(), anybody),
        (store, record, anybody | group),
    ):
        name = repr(str(path))
        if path == store and store.is_symlink():
            raise TrustError(f"the trust record {name} is a link; replace it with the file itself")
        if found.st_uid not in (0, os.geteuid()):
            raise TrustError(
                f"{name}, of the trust record, belongs to user {found.st_uid}; it must be yours"
            )
        if found.st_mode & writers:
            raise TrustError(
                f"{name}, of the trust record, is writable by others"
                f" ({stat.filemode(found.st_mode)}); run `chmod go-w {shlex.quote(str(path))}`"
                " once you have checked its contents"
            )


def is_trusted(directory: ModelDirectory) -> bool:
    """Whether the directory's Python files are the ones recorded for it."""
    recorded = str(directory.path.resolve())
    return directory.is_reference or _read_store().get(recorded) == directory.digests()


def is_trusted_code(directory: ModelDirectory) -> bool:
    """Whether these very files, such as a repository's, were recorded for any directory."""
    return directory.is_reference or directory.digests() in _read_store().values()


def require_trust(directory: ModelDirectory) -> None:
    """Raises TrustError, naming the files, unless the directory's code is trusted.

    Without code, it raises ConfigError if no architecture recognises the config.
    """
    if is_trusted(directory):
        return
    digests = directory.digests()
    if not digests:
        _ = directory.architecture  # no code to trust; an unknown config raises ConfigError
        return
    recorded = _read_store().get(str(directory.path.resolve()))
    command = f"dsocr-analyze trust {shlex.quote(str(directory.path))}"
    ways = f"read them, then run `{command}` or pass trust_remote_code=True"
    if recorded is None:
        files = ", ".join(digests)
        raise TrustError(
            f"{str(directory.path)!r} contains Python code that would run ({files}); {ways}",
            arguments=["trust_remote_code"],
        )
    names = sorted(recorded.keys() | digests.keys())
    changed = ", ".join(name for name in names if recorded.get(name) != digests.get(name))
    raise TrustError(
        f"Python files of {str(directory.path)!r} changed since they were trusted ({changed});"
        f" {ways}",
        arguments=["trust_remote_code"],
    )


def record_trust(directory: ModelDirectory) -> dict[str, str]:
    """Records the directory's Python files as trusted; returns their SHA-256 by file."""
    digests = directory.digests()
    store = own_folder_to_write() / _RECORD
    try:
        store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot write the trust record {str(store)!r}: {error.strerror}"
        ) from error
    with locked(store.parent):  # keep what another process records meanwhile
        recorded = _read_store()
        recorded[str(directory.path.resolve())] = digests
        text = json.dumps(recorded, indent=2, sort_keys=True) + "\n"
        write_files({store: text}, mode=0o600)
    return digests
