"""The modes in which serving engines offer a model, `served_modes.toml`."""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import filterfalse
from operator import attrgetter
from typing import Final

from msgspec import Struct, toml

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.workload import Mode, PageWorkload

_SIZES: Final = attrgetter("base_size", "image_size", "crop_mode")


class ServedModes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In which modes an engine offers a model; `served_modes.toml` explains the fields."""

    versions: str
    source: str
    modes: tuple[str, ...] | None = None
    several: tuple[str, ...] = ()
    tiles: int | None = None
    earlier: Mapping[str, str] = {}


_ANY: Final = ServedModes(versions="any", source="")


@cache
def all_served_modes() -> Mapping[str, Mapping[str, ServedModes]]:
    """What is known, by architecture and engine."""
    text = resources.files(__package__).joinpath("served_modes.toml").read_text(encoding="utf-8")
    return toml.decode(text, type=dict[str, dict[str, ServedModes]])


def served_notes(
    architecture: Architecture, server: str, *priced: Mode | PageWorkload
) -> Iterator[str]:
    """How a server treats a page, or pages of some modes, unlike the model's own code.

    Of a model without modes, it is only known whether the server has it.
    """
    modes, pages, views = architecture.modes, 1, dict[str, int]()
    names = dict(zip(map(_SIZES, modes.values()), modes, strict=True))
    for each in priced if modes else ():
        mode = names.get(_SIZES(each), "other sizes")
        views[mode] = architecture.forms.model.page_rule.most_views * each.crop_mode
        if isinstance(each, PageWorkload):
            pages, views[mode] = each.prompt_pages, math.prod(each.grid)
    row = all_served_modes().get(architecture.name, {}).get(server, _ANY)
    alone = (*views,) if row.modes is None else row.modes
    offered = row.several if pages > 1 and row.several else alone
    if row.modes == ():
        yield f"{server} does not serve {architecture.title}: {row.source}"
    elif lacking := ", ".join(filterfalse(offered.__contains__, views)):
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
