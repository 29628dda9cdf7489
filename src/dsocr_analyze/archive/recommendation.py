"""The mode to choose for a page: the rule, and what it finds in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dsocr_analyze.architectures.accuracy import published_accuracies
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.archive.advice_document import (
    ALL_KINDS,
    KindChoice,
    ModeAdvice,
    PublishedAccuracy,
    Recommendation,
    TextCost,
    fineness,
)
from dsocr_analyze.report.table import price_text, rate_text, seconds_text

MARGIN: Final = 0.03
"""Edit distances that differ by no more do not decide: in the published tables, some larger views
read worse than smaller ones by about as much."""

DENSE: Final = 10
"""Text tokens per vision token; beyond this, says their source, published precision falls."""


def choice_of_kind(kind: str, distances: Mapping[str, float]) -> KindChoice:
    """The rule: the cheapest mode within `MARGIN` of the best edit distance.

    Args:
        kind: Kind of document.
        distances: Edit distances by mode, the cheapest mode first.
    """
    best = min(distances.values())
    # They have three decimals; the last bits of a difference mean nothing.
    good = [mode for mode, each in distances.items() if round(each - best, 6) <= MARGIN]
    return KindChoice(kind=kind, mode=good[0], good=tuple(good), distances=distances)


def recommend(
    architecture: Architecture,
    modes: Sequence[ModeAdvice],
    *,
    kind: str | None = None,
    published: PublishedAccuracy | None = None,
) -> Recommendation:
    """Chooses among the modes that meet the requirements, if there are any.

    Args:
        architecture: The model's.
        modes: The compared modes.
        kind: Kind of document; None for any.
        published: The model's published accuracy, if a source is known.
    """
    allowed = [each for each in modes if each.verdict is None or each.verdict.meets]
    # To generate less is no saving if the rest of the page is cut off.
    allowed.sort(key=lambda each: (_cut_off(_least_text(each)), _cost(each)))
    choices = _choices(allowed, kind, published)
    kinds = choices[1:] or choices
    chosen = [each for each in allowed if any(each.mode == of_kind.mode for of_kind in kinds)]
    if not kinds and (len(allowed) == 1 or any(each.verdict for each in allowed)):
        chosen = allowed[:1]
    names = [each.mode for each in chosen]
    if published is None or not kinds:
        sentences = _without_figures(architecture, allowed, chosen, kind)
    elif len(chosen) > 1:
        sentences = [*_by_kind(kinds, names, published)]
    else:
        sentences = [_of_one(names[0], choices, published)]
    return Recommendation(
        mode=names[0] if len(names) == 1 else None,
        margin=MARGIN,
        choices=tuple(choices),
        figures_decide=any(each.is_decided for each in kinds),
        kinds_that_decide=tuple(each.kind for each in kinds if each.rejected(names)),
        sentences=(
            *sentences,
            *([_costs(allowed, chosen)] if len(allowed) > 1 else []),
            *(_predicted(chosen[0]) if len(chosen) == 1 else ()),
            # Texts that are denser than what edit distances of a whole kind of document tell.
            *(
                f"{mode.mode}, {each.text_tokens:,} text tokens: {each.compression:.1f} per vision"
                f" token; published precision falls beyond {DENSE}."
                for mode in chosen
                for each in mode.densities
                if kinds and mode.by_text_tokens and each.compression > DENSE
            ),
            *(f"{each.mode}: {note}" for each in chosen if kinds for note in each.notes),
        ),
    )


def _choices(
    modes: Sequence[ModeAdvice], kind: str | None, published: PublishedAccuracy | None
) -> list[KindChoice]:
    """For the kind asked for, or for all together and each; none for lack of figures to compare."""
    known = {each.mode: each.edit_distances.kinds for each in modes if each.edit_distances}
    if published is None or len(known) < min(2, len(modes)) or not known:
        return []
    kinds = [kind] if kind else [ALL_KINDS, *published.edit_distance.kinds]
    return [
        choice_of_kind(each, {mode: distances[each] for mode, distances in known.items()})
        for each in kinds
    ]


# --- what a mode costs ----------------------------------------------------------------------------


def _least_text(mode: ModeAdvice) -> ModeAdvice | TextCost:
    """The case in which the page has the least text, so that most modes can write it out."""
    return min(mode.by_text_tokens, key=lambda each: each.text_tokens, default=mode)


def _cut_off(case: ModeAdvice | TextCost) -> int:
    """Tokens of the page that are not generated."""
    return case.text_tokens + 1 - case.max_new_tokens if isinstance(case, TextCost) else 0


def _cost(mode: ModeAdvice) -> float:
    """What a page costs: GPU seconds if they are predicted, else FLOPs."""
    case = _least_text(mode)
    if case.time:
        return 1 / case.time[0].throughput[0].pages_per_second
    return case.cost.page_flops


# --- sentences ------------------------------------------------------------------------------------


def _text_of(case: ModeAdvice | TextCost) -> str:
    return f", {case.text_tokens:,} text tokens" if isinstance(case, TextCost) else ""


def _source(published: PublishedAccuracy) -> str:
    return (
        f"{published.edit_distance.measures}, {published.edit_distance.tables} of"
        f" {published.source}"
    )


def _without_figures(
    architecture: Architecture,
    allowed: Sequence[ModeAdvice],
    chosen: Sequence[ModeAdvice],
    kind: str | None,
) -> list[str]:
    """No published figures compare modes: the cheapest that meets the limits, or none."""
    if not allowed:
        return ["Recommended: none; no mode meets the limits."]
    name = chosen[0].mode if chosen else "none"
    scores = ", ".join(
        f"{each.name} {score.mark}{score.score:g} ({publication.source})"
        for each in published_accuracies().values()
        for publication in each.published
        for score in publication.scores
        if score == each.first.get(architecture.name)
    )
    why = (
        f"no published figures compare {', '.join(each.mode for each in allowed)} for"
        f" {kind or 'any kind of document'}{'; it is the cheapest' if chosen else ''}"
        if len(allowed) > 1
        else f"no other mode {'meets the limits' if allowed[0].verdict else 'is compared'}"
    )
    return [
        f"Recommended: {name}; {why}.",
        f"Published for {architecture.title} as a whole (? as others quote it, ~ of another"
        f" release): {scores or 'nothing that is known'}.",
    ]


def _of_one(mode: str, choices: Sequence[KindChoice], published: PublishedAccuracy) -> str:
    """One mode is chosen for the kind asked for, or for every kind."""
    first, *kinds = choices
    pages = "every kind of document" if kinds else first.kind
    others = [f"{name} {each:.3f}" for name, each in first.distances.items() if name != mode]
    similar = [
        name for name in first.good if name != mode and all(name in each.good for each in choices)
    ]
    reason = "" if others else "; no other mode is left to compare"
    if others and not any(each.is_decided for each in choices):
        reason = f", the cheapest; the published figures do not decide, as all are within {MARGIN}"
    wrong = ", ".join([f"{first.distances[mode]:.3f} of a page wrong", *others])
    return (
        f"Recommended for {pages}: {mode}{reason}; it gets {wrong} ({_source(published)}); as good"
        f" within {MARGIN}, but dearer: {', '.join(similar) or 'none'}."
    )


def _by_kind(
    kinds: Sequence[KindChoice], chosen: Sequence[str], published: PublishedAccuracy
) -> Iterator[str]:
    """Another mode for some kinds than for others, which an average over kinds hides."""
    decided, distances = [each for each in kinds if each.rejected(chosen)], list[str]()
    sides = {mode: [each.kind for each in decided if each.mode == mode] for mode in chosen}
    said = [f"{mode} for {', '.join(side)}" for mode, side in sides.items() if side]
    if close := [each for each in kinds if each not in decided]:
        names = ", ".join(each.kind for each in close)
        said.append(f"{close[0].mode}, the cheapest within {MARGIN} of the best, for {names}")
    yield f"Recommended: it depends on the kind of document. {'; '.join(said)}."
    anywhere = [name for name in kinds[0].good if all(name in each.good for each in kinds)]
    yield f"Within {MARGIN} of the best for every single kind: {', '.join(anywhere) or 'no mode'}."
    for each in decided:
        told = [
            f"{mode} {each.distances[mode]:.3f}" for mode in (each.mode, *each.rejected(chosen))
        ]
        distances.append(f"{each.kind} [{', '.join(told)}]")
    yield f"By {_source(published)}: {'; '.join(distances)}."


def _costs(allowed: Sequence[ModeAdvice], chosen: Sequence[ModeAdvice]) -> str:
    """Costs relative to the first chosen mode, and effective resolutions."""
    first, *_ = chosen or allowed
    case = _least_text(first)
    measure = f"GPU seconds, {case.time[0].title}" if case.time else "FLOPs"
    unit = "scale" if first.effective_dpi is None else "dpi"
    others = ", ".join(
        f"{_cost(first) / _cost(each):.2f} times one in {each.mode}"
        for each in allowed
        if each is not first
    )
    seen = ", ".join(
        f"{each.mode} {fineness(each.effective_scale, each.effective_dpi)}" for each in allowed
    )
    return (
        f"A page in {first.mode} costs {others} ({measure}{_text_of(case)}). Effective {unit}:"
        f" {seen}."
    )


def _predicted(mode: ModeAdvice) -> Iterator[str]:
    """Seconds, throughput and price of a mode, under the first of the predictions."""
    for case in mode.cases:
        for entry in case.time[:1]:
            load = entry.throughput[0]
            price = price_text(load.cost_per_thousand_pages)
            yield (
                f"{mode.mode}{_text_of(case)}: {seconds_text(load.page_seconds)} a page,"
                f" {rate_text(load.pages_per_second)} pages/s"
                f"{'' if price == '-' else f', {price} per 1,000 pages'} ({entry.title},"
                f" {load.concurrency} at once)."
            )
