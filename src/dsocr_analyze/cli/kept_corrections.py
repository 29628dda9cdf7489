"""The servers' benchmarks kept in the user's config folder, one file per benchmark.

Files are written atomically and each holds a single benchmark, so that programs that keep
benchmarks at the same time never overwrite one another's.
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
"""More than any kept benchmark has."""


def corrections_folder() -> Path | None:
    """Their folder in the user's config folder; None if the user has no config folder."""
    folder = own_folder()
    return None if folder is None else folder / _CORRECTIONS


def corrections_asked_for(
    corrections: int, server_version: str | None, profiles: Sequence[Profile], server: str
) -> Corrections:
    """The corrections selected by `--corrections` and `--server-version`.

    Raises:
        BenchmarkError: A file is damaged, or nothing is kept for the version on any of the GPUs.
    """
    from dsocr_analyze.cli import options
    from dsocr_analyze.timing.correction import NO_CORRECTIONS, Corrections

    if not options.switch("--corrections", corrections):
        if server_version is not None:
            raise BenchmarkError(
                f"server_version {server_version} selects the benchmarks that correct, and"
                " corrections=0 turns all of them off; leave one out",
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
    """All kept benchmarks, oldest first.

    Raises:
        BenchmarkError: A file cannot be read, or is not a kept benchmark.
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
    """Keep benchmarks, replacing earlier copies of the same ones; returns the folder.

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
    """Remove benchmarks; raises OutputError if one cannot be removed."""
    for each in benchmarks:
        file = own_folder_to_write() / _CORRECTIONS / f"{each.id}.json"
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot remove {str(file)!r}: {error.strerror}") from error


def _read(file: Path) -> KeptBenchmark | None:
    """The benchmark in a file; None if the file has been removed in the meantime."""
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
    return BenchmarkError(f"{str(file)!r} is not a kept benchmark ({error}); remove or restore it")
