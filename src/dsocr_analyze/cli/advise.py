"""`dsocr-analyze advise`: which mode for a page."""

from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Final

import typer

from dsocr_analyze.analysis import Engine
from dsocr_analyze.archive import axes, setting
from dsocr_analyze.cli import exits, help_text, options, page_options, printing, words
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.output_files import prepare_directory
from dsocr_analyze.workload import LARGEST_COUNT, paper_dpi, parse_page

_MOST_NUMBERS = 12


def _kinds() -> list[str]:
    from dsocr_analyze.archive.advice_document import kinds_of_document

    # Shells would divide a name with a space.
    return [kind.replace(" ", "-") for kind in kinds_of_document()]


_ASKED: Final[options.Added] = {
    "page_dpi": (
        Annotated[
            str | None,
            options.option(
                "DPI",
                "Resolution of a page given in pixels or as an image. Default: unknown, except for"
                " papers like a4@200.",
                group=help_text.PAGE,
            ),
        ],
        None,
    ),
    "kind": (
        Annotated[
            str | None,
            options.option(
                "KIND",
                "Kind of document, such as newspaper or financial-report, whose published figures"
                " decide. Default: all kinds; a line says where they disagree.",
                completes=_kinds,
                group=help_text.PAGE,
            ),
        ],
        None,
    ),
    "page_text_tokens": (
        Annotated[
            str | None,
            options.option(
                "LIST",
                "Possible numbers of text tokens on the page, which the model writes out. Default:"
                " the mean of the --kind if that is published, else none.",
                group=help_text.PAGE,
            ),
        ],
        None,
    ),
    "text_tokens": (int | None, None),
    "max_new_tokens": (
        Annotated[
            int | None,
            options.option(
                "TOKENS",
                options.NEW_TOKENS,
                show_default="1024, or as many as the page's text needs",
                group=help_text.PAGE,
            ),
        ],
        None,
    ),
    "batch_size": (int, 1),
    "minimum_dpi": (
        Annotated[str | None, options.option("DPI", "Minimum effective resolution of the page.")],
        None,
    ),
    "maximum_compression": (
        Annotated[
            str | None,
            options.option(
                "RATIO",
                "Maximum text tokens per vision token, for every number in --page-text-tokens.",
            ),
        ],
        None,
    ),
}
"""What is asked about the page, besides itself."""


def advise(
    context: typer.Context,
    of_model: options.Added = page_options.MODEL | page_options.WINDOW | page_options.TYPES,
    mode: Annotated[str | None, "modes"] = None,
    page: str | None = None,
    image: Path | None = None,
    asked: options.Added = _ASKED,
    output_format: str = "table",
    json_file: str | None = None,
    assumptions: bool = False,
    strict: bool = False,
    debug: bool = False,
    of_time: options.Added = options.SECONDS_OF_A_PAGE,
) -> None:
    """Recommend a mode for a page, with its cost and its accuracy.

    Of all named modes, or those in --mode: the cheapest whose published edit distance for the
    --kind of document is close to the best.

    With --minimum-dpi or --maximum-compression, choose among the modes that meet them; exit with 1
    if none does.
    """
    from dsocr_analyze.archive import advice, advice_document

    given = context.params
    limits = {"--minimum-dpi": given["minimum_dpi"],
              "--maximum-compression": given["maximum_compression"]}  # fmt: skip
    time = page_options.request_with_report(context)
    directory = page_options.directory_asked(given)
    words.print_config_findings(context, directory, by_closed_forms=True)
    size, dpi = _page(page, image, given["page_dpi"])
    modes = list(dict.fromkeys(axes.parse_modes("mode", mode or "all", directory.architecture)))
    most_tokens, lengths = given["max_new_tokens"], ("new_tokens_from", "mean_new_tokens")
    writes_text = all(given[each] is None for each in lengths)
    if most_tokens is None and not writes_text:
        most_tokens = page_options.NEW_TOKENS["max_new_tokens"][1]
    request = page_options.page_request(
        given, directory, page=size, image=None, mode=None, max_new_tokens=most_tokens
    )
    holds = _numbers(given["page_text_tokens"])
    least, most = (
        None if each is None else float(_fraction(name, each)) for name, each in limits.items()
    )
    wanted = None if least is None and most is None else (
        advice_document.Requirements(minimum_dpi=least, maximum_compression=most)
    )  # fmt: skip
    found = advice.advise(
        directory, advice.AdviceRequest(request, dpi, holds, writes_text, given["kind"], wanted),
        modes, options=options.options_used(context), time_of=Engine(directory, time=time).entries,
    )  # fmt: skip
    words.warn(context, setting.warnings_of_modes(directory.architecture, modes), arguments=())
    if json_file not in (None, "-"):
        prepare_directory(Path(str(json_file)).parent)
    chosen = [each for each in found.modes if each.mode == found.recommendation.mode]
    doubts = (note for each in chosen for note in each.notes)
    printing.emit(context, found, printing.Said(
        "\n".join(advice.advice_lines(found)),
        list(advice.advice_tables(found)),
        [printing.assumptions(context, advice.advice_notes(found), doubts)],
        [json_file],
    ))  # fmt: skip
    if found.modes_that_meet == ():
        raise typer.Exit(exits.NO)


def _page(
    page: str | None, image: Path | None, page_dpi: str | None
) -> tuple[tuple[int, int], Fraction | None]:
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
    if text is None:
        return None
    axis = axes.parse_numbers("page_text_tokens", text, 1, LARGEST_COUNT)
    if len(axis) > _MOST_NUMBERS:
        raise WorkloadError(
            f"--page-text-tokens {text} has {len(axis)} values; give at most {_MOST_NUMBERS}"
        )
    return tuple(dict.fromkeys(axis.tolist()))


def _fraction(option: str, text: str) -> Fraction:
    """The exact value of a decimal number, which may be a ratio like 10x."""
    try:
        number = Decimal(text.lower().removesuffix("x"))
        if not number.is_finite() or not 0 < number < LARGEST_COUNT:
            raise InvalidOperation
    except InvalidOperation:
        raise WorkloadError(
            f"{option} {text!r} is invalid; give a number above 0, like 150"
        ) from None
    return Fraction(number)
