"""Read a model directory's `tokenizer.json`; the library panics if it is broken."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dsocr_analyze.errors import ModelDirectoryError
from dsocr_analyze.input_files import DOCUMENT_BYTES, read_bytes

_STDERR: Final = 2


def read_tokenizer_file(file: Path) -> bytes:
    """Its content; ModelDirectoryError if it is unreadable or too large."""
    try:
        return read_bytes(file, DOCUMENT_BYTES)
    except OSError as error:
        raise ModelDirectoryError(
            f"cannot read {str(file)!r}: {error.strerror or error}"
        ) from error


@contextlib.contextmanager
def named_tokenizer_failures(file: Path) -> Iterator[None]:
    """Turns any failure of the body, which runs a file's tokenizer, into ModelDirectoryError.

    A panic raises a BaseException and writes a hundred lines to stderr, which is dropped meanwhile.
    """
    try:
        with _discarding_stderr():
            yield
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:
        raise ModelDirectoryError(f"cannot read {str(file)!r}: {error}") from error


@contextlib.contextmanager
def _discarding_stderr() -> Iterator[None]:
    try:
        kept = os.dup(_STDERR)
    except OSError:  # stderr is closed anyway
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, _STDERR)
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
        os.close(nowhere)
