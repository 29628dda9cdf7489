"""Unlimited-OCR's window over the generated tokens: symbols and stated decode steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dsocr_analyze.knowledge.families.whole_model import Step, WholeModel
from dsocr_analyze.knowledge.machinery.facts import Facts, count
from dsocr_analyze.knowledge.machinery.page import Page, Symbol
from dsocr_analyze.report.quantities import bytes_text
from dsocr_analyze.workload import DecodeStep

__all__ = [
    "SYMBOLS",
    "bound_note",
    "cache_after",
    "stated_steps",
    "steps_note",
    "values",
    "whole_model",
    "window_of",
]

SYMBOLS: Final = {
    "S": Symbol("S", "tokens of the prompt"),
    "i": Symbol("i", "number of the decode step, 0 for the prompt itself"),
    "W": Symbol("W", "window: generated tokens kept in the cache"),
    "K": Symbol("K", "keys attended to, and kept", "S + min(i, W)"),
}


def window_of(facts: Facts) -> int | None:
    """Generated tokens that the cache keeps; None for all of them."""
    return facts.decoder.sliding_window


def stated_steps(facts: Facts) -> list[tuple[str, DecodeStep]]:
    """The first step and, with a window, the last that appends and the first that overwrites."""
    window, S = window_of(facts), facts.tokens
    if window is None:
        return [("decode step", DecodeStep(S, 1))]
    named = {1: "first decode step", window: "decode step that fills the window"}
    named[window + 1] = "decode step that overwrites"
    return [(label, DecodeStep(S, number, window)) for number, label in named.items()]


def cache_after(facts: Facts, layers: int, step: DecodeStep) -> Any:
    """The cache before a decode step: the prompt and the generated tokens that are kept."""
    left = facts.cache(layers, facts.tokens)
    if step.window is not None:
        left._prefill_length = dict.fromkeys(range(layers), facts.tokens)
    return facts.architecture.decode_cache(left, step)


def values(facts: Facts, number: int) -> dict[str, int]:
    """Values of the symbols in decode step `number`, 0 for the prompt."""
    window = window_of(facts)
    return {} if window is None else {"S": facts.tokens, "i": number, "W": window}


def whole_model(facts: Facts, vision: Sequence[Page], *, head: bool) -> WholeModel:
    """The model with the window's steps, for the pages of its vision stages."""
    layers = facts.decoder.layers
    return WholeModel(
        facts,
        vision,
        head=head,
        steps=[
            Step(
                label,
                step,
                lambda step=step: cache_after(facts, layers, step),  # type: ignore[misc]  # bound early
                values(facts, step.number),
            )
            for label, step in stated_steps(facts)
        ],
        prompt_values=values(facts, 0),
        more_symbols={} if window_of(facts) is None else SYMBOLS,
    )


def bound_note(facts: Facts) -> str:
    """The note on the largest size of the cache."""
    window, S = window_of(facts), facts.tokens
    if window is None:
        return "Without a window the cache grows with every token, as in DeepSeek-OCR."
    bound = (S + window) * facts.cache_bytes_per_token
    return (
        f"All layers together keep at most S + W tokens: {count(bound)} bytes"
        f" ({bytes_text(bound)}) for the stated prompt, however long the output is."
    )


def steps_note(facts: Facts) -> tuple[str, ...]:
    """The note on how the work of a decode step grows."""
    if window_of(facts) is None:
        return ("The given config has no window: every decode step attends to all tokens.",)
    return ("The work of a decode step grows up to step W and is constant afterwards.",)
