"""What a page costs, in a dozen lines: the first thing a reader of a report sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.report.layout import shortened, wrap
from dsocr_analyze.report.quantities import (
    bytes_text,
    counted,
    flops_text,
    percent_text,
    price_text,
    ratio_text,
)
from dsocr_analyze.report.stage_parts import AMOUNTS, batch_parts
from dsocr_analyze.report.time_tables import rate_text, seconds_text
from dsocr_analyze.report.top_modules import ridge_of, top_modules

if TYPE_CHECKING:
    from dsocr_analyze.report.document import Agreement, Counts, Report, Workload
    from dsocr_analyze.timing.prediction import LoadedGpu, TimeEntry

__all__ = ["Answer", "Entry", "answer_of"]

WIDTH: Final = 80
MOST_LINES: Final = 12
_LABEL_WIDTH: Final = 8


@dataclass(frozen=True)
class Entry:
    """One statement of the answer.

    Attributes:
        label: Its subject, at most seven characters.
        wordings: One or more wordings, longest first.
    """

    label: str
    wordings: tuple[str, ...]

    def line(self, width: int) -> str:
        """The longest wording that fits `width` columns; if none does, the last one shortened."""
        fits = (text for text in self.wordings if len(text) <= width)
        return next(fits, None) or shortened(self.wordings[-1], width)


@dataclass(frozen=True)
class Answer:
    """What a page costs, what dominates, and how far the figures are checked.

    Attributes:
        costs: What was counted and what it costs.
        times: Seconds and money, one entry per GPU and runtime, most relevant first.
        doubts: What dominates, what bounds it, what was checked.
        files: Files of the report; empty if it was not written.
    """

    costs: tuple[Entry, ...]
    times: tuple[Entry, ...]
    doubts: tuple[Entry, ...]
    files: str

    def lines(self, *, rest: str = "") -> list[str]:
        """At most 12 lines of at most 80 columns; `rest` says where to find GPUs left out."""
        room = WIDTH - _LABEL_WIDTH
        left = MOST_LINES - len(self.costs) - len(self.doubts) - bool(self.files)
        times = self._time_lines(room, left, rest)
        left -= len(times)
        found = [(each.label, each.line(room)) for each in self.costs]
        found += zip(["time", *[""] * len(times)], times, strict=False)
        found += [(each.label, each.line(room)) for each in self.doubts]
        if self.files:
            files = wrap(self.files, room)
            if len(files) > 1 + left:
                files = [shortened(self.files, room)]
            found += zip(["files", *[""] * len(files)], files, strict=False)
        return [f"{label:{_LABEL_WIDTH}}{text}".rstrip() for label, text in found]

    def _time_lines(self, room: int, most: int, rest: str) -> list[str]:
        """One line per GPU, all worded alike; at most `most` lines, the last counting the rest."""
        shown = self.times if len(self.times) <= most else self.times[: most - 1]
        if not shown:
            return []
        wordings = zip(*(each.wordings for each in shown), strict=True)
        texts = next(
            (texts for texts in wordings if max(map(len, texts)) <= room),
            [each.line(room) for each in shown],
        )
        more = len(self.times) - len(shown)
        return [*texts, *([f"and {more:,} more{rest}"] if more else [])]

    def items(self) -> Iterator[tuple[str, str]]:
        """Label and unshortened text of every entry."""
        for entry in (*self.costs, *self.times, *self.doubts):
            yield entry.label, entry.wordings[0]


def answer_of(report: Report, files: Sequence[Path] = ()) -> Answer:
    """The answer of a report; `files` are those it was written to."""
    return Answer(
        costs=(
            Entry("model", tuple(_model(report))),
            Entry("input", tuple(_input(report.workload, report.metadata.model.architecture))),
            Entry("passes", tuple(_passes(report))),
            Entry(_one(report.workload), tuple(_page(report))),
            Entry("memory", tuple(_memory(report))),
        ),
        times=tuple(_times(report.time, report.workload.max_new_tokens)),
        doubts=(
            Entry("mostly", tuple(_dominant(report))),
            Entry("bound", tuple(_bound(report))),
            Entry("checked", tuple(_checked(report))),
        ),
        files=_files(files),
    )


def _one(workload: Workload) -> str:
    return "prompt" if workload.page is None else "page"


# --- what was counted --------------------------------------------------------------------------


def _model(report: Report) -> Iterator[str]:
    metadata, model = report.metadata, report.metadata.model
    name = model.architecture or "a model"
    who = {
        "reference": f"{name} (built-in reference)",
        "directory": f"{name} in {model.id}",
        "config": f"{model.id} (transformers' own code)",
    }[model.source]
    values = ", a checkpoint's weights" if model.weights == "checkpoint" else ""
    traced = metadata.engine == "trace"
    engine = f"trace on {metadata.device}" if traced else "analytic engine"
    how = f"{metadata.dtype}, {metadata.attention} attention"
    yield f"{who}{values}, {engine}, {how}"
    yield f"{who.replace('built-in ', '')}{values}, {engine}, {how}"
    short = f"trace on {metadata.device}" if traced else "analytic"
    yield f"{who.replace('built-in ', '')}{values}, {short}, {metadata.dtype}, {metadata.attention}"


def _input(workload: Workload, architecture: str | None) -> Iterator[str]:
    if workload.page is None or workload.grid is None:
        yield f"a prompt of {counted(workload.seq_len, 'token')}"
        return
    size = "{} x {}".format(*workload.page)
    pages = workload.prompt_pages or 1
    name = mode_name(workload, architecture)
    grid = "grid {} x {}".format(*workload.grid) if workload.crop_mode else "not cut"
    sizes = f"{workload.base_size} / {workload.image_size}"
    tokens = f"{workload.visual_tokens:,} visual + {workload.text_tokens:,} text tokens"
    if pages > 1:
        size = f"{pages} pages of {size}"
    yield f"{size} pixels, {f'{name} mode' if name else f'sizes {sizes}'}, {grid}: {tokens}"
    yield f"{size}, {name or sizes}, {grid}: {tokens}"


def mode_name(workload: Workload, architecture: str | None) -> str | None:
    """The architecture's mode with this page's sizes; None if there is no such mode."""
    known = None if architecture is None else ARCHITECTURES.get(architecture)
    sizes = (workload.base_size, workload.image_size, workload.crop_mode)
    modes = () if known is None else known.modes.values()
    return next((m.name for m in modes if (m.base_size, m.image_size, m.crop_mode) == sizes), None)


# --- what it costs -----------------------------------------------------------------------------


def _work(counts: Counts) -> str:
    return f"{flops_text(counts.flops)}, {bytes_text(counts.bytes_moved)}"


def _passes(report: Report) -> Iterator[str]:
    total, step = report.total, report.total.decode_step
    batch = f"batch {report.workload.batch_size:,}"
    if step is None:
        yield f"{batch}: prefill pass {_work(total)}; the model does not decode"
        yield f"{batch}: prefill {_work(total)}; no decoding"
        return
    yield f"{batch}: prefill pass {_work(total)}; each decode step {_work(step)}"
    yield f"{batch}: prefill {_work(total)}; a decode step {_work(step)}"
    yield f"{batch}: prefill {_work(total)}; a step {_work(step)}"
    yield f"{batch}: {_work(total)}; a step {_work(step)}"


def _page(report: Report) -> Iterator[str]:
    page, batch = report.total.page, report.total.batch
    work = f"{flops_text(page.flops)}, {bytes_text(page.bytes_moved)}"
    share = f"1/{page.pages:,} of the batch: " if page.pages > 1 else ""
    if report.total.decode_step is None or batch.decode_steps == 0:
        yield f"{work}: {share}the prefill pass alone"
        return
    steps, tokens = batch.decode_steps, counted(batch.max_new_tokens, "new token")
    yield f"{work}: {share}prefill pass and {counted(steps, 'decode step')} for {tokens}"
    yield f"{work}: {share}prefill + {counted(steps, 'step')} for {tokens}"
    yield f"{work}: {share}prefill + {counted(steps, 'step')}"


def _memory(report: Report) -> Iterator[str]:
    memory = report.memory
    held = memory.weights_bytes + (memory.inputs_bytes or 0) + memory.peak_activation_bytes
    weights, cache = bytes_text(memory.weights_bytes), bytes_text(memory.kv_cache_bytes)
    parts = f"{weights} weights, {cache} KV cache"
    yield f"{parts}, {bytes_text(held)} in all at the prefill pass's peak"
    yield f"{parts}, {bytes_text(held)} at the prefill pass's peak"
    yield f"{parts}, {bytes_text(held)} peak of prefill"


def _times(entries: Sequence[TimeEntry], max_new_tokens: int) -> Iterator[Entry]:
    """One entry per prediction: the cheapest first if prices are known, then the fastest."""
    ranked = sorted(entries, key=lambda entry: entry.page_seconds)
    priced = [(cost, entry) for entry in ranked if (cost := _best(entry).cost_per_thousand_pages)]
    if priced:
        cheapest = min(priced, key=lambda pair: pair[0])[1]
        ranked = [cheapest, *(entry for entry in ranked if entry is not cheapest)]
    for entry in ranked:
        yield Entry("time", tuple(_time(entry, max_new_tokens)))


def _best(entry: TimeEntry) -> LoadedGpu:
    """The load with the highest throughput."""
    return max(entry.throughput, key=lambda load: load.pages_per_second)


def _time(entry: TimeEntry, max_new_tokens: int) -> Iterator[str]:
    load = _best(entry)
    corrected = "" if entry.assumptions.correction is None else ", corrected"
    name, alone = f"{entry.gpu}, {entry.runtime}{corrected}", seconds_text(entry.page_seconds)
    rate, cost = rate_text(load.pages_per_second), load.cost_per_thousand_pages
    each = "" if cost is None else f", {price_text(cost)} per 1,000 pages"
    if not load.fits:
        each += f"; only {entry.largest_concurrency} fit"
    at_once = f"{rate} pages/s ({load.concurrency:,} at once){each}"
    page, short = "a page", "a page"
    mean = entry.assumptions.new_tokens_mean
    if mean != max_new_tokens:  # which the counts above are for
        page, short = f"a page of {mean:,.0f} new tokens", f"for {mean:,.0f} tokens"
    yield f"{name}: {alone} {page}, bound by {load.bound}; {at_once}"
    yield f"{name}: {alone} {page}; {at_once}"
    few = each.replace(" pages", "")
    yield f"{name}: {alone} {page}; {rate} pages/s ({load.concurrency:,} at once){few}"
    yield f"{name}: {alone} {short}; {rate} pages/s at {load.concurrency:,}{few}"
    yield f"{name}: {alone} {short}; {rate}/s at {load.concurrency:,}{few}"


# --- what of it matters, and how far it holds --------------------------------------------------


def _dominant(report: Report) -> Iterator[str]:
    """The stage with most FLOPs, its costliest module, and the stage with most bytes."""
    flops, flops_share = _largest(report, "flops")
    nbytes, bytes_share = _largest(report, "bytes")
    modules = top_modules(report, flops)
    of_it = ""
    if modules:
        of_it = f" ({modules[0].short_name} {percent_text(modules[0].flops_share)} of it)"
    one = _one(report.workload)
    yield f"{flops} {flops_share} of a {one}'s FLOPs{of_it}; {nbytes} {bytes_share} of its bytes"
    yield f"FLOPs: {flops} {flops_share}{of_it}; bytes: {nbytes} {bytes_share}"


def _largest(report: Report, what: str) -> tuple[str, str]:
    """Name and share of the stage with most FLOPs or bytes of the batch, all steps summed."""
    parts = batch_parts(report, AMOUNTS[what])
    name, whole = max(parts, key=lambda each: parts[each]), sum(parts.values())
    return name, percent_text(parts[name] / whole if whole else 0.0)


def _bound(report: Report) -> Iterator[str]:
    """What bounds each pass on the first named GPU; without one, just FLOPs per byte."""
    step = report.total.decode_step
    passes = {"prefill": report.total.arithmetic_intensity}
    if step is not None:
        passes["decode"] = step.arithmetic_intensity
    known = {name: ratio for name, ratio in passes.items() if ratio is not None}
    ratios = ", ".join(f"{name} {ratio_text(ratio)}" for name, ratio in known.items())
    ridge = ridge_of(report)
    if not known or not ridge.is_named:
        yield f"{ratios or 'unknown'} FLOPs/byte; a GPU decides what bounds it"
        yield f"{ratios or 'unknown'} FLOPs/byte"
        return
    gpu, point = ridge.gpu, ratio_text(ridge.flops_per_byte)
    kinds = {name: ridge.bound(ratio) for name, ratio in known.items()}
    if len(set(kinds.values())) == 1:
        [kind] = set(kinds.values())
        sign = ">=" if kind == "compute" else "<"
        on = f"{kind} on {gpu} ({sign} {point} FLOPs/byte)"
        yield f"{on}: {ratios}"
        yield f"{on}: {' and '.join(map(ratio_text, known.values()))}"
        return
    each = [f"{ratio_text(ratio)} {kinds[name]}" for name, ratio in known.items()]
    named = [f"{name} {said}" for name, said in zip(known, each, strict=True)]
    yield f"FLOPs/byte: {', '.join(named)}; {gpu} {point}"
    yield f"FLOPs/byte: {', '.join(each)}; {gpu} {point}"


def _checked(report: Report) -> Iterator[str]:
    warnings = f"{counted(len(report.warnings), 'warning')}; " if report.warnings else ""
    predicted = "; seconds are predicted" if report.time else ""
    said = _agreement(report)
    yield f"{warnings}{said}{predicted}"
    yield f"{warnings}{said}{predicted.replace(' are', '')}"
    yield f"{warnings}{said}"


def _agreement(report: Report) -> str:
    if report.metadata.engine == "analytic":
        return "closed forms only; nothing was traced"
    if (agreement := report.agreement) is None:
        return "traced only; there are no closed forms to compare with"
    if not agreement.agrees:
        where = agreement.first_difference or "see the table of agreement"
        return f"trace and closed forms DIFFER: {where}"
    left = len({name for each in agreement.not_modelled for name in each.operators})
    said = f"trace and closed forms agree in all {_compared(agreement)} counts"
    return f"{said} but {counted(left, 'operator')}" if left else said


def _compared(agreement: Agreement) -> int:
    """How many quantities were compared."""
    others = (agreement.kv_cache_bytes, agreement.batch, agreement.peak_activation_bytes.agrees)
    return sum(map(len, agreement.stages.values())) + sum(each is not None for each in others)


def _files(files: Iterable[Path]) -> str:
    folders = groupby(files, key=lambda file: file.parent)
    return "; ".join(f"{', '.join(file.name for file in group)} in {folder}"
                     for folder, group in folders)  # fmt: skip
