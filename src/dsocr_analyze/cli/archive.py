"""`dsocr-analyze archive`: what a whole list of pages costs."""

from pathlib import Path
from typing import Annotated, Final

import typer

from dsocr_analyze.archive.pdf_pages import DEFAULT_PDF_DPI
from dsocr_analyze.cli import options

HISTOGRAMS = ("grid", "tokens")
BY = "Pages by crop grid, or by tokens of the prompt."

OF_PDFS = "Pixels per inch of a PDF's pages. PDFs need the extra 'pdf'."


_LENGTHS_OF_ALL: Final[options.Added] = {
    "text_tokens": (
        Annotated[int | None, options.option("TOKENS", options.TEXT_TOKENS)],
        None,
    ),
    "max_new_tokens": (
        Annotated[int, options.option("TOKENS", options.NEW_TOKENS)],
        1024,
    ),
    "batch_size": (
        Annotated[int, options.option("PAGES", options.BATCH)],
        1,
    ),
    "pdf_dpi": (
        Annotated[int, options.option("DPI", OF_PDFS)],
        DEFAULT_PDF_DPI,
    ),
}
"""Of pages for which the list does not say it."""

_RESULTS: Final[options.Added] = {
    "output": (
        Annotated[
            Path | None, options.option("FILE", "One row per page, as FILE.csv or FILE.parquet.")
        ],
        None,
    ),
    "plot": (
        Annotated[
            Path | None,
            options.option(
                "FILE", "The histogram, as FILE.png or FILE.svg. Needs the extra 'plot'."
            ),
        ],
        None,
    ),
    "histogram": (
        Annotated[str, options.option(HISTOGRAMS, BY, callback=options.in_any_case)],
        "grid",
    ),
    "output_format": (
        Annotated[
            str,
            options.option(
                ("table", "json"), options.FORMAT, "--format", callback=options.in_any_case
            ),
        ],
        "table",
    ),
}
"""What becomes of the totals."""


def archive(
    context: typer.Context,
    pages: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|FOLDER",
            show_default=False,
            help="The pages: a Parquet or CSV file with columns width and height (and text_tokens,"
            " max_new_tokens), an image, a PDF, or a folder of images and PDFs.",
        ),
    ],
    mode: Annotated[str | None, "modes"] = None,
    dtype: Annotated[str, "dtypes"] = "bfloat16",
    use_flash_attn: Annotated[str, "attentions"] = "0",
    sliding_window: Annotated[str | None, "windows"] = None,
    of_pages: options.Added = _LENGTHS_OF_ALL,
    model: str | None = None,
    arch: str | None = None,
    config: Path | None = None,
    results: options.Added = _RESULTS,
    quiet: bool = False,
    strict: bool = False,
    debug: bool = False,
    of_time: options.Added = options.SECONDS_OF_MANY,
) -> None:
    """Count every page of a list, add them up, and predict the GPU-hours they take.

    All pages of a batch have equal prompts; the remainder for each prompt makes a smaller batch.
    """
    from dsocr_analyze.cli import page_lists, time_requests

    given = context.params
    if quiet:
        options.check_quiet({"--output": given["output"], "--plot": given["plot"]})
    page_lists.count_list(context, time_requests.of_many_pages(context))
