"""Which GPUs there are, and how accurately their kernel times are predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import completion, options
from dsocr_analyze.cli.printing import Said, emit
from dsocr_analyze.cli.profiles import ProfileOption, user_profiles
from dsocr_analyze.cli.used_options import options_used
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.hardware.cpu.kernels import Family
    from dsocr_analyze.hardware.profile import Fitted, Profile
    from dsocr_analyze.report.tables import Table
    from dsocr_analyze.timing.correction import KeptBenchmark

__all__ = ["devices"]

_SHORT = {
    "gemm": "GEMM", "encoder_attention": "encoder", "context_attention": "context",
    "generation_attention": "generation", "experts": "experts", "movement": "elementwise",
}  # fmt: skip

_FAMILIES = {"gemm": "product", "encoder_attention": "attention", "movement": "clone"}
"""The family of CPU kernels shown for each kind of GPU kernel."""

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
    named_gpus: options.GpuOption = None,
    profile: ProfileOption = None,
    corrections: CorrectionsOption = False,
    forget: ForgetOption = None,
    output_format: options.FormatOption = "table",
    debug: options.DebugOption = False,
) -> None:
    """List the GPUs: peaks, memory, and the error of their predicted kernel times."""
    from dsocr_analyze.hardware.devices import catalogue_name
    from dsocr_analyze.hardware.profile import all_profiles
    from dsocr_analyze.report.devices import corrections_document, devices_document

    known = all_profiles(user_profiles(profile))
    names = [catalogue_name(name, known) for name in options.gpu_names(gpu, named_gpus)]
    if forget:
        _forget(forget, names)
        return
    if corrections:
        kept = _kept_of(names)
        emit(
            output_format,
            lambda: corrections_document(kept, options_used(context)),
            lambda: Said("", [_corrections_table(kept)]),
        )
        return
    profiles = [known[name] for name in names or known]
    emit(
        output_format,
        lambda: devices_document(profiles, options_used(context)),
        lambda: Said("", [_table(profiles)]),
    )


def _kept_of(gpus: Sequence[str]) -> list[KeptBenchmark]:
    """Kept benchmarks of some GPUs, or of all if none is named."""
    from dsocr_analyze.cli.kept_corrections import kept_benchmarks

    return [each for each in kept_benchmarks() if not gpus or each.gpu in gpus]


def _forget(which: Sequence[str], gpus: Sequence[str]) -> None:
    """Remove kept benchmarks; raises WorkloadError for unknown ones."""
    from dsocr_analyze.cli.kept_corrections import forget

    if "all" in which and not gpus:
        raise WorkloadError("--forget all needs named GPUs; name one or more")
    kept = {each.id: each for each in _kept_of(gpus)}
    if unknown := [each for each in which if each != "all" and each not in kept]:
        raise WorkloadError(
            f"--forget {unknown[0]}: no benchmark with that id is kept; dsocr-analyze devices"
            " --corrections lists those that are"
        )
    chosen = [each for each in kept.values() if "all" in which or each.id in which]
    forget(chosen)
    for each in chosen:
        print(f"forgot {each.id}: {each.file}, {each.gpu}, {each.server} {each.version}")


def _corrections_table(kept: Sequence[KeptBenchmark]) -> Table:
    from dsocr_analyze.report.tables import Table

    return Table(
        "Servers' benchmarks that correct predictions: measured over predicted, for the first token"
        " and for each token after it",
        ("id", "GPU", "server", "version", "model", "file", "kept", "first token", "per token",
         "requests", "at once"),
        tuple(
            (each.id, each.gpu, each.server, each.version, each.architecture, each.file,
             each.kept[:10], f"{each.first_token:.3g}", f"{each.per_token:.3g}",
             f"{each.requests:,}", f"{each.concurrency:,}")
            for each in kept
        ),
        label_columns=1,
    )  # fmt: skip


def _table(profiles: Sequence[Profile]) -> Table:
    from dsocr_analyze.report.tables import Table

    return Table(
        "GPUs, and the error of predicted kernel times in 16 bits: median / 90th percentile in %"
        " over sizes held out of the fit; ~ extrapolated from another GPU, its error doubled;"
        " ? assumed, not measured",
        ("name", "TFLOP/s", "float8", "GB/s", "GB", *_SHORT.values()),
        tuple(
            (each.gpu.name, f"{each.gpu.tensor_tflops:g}",
             f"{each.gpu.float8_tflops:g}" if each.gpu.float8_tflops else "-",
             f"{each.gpu.bandwidth_gb_s:g}", f"{each.gpu.memory_gb:g}",
             *(_error(_fitted(each, kind)) for kind in _SHORT))
            for each in profiles
        ),
    )  # fmt: skip


def _fitted(profile: Profile, kind: str) -> Fitted | Family | None:
    """Accuracy of a kind of kernel in 16 bits; for a CPU, of its family of kernels."""
    if profile.cpu is None:
        return profile.fitted.get((kind, "bfloat16"))
    return profile.cpu.families.get((_FAMILIES.get(kind, kind), "bfloat16"))


def _error(fitted: Fitted | Family | None) -> str:
    from dsocr_analyze.hardware.profile import Fitted

    if fitted is None:
        return "-"
    mark = ""
    if isinstance(fitted, Fitted):
        mark = ("~" if fitted.extrapolated else "") + ("?" if fitted.assumed else "")
    return f"{mark}{100 * fitted.median:.1f} / {100 * fitted.p90:.0f}"
