"""The axes of a sweep, from lists and ranges like `1:9:2`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dsocr_analyze.architectures import PageRequest
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.errors import WorkloadError, did_you_mean, in_any_case
from dsocr_analyze.workload import Mode, check_page, parse_page

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_RANGE: Final = r"-?[0-9]{1,40}(?::-?[0-9]{1,40}){0,2}"
_PAGES: Final = re.compile(rf"(?P<widths>{_RANGE}) *[xX] *(?P<heights>{_RANGE})")
_PAPERS: Final = re.compile(rf"(?P<paper>[^@:]+)@(?P<dpis>{_RANGE})")
_SIZES: Final = re.compile(rf"(?:(?P<base>{_RANGE})/)?(?P<image>{_RANGE})")

_ONE_MODE: Final = re.compile(r"(?:(?P<base>[0-9]{1,40})/)?(?P<image>[0-9]{1,40})")

_MOST_LISTED: Final = 10_000
"""Most modes, and most papers at many resolutions."""

_MOST_VALUES: Final = 10_000_000


def parse_numbers(
    argument: str, text: str, least: int, most: int, names: str = ""
) -> NDArray[np.int64]:
    """Numbers and ranges from least to most, like `10,100:1000:100`: `[n]`.

    Raises WorkloadError, which says what `names` the caller takes, too.
    """
    right = f"give {least} to {most}: numbers and ranges like 10,100:1000:100{names}"
    grids: list[tuple[Sequence[int], ...]] = []
    for item in _items(argument, text, right):
        if not re.fullmatch(_RANGE, item):
            raise _error(argument, f"{item!r} is not a whole number or range; {right}")
        part = _range(argument, item)
        for end in (part[0], part[-1]):
            if not least <= end <= most:
                raise _error(argument, f"{end} is out of range; {right}")
        grids.append((part,))
    numbers: NDArray[np.int64] = _values(argument, text, grids)[0]
    return numbers


def parse_pages(argument: str, text: str) -> NDArray[np.int64]:
    """Pages with ranges for numbers, like `a4,letter@100:300:50,600:2400:200x1600`.

    Returns:
        Widths and heights in pixels, `[2, n]`.

    Raises:
        WorkloadError: There is no such list, or it has too many pages.
        PageError: A size is invalid.
    """
    right = "give pages like a4, a4@100:300:50, 1240x1754 or 600:2400:200x800:3200:200"
    grids: list[tuple[Sequence[int], ...]] = []
    for item in _items(argument, text, right):
        pages = [item]
        if sizes := _PAGES.fullmatch(item):
            widths, heights = (_range(argument, sizes[side]) for side in ("widths", "heights"))
            for end in (0, -1):
                check_page(widths[end], heights[end])
            grids.append((widths, heights))
            continue
        if (paper := _PAPERS.fullmatch(item)) and ":" in paper["dpis"]:
            dpis = _listed(argument, item, _range(argument, paper["dpis"]))
            pages = [f"{paper['paper']}@{dpi}" for dpi in dpis]
        grids += (([width], [height]) for width, height in map(parse_page, pages))
    return _values(argument, text, grids)


def _values(
    argument: str, text: str, grids: Sequence[tuple[Sequence[int], ...]]
) -> NDArray[np.int64]:
    """All combinations of the k lists of each grid, the last of which varies fastest: `[k, n]`."""
    import numpy as np

    count, parts = 0, []
    for grid in grids:
        count += math.prod(map(len, grid))
        _check_count(argument, text, count, "values", _MOST_VALUES)
        parts.append(np.array(np.meshgrid(*grid, indexing="ij")).reshape(len(grid), -1))
    return np.concatenate(parts, axis=1, dtype=np.int64)


def parse_modes(argument: str, text: str, architecture: Architecture) -> tuple[Mode, ...]:
    """Modes or sizes with ranges, like `base,640,1024/512:1024:64`, or `all`."""
    names = architecture.modes
    right = f"give all or some of {', '.join(names)}, or sizes like 1024/640 or 512:1280:64"
    modes: list[Mode] = []
    for item in _items(argument, text, right):
        spelled = names if item.casefold() == "all" else _spelled(argument, item)
        modes += (mode_or_sizes(architecture, each) for each in spelled)
    return tuple(modes)


def is_mode_or_sizes(architecture: Architecture, text: str) -> bool:
    """Whether the text is a mode's name or looks like sizes, valid or not."""
    return in_any_case(text, architecture.modes) is not None or bool(_ONE_MODE.fullmatch(text))


def mode_or_sizes(architecture: Architecture, text: str) -> Mode:
    """The mode of a name, or of sides in pixels: `BASE/IMAGE` (crops), `IMAGE` (no crops).

    Raises WorkloadError if the text is none of these, or the sizes are invalid.
    """
    modes = architecture.modes
    if (named := in_any_case(text, modes)) is not None:
        return modes[named]
    if (sizes := _ONE_MODE.fullmatch(text)) is None:
        raise WorkloadError(
            f"no mode {text!r}; {did_you_mean(text, modes)}give one of {', '.join(modes)}, or sizes"
            " like 1024/640 (crops) or 640 (no crops)"
        )
    base, image = (int(sizes[side] or sizes["image"]) for side in ("base", "image"))
    mode = Mode(text, base, image, crop_mode=sizes["base"] is not None)
    try:
        _ = PageRequest(architecture=architecture, base_size=base, image_size=image).workload
    except WorkloadError as error:
        raise WorkloadError(f"mode {text!r} is invalid: {error}") from error
    return mode


def _spelled(argument: str, item: str) -> list[str]:
    """Every `BASE/IMAGE` or `IMAGE` of an item with ranges; others as they are."""
    if (sizes := _SIZES.fullmatch(item)) is None:
        return [item]
    images, *bases = (
        _listed(argument, item, _range(argument, each))
        for each in (sizes["image"], sizes["base"])
        if each
    )
    _check_count(argument, item, math.prod(map(len, (images, *bases))), "modes")
    return ["/".join(map(str, each)) for each in itertools.product(*bases, images)]


def parse_names(argument: str, text: str) -> tuple[str, ...]:
    """Comma-separated names; raises WorkloadError if one is empty."""
    return tuple(_items(argument, text, "give names between commas"))


def _items(argument: str, text: str, right: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise _error(argument, f"{text!r} has an empty item; {right}")
    return items


def _range(argument: str, text: str) -> range:
    start, *rest = map(int, text.split(":"))
    stop, step = (*rest, *(start, 1)[len(rest) :])
    if stop < start or step < 1:
        raise _error(
            argument,
            f"{text} is an empty range; give START:STOP:STEP, ascending, with a step of 1 or more",
        )
    return range(start, stop + 1, step)


def _listed(argument: str, text: str, values: range) -> range:
    count = (values[-1] - values[0]) // values.step + 1  # len() overflows on huge ranges
    _check_count(argument, text, count, "values")
    return values


def _check_count(argument: str, text: str, count: int, what: str, most: int = _MOST_LISTED) -> None:
    if count > most:
        raise _error(argument, f"{text} has {count} {what}; give at most {most}")


def _error(argument: str, what: str) -> WorkloadError:
    return WorkloadError(f"{argument} {what}", arguments=(argument,))
