"""Which GPUs there are, and how accurately their kernel times are predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import completion, kept_files, options
from dsocr_analyze.cli.printing import Said, emit
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.timing.correction import KeptBenchmark

__all__ = ["devices"]

GpuArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GPU", autocompletion=completion.all_gpus, help="GPUs to list. Default: all."
    ),
]
CorrectionsOption = Annotated[
    bool,
    typer.Option(
        "--corrections",
        help="List the servers' benchmarks kept by time --from-benchmark instead.",
    ),
]
ForgetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--forget",
        metavar="ID|all",
        help="Remove a kept benchmark, by its id in --corrections, or all of the named GPUs. May be"
        " given several times.",
    ),
]


def devices(
    context: typer.Context,
    gpu: GpuArgument = None,
    named_gpus: Annotated[list[str] | None, "gpu"] = None,
    profile: kept_files.ProfileOption = None,
    corrections: CorrectionsOption = False,
    forget: ForgetOption = None,
    output_format: str = "table",
    debug: bool = False,
) -> None:
    """List the GPUs: peaks, memory, and the error of their predicted kernel times."""
    from dsocr_analyze.hardware.devices import catalogue_name
    from dsocr_analyze.hardware.profile import all_profiles
    from dsocr_analyze.report import devices as documents
    from dsocr_analyze.report.opening import SCHEMA_VERSION

    known = all_profiles(kept_files.user_profiles(profile))
    names = [catalogue_name(name, known) for name in options.gpu_names(gpu, named_gpus)]
    kept = kept_files.kept_benchmarks() if forget or corrections else []
    kept = [each for each in kept if not names or each.gpu in names]
    used = options.options_used(context)
    if forget:
        _forget(forget, kept, is_named=bool(names))
    elif corrections:
        benchmarks = documents.CorrectionsDocument(
            schema_version=SCHEMA_VERSION, command="devices", options=used, corrections=tuple(kept)
        )
        table = documents.corrections_table(benchmarks)
        emit(context, benchmarks, lambda: Said("", [table]))
    else:
        found = documents.devices_document([known[name] for name in names or known], used)
        emit(context, found, lambda: Said("", [documents.devices_table(found)]))


def _forget(which: Sequence[str], kept: Sequence[KeptBenchmark], *, is_named: bool) -> None:
    """Remove kept benchmarks; raises WorkloadError for unknown ones."""
    if "all" in which and not is_named:
        raise WorkloadError("--forget all needs named GPUs; name one or more")
    if unknown := [each for each in which if each not in ("all", *(one.id for one in kept))]:
        raise WorkloadError(
            f"--forget {unknown[0]}: no benchmark with that id is kept; dsocr-analyze devices"
            " --corrections lists those that are"
        )
    chosen = [each for each in kept if "all" in which or each.id in which]
    kept_files.forget(chosen)
    for each in chosen:
        print(f"forgot {each.id}: {each.file}, {each.gpu}, {each.server} {each.version}")
