"""The report for readers, as Markdown and for a terminal."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, repeat
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.escaping import as_markdown, visible
from dsocr_analyze.figures import Counts
from dsocr_analyze.report.document import PageShare, Report
from dsocr_analyze.report.opening import Workload
from dsocr_analyze.report.table import (
    Line,
    bytes_text,
    counted,
    csv_page,
    flops_text,
    latex_page,
    markdown_cell,
    markdown_list,
    markdown_table,
    percent_text,
    ratio_text,
    shortened,
    table_lines,
    titled,
    wrap,
)
from dsocr_analyze.report.tables import (
    AMOUNTS,
    batch_parts,
    headline,
    ledger_table,
    notes_of,
    ridge_of,
    tables_of,
    top_modules,
)
from dsocr_analyze.report.time_tables import Wordings, time_answers

_MOST_LINES: Final = 12
_LABEL_WIDTH: Final = 8
_ROOM: Final = 80 - _LABEL_WIDTH


Statements: TypeAlias = list[tuple[str, Wordings]]
"""Statements with their subjects, of at most seven characters."""


def _answer_of(report: Report) -> tuple[Statements, list[Wordings], Statements]:
    """What a page costs; seconds and money per GPU, most relevant first; what dominates."""
    one = "prompt" if report.workload.page is None else "page"
    return (
        [
            ("model", _model(report)),
            ("input", _input(report.workload, report.metadata.model.architecture)),
            ("passes", _passes(report)),
            (one, _page(report)),
            ("memory", _memory(report)),
        ],
        time_answers(report.time, report.workload),
        [
            ("mostly", _dominant(report, one)),
            ("bound", _bound(report)),
            ("checked", _checked(report)),
        ],
    )


def answer_lines(report: Report, written: Iterable[Path] = (), *, rest: str = "") -> list[str]:
    """The answer in at most 12 lines of at most 80 columns, with GPUs worded alike.

    `written` are its files; `rest` says where to find GPUs that are left out.
    """
    costs, times, doubts = _answer_of(report)
    folders = groupby(written, attrgetter("parent"))
    files = [f"{', '.join(map(attrgetter('name'), group))} in {each}" for each, group in folders]
    left = _MOST_LINES - len(costs) - len(doubts) - bool(files)
    shown = times if len(times) <= left else times[: left - 1]
    timed = list(map(_fitting, shown))
    for alike in zip(*shown, strict=True):
        if max(map(len, alike)) <= _ROOM:
            timed = list(alike)
            break
    if more := len(times) - len(shown):
        timed.append(f"and {more:,} more{rest}")
    if files:
        files = wrap("; ".join(files), _ROOM)
    if len(files) > 1 + left - len(timed):
        files = [shortened("; ".join(files), _ROOM)]
    lines = [
        *costs,
        *zip(["time", *[""] * len(timed)], zip(timed), strict=False),
        *doubts,
        *zip(["files", *[""] * len(files)], zip(files), strict=False),
    ]
    return [f"{label:{_LABEL_WIDTH}}{_fitting(wordings)}".rstrip() for label, wordings in lines]


def _fitting(wordings: Wordings) -> str:
    """The longest wording that fits, else the last one shortened."""
    for text in wordings:
        if len(text) <= _ROOM:
            return text
    return shortened(wordings[-1], _ROOM)


# --- what was counted --------------------------------------------------------------------------


def _model(report: Report) -> Sequence[str]:
    metadata, model = report.metadata, report.metadata.model
    name = model.architecture or "a model"
    values = ", a checkpoint's weights" if model.weights == "checkpoint" else ""
    who = {
        "reference": f"{name} (built-in reference){values}",
        "directory": f"{name} in {model.id}{values}",
        "config": f"{model.id} (transformers' own code){values}",
    }[model.source]
    briefly, how = who.replace("built-in ", ""), f"{metadata.dtype}, {metadata.attention}"
    engine = f"trace on {metadata.device}" if metadata.engine == "trace" else "analytic engine"
    return (
        f"{who}, {engine}, {how} attention",
        f"{briefly}, {engine}, {how} attention",
        f"{briefly}, {engine.replace('analytic engine', 'analytic')}, {how}",
    )


def _input(workload: Workload, architecture: str | None) -> Sequence[str]:
    if workload.page is None or workload.grid is None:
        return [f"a prompt of {counted(workload.seq_len, 'token')}"]
    name = mode_name(workload, architecture)
    sizes = f"{workload.base_size} / {workload.image_size}"
    grid = "grid {} x {}".format(*workload.grid) if workload.crop_mode else "not cut"
    if workload.image_size is None:
        grid = "{} x {} tokens".format(*workload.grid)
    tokens = f"{workload.visual_tokens:,} visual + {workload.text_tokens:,} text tokens"
    pages = workload.prompt_pages or 1
    size = (f"{pages} pages of " if pages > 1 else "") + "{} x {}".format(*workload.page)
    return (
        f"{size} pixels, {f'{name} mode' if name else f'sizes {sizes}'}, {grid}: {tokens}",
        f"{size}, {name or sizes}, {grid}: {tokens}",
    )


def mode_name(workload: Workload, architecture: str | None) -> str | None:
    """The architecture's mode with this page's sizes; None without one."""
    known = ARCHITECTURES.get(architecture or "")
    sizes = (workload.base_size, workload.image_size, workload.crop_mode)
    for mode in known.modes.values() if known else ():
        if (mode.base_size or None, mode.image_size or None, mode.crop_mode) == sizes:
            return mode.name
    return None


# --- what it costs -----------------------------------------------------------------------------


def _work(counts: Counts | PageShare) -> str:
    return f"{flops_text(counts.flops)}, {bytes_text(counts.bytes_moved)}"


def _passes(report: Report) -> Sequence[str]:
    batch = f"batch {report.workload.batch_size:,}"
    prefill, step = _work(report.total), report.total.decode_step
    if step is None:
        return (
            f"{batch}: prefill pass {prefill}; the model does not decode",
            f"{batch}: prefill {prefill}; no decoding",
        )
    return (
        f"{batch}: prefill pass {prefill}; each decode step {_work(step)}",
        f"{batch}: prefill {prefill}; a decode step {_work(step)}",
        f"{batch}: prefill {prefill}; a step {_work(step)}",
        f"{batch}: {prefill}; a step {_work(step)}",
    )


def _page(report: Report) -> Sequence[str]:
    page, batch = report.total.page, report.total.batch
    share = f"1/{page.pages:,} of the batch: " if page.pages > 1 else ""
    what, steps = f"{_work(page)}: {share}", batch.decode_steps
    if report.total.decode_step is None or steps == 0:
        return [f"{what}the prefill pass alone"]
    tokens = counted(batch.max_new_tokens, "new token")
    return (
        f"{what}prefill pass and {counted(steps, 'decode step')} for {tokens}",
        f"{what}prefill + {counted(steps, 'step')} for {tokens}",
        f"{what}prefill + {counted(steps, 'step')}",
    )


def _memory(report: Report) -> Sequence[str]:
    memory = report.memory
    held = memory.weights_bytes + (memory.inputs_bytes or 0) + memory.peak_activation_bytes
    weights, cache = bytes_text(memory.weights_bytes), bytes_text(memory.kv_cache_bytes)
    what = f"{weights} weights, {cache} KV cache, {bytes_text(held)}"
    return (
        f"{what} in all at the prefill pass's peak",
        f"{what} at the prefill pass's peak",
        f"{what} peak of prefill",
    )


# --- what of it matters, and how far it holds --------------------------------------------------


def _dominant(report: Report, one: str) -> Sequence[str]:
    """The stages with most FLOPs and bytes, and the former's costliest module."""
    names, said = [], []
    for amount in AMOUNTS.values():
        parts = batch_parts(report, amount)
        names.append(name := max(parts, key=parts.__getitem__))
        said.append(f"{name} {percent_text(parts[name] / (sum(parts.values()) or 1))}")
    of_it = ""
    for module in top_modules(report, names[0])[:1]:
        # The end of the path, from the list of repeated layers on.
        before, star, after = module.name.partition(".*")
        name = f"{before.rpartition('.')[2]}{star}{after}" or "the model itself"
        of_it = f" ({name} {percent_text(module.flops_share)} of it)"
    flops, nbytes = said
    return (
        f"{flops} of a {one}'s FLOPs{of_it}; {nbytes} of its bytes",
        f"FLOPs: {flops}{of_it}; bytes: {nbytes}",
    )


