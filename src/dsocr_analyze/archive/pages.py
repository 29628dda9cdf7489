"""Lists of pages, in which what is bad spoils only its own row."""

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dsocr_analyze.architectures import DEFAULT_PAGE, PageRequest, PageSize, views
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.archive.axes import mode_or_sizes
from dsocr_analyze.archive.evaluate import (
    PAGE_RESULTS,
    Floats,
    Workloads,
    cost_columns,
    row_columns,
)
from dsocr_analyze.archive.pdf_pages import DEFAULT_PDF_DPI, has_reader, pdf_pages
from dsocr_analyze.archive.setting import (
    CountedFiles,
    CountedModel,
    FilesDocument,
    MalformedRow,
    MalformedRows,
    OtherFiles,
    Setting,
    published_model,
)
from dsocr_analyze.errors import PageError, WorkloadError
from dsocr_analyze.escaping import visible
from dsocr_analyze.input_files import is_folder, is_regular
from dsocr_analyze.kernels import dtype_named
from dsocr_analyze.row_files import (
    RawRows,
    Reason,
    RowKind,
    RowSource,
    open_rows,
    problem_text,
    wanted_columns,
    whole_numbers,
)
from dsocr_analyze.workload import BOUNDS, LARGEST_SIDE, check_count, parse_page

_PDF: Final = ".pdf"
_PAGES_A_BATCH: Final = 512
_MOST_EXTENSIONS: Final = 1_000
_LONGEST_EXTENSION: Final = 16

REPORTED_ROWS: Final = 10
"""Further malformed rows are only counted."""

_SIZES: Final = ("width", "height")
_MOST: Final = dict.fromkeys(_SIZES, LARGEST_SIDE) | {
    name: BOUNDS[name][1] for name in ("text_tokens", "max_new_tokens")
}
"""The largest value of each column; a list may lack lengths."""

_REASONS: Final = len(Reason)
_REFUSED: Final = 1 + _REASONS * len(_MOST)
"""The fault of a page that the model's processor refuses."""


def _wanted_columns(what: str, names: list[str]) -> tuple[str, ...]:
    return wanted_columns(
        what, names, tuple(_MOST), needed=_SIZES, right="give columns width and height, in pixels"
    )


_PAGES: Final = RowKind(
    what="list of pages",
    right="give a Parquet or CSV file with columns width and height, or a folder of images and"
    " PDFs",
    columns=_wanted_columns,
    known=tuple(_MOST),
    row=f"one page, with columns {', '.join(_MOST)}",
    error=PageError,
)

# --- files and folders ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PageSource(RowSource):
    """Pages that are read once, in order."""

    files: FilesDocument | None = None
    """Files, complete once all pages have been read; None for a list of sizes."""


_FILE_ROWS: Final = pa.schema({
    "row": pa.int64(), "path": pa.string(), "file_page": pa.int64(), "width": pa.int64(),
    "height": pa.int64(),
})  # fmt: skip

_Page: TypeAlias = tuple[str, int, tuple[int, int] | str]
"""A file's path, the page's number in it, and its size or why that is unknown."""


def open_pages(path: Path, *, pdf_dpi: int = DEFAULT_PDF_DPI) -> PageSource:
    """Opens a list of pages, of which only a header is read yet.

    Folders are searched for images and PDFs by extension, in order of names.

    Raises:
        PageError: It is missing, unreadable, or not a list of pages.
        WorkloadError: A column is missing or duplicated.
    """
    check_count("pdf_dpi", pdf_dpi, 1, LARGEST_SIDE, " pixels to an inch")
    # Until their pages are read.
    files = FilesDocument(CountedFiles(0, 0), CountedFiles(0, 0), pdf_dpi, 0, (), 0, 0, 0, 0)
    if is_folder(path):
        names, done = _countable_files(path, files), 0

        def passing(names: Iterable[str]) -> Iterator[str]:
            nonlocal done
            for name in names:
                yield name
                done += 1

        @cache
        def number() -> float:
            try:
                return sum(1 for _ in _countable_files(path, copy(files)))
            except PageError:  # they are gone by now
                return math.inf

        # The first file is looked for now, so that a folder without any is refused at once.
        pages = _pages(path, passing(itertools.chain([next(names)], names)), files)
        return PageSource(_batches(pages), share=lambda: done / number(), files=files)
    if is_regular(path) and path.suffix.lower() in _countable_suffixes():
        pages = _pages(path.parent, [path.name], files)
        return PageSource(_batches(pages), files=files)
    return PageSource(**vars(open_rows(path, _PAGES)))


