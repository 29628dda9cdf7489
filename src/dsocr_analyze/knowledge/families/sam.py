"""The SAM encoder: symbols, attention on grids, and cases of its modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from dsocr_analyze.costs import sam_attention
from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.knowledge.machinery.cases import cases_of
from dsocr_analyze.knowledge.machinery.facts import Facts
from dsocr_analyze.knowledge.machinery.page import Case, Formulas, Symbol

__all__ = [
    "GRIDS",
    "GROUP",
    "SYMBOLS",
    "attention_formulas",
    "calls_by_grid",
    "relative_positions",
    "values",
    "view_cases",
]

GROUP: Final = "Vision: SAM encoder"

SYMBOLS: Final = {
    "N": Symbol("N", "views"),
    "R": Symbol("R", "pixels per side of a view"),
    "p": Symbol("p", "pixels per side of a patch"),
    "g": Symbol("g", "patches per side of the grid"),
    "d": Symbol("d", "width"),
    "H": Symbol("H", "heads"),
    "D": Symbol("D", "features of a head"),
    "m": Symbol("m", "hidden width of the MLP"),
    "t": Symbol("t", "rows of each relative-position table"),
    "C": Symbol("C", "channels"),
}
GRIDS: Final = {"N": Symbol("N", "grids: views, or all of their windows")}
"""Replaces the symbol of the views if windows are passed in as separate grids."""


def values(facts: Facts) -> dict[str, int]:
    """Values of the symbols that are the same for every view."""
    sam = facts.sam
    return {
        "p": sam.patch,
        "d": sam.width,
        "H": sam.heads,
        "D": sam.head_dim,
        "m": sam.mlp,
        "C": facts.channels,
    }


def view_cases(
    facts: Facts,
    *,
    build: Callable[[], Any],
    arguments: Callable[[int, int], Sequence[Any]],
    closed_form: Callable[[int, int], Kernels],
    more_values: dict[str, int] | None = None,
) -> tuple[Case, ...]:
    """One case per vision call; `arguments` takes N views and R pixels per side."""
    return cases_of(
        facts.views,
        lambda N, R: {
            "N": N,
            "R": R,
            "g": facts.sam_grid(R),
            **values(facts),
            **(more_values or {}),
        },
        build=lambda *_: build(),
        arguments=arguments,
        closed_form=closed_form,
    )


def calls_by_grid(facts: Facts) -> Iterator[tuple[str, int, int, int]]:
    """Calls of attention: label, number of grids, side of a grid, rows of the tables."""
    sam = facts.sam
    for view, N, R in facts.views:
        g = facts.sam_grid(R)
        windows = sam_attention.window_count(g, sam.window)
        yield f"{view}, windows", N * windows * windows, sam.window, 2 * sam.window - 1
        yield f"{view}, whole grid", N, g, 2 * sam.position_grid - 1


def relative_positions(g: str, t: str = "t") -> str:
    """Vector FLOPs of the distances, and of resizing the tables if they do not match the grid."""
    return f"4 * {g} + 4 * {g} ** 2 + ({t} != 2 * {g} - 1) * 8 * (2 * {g} - 1) * D"


def attention_formulas(N: str, g: str, t: str = "t") -> Formulas:
    """Formulas of attention over N grids with g tokens per side and tables of t rows."""
    return Formulas(
        macs=f"4 * {N} * {g} ** 2 * d ** 2 + 2 * {N} * H * {g} ** 3 * D"
        f" + 2 * {N} * H * {g} ** 4 * D",
        vector_flops=f"4 * {N} * {g} ** 2 * d + 8 * {N} * H * {g} ** 4 + {relative_positions(g, t)}",
        params=f"4 * d ** 2 + 4 * d + 2 * {t} * D",
        activations=f"5 * {N} * {g} ** 2 * d + 2 * {N} * H * {g} ** 3",
    )
