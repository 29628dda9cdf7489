"""What a user keeps in the config folder: device profiles, and servers' benchmarks, one per file.

Files are written atomically and each holds a single benchmark, so that programs that keep
benchmarks at the same time never overwrite one another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from dsocr_analyze import output_files
from dsocr_analyze.cli import options
from dsocr_analyze.errors import BenchmarkError, OutputError
from dsocr_analyze.input_files import read_bytes
from dsocr_analyze.own_folder import own_folder, own_folder_to_write

if TYPE_CHECKING:
    from dsocr_analyze.hardware.timed_device import Device
    from dsocr_analyze.timing.correction import Corrections, KeptBenchmark

__all__ = [
    "PROFILES",
    "ProfileOption",
    "corrections_asked_for",
    "forget",
    "keep",
    "kept_benchmarks",
    "user_profiles",
]

PROFILES: Final = "devices"
"""The folder of profiles in the user's config folder, read by every command."""

ProfileOption = Annotated[list[Path] | None, "profile"]

_CORRECTIONS: Final = "corrections"
_LARGEST_BYTES: Final = 1 << 16
"""More than any kept benchmark has."""


def user_profiles(given: Sequence[Path] | None) -> list[Path]:
    """Profiles in the user's config folder in order of name, then those given."""
    folder = own_folder()
    kept = [] if folder is None else sorted((folder / PROFILES).glob("*.toml"))
    return [*kept, *(given or ())]


def corrections_asked_for(
    corrections: int, server_version: str | None, profiles: Sequence[Device], server: str
) -> Corrections:
    """The corrections selected by `--corrections` and `--server-version`.

    Raises:
        BenchmarkError: A file is damaged, or nothing is kept for the version on any of the GPUs.
    """
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
    found = dict.fromkeys(
        each for profile in profiles for each in kept.versions(profile.gpu.name, server.lower())
    )
    if server_version is None or server_version in found:
        return kept
    raise BenchmarkError(
        f"no benchmark of {server} {server_version} is kept for these GPUs; there are"
        f" {', '.join(found) or 'none'}"
    )


def kept_benchmarks() -> list[KeptBenchmark]:
    """All kept benchmarks, oldest first.

    Raises:
        BenchmarkError: A file cannot be read, or is not a kept benchmark.
    """
    own = own_folder()
    files = [] if own is None else sorted((own / _CORRECTIONS).glob("*.json"))
    return sorted(filter(None, map(_read, files)), key=lambda each: (each.kept, each.id))


def keep(benchmarks: Sequence[KeptBenchmark]) -> Path:
    """Keep benchmarks, replacing earlier copies of the same ones; returns the folder.

    Raises:
        OutputError: The folder cannot be written.
    """
    folder = own_folder_to_write() / _CORRECTIONS
    output_files.prepare_directory(folder)
    output_files.write_files(
        {
            folder / f"{each.id}.json": msgspec.json.format(msgspec.json.encode(each)).decode()
            + "\n"
            for each in benchmarks
        }
    )
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
    from dsocr_analyze.timing.correction import KeptBenchmark

    try:
        kept = msgspec.json.decode(read_bytes(file, _LARGEST_BYTES), type=KeptBenchmark)
        if kept.id != file.stem:
            raise ValueError(f"its id is {kept.id!r}, not its name")
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BenchmarkError(
            f"{str(file)!r} is not a kept benchmark ({error}); remove or restore it"
        ) from error
    return kept