def _bound(report: Report) -> Sequence[str]:
    """What bounds each pass on the first named GPU, or FLOPs per byte."""
    total, (gpu, ridge, is_named) = report.total, ridge_of(report)
    names, texts, kinds = [], [], []
    for name, work in (("prefill", total), ("decode", total.decode_step)):
        if work is not None and (ratio := work.arithmetic_intensity) is not None:
            texts.append(ratio_text(ratio))
            kinds.append("compute" if ratio >= ridge else "memory")
            names.append(f"{name} {texts[-1]}")
    named, point = ", ".join(names), ratio_text(ridge)
    if not names or not is_named:
        of = f"{named or 'unknown'} FLOPs/byte"
        return f"{of}; a GPU decides what bounds it", of
    if len(set(kinds)) == 1:
        sign = ">=" if kinds[0] == "compute" else "<"
        on = f"{kinds[0]} on {gpu} ({sign} {point} FLOPs/byte)"
        return f"{on}: {named}", f"{on}: {' and '.join(texts)}"
    said = (", ".join(map("{} {}".format, each, kinds)) for each in (names, texts))
    return tuple(f"FLOPs/byte: {each}; {gpu} {point}" for each in said)


def _checked(report: Report) -> Sequence[str]:
    warnings = f"{counted(len(report.warnings), 'warning')}; " if report.warnings else ""
    agreement = report.agreement
    if report.metadata.engine == "analytic":
        said = "closed forms only; nothing was traced"
    elif agreement is None:
        said = "traced only; there are no closed forms to compare with"
    elif not agreement.agrees:
        where = agreement.first_difference or "see the table of agreement"
        said = f"trace and closed forms DIFFER: {where}"
    else:
        others = agreement.kv_cache_bytes, agreement.batch, agreement.peak_activation_bytes.agrees
        compared = sum(map(len, agreement.stages.values())) + len(others) - others.count(None)
        left = set().union(*map(attrgetter("operators"), agreement.not_modelled))
        but = f" but {counted(len(left), 'operator')}" if left else ""
        said = f"trace and closed forms agree in all {compared} counts{but}"
    predicted = "; seconds are predicted" if report.time else ""
    said = f"{warnings}{said}"
    return f"{said}{predicted}", f"{said}{predicted.replace(' are', '')}", said


