"""The axes of a sweep, from Python values or from text as on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from dsocr_analyze.dtypes import dtype_named
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.sweep.axes import parse_modes, parse_names, parse_numbers, parse_pages
from dsocr_analyze.sweep.combinations import Sweep
from dsocr_analyze.workload.workload import LARGEST_COUNT

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture

__all__ = ["Names", "Numbers", "Pages", "Switches", "sweep_over"]

Pages: TypeAlias = str | tuple[int, int] | Sequence[str | tuple[int, int]]
"""Text like `"a4@100:300:50"`, a (width, height) in pixels, or several of either."""

Numbers: TypeAlias = int | str | Sequence[int]
"""One or several numbers, or text like `"10,100:1000:100"`."""

Names: TypeAlias = str | Sequence[str]
"""One or several names, or comma-separated text."""

Switches: TypeAlias = bool | Sequence[bool]
"""One or both values."""


def sweep_over(
    architecture: Architecture,
    *,
    page: Pages,
    mode: Names | None,
    text_tokens: Numbers | None,
    max_new_tokens: Numbers,
    batch_size: Numbers,
    dtype: Names,
    flash_attention: Switches,
    sliding_window: Switches | None,
) -> Sweep:
    """The sweep over these axes; for None the architecture's default is used.

    Raises:
        WorkloadError: A value is invalid.
        PageError: A page's size is invalid.
        DeviceError: A type is unknown.
    """
    if sliding_window is not None and architecture.without_window is None:
        raise WorkloadError(
            f"sliding_window={sliding_window!r} is not supported: {architecture.name} has no"
            " sliding window; leave it out",
            arguments=["sliding_window"],
        )

    def numbers(argument: str, asked: Numbers) -> str:
        several = asked if isinstance(asked, list | tuple | range) else [asked]
        for value in several:
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise WorkloadError(
                    f"{argument}={asked!r} is not a whole number; give one, several, or text like"
                    " '10,100:1000:100'",
                    arguments=[argument],
                )
        return ",".join(map(str, several))

    lengths = {
        "text_tokens": architecture.text_tokens if text_tokens is None else text_tokens,
        "max_new_tokens": max_new_tokens,
        "batch_size": batch_size,
    }
    axes = {
        name: parse_numbers(name, numbers(name, asked), 1, LARGEST_COUNT)
        for name, asked in lengths.items()
    }
    dtypes = dict.fromkeys(map(dtype_named, parse_names("dtype", _names(dtype))))
    return Sweep(
        pages=parse_pages("page", ",".join(_pages(page))),
        modes=parse_modes("mode", _names(mode or architecture.default_mode), architecture),
        text_tokens=axes["text_tokens"],
        max_new_tokens=axes["max_new_tokens"],
        batch_sizes=axes["batch_size"],
        dtypes=tuple(dtypes),
        attentions=_switches("flash_attention", flash_attention),
        windows=_switches("sliding_window", True if sliding_window is None else sliding_window),
    )


def _pages(page: Pages) -> list[str]:
    """Each page as text."""
    if isinstance(page, str):
        return [page]
    several: Any = [page] if _is_size(page) or not isinstance(page, Sequence) else page
    found = []
    for each in several:
        if not isinstance(each, str) and not _is_size(each):
            raise WorkloadError(
                f"page={page!r} is invalid; give pages like 'a4', 'a4@100:300:50' or (1240, 1754)",
                arguments=["page"],
            )
        found.append(each if isinstance(each, str) else "{}x{}".format(*each))
    return found


def _is_size(page: Any) -> bool:
    """Whether this is a (width, height)."""
    is_pair = isinstance(page, tuple | list) and len(page) == 2
    return is_pair and all(type(each) is int for each in page)


def _names(names: Names) -> str:
    return names if isinstance(names, str) else ",".join(names)


def _switches(argument: str, values: Switches) -> tuple[bool, ...]:
    several = (values,) if isinstance(values, bool) else tuple(dict.fromkeys(values))
    if not several or not all(isinstance(value, bool) for value in several):
        raise WorkloadError(
            f"{argument}={values!r} is invalid; give True, False or both", arguments=[argument]
        )
    return several
