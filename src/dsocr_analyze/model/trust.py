"""Whose Python code may be executed: a record of the SHA-256 of files that a person agreed to."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from pathlib import Path
from typing import Final

from dsocr_analyze.errors import OutputError, TrustError
from dsocr_analyze.input_files import MEBIBYTE, read_text
from dsocr_analyze.interruption import held
from dsocr_analyze.model.directory import ModelDirectory

__all__ = ["is_trusted", "is_trusted_code", "record_trust", "require_trust", "trust_store"]

_LARGEST_STORE_BYTES: Final = 16 * MEBIBYTE


def trust_store() -> Path:
    """The file that holds the record: `$XDG_CONFIG_HOME/dsocr-analyze/trust.json`."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "dsocr-analyze" / "trust.json"


def _read_store() -> dict[str, dict[str, str]]:
    store = trust_store()
    try:
        recorded = json.loads(read_text(store, _LARGEST_STORE_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TrustError(f"cannot read the trust record {str(store)!r}: {reason}") from error
    if not isinstance(recorded, dict) or not all(isinstance(v, dict) for v in recorded.values()):
        raise TrustError(f"the trust record {str(store)!r} is not a JSON object of objects")
    return recorded


def _changes(recorded: dict[str, str], present: dict[str, str]) -> list[str]:
    return sorted(
        name for name in recorded.keys() | present.keys() if recorded.get(name) != present.get(name)
    )


def is_trusted(directory: ModelDirectory) -> bool:
    """Whether the directory's Python files are the ones that were recorded for it."""
    if directory.is_reference:
        return True
    recorded = _read_store().get(str(directory.path.resolve()))
    return recorded is not None and recorded == directory.digests()


def is_trusted_code(directory: ModelDirectory) -> bool:
    """Whether these very Python files, names and contents, were recorded, wherever they lay.

    For files that have no place of their own: those of another revision of a repository.
    """
    return directory.is_reference or directory.digests() in _read_store().values()


def require_trust(directory: ModelDirectory) -> None:
    """Raises TrustError, naming the files, unless the directory's code is trusted.

    Raises:
        ConfigError: It has no code, and its config is of no known architecture.
    """
    if is_trusted(directory):
        return
    if not directory.sources:
        _ = directory.architecture  # of transformers' own code: refused in words of its config
        return
    digests = directory.digests()
    recorded = _read_store().get(str(directory.path.resolve()))
    command = f"dsocr-analyze trust {shlex.quote(str(directory.path))}"
    ways = f"read them, then run `{command}` or pass trust_remote_code=True"
    if recorded is None:
        files = ", ".join(digests)
        raise TrustError(
            f"{str(directory.path)!r} holds Python code that would be executed ({files}); {ways}",
            arguments=["trust_remote_code"],
        )
    changed = ", ".join(_changes(recorded, digests))
    raise TrustError(
        f"Python files of {str(directory.path)!r} changed since they were trusted ({changed});"
        f" {ways}",
        arguments=["trust_remote_code"],
    )


def record_trust(directory: ModelDirectory) -> dict[str, str]:
    """Records the directory's Python files as trusted and returns their SHA-256 by file."""
    digests = directory.digests()
    recorded = _read_store()
    recorded[str(directory.path.resolve())] = digests
    store = trust_store()
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        with held(), tempfile.TemporaryDirectory(dir=store.parent, prefix=".trust-") as folder:
            written = Path(folder) / store.name
            written.write_text(
                json.dumps(recorded, indent=2, sort_keys=True) + "\n", encoding="utf-8"
            )
            written.replace(store)
    except OSError as error:
        raise OutputError(
            f"cannot write the trust record {str(store)!r}: {error.strerror}"
        ) from error
    return digests
