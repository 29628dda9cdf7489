"""The modes in which serving engines offer a model, `served_modes.toml`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import filterfalse
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec import Struct, toml

from dsocr_analyze.workload import PageWorkload

if TYPE_CHECKING:
    from dsocr_analyze.architectures.architecture import Architecture
    from dsocr_analyze.workload import Mode

__all__ = ["ServedModes", "all_served_modes", "served_notes"]

_SIZES: Final = attrgetter("base_size", "image_size", "crop_mode")


class ServedModes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The modes of a model that some engines offer; `served_modes.toml` explains the fields."""

    servers: tuple[str, ...]
    versions: str
    source: str
    modes: tuple[str, ...] | None = None
    several: tuple[str, ...] = ()
    tiles: int | None = None
    earlier: Mapping[str, str] = {}


@cache
def all_served_modes() -> Mapping[str, tuple[ServedModes, ...]]:
    """What is known, by architecture."""
    text = resources.files(__package__).joinpath("served_modes.toml").read_text(encoding="utf-8")
    return toml.decode(text, type=dict[str, tuple[ServedModes, ...]])


def served_notes(
    architecture: Architecture, server: str, *priced: Mode | PageWorkload
) -> Iterator[str]:
    """How a server treats a page, or pages of some modes, unlike the model's own code."""
    modes, pages, views = architecture.modes, 1, dict[str, int]()
    names = dict(zip(map(_SIZES, modes.values()), modes, strict=True))
    for each in priced:
        mode = names.get(_SIZES(each), "other sizes")
        views[mode] = architecture.forms.crop_grids.most * each.crop_mode
        if isinstance(each, PageWorkload):
            pages, views[mode] = each.prompt_pages, math.prod(each.grid)
    for row in all_served_modes().get(architecture.name, ()):
        offered = row.modes if pages == 1 else row.several
        offered = (*views,) if offered is None else offered
        lacking = ", ".join(filterfalse(offered.__contains__, views))
        if server not in row.servers:
            continue
        if not offered:
            yield f"{server} does not serve {architecture.title}: {row.source}"
        elif lacking:
            yield (
                f"of {architecture.title}'s modes {server} offers {', '.join(offered)} only, not"
                f" {lacking} ({row.versions}; {row.source})"
            )
        for mode in filter(row.earlier.__contains__, views if pages == 1 else ()):
            yield f"{server} offers {mode}, but {row.earlier[mode]} ({row.source})"
        cut = max(map(views.__getitem__, filter(offered.__contains__, views)), default=0)
        if row.tiles is not None and cut > row.tiles:
            yield (
                f"{server} cuts a page into at most {row.tiles} local views; pages are priced as"
                f" the model's own code cuts them, into up to {cut} ({row.source})"
            )
