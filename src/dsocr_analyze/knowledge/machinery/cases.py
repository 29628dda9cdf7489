"""Cases of a page, one for each call of the stated page that its module gets."""

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
    """A case for each call, what it is made from by the call's sizes.

    Args:
        calls: Labels, each with the sizes that the other arguments are called with: `Facts.views`
            (N views, R pixels a side), `Facts.steps` (T new tokens, K keys), or a page's own.
        values: Values of the page's symbols.
        build: Makes the module or function.
        arguments: Makes the positional arguments of its call.
        keywords: Makes those by keyword.
        closed_form: Its kernels by the closed forms.
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
