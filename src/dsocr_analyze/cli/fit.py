"""Does it fit, and what batch does?"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli import options
from dsocr_analyze.errors import WorkloadError

if TYPE_CHECKING:
    from dsocr_analyze.hardware.fit import Fit

__all__ = ["fit"]

FORMATS = ("table", "markdown", "json")


def fit(
    gpu: Annotated[
        list[str] | None,
        typer.Argument(metavar="GPU", help="GPUs of the catalogue. Default: all."),
    ] = None,
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
    reserved: Annotated[
        float,
        typer.Option(
            "--reserved",
            metavar="PART",
            help="Part of the memory kept for the driver, the allocator and kernels, 0 to 1.",
        ),
    ] = 0.1,
    output_format: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="What is printed.")
    ] = "table",
) -> None:
    """Say whether a page fits into a GPU's memory, and how many at a time do."""
    from dsocr_analyze.closed_form import element_bytes_of
    from dsocr_analyze.hardware.devices import gpu_catalogue, gpu_named
    from dsocr_analyze.hardware.fit import fit as fit_into
    from dsocr_analyze.model.dimensions import ModelDimensions

    if output_format not in FORMATS:
        raise WorkloadError(f"--format {output_format!r} is unknown; use {', '.join(FORMATS)}")
    if not 0 <= reserved < 1:
        raise WorkloadError(f"--reserved {reserved} is not possible; give a part from 0 to below 1")
    gpus = [gpu_named(name) for name in gpu] if gpu else list(gpu_catalogue().values())
    # Only the config is read: no code of the directory is executed.
    directory = options.model_directory_from(model, config, trust_remote_code=True)
    workload = options.workload_from(
        mode=mode, base_size=base_size, image_size=image_size, crop_mode=crop_mode, page=page,
        image=image, seq_len=seq_len, text_tokens=text_tokens, batch_size=batch_size,
        max_new_tokens=max_new_tokens,
    )  # fmt: skip
    dimensions = ModelDimensions.from_config(directory.config)
    fits = [
        fit_into(
            each,
            dimensions,
            workload,
            element_bytes=element_bytes_of(dtype),
            flash_attention=options.switch("--use-flash-attn", use_flash_attn),
            reserved=reserved,
        )
        for each in gpus
    ]
    if output_format == "json":
        sys.stdout.write(json.dumps([_as_dict(each) for each in fits], indent=2) + "\n")
        return
    from dsocr_analyze.report.document import model_metadata
    from dsocr_analyze.report.quantities import bytes_text
    from dsocr_analyze.report.tables import Table, model_text

    print(f"Ran: {model_text(model_metadata(directory))} by closed forms")

    need = fits[0].need
    table = Table(
        f"{batch_size} page(s) of {workload.seq_len} tokens need {bytes_text(need.total_bytes)}:"
        f" weights {bytes_text(need.weights_bytes)} and the higher of the prefill pass"
        f" ({bytes_text(need.prefill_bytes)}) and the last decode step"
        f" ({bytes_text(need.decode_bytes)})",
        ("GPU", "name", "usable", "fits", "largest batch"),
        tuple(
            (each.gpu.title, each.gpu.name, bytes_text(each.usable_bytes),
             "yes" if each.fits else "no", str(each.largest_batch))
            for each in fits
        ),
        label_columns=2,
    )  # fmt: skip
    if output_format == "markdown":
        from dsocr_analyze.report.markdown import markdown_table

        sys.stdout.write(f"{table.title}\n\n{markdown_table(table)}\n")
    else:
        from dsocr_analyze.report.terminal import print_table

        print_table(table)


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
