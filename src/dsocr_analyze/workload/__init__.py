"""The work that a page, a mode and a prompt mean for the model; no torch in this room."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any, Final, TypeAlias

from dsocr_analyze.errors import PageError, WorkloadError, did_you_mean

LARGEST_VIEW: Final = 16_384
LARGEST_COUNT: Final = 1_048_576
"""Most pages in a batch, text tokens or new tokens."""

BOUNDS: Final = {
    "base_size": (64, LARGEST_VIEW, " pixels per side"),  # at least one visual token
    "image_size": (64, LARGEST_VIEW, " pixels per side"),
    "text_tokens": (1, LARGEST_COUNT, " tokens, including BOS"),
    "max_new_tokens": (1, LARGEST_COUNT, " tokens"),
    "batch_size": (1, LARGEST_COUNT, " pages"),
}
"""Least, most and unit of arguments, for a page and for rows of a sweep or a list."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A named setting of three arguments of the vendor's `infer()`.

    Attributes:
        base_size: Pixels per side of the global view in crop mode; 0 where a processor chooses the
            sides of every page.
        image_size: Pixels per side of a local view in crop mode, else of the only view; or 0.
        crop_mode: Whether the page is cut into local views.
    """

    name: str
    base_size: int
    image_size: int
    crop_mode: bool

    @property
    def follows_pages(self) -> bool:
        """Whether pages of other sides are seen in other grids."""
        return self.crop_mode or not self.image_size


@dataclass(frozen=True, slots=True)
class ViewBatch:
    """Views in one call of the vision stages.

    Attributes:
        resolution: Pixels per side, or the width if they are no squares.
        height: In pixels; None for squares.
        frames: In which the processor repeats a view, as if of a video.
    """

    count: int
    resolution: int
    height: int | None = None
    frames: int = 1

    @property
    def sides(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.resolution, self.height or self.resolution

    @property
    def pixels(self) -> int:
        """Of them all, in all frames."""
        return self.count * self.frames * self.resolution * (self.height or self.resolution)


@dataclass(frozen=True, slots=True)
class PageWorkload:
    """One page's path through the model; made by `plan_workload`.

    The sizes are those of a `Mode`; `base_size` is also that of the blank patch in place of views.

    Attributes:
        page: Width and height in pixels.
        grid: Columns and rows of local views, (1, 1) for none; where the processor chooses the
            sides of the only view, of its visual tokens.
        views: One batch per vision call on a page: local views, if any, then the global view.
        visual_tokens: Tokens of the prompt's pages, including newlines and separators.
        text_tokens: The other tokens, including BOS.
        batch_size: Equal prompts.
        max_new_tokens: Generated tokens; the prefill pass yields the first.
        prompt_pages: Equal pages per prompt, each with its own vision calls.
    """

    page: tuple[int, int]
    base_size: int
    image_size: int
    crop_mode: bool
    grid: tuple[int, int]
    views: tuple[ViewBatch, ...]
    visual_tokens: int
    text_tokens: int
    batch_size: int
    max_new_tokens: int
    prompt_pages: int = 1

    @property
    def pages(self) -> int:
        """Pages in the whole batch."""
        return self.batch_size * self.prompt_pages

    @property
    def seq_len(self) -> int:
        """Tokens per prompt."""
        return self.visual_tokens + self.text_tokens

    @property
    def local_views(self) -> ViewBatch | None:
        """Local views; None if the page is not cut."""
        return self.views[0] if len(self.views) == 2 else None

    @property
    def global_view(self) -> ViewBatch:
        """The view of the whole page."""
        return self.views[-1]


@dataclass(frozen=True, slots=True)
class Lengths:
    """The workload of a model that does not read pages.

    Attributes:
        seq_len: Tokens per prompt; 0 without prompts.
        batch_size: Equal prompts.
        max_new_tokens: As of a `PageWorkload`; 0 without decoding.
    """

    seq_len: int
    batch_size: int
    max_new_tokens: int

    @property
    def pages(self) -> int:
        """Prompts in the batch, in place of pages."""
        return self.batch_size


AnyWorkload: TypeAlias = PageWorkload | Lengths
"""The workload of any model: pages, or lengths alone."""


def check_count(argument: str, value: object, least: int, most: int, unit: str) -> None:
    """Raises WorkloadError unless an argument's value is a whole number from `least` to `most`.

    The unit has a leading space.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        wrong = "is not a whole number"
    elif value < least:
        wrong = "is too small"
    elif value > most:
        wrong = "is too large"
    else:
        return
    raise WorkloadError(
        f"{argument} {value!r} {wrong}; give {least} to {most}{unit}", arguments=[argument]
    )


def position_warnings(workload: PageWorkload, max_positions: int) -> list[str]:
    """Warnings about a workload beyond the positions that the decoder was trained for."""
    longest = workload.seq_len + workload.max_new_tokens - 1
    if workload.seq_len > max_positions:
        return [
            f"the sequence of {workload.seq_len} tokens is longer than the decoder's "
            f"max_position_embeddings, {max_positions}"
        ]
    if longest > max_positions:
        return [
            f"{workload.seq_len} prompt tokens and {workload.max_new_tokens} new ones reach "
            f"{longest} positions, beyond the decoder's max_position_embeddings, "
            f"{max_positions}; at most {max_positions - workload.seq_len + 1} "
            "new tokens fit"
        ]
    return []


def beyond_positions(beyond: int, counted: str, max_positions: int) -> str:
    """A warning about so many of the counted, such as `1,000 pages`."""
    return (
        f"{beyond:,} of {counted} exceed the decoder's max_position_embeddings,"
        f" {max_positions}; they are counted anyway"
    )


