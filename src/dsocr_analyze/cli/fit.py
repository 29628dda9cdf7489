"""Does it fit, and what is the largest batch that fits?"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.architectures import architecture_of
from dsocr_analyze.cli import options
from dsocr_analyze.cli.exits import NO

if TYPE_CHECKING:
    from dsocr_analyze.hardware.fit import Fit
    from dsocr_analyze.report.tables import Table
    from dsocr_analyze.workload import Workload

__all__ = ["fit"]

FORMATS = ("table", "markdown", "json")

GpuArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GPU",
        help="GPUs of the catalogue; exit with 1 where the batch does not fit into one of them."
        " Default: all.",
    ),
]
ReservedOption = Annotated[
    float,
    typer.Option(
        "--reserved",
        metavar="PART",
        help="Part of the memory kept for the driver, the allocator and kernels, 0 to 1.",
    ),
]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="|".join(FORMATS), help="What is printed.")
]


def fit(
    gpu: GpuArgument = None,
    model: options.ModelOption = None,
    config: options.ConfigOption = None,
    dtype: options.DtypeOption = "bfloat16",
    use_flash_attn: options.FlashOption = 0,
    mode: options.ModeOption = None,
    base_size: options.BaseSizeOption = None,
    image_size: options.ImageSizeOption = None,
    crop_mode: options.CropModeOption = None,
    page: options.PageOption = None,
    image: options.ImageOption = None,
    seq_len: options.SeqLenOption = None,
    text_tokens: options.TextTokensOption = None,
    max_new_tokens: options.NewTokensOption = 1024,
    batch_size: options.BatchOption = 1,
    reserved: ReservedOption = 0.1,
    output_format: FormatOption = "table",
    debug: options.DebugOption = False,
) -> None:
    """Say whether a page fits into a GPU's memory, and how many at a time do."""
    from dsocr_analyze.dtypes import dtype_named
    from dsocr_analyze.hardware.devices import gpu_catalogue, gpu_named
    from dsocr_analyze.hardware.fit import fit as fit_into
    from dsocr_analyze.report.tables import model_text

    options.check_choice("--format", output_format, FORMATS)
    gpus = [gpu_named(name) for name in gpu] if gpu else list(gpu_catalogue().values())
    # Only the config is read: no code of the directory is executed.
    directory = options.model_directory_from(model, config, trust_remote_code=True)
    architecture = architecture_of(directory.config)
    workload = options.workload_from(
        architecture, mode=mode, base_size=base_size, image_size=image_size, crop_mode=crop_mode,
        page=page, image=image, seq_len=seq_len, text_tokens=text_tokens, batch_size=batch_size,
        max_new_tokens=max_new_tokens,
    )  # fmt: skip
    dimensions = architecture.dimensions(directory.config)
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    fits = [
        fit_into(
            each, architecture, dimensions, workload, dtype=dtype_named(dtype),
            flash_attention=flash_attention, reserved=reserved,
        )
        for each in gpus
    ]  # fmt: skip
    _print(fits, workload, model_text(directory.source(architecture.name)), output_format)
    if gpu and not all(each.fits for each in fits):
        raise typer.Exit(NO)


def _print(fits: Sequence[Fit], workload: Workload, model: str, output_format: str) -> None:
    if output_format == "json":
        sys.stdout.write(json.dumps([_as_dict(each) for each in fits], indent=2) + "\n")
        return
    print(f"Ran: {model} by the analytic engine")
    table = _table(fits, workload)
    if output_format == "markdown":
        from dsocr_analyze.report.markdown import markdown_table

        sys.stdout.write(f"{table.title}\n\n{markdown_table(table)}\n")
    else:
        from dsocr_analyze.cli.printing import print_table

        print_table(table)


def _table(fits: Sequence[Fit], workload: Workload) -> Table:
    from dsocr_analyze.report.quantities import bytes_text
    from dsocr_analyze.report.tables import Table

    need = fits[0].need
    return Table(
        f"{workload.batch_size} page(s) of {workload.seq_len} tokens need"
        f" {bytes_text(need.total_bytes)}: weights {bytes_text(need.weights_bytes)} and the higher"
        f" of the prefill pass ({bytes_text(need.prefill_bytes)}) and the last decode step"
        f" ({bytes_text(need.decode_bytes)})",
        ("GPU", "name", "usable", "fits", "largest batch"),
        tuple(
            (each.gpu.title, each.gpu.name, bytes_text(each.usable_bytes),
             "yes" if each.fits else "no", str(each.largest_batch))
            for each in fits
        ),
        label_columns=2,
    )  # fmt: skip


def _as_dict(each: Fit) -> dict[str, object]:
    return {
        "gpu": each.gpu.name,
        "usable_bytes": each.usable_bytes,
        "needed_bytes": each.need.total_bytes,
        "weights_bytes": each.need.weights_bytes,
        "prefill_bytes": each.need.prefill_bytes,
        "decode_bytes": each.need.decode_bytes,
        "fits": each.fits,
        "largest_batch": each.largest_batch,
    }
