"""Cases of a page: one per call of its module on the stated page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVarTuple

from dsocr_analyze.costs.operators import Kernels
from dsocr_analyze.costs.sums import ModuleKernels
from dsocr_analyze.knowledge.machinery.page import Case

__all__ = ["cases_of"]

Sizes = TypeVarTuple("Sizes")


def cases_of(
    calls: Iterable[tuple[str, *Sizes]],
    values: Callable[[*Sizes], Mapping[str, int]],
    *,
    build: Callable[[*Sizes], Any],
    arguments: Callable[[*Sizes], Sequence[Any]] | None = None,
    keywords: Callable[[*Sizes], Mapping[str, Any]] | None = None,
    closed_form: Callable[[*Sizes], Kernels | ModuleKernels] | None = None,
    alike: Callable[[str], str | None] | None = None,
) -> tuple[Case, ...]:
    """One case per call; every function below receives the sizes of the call.

    Args:
        calls: Labels, each with its sizes: `Facts.views`
            (N views, R pixels per side), `Facts.steps` (T new tokens, K keys), or a page's own.
        values: Returns the values of the page's symbols.
        build: Returns the module or function.
        arguments: Returns the positional arguments of its call.
        keywords: Returns the keyword arguments.
        closed_form: Returns its kernels from the closed forms.
        alike: As in `Case`.
    """

    def case(label: str, *sizes: *Sizes) -> Case:
        return Case(
            label,
            values(*sizes),
            lambda: build(*sizes),
            lambda: () if arguments is None else arguments(*sizes),
            lambda: {} if keywords is None else keywords(*sizes),
            None if closed_form is None else lambda: closed_form(*sizes),
            alike=alike,
        )

    return tuple(case(*call) for call in calls)