def step_stretches(new_tokens: int, cuts: Sequence[int]) -> list[range]:
    """Ranges of decode steps of `new_tokens`, cut before the steps whose work changes in kind.

    The prefill pass yields one token, each step another.
    """
    bounds, steps = [0, *cuts, new_tokens - 1], range(new_tokens - 1)
    return [*filter(None, map(steps.__getitem__, starmap(slice, pairwise(bounds))))]


# --- prompts ---------------------------------------------------------------------------------


IMAGE_TOKEN: Final = "<image>"
"""Placeholder for the page in a prompt."""


def text_parts(prompt: str) -> list[str]:
    """The texts to encode apart and without special tokens, after BOS.

    White space at the ends is stripped, as in `format_messages` (`modeling_deepseekocr.py`).
    """
    return prompt.strip().split(IMAGE_TOKEN)


# --- page sizes ------------------------------------------------------------------------------


_DEFAULT_DPI: Final = 150

LARGEST_SIDE: Final = 1_000_000
"""Most pixels per side of a page."""

PAPERS: Final[dict[str, tuple[int, int]]] = {
    "a3": (2970, 4200),
    "a4": (2100, 2970),
    "a5": (1480, 2100),
    "letter": (2159, 2794),
    "legal": (2159, 3556),
}
"""Width and height of each named paper in tenths of a millimetre."""

_RIGHT: Final = (
    f"give {', '.join(PAPERS)} (at {_DEFAULT_DPI} dpi, or at others like a4@300), "
    "or WIDTHxHEIGHT like 1240x1754"
)
_NAMED: Final = re.compile(rf"(?P<paper>{'|'.join(PAPERS)})(?:@(?P<dpi>[0-9]{{1,6}}))?")
_PIXELS: Final = re.compile(r"(?P<width>-?[0-9]{1,18}) *x *(?P<height>-?[0-9]{1,18})")


def check_page(width: Any, height: Any) -> tuple[int, int]:
    """The sides of a page; raises PageError unless both are from 1 to `LARGEST_SIDE` pixels."""
    if not all(
        isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= LARGEST_SIDE
        for side in (width, height)
    ):
        raise PageError(
            f"a page of {width!r} x {height!r} pixels is invalid; "
            f"give whole numbers from 1 to {LARGEST_SIDE} per side"
        )
    return width, height


def parse_page(text: str) -> tuple[int, int]:
    """Width and height in pixels of a page size; raises PageError for anything else.

    Args:
        text: A name from `PAPERS` (portrait), with a resolution or not (`a4@300`), or
            `WIDTHxHEIGHT` in pixels, in any case.
    """
    wanted = text.strip().lower()
    if pixels := _PIXELS.fullmatch(wanted):
        return check_page(int(pixels["width"]), int(pixels["height"]))
    named = _NAMED.fullmatch(wanted)
    if named is None:
        paper, _, behind = wanted.partition("@")
        behind = behind.removesuffix("dpi").strip()
        at = f"@{behind}" if re.fullmatch("[0-9]{1,6}", behind) else ""
        near = did_you_mean(paper, (), {name: f"{name}{at}" for name in PAPERS})
        raise PageError(f"no page size {_shortened(text)}; {near}{_RIGHT}")
    dpi = int(named["dpi"] or _DEFAULT_DPI)
    if dpi < 1:
        raise PageError(f"no page size {_shortened(text)}: {dpi} dpi; {_RIGHT}")
    width, height = PAPERS[named["paper"]]
    # Rounded to nearest; an inch is 254 tenths of a millimetre.
    return check_page((2 * width * dpi + 254) // 508, (2 * height * dpi + 254) // 508)


def paper_dpi(text: str) -> int | None:
    """Pixels per inch of a page that `parse_page` reads by name; None for others."""
    named = _NAMED.fullmatch(text.strip().lower())
    return int(named["dpi"] or _DEFAULT_DPI) if named else None


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


# --- what every plan of a page checks ---------------------------------------------------------


def checked_page(page: object, batch_size: int, max_new_tokens: int) -> tuple[int, int]:
    """Width and height in pixels; raises WorkloadError or PageError for a wrong page or count."""
    for name, count in (("batch_size", batch_size), ("max_new_tokens", max_new_tokens)):
        check_count(name, count, *BOUNDS[name])
    if not isinstance(page, tuple | list) or len(page) != 2:
        raise WorkloadError(f"page {page!r} is not a pair; give (width, height) in pixels")
    return check_page(*page)


def prompt_text(text_tokens: int | None, seq_len: int | None, visual: int, default: int) -> int:
    """Tokens besides the visual ones, from either length."""
    if text_tokens is not None:
        check_count("text_tokens", text_tokens, *BOUNDS["text_tokens"])
    if seq_len is None:
        return default if text_tokens is None else text_tokens
    if isinstance(seq_len, bool) or not isinstance(seq_len, int):
        raise WorkloadError(
            f"seq_len {seq_len!r} is not a whole number; give at least {visual + 1}",
            arguments=["seq_len"],
        )
    if seq_len <= visual:
        raise WorkloadError(
            f"seq_len {seq_len} is below the {visual} visual tokens of the page and BOS; "
            f"give at least {visual + 1}",
            arguments=["seq_len"],
        )
    rest = seq_len - visual
    if rest > LARGEST_COUNT:
        raise WorkloadError(
            f"seq_len {seq_len} is too large; give {visual + 1} to {visual + LARGEST_COUNT}",
            arguments=["seq_len"],
        )
    if text_tokens not in (None, rest):
        raise WorkloadError(
            f"seq_len {seq_len} and text_tokens {text_tokens} conflict: the page "
            f"has {visual} visual tokens; give seq_len={visual + (text_tokens or 0)}, "
            f"text_tokens={rest}, or one of the two",
            arguments=["seq_len", "text_tokens"],
        )
    return rest
