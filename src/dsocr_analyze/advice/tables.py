"""The comparison of modes for a page, as lines and tables for readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from dsocr_analyze.advice.document import TextCost
from dsocr_analyze.advice.published import ALL_KINDS
from dsocr_analyze.report.quantities import bytes_text, exact, price_text, ratio_text, scaled
from dsocr_analyze.report.table import Table
from dsocr_analyze.report.tables import model_text
from dsocr_analyze.timing.assumptions import lengths_sentence
from dsocr_analyze.timing.output_lengths import OutputLengths

if TYPE_CHECKING:
    from dsocr_analyze.advice.document import AdviceDocument, Density, ModeAdvice, Seen, Verdict

__all__ = ["advice_lines", "advice_notes", "advice_tables"]

_ALL_KINDS: Final = "all kinds"


def advice_lines(advice: AdviceDocument) -> Iterator[str]:
    """What was counted, and which modes meet the requirements."""
    width, height = advice.page
    dpi = "" if advice.page_dpi is None else f" at {_round(advice.page_dpi)} dpi"
    pages = "1 page" if advice.batch_size == 1 else f"{advice.batch_size:,} pages"
    is_written_out = any(mode.by_text_tokens for mode in advice.modes)
    new = "as many" if is_written_out else f"{advice.max_new_tokens:,}"
    yield f"Ran: {model_text(advice.model)} by the analytic engine"
    yield (
        f"Page of {width} x {height} pixels{dpi}; {pages} at a time, {new} new tokens"
        f"{' as the text on it needs' if is_written_out else ''}"
    )
    if is_written_out:
        yield "New tokens: one per text token and the end token" + _without_room(advice)
    yield f"Type {advice.dtype}, {advice.attention} attention"
    if advice.kind is not None:
        yield from _extremes(advice, advice.kind)
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


def _without_room(advice: AdviceDocument) -> str:
    """For which text the decoder's positions do not suffice, and how many tokens fit instead."""
    lacking: dict[int, list[str]] = {}
    for mode in advice.modes:
        for text in mode.by_text_tokens:
            if not _has_room(text):
                fitting = f"{text.max_new_tokens:,} in {mode.mode}"
                lacking.setdefault(text.text_tokens, []).append(fitting)
    return "".join(
        f"; for {tokens:,} text tokens only what the context leaves: {', '.join(fitting)}"
        for tokens, fitting in lacking.items()
    )


def _extremes(advice: AdviceDocument, kind: str) -> Iterator[str]:
    """Which modes have the lowest and the highest published edit distance for a kind."""
    found = [
        (mode.edit_distances.kinds[kind], mode.mode)
        for mode in advice.modes
        if mode.edit_distances is not None
    ]
    ends = dict.fromkeys((min(found), max(found))) if found else {}
    if ends:
        said = " to ".join(f"{distance:.3f} ({mode})" for distance, mode in ends)
        yield f"Published edit distance for {kind}: {said}"


def advice_tables(advice: AdviceDocument) -> list[Table]:
    """Tables of resolution and tokens, costs, seconds, compression and published accuracy."""
    tables = [_resolutions(advice), _costs(advice)]
    if any(mode.time for mode in advice.modes):
        tables.append(_seconds(advice))
    tables.append(_compressions(advice))
    if advice.published is not None:
        tables.append(_precisions(advice))
        if advice.kind is not None:
            tables.append(_kind(advice, advice.kind))
        else:
            tables.append(_distances(advice))
            if any(mode.edit_distances for mode in advice.modes):
                tables.append(_kinds(advice))
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
    for mode in advice.modes:
        for case in _cases(mode):
            said = (each for entry in case.time for each in entry.assumptions.sentences)
            if isinstance(case, TextCost):
                # The lines above the tables say how many tokens each text takes.
                known = lengths_sentence(OutputLengths.fixed(case.max_new_tokens))
                said = (each for each in said if each != known)
            notes += said
    return list(dict.fromkeys(notes))


def _cases(mode: ModeAdvice) -> Sequence[ModeAdvice | TextCost]:
    """What has a cost: each number of text tokens, or the mode if the text does not matter."""
    return mode.by_text_tokens or (mode,)


def _label(mode: ModeAdvice, case: ModeAdvice | TextCost) -> tuple[str, ...]:
    if not isinstance(case, TextCost):
        return (mode.mode,)
    text = exact(case.text_tokens)
    return (mode.mode, text if _has_room(case) else f"{exact(case.max_new_tokens)} of {text}")


def _has_room(text: TextCost) -> bool:
    """Whether the decoder's positions suffice for the whole text and the end token."""
    return text.max_new_tokens > text.text_tokens


def _labels(advice: AdviceDocument) -> tuple[str, ...]:
    is_by_text = any(mode.by_text_tokens for mode in advice.modes)
    return ("mode", "text tokens") if is_by_text else ("mode",)


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
    labels = _labels(advice)
    rows = tuple(
        (
            *_label(mode, case),
            exact(mode.seq_len),
            scaled(case.cost.prefill_pass_flops),
            scaled(case.cost.page_flops),
            bytes_text(case.cost.kv_cache_bytes),
            bytes_text(case.cost.memory_bytes),
        )
        for mode in advice.modes
        for case in _cases(mode)
    )
    columns = (*labels, "prompt tokens", "prefill FLOPs", "FLOPs per page", "KV cache", "memory")
    return Table("Cost", columns, rows)


def _seconds(advice: AdviceDocument) -> Table:
    labels = _labels(advice)
    rows = [
        (
            *_label(mode, case), entry.gpu, entry.runtime, str(load.concurrency),
            ratio_text(load.page_seconds), ratio_text(load.pages_per_second),
            _cost_text(load.cost_per_thousand_pages),
        )
        for mode in advice.modes
        for case in _cases(mode)
        for entry in case.time
        for load in entry.throughput
    ]  # fmt: skip
    columns = (*labels, "GPU", "runtime", "at once", "s per page", "pages/s", "per 1,000")
    return Table(
        "Predicted seconds, and cost of 1,000 pages", columns, tuple(rows),
        label_columns=len(labels) + 2,
    )  # fmt: skip


def _cost_text(cost: float | None) -> str:
    return "-" if cost is None else price_text(cost)


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


def _kinds(advice: AdviceDocument) -> Table:
    """Kinds of document in rows and modes in columns."""
    by_mode = {
        mode.mode: mode.edit_distances.kinds
        for mode in advice.modes
        if mode.edit_distances is not None
    }
    kinds = dict.fromkeys(kind for each in by_mode.values() for kind in each)
    rows = tuple(
        (
            _ALL_KINDS if kind == ALL_KINDS else kind,
            *(f"{each[kind]:.3f}" for each in by_mode.values()),
        )
        for kind in kinds
    )
    return Table("Published edit distance by kind of document", ("kind", *by_mode), rows)


def _kind(advice: AdviceDocument, kind: str) -> Table:
    """One kind of document beside all kinds, with modes in rows."""
    rows: list[tuple[str, ...]] = []
    for mode in advice.modes:
        found = mode.edit_distances
        if found is None:
            rows.append((mode.mode, "none published", "-", "-"))
            continue
        figures = (found.kinds[kind], found.kinds[ALL_KINDS])
        rows.append((mode.mode, found.tokens, *(f"{figure:.3f}" for figure in figures)))
    title = "" if advice.published is None else advice.published.edit_distance.measures
    columns = ("mode", "vision tokens", kind, _ALL_KINDS)
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