def _countable_suffixes() -> frozenset[str]:
    from PIL import Image

    kinds = Image.registered_extensions()
    return frozenset({_PDF} | {suffix for suffix, kind in kinds.items() if kind in Image.OPEN})


def _countable_files(folder: Path, files: FilesDocument) -> Iterator[str]:
    """Paths of images and PDFs in order of names; others are counted."""
    suffixes = _countable_suffixes()
    others: Counter[str] = Counter()
    has_any = False

    def give_up(error: OSError) -> None:
        raise _PAGES.unreadable(Path(error.filename), str(error.strerror)) from error

    for parent, folders, names in os.walk(folder, onerror=give_up):
        files.hidden += sum(name.startswith(".") for name in (*folders, *names))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files.linked_folders += sum(
            os.path.islink(f"{parent}/{name}")  # noqa: PTH114 - paths of 100,000 take seconds
            for name in folders  # `os.walk` does not follow them
        )
        inner = Path(parent).relative_to(folder)
        for name in sorted(name for name in names if not name.startswith(".")):
            suffix = Path(name).suffix.lower()
            if suffix in suffixes:
                has_any = True
                yield (inner / name).as_posix()
            else:  # in bounded memory
                known = len(others) < _MOST_EXTENSIONS or suffix in others
                others[suffix if known and len(suffix) <= _LONGEST_EXTENSION else "others"] += 1
    if not has_any:
        held = f"; it contains {extensions_text(others.most_common(), 10)}" if others else ""
        raise PageError(
            f"no image or PDF in {str(folder)!r} or a folder in it{held}; {_PAGES.right}"
        )
    files.not_counted = tuple(
        OtherFiles(*each) for each in sorted(others.items(), key=lambda each: (-each[1], each[0]))
    )


def extensions_text(counts: list[tuple[str, int]], most: int) -> str:
    """Files by extension, `most` of these by name: `3 .docx, 1 .txt, 2 more`."""
    named = [f"{count:,} {name or 'without extension'}" for name, count in counts[:most]]
    rest = sum(count for _, count in counts[most:])
    return ", ".join([*named, f"{rest:,} more"] if rest else named)


def _pages(folder: Path, names: Iterable[str], files: FilesDocument) -> Iterator[_Page]:
    from dsocr_analyze.workload.image_file import ImagePages

    reads_pdfs = has_reader()
    for name in names:
        if not name.lower().endswith(_PDF):
            image = ImagePages(folder / name)
            yield from _pages_of_file(name, image.sizes(), files.images)
            files.images_with_more_frames += image.has_more_frames
            files.tiff_copies += image.copies
        elif reads_pdfs:
            sizes = pdf_pages(folder / name, files.pdf_dpi)
            yield from _pages_of_file(name, sizes, files.pdfs)
        else:
            files.pdfs_without_reader += 1


def _pages_of_file(
    name: str, sizes: Iterable[tuple[int, int] | PageError], counted: CountedFiles
) -> Iterator[_Page]:
    """Pages up to one after which the file cannot be read."""
    number = good = 0
    try:
        for number, size in enumerate(sizes, 1):
            good += not isinstance(size, PageError)
            yield name, number, str(size) if isinstance(size, PageError) else size
    except WorkloadError as error:
        yield name, number + 1, str(error)
    counted.files += good > 0
    counted.pages += good


