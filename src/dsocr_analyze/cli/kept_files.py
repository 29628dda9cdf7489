"""What a user keeps in the config folder: device profiles, and servers' benchmarks, a file each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from dsocr_analyze import output_files
from dsocr_analyze.errors import BenchmarkError, OutputError
from dsocr_analyze.hardware.profile import all_profiles
from dsocr_analyze.hardware.timed_device import Device
from dsocr_analyze.input_files import own_files, own_folder_to_write, read_bytes
from dsocr_analyze.timing.correction import NO_CORRECTIONS, Corrections, KeptBenchmark

PROFILES: Final = "devices"
"""The folder of profiles in the config folder."""

_CORRECTIONS: Final = "corrections"
_LARGEST_BYTES: Final = 1 << 16
"""More than any kept benchmark has."""


def gpu_profiles(given: Sequence[Path] | None) -> Mapping[str, Device]:
    """Profiles by GPU: shipped, the user's own, given; raises DeviceError or OwnFolderError."""
    return all_profiles([*own_files(PROFILES, ".toml"), *(given or ())])


def select_corrections(
    corrections: int, server_version: str | None, profiles: Sequence[Device], server: str
) -> Corrections:
    """The corrections that `--corrections` and `--server-version` select.

    Raises:
        BenchmarkError: A file is damaged, or nothing is kept for the version on these GPUs.
    """
    if not corrections:
        if server_version is not None:
            raise BenchmarkError(
                f"server_version {server_version} selects the benchmarks that correct, and"
                " corrections=0 turns all of them off; leave one out",
                arguments=["server_version", "corrections"],
            )
        return NO_CORRECTIONS
    kept = tuple(kept_benchmarks())
    if server_version is None:
        return Corrections(kept)
    measured = [(each.gpu.name, server.lower()) for each in profiles]
    found = sorted({each.version for each in kept if (each.gpu, each.server) in measured})
    if server_version in found:
        return Corrections(kept, server_version)
    raise BenchmarkError(
        f"server_version {server_version}: no benchmark of {server} in that version is kept for"
        f" these GPUs; versions kept: {', '.join(found) or 'none'}",
        arguments=["server_version"],
    )


def kept_benchmarks() -> list[KeptBenchmark]:
    """All kept benchmarks, oldest first; raises BenchmarkError for a damaged file."""
    kept = map(_read, own_files(_CORRECTIONS, ".json"))
    return sorted(filter(None, kept), key=lambda each: (each.kept, each.id))


def keep(benchmarks: Sequence[KeptBenchmark]) -> Path:
    """Keeps benchmarks in place of earlier copies, in the folder returned; raises OutputError."""
    folder = own_folder_to_write() / _CORRECTIONS
    output_files.prepare_directory(folder)
    texts = {
        folder / f"{each.id}.json": f"{msgspec.json.format(msgspec.json.encode(each)).decode()}\n"
        for each in benchmarks
    }
    output_files.write_files(texts)
    return folder


def forget(benchmarks: Sequence[KeptBenchmark]) -> None:
    """Removes benchmarks; raises OutputError."""
    for each in benchmarks:
        file = own_folder_to_write() / _CORRECTIONS / f"{each.id}.json"
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot remove {str(file)!r}: {error.strerror}") from error


def _read(file: Path) -> KeptBenchmark | None:
    """None if the file was removed meanwhile."""
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
