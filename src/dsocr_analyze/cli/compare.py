"""Modes, sizes and saved reports side by side."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsocr_analyze.cli import options
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import MODES, mode_named

if TYPE_CHECKING:
    from dsocr_analyze.report.document import Document

__all__ = ["compare"]

FORMATS = ("table", "markdown", "json", "csv")
ENGINES = ("analytic", "trace")


def compare(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT",
            help="Modes (gundam), sizes (1024/640 crops, 640 does not) or saved reports"
            " (report.json); the first is what the others are compared with. Default: all modes.",
        ),
    ] = None,
    model: options.ModelOption = None,
    config: options.ConfigOption = None,
    trust_remote_code: options.TrustOption = False,
    dtype: options.DtypeOption = "bfloat16",
    use_flash_attn: options.FlashOption = 0,
    page: options.PageOption = None,
    image: options.ImageOption = None,
    text_tokens: options.TextTokensOption = None,
    max_new_tokens: options.NewTokensOption = 1024,
    batch_size: options.BatchOption = 1,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", metavar="|".join(ENGINES), help="How modes and sizes are counted."
        ),
    ] = "analytic",
    output_format: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="What is printed.")
    ] = "table",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write here, not to stdout.")
    ] = None,
) -> None:
    """Put crop modes, presets and saved reports side by side."""
    from dsocr_analyze.report import comparison, files
    from dsocr_analyze.report.markdown import markdown_table

    if output_format not in FORMATS:
        raise WorkloadError(f"--format {output_format!r} is unknown; use {', '.join(FORMATS)}")
    if engine not in ENGINES:
        raise WorkloadError(f"--engine {engine!r} is unknown; use {', '.join(ENGINES)}")
    session: Any = None
    documents: list[tuple[str, Document]] = []
    for item in what or list(MODES):
        sizes = _sizes(item)
        if sizes is None:
            documents.append((item, comparison.load_report(Path(item))))
            continue
        workload = options.workload_from(
            mode=None, page=page, image=image, seq_len=None, text_tokens=text_tokens,
            batch_size=batch_size, max_new_tokens=max_new_tokens, **sizes,
        )  # fmt: skip
        # The closed forms read the directory's config and execute nothing of it.
        executable = trust_remote_code or engine == "analytic"
        directory = options.model_directory_from(model, config, trust_remote_code=executable)
        flash_attention = options.switch("--use-flash-attn", use_flash_attn)
        if engine == "analytic":
            from dsocr_analyze.closed_form import closed_form_document

            document = closed_form_document(
                directory, workload, dtype=dtype, flash_attention=flash_attention
            )
        else:
            from dsocr_analyze.analysis import DeepSeekOCRSession

            session = session or DeepSeekOCRSession.from_directory(
                directory,
                dtype=dtype,
                flash_attention=flash_attention,
                trust_remote_code=trust_remote_code,
            )
            document = session.analyze(workload)
        documents.append((item, document))
    result = comparison.compare(documents)
    if output_format == "table" and output is None:
        from dsocr_analyze.report.terminal import print_table

        print(result.headline())
        print_table(result.table())
        return
    markdown = f"{result.headline()}\n\n{markdown_table(result.table())}\n"
    text = {
        "table": lambda: markdown,
        "markdown": lambda: markdown,
        "json": result.as_json,
        "csv": result.as_csv,
    }[output_format]()
    if output is None:
        sys.stdout.write(text)
    else:
        files.write_texts(output.parent, {output.name: text})


def _sizes(item: str) -> dict[str, Any] | None:
    """What a mode or a size means for the workload; None for the path of a report."""
    if item in MODES:
        mode = mode_named(item)
        return {
            "base_size": mode.base_size,
            "image_size": mode.image_size,
            "crop_mode": int(mode.crop_mode),
        }
    sizes = re.fullmatch(r"(?:(\d+)/)?(\d+)", item)
    if sizes:
        base, size = sizes.groups()
        return {
            "base_size": int(base or size),
            "image_size": int(size),
            "crop_mode": int(base is not None),
        }
    if Path(item).suffix == ".json" or Path(item).exists():
        return None
    raise WorkloadError(
        f"cannot compare {item!r}; give a mode ({', '.join(MODES)}), sizes like 1024/640 (crops)"
        " or 640 (does not), or a saved report.json"
    )
