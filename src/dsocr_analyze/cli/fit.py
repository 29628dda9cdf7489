"""Does it fit, and what is the largest batch that fits?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsocr_analyze.cli import completion, options, page_options
from dsocr_analyze.cli.exits import NO
from dsocr_analyze.cli.printing import Said, assumptions, emit
from dsocr_analyze.cli.words import print_config_findings, warn_of_sizes
from dsocr_analyze.dtypes import dtype_named

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
    from dsocr_analyze.hardware import devices
    from dsocr_analyze.hardware import fit as fitting
    from dsocr_analyze.report import devices as documents
    from dsocr_analyze.report.opening import model_text, opening_line

    element = dtype_named(dtype)
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    named = [devices.gpu_named(name) for name in options.gpu_names(gpu, named_gpus)]
    for each in named:
        devices.check_features(each, element, flash_attention=flash_attention)
    directory = page_options.described_model(model, arch, config, sliding_window)
    workload = page_options.workload_of(context, directory)
    dimensions = directory.dimensions()
    print_config_findings(context, directory, by_closed_forms=True)
    warn_of_sizes(context, directory, workload)
    fits = [
        fitting.fit(
            each, directory.architecture, dimensions, workload, dtype=element,
            flash_attention=flash_attention, reserved=reserved,
        )
        for each in named or devices.gpu_catalogue().values()
    ]  # fmt: skip
    source = directory.source(directory.architecture.name)
    document = documents.fit_document(source, workload, fits, options.options_used(context))

    def said() -> Said:
        attention = attention_name(flash_attention=flash_attention)
        line = opening_line([document.workload], [element.name], [attention])
        return Said(
            f"Ran: {model_text(source)} by the analytic engine\n{line}",
            documents.fit_tables(document, [devices.gpu_named(each.gpu).title for each in fits]),
            [assumptions(f"{order}: {text}" for order, text in fitting.ASSUMPTIONS.items())],
        )

    emit(context, document, said)
    if named and not all(each.fits for each in fits):
        raise typer.Exit(NO)
