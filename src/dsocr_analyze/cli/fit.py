"""Does it fit, and what is the largest batch that fits?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import completion, options, page_options
from dsocr_analyze.cli.exits import NO
from dsocr_analyze.cli.printing import Said, assumptions, emit
from dsocr_analyze.cli.words import print_config_findings, warn_of_sizes
from dsocr_analyze.dtypes import dtype_named

if TYPE_CHECKING:
    from dsocr_analyze.report.fit import FitDocument

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
    named_gpus: Annotated[list[str] | None, "gpu"] = None,
    model: str | None = None,
    arch: str | None = None,
    config: Path | None = None,
    sliding_window: int | None = None,
    dtype: str = "bfloat16",
    use_flash_attn: int = 0,
    reserved: float = 0.1,
    output_format: str = "table",
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Show whether pages fit in a GPU's memory, how many do at a time, and what limits that.

    The limit is what takes most memory, apart from the weights, in the smallest batch that does not
    fit: inputs, KV cache, logits or other activations, at the higher of two peaks, that of the
    prefill pass and that of the last decode step.
    """
    from dsocr_analyze.analytic import attention_name
    from dsocr_analyze.hardware.devices import gpu_catalogue, gpu_named
    from dsocr_analyze.hardware.fit import fit as fit_into
    from dsocr_analyze.hardware.missing_features import check_features
    from dsocr_analyze.report.fit import fit_document

    element = dtype_named(dtype)
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    named = [gpu_named(name) for name in options.gpu_names(gpu, named_gpus)]
    for each in named:
        check_features(each, element, flash_attention=flash_attention)
    directory = page_options.described_model(model, arch, config, sliding_window)
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
    document = fit_document(source, workload, fits, options.options_used(context))
    attention = attention_name(flash_attention=flash_attention)
    titles = [each.gpu.title for each in fits]
    emit(output_format, lambda: document, lambda: _said(document, titles, element.name, attention))
    if named and not all(each.fits for each in fits):
        raise typer.Exit(NO)


def _said(document: FitDocument, titles: list[str], dtype: str, attention: str) -> Said:
    from dsocr_analyze.hardware.fit import ASSUMPTIONS
    from dsocr_analyze.report.fit import fit_tables
    from dsocr_analyze.report.opening import opening_line
    from dsocr_analyze.report.tables import model_text

    line = opening_line([document.workload], [dtype], [attention])
    opening = f"Ran: {model_text(document.model)} by the analytic engine\n{line}"
    assumed = assumptions(f"{order}: {text}" for order, text in ASSUMPTIONS.items())
    return Said(opening, fit_tables(document, titles), [assumed])
