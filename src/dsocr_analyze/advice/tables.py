"""The comparison of modes for a page, as lines and tables for readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsocr_analyze.report.quantities import bytes_text, exact, price_text, ratio_text, scaled
from dsocr_analyze.report.table import Table
from dsocr_analyze.report.tables import model_text

if TYPE_CHECKING:
    from dsocr_analyze.advice.document import AdviceDocument, Density, ModeAdvice, Seen, Verdict

__all__ = ["advice_lines", "advice_notes", "advice_tables"]


def advice_lines(advice: AdviceDocument) -> Iterator[str]:
    """What was counted, and which modes meet the requirements."""
    width, height = advice.page
    dpi = "" if advice.page_dpi is None else f" at {_round(advice.page_dpi)} dpi"
    pages = "1 page" if advice.batch_size == 1 else f"{advice.batch_size:,} pages"
    yield f"Ran: {model_text(advice.model)} by the analytic engine"
    yield (
        f"Page of {width} x {height} pixels{dpi}; {pages} at a time, {advice.max_new_tokens:,} new"
        " tokens"
    )
    yield f"Type {advice.dtype}, {advice.attention} attention"
    wanted = advice.requirements
    if wanted is None or advice.modes_that_meet is None:
        return
    asked = []
    if wanted.minimum_dpi is not None:
        asked.append(f"at least {wanted.minimum_dpi:g} dpi")
    if wanted.maximum_compression is not None:
        most = max(density.text_tokens for density in advice.modes[0].densities)
        asked.append(f"at most {wanted.maximum_compression:g}x at {most:,} text tokens")
    yield f"With {' and '.join(asked)}: {', '.join(advice.modes_that_meet) or 'no mode'}"


def advice_tables(advice: AdviceDocument) -> list[Table]:
    """Tables of resolution and tokens, costs, seconds, compression and published accuracy."""
    tables = [_resolutions(advice), _costs(advice)]
    if any(mode.time for mode in advice.modes):
        tables.append(_seconds(advice))
    tables.append(_compressions(advice))
    if advice.published is not None:
        tables += [_precisions(advice), _distances(advice)]
    if advice.requirements is not None:
        tables.append(_verdicts(advice))
    return tables


def advice_notes(advice: AdviceDocument) -> list[str]:
    """Notes for readers, including the limits of published figures, without duplicates."""
    notes = [*advice.notes]
    published = advice.published
    if published is not None:
        precision, distance = published.precision, published.edit_distance
        notes.append(f"published figures: {published.title}, {published.source}")
        notes += [f"{precision.table}: {limit}" for limit in precision.limits]
        notes += [f"{distance.tables}: {limit}" for limit in distance.limits]
    for mode in advice.modes:
        notes += [f"{mode.mode}: {note}" for note in mode.notes]
    entries = [entry for mode in advice.modes for entry in mode.time]
    return list(dict.fromkeys([*notes, *(each for entry in entries
                                         for each in entry.assumptions.sentences)]))  # fmt: skip


def _resolutions(advice: AdviceDocument) -> Table:
    unit = "scale" if advice.page_dpi is None else "dpi"
    rows = tuple(
        (
            mode.mode,
            "-" if mode.grid == (1, 1) else f"{mode.grid[0]} x {mode.grid[1]}",
            _seen_text(mode.seen[0]) if len(mode.seen) > 1 else "-",
            _seen_text(mode.seen[-1]),
            _effective(mode),
            exact(mode.vision_tokens),
            exact(mode.visual_tokens),
        )
        for mode in advice.modes
    )
    columns = ("mode", "tiles", "in tiles", "global view", "effective", "tokens", "prompt")
    title = f"Effective resolution ({unit}, horizontal x vertical) and vision tokens"
    return Table(title, columns, rows, label_columns=2)


def _seen_text(seen: Seen) -> str:
    if seen.horizontal_dpi is None or seen.vertical_dpi is None:
        return f"{seen.horizontal_scale:.3f} x {seen.vertical_scale:.3f}"
    return f"{seen.horizontal_dpi:.1f} x {seen.vertical_dpi:.1f}"


def _effective(mode: ModeAdvice) -> str:
    if mode.effective_dpi is None:
        return f"{mode.effective_scale:.3f}"
    return f"{mode.effective_dpi:.1f}"


def _round(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _costs(advice: AdviceDocument) -> Table:
    rows = tuple(
        (
            mode.mode,
            exact(mode.seq_len),
            scaled(mode.cost.prefill_pass_flops),
            scaled(mode.cost.page_flops),
            bytes_text(mode.cost.kv_cache_bytes),
            bytes_text(mode.cost.memory_bytes),
        )
        for mode in advice.modes
    )
    columns = ("mode", "prompt tokens", "prefill FLOPs", "FLOPs per page", "KV cache", "memory")
    return Table("Cost", columns, rows)


def _seconds(advice: AdviceDocument) -> Table:
    rows = []
    for mode in advice.modes:
        for entry in mode.time:
            for load in entry.throughput:
                cost = load.cost_per_thousand_pages
                rows.append(
                    (
                        mode.mode, entry.gpu, entry.runtime, str(load.concurrency),
                        ratio_text(load.page_seconds), ratio_text(load.pages_per_second),
                        "-" if cost is None else price_text(cost),
                    )
                )  # fmt: skip
    columns = ("mode", "GPU", "runtime", "at once", "s per page", "pages/s", "per 1,000")
    return Table(
        "Predicted seconds, and cost of 1,000 pages", columns, tuple(rows), label_columns=3
    )


def _compressions(advice: AdviceDocument) -> Table:
    numbers = [density.text_tokens for density in advice.modes[0].densities]
    rows = tuple(
        (mode.mode, *(f"{density.compression:.1f}x" for density in mode.densities))
        for mode in advice.modes
    )
    columns = ("mode", *(f"{number:,} tokens" for number in numbers))
    return Table("Compression: text tokens on the page per vision token", columns, rows)


def _precisions(advice: AdviceDocument) -> Table:
    rows = []
    for mode in advice.modes:
        if not any(density.published for density in mode.densities):
            lacks = dict.fromkeys(density.lack for density in mode.densities)
            rows += [(mode.mode, "all", lack) for lack in lacks]
            continue
        rows += [(mode.mode, exact(each.text_tokens), _precision(each)) for each in mode.densities]
    title = "" if advice.published is None else advice.published.precision.measures
    return Table(
        f"Published {title}", ("mode", "text tokens", "precision"), tuple(rows), label_columns=3
    )


def _precision(density: Density) -> str:
    row = density.published
    if row is None:
        return density.lack
    low, high = row.text_tokens
    return (
        f"{row.precision_percent:g} % at {row.compression:g}x ({low:,} to {high:,} tokens,"
        f" {row.pages} pages)"
    )


def _distances(advice: AdviceDocument) -> Table:
    rows: list[tuple[str, ...]] = []
    for mode in advice.modes:
        found = mode.edit_distances
        if found is None:
            rows.append((mode.mode, "none published", "-", "-", "-", "-"))
            continue
        english, chinese = found.english, found.chinese
        figures = (english.overall, english.text, chinese.overall, chinese.text)
        rows.append((mode.mode, found.tokens, *(f"{figure:.3f}" for figure in figures)))
    title = "" if advice.published is None else advice.published.edit_distance.measures
    columns = ("mode", "vision tokens", "English", "its text", "Chinese", "its text")
    return Table(f"Published {title}", columns, tuple(rows), label_columns=2)


def _verdicts(advice: AdviceDocument) -> Table:
    rows = tuple(
        (mode.mode, *_answers(mode.verdict)) for mode in advice.modes if mode.verdict is not None
    )
    columns = ("mode", "resolution", "compression", "meets all")
    return Table("Requirements", columns, rows, label_columns=4)


def _answers(verdict: Verdict) -> tuple[str, str, str]:
    answers = {True: "yes", False: "no", None: "-"}
    found = (verdict.minimum_dpi, verdict.maximum_compression, verdict.meets)
    resolution, compression, meets = (answers[each] for each in found)
    return resolution, compression, meets
