"""`dsocr-analyze advise`: which mode for a page."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from dsocr_analyze.analysis import Engine
from dsocr_analyze.cli import completion, options, page_options, time_options
from dsocr_analyze.cli.exits import NO
from dsocr_analyze.cli.printing import Lines, Said, emit
from dsocr_analyze.cli.words import print_config_findings, warn_of_modes
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload.page import paper_dpi, parse_page
from dsocr_analyze.workload.workload import LARGEST_COUNT

__all__ = ["advise"]

_MOST_NUMBERS = 12

PageDpiOption = Annotated[
    str | None,
    typer.Option(
        "--page-dpi",
        metavar="DPI",
        help="Resolution of a page given in pixels or as an image. Default: unknown, except for"
        " papers like a4@200.",
    ),
]
KindOption = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        autocompletion=completion.all_kinds,
        help="Kind of document, such as newspaper or financial-report, to see its published"
        " figures. Default: all kinds, side by side.",
    ),
]
HoldsOption = Annotated[
    str | None,
    typer.Option(
        "--page-text-tokens",
        metavar="LIST",
        help="Possible numbers of text tokens on the page, which the model writes out. Default:"
        " 600,1000,2000,4000, for the compression alone.",
    ),
]
NewTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens",
        metavar="TOKENS",
        help=options.NEW_TOKENS,
        show_default="1024, or as many as --page-text-tokens needs",
    ),
]
MinimumOption = Annotated[
    str | None,
    typer.Option(
        "--minimum-dpi",
        metavar="DPI",
        help="Minimum effective resolution of the page.",
    ),
]
MaximumOption = Annotated[
    str | None,
    typer.Option(
        "--maximum-compression",
        metavar="RATIO",
        help="Maximum text tokens per vision token, for every number in --page-text-tokens.",
    ),
]


@time_options.of_a_page(runtime="serving", concurrency="1")
def advise(
    context: typer.Context,
    model: str | None = None,
    arch: str | None = None,
    config: Path | None = None,
    sliding_window: int | None = None,
    dtype: str = "bfloat16",
    use_flash_attn: int = 0,
    mode: Annotated[str | None, "modes"] = None,
    page: str | None = None,
    image: Path | None = None,
    page_dpi: PageDpiOption = None,
    kind: KindOption = None,
    page_text_tokens: HoldsOption = None,
    text_tokens: int | None = None,
    max_new_tokens: NewTokensOption = None,
    batch_size: int = 1,
    minimum_dpi: MinimumOption = None,
    maximum_compression: MaximumOption = None,
    output_format: str = "table",
    json_file: str | None = None,
    quiet: bool = False,
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Show how finely each mode sees a page, its cost, and published results for it.

    Covers all named modes, or those in --mode. Published results differ much by kind of document;
    --kind shows those of one.

    With --minimum-dpi or --maximum-compression, list the modes that meet them; exit with 1 if none
    does.
    """
    from dsocr_analyze.advice import build
    from dsocr_analyze.archive.axes import parse_modes

    limits = {"--minimum-dpi": minimum_dpi, "--maximum-compression": maximum_compression}
    if quiet:
        options.check_quiet({**limits, "--json": json_file})
    asked = time_options.request_with_report(context)
    directory = page_options.described_model(model, arch, config, sliding_window)
    print_config_findings(context, directory, by_closed_forms=True)
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    size, dpi = _page(page, image, page_dpi)
    modes = list(dict.fromkeys(parse_modes("mode", mode or "all", directory.architecture)))
    lengths = (context.params[each] for each in ("new_tokens_from", "mean_new_tokens"))
    if max_new_tokens is None and any(each is not None for each in lengths):
        max_new_tokens = page_options.OF_A_PAGE["max_new_tokens"][1]
    request = page_options.page_request(
        context, directory, page=size, image=None, mode=None, max_new_tokens=max_new_tokens
    )
    holds = _numbers(page_text_tokens)
    least, most = map(_limit, limits, limits.values())
    found = build.advise(
        directory, build.PageAsked(request, dpi, holds, kind, least, most), modes, dtype=dtype,
        flash_attention=flash_attention, options=options.options_used(context),
        time_of=Engine("analytic", directory, dtype, flash_attention, time=asked).entries,
    )  # fmt: skip
    warn_of_modes(context, directory.architecture, modes)
    if json_file not in (None, "-"):
        options.prepare_output(Path(str(json_file)).parent)

    def said() -> Said:
        notes = Lines("Notes", build.advice_notes(found), indent="")
        opening = "\n".join(build.advice_lines(found))
        return Said(opening, build.advice_tables(found), [notes], [json_file])

    emit(context, found, said)
    if found.modes_that_meet == ():
        raise typer.Exit(NO)


def _page(
    page: str | None, image: Path | None, page_dpi: str | None
) -> tuple[tuple[int, int], Fraction | None]:
    """The page's size, and its resolution if known."""
    if page is not None and image is not None:
        raise WorkloadError(f"give --page {page} or --image {image}, not both")
    dpi = None if page_dpi is None else _fraction("--page-dpi", page_dpi)
    if image is not None:
        return page_options.page_of_file(image), dpi
    text = page or "a4"
    size, of_paper = parse_page(text), paper_dpi(text)
    if dpi is not None and of_paper is not None and dpi != of_paper:
        raise WorkloadError(
            f"--page {text} is a paper at {of_paper} dpi; leave out --page-dpi {page_dpi}, or give"
            f" {text.partition('@')[0]}@{page_dpi}"
        )
    return size, dpi if of_paper is None else Fraction(of_paper)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    from dsocr_analyze.archive.axes import parse_numbers

    if text is None:
        return None
    axis = parse_numbers("page_text_tokens", text, 1, LARGEST_COUNT)
    if len(axis) > _MOST_NUMBERS:
        raise WorkloadError(
            f"--page-text-tokens {text} has {len(axis)} values; give at most {_MOST_NUMBERS}"
        )
    return tuple(dict.fromkeys(each for (part,) in axis.parts for each in part))


def _limit(option: str, text: str | None) -> float | None:
    return None if text is None else float(_fraction(option, text))


def _fraction(option: str, text: str) -> Fraction:
    """The exact decimal value of a number: 0.1 is a tenth. A ratio may be written like 10x."""
    try:
        number = Decimal(text.lower().removesuffix("x"))
        if not number.is_finite() or not 0 < number < LARGEST_COUNT:
            raise InvalidOperation
    except InvalidOperation:
        raise WorkloadError(
            f"{option} {text!r} is invalid; give a number above 0, like 150"
        ) from None
    return Fraction(number)
