"""Pages to plan for: those of a list or folder, of one size, or of a mix of sizes."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dsocr_analyze.architectures import DEFAULT_PAGE, PageRequest, PageSize
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.archive.evaluate import Floats
from dsocr_analyze.archive.pages import (
    Pages,
    PageSource,
    open_pages,
    read_pages,
    sized_pages,
    together,
)
from dsocr_analyze.archive.pdf_pages import DEFAULT_PDF_DPI
from dsocr_analyze.archive.shown import malformed_warnings
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import parse_page

Mix: TypeAlias = Iterable[tuple[PageSize, Any]]
"""Sizes of pages, and their shares."""


def batches_of(
    architecture: Architecture,
    file: str | Path | None,
    page: PageSize | None,
    mix: Mix | None,
    *,
    text_tokens: int | None,
    max_new_tokens: int,
    warn: Callable[[Iterable[str]], None],
    announce: Callable[[str, Callable[[], float | None]], object] = lambda *_: None,
    pdf_dpi: int = DEFAULT_PDF_DPI,
) -> Iterator[tuple[Pages, Floats]]:
    """The pages of a list or folder, of one size or of a mix, and how many each stands for.

    Args:
        architecture: The model's.
        file: The list or folder, of which `warn` is told what is no page, and `announce` how many
            pages have been read.
        page: The size of all pages.
        mix: Sizes and their shares. Without any of these, pages have the default size.
        text_tokens: Of a prompt; None for the usual prompt's.
        max_new_tokens: Of each page.
        warn: Called with warnings.
        announce: Called with the progress.
        pdf_dpi: Dots per inch of PDFs' pages.

    Raises:
        WorkloadError: Two ways of giving the pages, or a size or share that is none.
    """
    for name, given in (("page", page), ("mix", mix)):
        if None not in (file, given):
            raise WorkloadError(
                f"{name} has no effect beside a list of pages; leave it out", arguments=[name]
            )
    if None not in (page, mix):
        raise WorkloadError("give page or mix, not both", arguments=["page", "mix"])
    usual = PageRequest(
        architecture=architecture, text_tokens=text_tokens, max_new_tokens=max_new_tokens
    ).workload_of_page
    lengths = {"text_tokens": usual.text_tokens, "max_new_tokens": max_new_tokens}
    if file is None:
        sizes = [(page or DEFAULT_PAGE, 1.0)] if mix is None else mix
        return _batches_of_mix(architecture, sizes, lengths)
    listed = open_pages(Path(file), pdf_dpi=pdf_dpi)
    return _batches_of_list(architecture, listed, lengths, warn, announce)


def _batches_of_mix(
    architecture: Architecture, mix: Mix, lengths: Mapping[str, int]
) -> Iterator[tuple[Pages, Floats]]:
    """A page of each size, and its share, as one batch; raises WorkloadError for none."""
    sizes, shares = [], []
    for page, share in mix:
        if not (isinstance(share, int | float) and 0 < share < math.inf):
            raise WorkloadError(
                f"mix has the share {share!r} of {page!r}; give shares above 0", arguments=["mix"]
            )
        sizes.append(parse_page(page) if isinstance(page, str) else page)
        _ = PageRequest(architecture=architecture, page=sizes[-1]).workload  # raises if it is none
        shares.append(float(share))
    if not sizes:
        raise WorkloadError("mix has no pages; give sizes with their shares", arguments=["mix"])
    yield sized_pages(sizes, architecture.forms.model.page_rule, **lengths), np.array(shares)


def _batches_of_list(
    architecture: Architecture,
    listed: PageSource,
    lengths: Mapping[str, int],
    warn: Callable[[Iterable[str]], None],
    announce: Callable[[str, Callable[[], float | None]], object],
) -> Iterator[tuple[Pages, Floats]]:
    """The pages of a list or folder, each once."""
    malformed, rows = [], 0
    warn(listed.warnings)
    for some in read_pages(listed.batches, architecture.forms.model.page_rule, **lengths):
        malformed.append(some.malformed)
        rows += len(some) + some.malformed.rows
        yield some, np.ones(len(some))
        announce(f"{rows:,} pages", listed.share)
    warn(malformed_warnings(rows, together(malformed)))