def _batches(pages: Iterator[_Page]) -> Iterator[RawRows]:
    """Pages without a size become rejected rows."""
    numbered = enumerate(pages, 1)
    while chunk := list(itertools.islice(numbered, _PAGES_A_BATCH)):
        rejected = {row: size for row, (_, _, size) in chunk if isinstance(size, str)}
        good = [
            dict(zip(_FILE_ROWS.names, (row, _cell(path), page, *size), strict=True))
            for row, (path, page, size) in chunk
            if not isinstance(size, str)
        ]
        rows = pa.RecordBatch.from_pylist(good, _FILE_ROWS)
        yield RawRows(rows.select(_FILE_ROWS.names[1:]), rows["row"].to_numpy(), rejected)


def _cell(path: str) -> str:
    """A path as text that begins no formula, and in which nothing acts."""
    text = visible(os.fsencode(path).decode("utf-8", "replace"))
    return f"./{text}" if text.startswith(("=", "+", "-", "@")) else text


# --- rows ----------------------------------------------------------------------------------------


def _read_rows(
    batch: pa.RecordBatch | pa.Table, rule: views.PageRule
) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.uint8]]:
    """The columns of a list, `[n]`, all 1 in a faulty row; and faults, `[n]`, 0 in good rows."""
    values: dict[str, NDArray[np.int64]] = {}
    faults = np.zeros(batch.num_rows, np.uint8)
    for name in _wanted_columns("a list of pages", batch.schema.names):
        values[name], reasons = whole_numbers(name, batch.column(name), _MOST[name])
        first = (faults == 0) & (reasons != 0)
        faults[first] = _REASONS * list(_MOST).index(name) + reasons[first]
    is_refused = rule.codes(*(np.maximum(1, values[name]) for name in _SIZES)) == 0
    faults[is_refused & (faults == 0)] = _REFUSED
    for column in values.values():
        column[faults != 0] = 1
    return values, faults


def together(parts: Sequence[MalformedRows]) -> MalformedRows:
    """The malformed rows of all parts of a list."""
    reported = itertools.chain.from_iterable(each.reported for each in parts)
    return MalformedRows(
        sum(each.rows for each in parts), (*itertools.islice(reported, REPORTED_ROWS),)
    )


def _fault_text(fault: int, raw: RawRows | None = None, index: int = 0) -> str:
    """What is wrong with a row's first bad column; with its value if the row is given."""
    if fault == _REFUSED:
        return "the page's sides are too different for the model's processor"
    position, reason = divmod(fault - 1, _REASONS)
    column = list(_MOST)[position]
    return problem_text(column, reason + 1, _MOST[column], raw and raw.value(column, index))


Batch = TypeVar("Batch", pa.RecordBatch, pa.Table)


def count_pages(
    batch: Batch,
    *,
    model: CountedModel | None = None,
    mode: str | None = None,
    dtype: str = "bfloat16",
    flash_attention: bool = False,
    text_tokens: int | None = None,
    max_new_tokens: int = 1024,
) -> Batch:
    """What each page of a batch costs on its own (batch size 1). Needs no torch.

    For Ray Data's `map_batches(count_pages, batch_format="pyarrow")`, keywords in `fn_kwargs`.

    Args:
        batch: Columns `width` and `height` (pixels), and optionally `text_tokens` and
            `max_new_tokens` in place of the keywords: whole numbers or text. Other columns stay.
        model: By default the published one.
        mode: A mode, or sizes like `1024/640` (crops) or `640` (no crops); by default the model's.
        dtype: Of weights and activations.
        flash_attention: Instead of the decoder's eager attention.
        text_tokens: Prompt tokens that are not visual; by default those of the usual prompt.
        max_new_tokens: Tokens generated per page; the prefill pass generates the first.

    Returns:
        The batch with the columns `PAGE_RESULTS` (int64): the crop grid, tokens, FLOPs and bytes;
        and `problem` (text), what is wrong with a row that is no page, whose results are null.

    Raises:
        WorkloadError: A column is missing or not numeric, or has the name of a result; a keyword is
            invalid; or a count does not fit in 64 bits.
        DeviceError: The type is unknown.
    """
    if taken := sorted({*PAGE_RESULTS, "problem"}.intersection(batch.schema.names)):
        raise WorkloadError(f"the batch already has a column {taken[0]!r}; rename or drop it")
    model = published_model() if model is None else model
    setting = Setting(
        mode_or_sizes(model.architecture, mode or model.architecture.default_mode),
        dtype_named(dtype), flash_attention,
    )  # fmt: skip
    # Planning any page checks the lengths and fills in the usual prompt.
    planned = PageRequest(
        architecture=model.architecture, text_tokens=text_tokens, max_new_tokens=max_new_tokens
    ).workload_of_page
    rule = model.architecture.forms.model.page_rule
    values, faults = _read_rows(batch, rule)
    workloads = Workloads(
        rule.codes(values["width"], values["height"]),
        values.get("text_tokens", planned.text_tokens),
        values.get("max_new_tokens", planned.max_new_tokens),
    )
    results = cost_columns(model, setting, workloads)
    columns = {name: pa.array(each, mask=faults > 0) for name, each in results.items()}
    problems = [None, *map(_fault_text, range(1, 1 + _REFUSED))]
    columns["problem"] = pa.array(problems, pa.string()).take(pa.array(faults))
    for name, column in columns.items():
        batch = batch.append_column(name, column)
    return batch


