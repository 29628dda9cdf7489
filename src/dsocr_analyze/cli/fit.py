"""Does it fit, and what is the largest batch that fits?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import completion, options, page_options, time_options
from dsocr_analyze.cli.exits import NO
from dsocr_analyze.cli.printing import Said, assumptions, emit
from dsocr_analyze.cli.used_options import options_used
from dsocr_analyze.cli.warnings import StrictOption, print_config_findings, warn_of_sizes

if TYPE_CHECKING:
    from dsocr_analyze.dtypes import Dtype
    from dsocr_analyze.figures import ModelSource
    from dsocr_analyze.hardware.devices import Gpu
    from dsocr_analyze.hardware.fit import BatchFit, Fit, Limit
    from dsocr_analyze.report.tables import Table
    from dsocr_analyze.workload import Workload

__all__ = ["fit"]

GpuArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GPU",
        autocompletion=completion.all_gpus,
        help="GPUs of the catalogue; exit with 1 if the batch does not fit on one of them, and with"
        " 2 if one lacks the type or the attention kernel. Default: all.",
    ),
]


@page_options.of_a_page()
def fit(
    context: typer.Context,
    gpu: GpuArgument = None,
    named_gpus: options.GpuOption = None,
    model: options.ModelOption = None,
    arch: options.ArchOption = None,
    config: options.ConfigOption = None,
    sliding_window: options.SlidingWindowOption = None,
    dtype: options.DtypeOption = "bfloat16",
    use_flash_attn: options.FlashOption = 0,
    reserved: time_options.ReservedOption = 0.1,
    output_format: options.FormatOption = "table",
    strict: StrictOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Show whether pages fit in a GPU's memory, how many do at a time, and what limits that.

    The limit is what takes most memory, apart from the weights, in the smallest batch that does not
    fit: inputs, KV cache, logits or other activations, at the higher of two peaks, that of the
    prefill pass and that of the last decode step.
    """
    from dsocr_analyze.dtypes import dtype_named
    from dsocr_analyze.hardware.devices import gpu_catalogue
    from dsocr_analyze.hardware.fit import fit as fit_into
    from dsocr_analyze.report.fit import fit_document

    element = dtype_named(dtype)
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    named = _named(options.gpu_names(gpu, named_gpus), element, flash_attention=flash_attention)
    directory = options.described_model(model, arch, config, sliding_window)
    architecture = directory.architecture
    workload = page_options.workload_of(context, directory)
    dimensions = directory.dimensions()
    print_config_findings(context, directory, by_closed_forms=True)
    warn_of_sizes(context, directory, workload)
    fits = [
        fit_into(
            each, architecture, dimensions, workload, dtype=element,
            flash_attention=flash_attention, reserved=reserved,
        )
        for each in named or gpu_catalogue().values()
    ]  # fmt: skip
    source = directory.source(architecture.name)
    emit(
        output_format,
        lambda: fit_document(source, workload, fits, options_used(context)),
        lambda: _said(
            fits, workload, _opening(source, workload, element, flash_attention=flash_attention)
        ),
    )
    if named and not all(each.fits for each in fits):
        raise typer.Exit(NO)


def _named(names: Sequence[str], dtype: Dtype, *, flash_attention: bool) -> list[Gpu]:
    """The GPUs with these names; raises DeviceError if one lacks what the model needs."""
    from dsocr_analyze.hardware.devices import gpu_named
    from dsocr_analyze.hardware.missing_features import check_features

    named = [gpu_named(name) for name in names]
    for each in named:
        check_features(each, dtype, flash_attention=flash_attention)
    return named


def _opening(
    source: ModelSource, workload: Workload, dtype: Dtype, *, flash_attention: bool
) -> str:
    """The first lines: which model, and what was counted."""
    from dsocr_analyze.analytic import attention_name
    from dsocr_analyze.report.build import workload_document
    from dsocr_analyze.report.opening import opening_line
    from dsocr_analyze.report.tables import model_text

    attention = attention_name(flash_attention=flash_attention)
    line = opening_line([workload_document(workload)], [dtype.name], [attention])
    return f"Ran: {model_text(source)} by the analytic engine\n{line}"


def _said(fits: Sequence[Fit], workload: Workload, opening: str) -> Said:
    from dsocr_analyze.hardware.fit import ASSUMPTIONS

    assumed = assumptions(f"{order}: {text}" for order, text in ASSUMPTIONS.items())
    return Said(opening, (_need_table(fits[0], workload), _table(fits)), [assumed])


def _need_table(fit: Fit, workload: Workload) -> Table:
    """What the requested batch needs; the same on every GPU."""
    from dsocr_analyze.report.quantities import bytes_text, counted
    from dsocr_analyze.report.tables import Table

    needs = {"at once": fit.at_once.need, "one at a time": fit.one_at_a_time.need}
    return Table(
        f"{counted(workload.batch_size, 'page')} of {counted(workload.seq_len, 'token')} need"
        f" {bytes_text(fit.need.total_bytes)}, one at a time"
        f" {bytes_text(fit.one_at_a_time.need.total_bytes)}: weights"
        f" {bytes_text(fit.need.weights_bytes)}, and the higher of two peaks",
        ("prefill", "peak", "bytes", "inputs", "KV cache", "activations", "logits"),
        tuple(
            (order, peak, *map(bytes_text, (alive.nbytes, alive.inputs_bytes, alive.cache_bytes,
                                            alive.activation_bytes, alive.logits_bytes)))
            for order, need in needs.items()
            for peak, alive in (("prefill pass", need.prefill), ("last decode step", need.decode))
        ),
        label_columns=2,
    )  # fmt: skip


def _table(fits: Sequence[Fit]) -> Table:
    from dsocr_analyze.report.tables import Table

    return Table(
        "Largest batches",
        ("GPU", "name", "usable", "fits", "at once", "limited by", "one at a time", "limited by"),
        tuple(map(_row, fits)),
        label_columns=2,
        optional=("GPU",),
    )


def _row(each: Fit) -> tuple[str, ...]:
    from dsocr_analyze.report.quantities import bytes_text

    gpu = (each.gpu.title, each.gpu.name, bytes_text(each.usable_bytes))
    if each.lacks:
        return (*gpu, ", ".join(f"no {lack.what}" for lack in each.lacks), "-", "", "-", "")
    answer = "yes" if each.fits else "no"
    return (*gpu, answer, *_batch_cells(each.at_once), *_batch_cells(each.one_at_a_time))


def _batch_cells(batch: BatchFit) -> tuple[str, str]:
    return str(batch.largest_batch), "" if batch.limit is None else _limit_text(batch.limit)


def _limit_text(limit: Limit) -> str:
    return limit.part if limit.moment is None else f"{limit.part} ({limit.moment})"
