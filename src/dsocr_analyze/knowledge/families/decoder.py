"""The decoder's symbols, and the config keys of its modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsocr_analyze.knowledge.machinery.facts import Facts, config_value
from dsocr_analyze.knowledge.machinery.page import Parameter, Symbol

__all__ = ["LAYER_INDEX", "SYMBOLS", "THE_CONFIG", "config_parameters", "fallback_notes"]

SYMBOLS: Final[dict[str, Symbol]] = {
    "B": Symbol("B", "sequences of the batch"),
    "T": Symbol("T", "new tokens of a sequence"),
    "K": Symbol("K", "keys: cached tokens plus new ones"),
    "d": Symbol("d", "width of a token"),
    "H": Symbol("H", "query heads"),
    "G": Symbol("H_{kv}", "key and value heads"),
    "D": Symbol("D", "features of a head"),
    "m": Symbol("m", "hidden width of the MLP"),
    "a": Symbol("a", "FLOPs of the activation per element"),
    "E": Symbol("E", "routed experts"),
    "k": Symbol("k", "experts per token"),
    "f": Symbol("f", "hidden width of a routed expert"),
    "s": Symbol("s", "hidden width of the shared experts, fused"),
    "V": Symbol("V", "vocabulary"),
    "e": Symbol("e", "bytes per element"),
}
"""The decoder's symbols."""

THE_CONFIG: Final = Parameter("Source of everything below.", "the model's config")
LAYER_INDEX: Final = Parameter("Number of the layer: its index in the cache.", "0, 1, ...")


def config_parameters(config: Any, meanings: Mapping[str, str]) -> dict[str, Parameter]:
    """Config keys that a module reads, with their meanings."""
    return {
        f"config.{key}": Parameter(meaning, config_value(config, key))
        for key, meaning in meanings.items()
    }


def fallback_notes(own: Facts, used: Facts, why: str) -> tuple[str, ...]:
    """The note for a page whose figures are not those of the given config."""
    if own is used:
        return ()
    return (f"{why}, so the figures on this page are those of the published config.",)