# --- the whole report --------------------------------------------------------------------------


class ReadableReport(NamedTuple):
    """A report for readers, in every format.

    Attributes:
        written: The files with it.
        is_full: Whether a terminal shows tables and notes.
        rest: Where a terminal shows what is left out.
        html: Returns the HTML page.
    """

    report: Report
    written: Sequence[Path] = ()
    is_full: bool = False
    rest: str = ""
    html: Callable[[], str] = str

    def lines(self, width: int) -> Iterator[Line]:
        """What a page costs for a terminal; with `is_full`, all that Markdown has."""
        report = self.report
        for line in answer_lines(report, self.written, rest=self.rest):
            yield from map(Line, wrap(visible(line), width, indent=" " * _LABEL_WIDTH))
        if not self.is_full:
            return
        yield Line("")
        for text in wrap(f"Ran: {headline(report)}", width):
            yield Line(visible(text), is_bold=True)
        for table in tables_of(report):
            yield from (Line(""), *table_lines(table, width))
        yield from (Line(""), Line("Notes", is_bold=True))
        for note in notes_of(report):
            yield from map(Line, map(visible, wrap(f"- {note}", width, indent="  ")))
        if (ledger := ledger_table(report)) is not None:
            yield from (Line(""), *table_lines(ledger, width))

    def csv(self) -> str:
        """All tables."""
        return csv_page(tables_of(self.report))

    def latex(self) -> str:
        """All tables."""
        return latex_page(tables_of(self.report))

    def markdown(self) -> str:
        """The answer, all tables, notes, and the ledger, folded."""
        report, metadata = self.report, self.report.metadata
        versions = ", ".join(map("{} {}".format, metadata.versions, metadata.versions.values()))
        costs, times, doubts = _answer_of(report)
        summary = [
            f"**{label}**: {markdown_cell(wordings[0])}"
            for label, wordings in (*costs, *zip(repeat("time"), times, strict=False), *doubts)
        ]
        parts = [
            "# Static compute of one page",
            as_markdown(f"Ran: {headline(report)}"),
            "## Summary",
            markdown_list(summary),
            *map(titled, tables_of(report)),
            "## Notes",
            markdown_list(map(as_markdown, notes_of(report))),
            "## Conventions",
            markdown_list(metadata.conventions),
            f"Versions: {as_markdown(versions)}. Written {metadata.created}.",
        ]
        if (ledger := ledger_table(report)) is not None:
            title, table = f"<summary>{ledger.title}</summary>", markdown_table(ledger)
            parts += ["<details>", title, table, "</details>"]
        return "\n\n".join(parts) + "\n"
