"""The benchmarks of servers that are kept in the user's config folder: one file each.

A file is written whole or not at all, and no file holds two benchmarks, so that programs which keep
benchmarks at the same time never undo one another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsocr_analyze.errors import BenchmarkError, OutputError
from dsocr_analyze.input_files import read_bytes
from dsocr_analyze.own_folder import own_folder, own_folder_to_write

if TYPE_CHECKING:
    from dsocr_analyze.hardware.profile import Profile
    from dsocr_analyze.timing.correction import Corrections, KeptBenchmark

__all__ = ["corrections_asked_for", "corrections_folder", "forget", "keep", "kept_benchmarks"]

_CORRECTIONS: Final = "corrections"
_LARGEST_BYTES: Final = 1 << 16
"""No kept benchmark is longer."""


def corrections_folder() -> Path | None:
    """Where they are, in the user's own folder; None of a user who has none."""
    folder = own_folder()
    return None if folder is None else folder / _CORRECTIONS


def corrections_asked_for(
    corrections: int, server_version: str | None, profiles: Sequence[Profile], server: str
) -> Corrections:
    """What is kept, as `--corrections` and `--server-version` ask for it.

    Raises:
        BenchmarkError: A file is damaged, or nothing is kept for the version on any of the GPUs.
    """
    from dsocr_analyze.cli import options
    from dsocr_analyze.timing.correction import NO_CORRECTIONS, Corrections

    if not options.switch("--corrections", corrections):
        if server_version is not None:
            raise BenchmarkError(
                f"server_version {server_version} says which benchmarks correct, and corrections=0"
                " that none does; leave one out",
                arguments=["server_version", "corrections"],
            )
        return NO_CORRECTIONS
    kept = Corrections(tuple(kept_benchmarks()), server_version)
    if server_version is not None:
        versions = {
            version: None
            for profile in profiles
            for version in kept.versions(profile.gpu.name, server.lower())
        }
        if server_version not in versions:
            there_are = f"there are {', '.join(versions)}" if versions else "there are none"
            raise BenchmarkError(
                f"no benchmark of {server} {server_version} is kept for these GPUs; {there_are}",
            )
    return kept


def kept_benchmarks() -> list[KeptBenchmark]:
    """All of them, the oldest first.

    Raises:
        BenchmarkError: A file cannot be read, or holds something else.
    """
    folder = corrections_folder()
    if folder is None:
        return []
    try:
        files = sorted(folder.glob("*.json"))
    except OSError as error:
        raise _unreadable(folder, error) from error
    benchmarks = filter(None, map(_read, files))
    return sorted(benchmarks, key=lambda each: (each.kept, each.id))


def keep(benchmarks: Sequence[KeptBenchmark]) -> Path:
    """Keeps benchmarks, each in place of what was kept of the same one; returns the folder.

    Raises:
        OutputError: The folder cannot be written.
    """
    import msgspec

    from dsocr_analyze.output_files import prepare_directory, write_files

    folder = own_folder_to_write() / _CORRECTIONS
    prepare_directory(folder)
    texts = (msgspec.json.format(msgspec.json.encode(each)).decode() for each in benchmarks)
    paths = (folder / f"{each.id}.json" for each in benchmarks)
    write_files({path: f"{text}\n" for path, text in zip(paths, texts, strict=True)})
    return folder


def forget(benchmarks: Sequence[KeptBenchmark]) -> None:
    """Removes benchmarks; raises OutputError for one that cannot be removed."""
    for each in benchmarks:
        file = own_folder_to_write() / _CORRECTIONS / f"{each.id}.json"
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot remove {str(file)!r}: {error.strerror}") from error


def _read(file: Path) -> KeptBenchmark | None:
    """What a file holds; None where it has been removed in the meantime."""
    import msgspec

    from dsocr_analyze.timing.correction import KeptBenchmark

    try:
        kept = msgspec.json.decode(read_bytes(file, _LARGEST_BYTES), type=KeptBenchmark)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(file, error) from error
    if kept.id != file.stem:
        raise _unreadable(file, f"its id is {kept.id!r}, not its name")
    return kept


def _unreadable(file: Path, error: object) -> BenchmarkError:
    return BenchmarkError(
        f"{str(file)!r} holds no kept benchmark ({error}); remove it, or put it back"
    )