# --- batches of a list ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Pages:
    """The n pages of some rows of a list."""

    columns: dict[str, Any]
    """Each `[n]`: `row` in the list, and for files `path` and `file_page`."""
    sizes: NDArray[np.int64]
    """Widths and heights in pixels, `[2, n]`."""
    workloads: Workloads
    malformed: MalformedRows

    def __len__(self) -> int:
        return len(self.sizes[0])

    def table(self, model: CountedModel, setting: Setting) -> pa.RecordBatch:
        """One row per page: its `columns` and those of `row_columns`."""
        return pa.RecordBatch.from_pydict(
            self.columns | row_columns(model, setting, self.workloads, self.sizes)
        )


def read_pages(
    batches: Iterable[RawRows], rule: views.PageRule, *, text_tokens: int, max_new_tokens: int
) -> Iterator[Pages]:
    """The pages of a list, batch by batch, with these lengths where it has none.

    Raises PageError if it cannot be read to its end, WorkloadError if a column is not numeric.
    """
    for raw in batches:
        values, faults = _read_rows(raw.columns, rule)
        is_good = faults == 0
        good = raw.columns.filter(pa.array(is_good))
        of_files = {name: good[name] for name in good.schema.names if name not in _MOST}
        lengths: Any = {"text_tokens": text_tokens, "max_new_tokens": max_new_tokens}
        lengths |= {name: column[is_good] for name, column in values.items()}
        sizes = np.array([lengths.pop(name) for name in _SIZES])
        yield Pages(
            {"row": raw.numbers[is_good], **of_files}, sizes,
            Workloads(rule.codes(*sizes), **lengths), _malformed(raw, faults),
        )  # fmt: skip


def _malformed(raw: RawRows, faults: NDArray[np.uint8]) -> MalformedRows:
    faulty = np.flatnonzero(faults)
    reported = sorted(raw.rejected.items())[:REPORTED_ROWS] + [
        (int(raw.numbers[index]), _fault_text(int(faults[index]), raw, index))
        for index in faulty[:REPORTED_ROWS].tolist()
    ]
    return MalformedRows(
        len(faulty) + len(raw.rejected),
        tuple(MalformedRow(*each) for each in sorted(reported)[:REPORTED_ROWS]),
    )


def malformed_warnings(rows: int, malformed: MalformedRows) -> Iterator[str]:
    """How many of so many rows are not pages, and why."""
    if malformed.rows:
        more = malformed.rows - len(malformed.reported)
        named = f", {more:,} of them not listed" if more else ""
        yield f"{malformed.rows:,} of {rows:,} rows are not pages and are not counted{named}"
    yield from (f"row {each.row}: {each.reason}" for each in malformed.reported)


# --- pages to plan for ---------------------------------------------------------------------------


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
    sides = np.array(sizes, np.int64).T
    workloads = Workloads(architecture.forms.model.page_rule.codes(*sides), **lengths)
    yield Pages({}, sides, workloads, MalformedRows(0, ())), np.array(shares)


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
