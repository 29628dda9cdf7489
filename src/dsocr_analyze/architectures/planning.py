"""What a user asks about a page, and the workload that a model makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.names import did_you_mean, in_any_case
from dsocr_analyze.workload import AnyWorkload, Mode, page_of_image, parse_page

__all__ = ["DEFAULT_PAGE", "ImagePath", "PageRequest", "PageSize"]

PageSize: TypeAlias = str | tuple[int, int]
"""A page: a paper like `a4` or `a4@200`, `1240x1754`, or width and height in pixels."""

ImagePath: TypeAlias = str | PathLike[str]
"""Path of an image file."""

DEFAULT_PAGE: Final = "a4"
"""The default page, at 150 dpi."""


@dataclass(frozen=True, kw_only=True)
class PageRequest:
    """What is asked about a page; None stands for the architecture's default.

    Attributes:
        page: The page; default A4 at 150 dpi, for a model that reads pages.
        image: An image file of the page, instead of `page`; of several pages, the first.
        mode: Name of a mode, in any case, instead of the next three sizes.
        base_size: Pixels per side of the global view in crop mode.
        image_size: Pixels per side of a local view in crop mode, otherwise of the only view.
        crop_mode: Whether a page larger than one tile is cropped.
        text_tokens: Tokens besides the visual ones, including BOS.
        seq_len: Tokens of the whole prompt, instead of `text_tokens`.
        batch_size: Number of prompts, all alike.
        max_new_tokens: Tokens generated; the prefill pass yields the first.
        prompt_pages: Pages per prompt, all alike.
    """

    page: PageSize | None = None
    image: ImagePath | None = None
    mode: str | None = None
    base_size: int | None = None
    image_size: int | None = None
    crop_mode: bool | None = None
    text_tokens: int | None = None
    seq_len: int | None = None
    batch_size: int | None = None
    max_new_tokens: int | None = None
    prompt_pages: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What is asked, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def workload(self, architecture: Architecture) -> AnyWorkload:
        """Plans what a model's own `infer()` makes of the page.

        Raises:
            PageError: The page's size is impossible or cannot be determined.
            WorkloadError: A size, mode or count is impossible, or two of them conflict.
        """
        given = self.given
        if architecture.modes:  # others refuse what is asked of a page
            given = self._sizes(architecture.modes) | given | {"page": self._size}
            for name in given.keys() & {"mode", "image"}:
                del given[name]
        workload: AnyWorkload = architecture.plan(**given)
        return workload

    def or_given(self, architecture: Architecture, workload: AnyWorkload | None) -> AnyWorkload:
        """The given workload, or else that of this request.

        Raises:
            PageError: As for `workload`.
            WorkloadError: As for `workload`, or both are given.
        """
        if workload is None:
            return self.workload(architecture)
        if self.given:
            raise WorkloadError(
                f"a workload was given as well as {', '.join(self.given)}; give either the workload"
                " or the arguments to plan it"
            )
        return workload

    @property
    def _size(self) -> tuple[int, int]:
        """Width and height in pixels; other values than text are checked later with the rest."""
        if self.image is not None:
            if self.page is not None:
                raise WorkloadError(
                    f"give page={self.page!r} or image={str(self.image)!r}, not both",
                    arguments=["page", "image"],
                )
            return page_of_image(Path(self.image))
        page = DEFAULT_PAGE if self.page is None else self.page
        return parse_page(page) if isinstance(page, str) else page

    def _sizes(self, modes: Mapping[str, Mode]) -> dict[str, int | bool]:
        """The sizes of the mode, if one is asked.

        Raises:
            WorkloadError: The mode is unknown or conflicts with given sizes.
        """
        if self.mode is None:
            return {}
        name = in_any_case(str(self.mode), modes)
        if name is None:
            right = f"{did_you_mean(str(self.mode), modes)}use {', '.join(modes)}"
            raise WorkloadError(f"mode {self.mode!r} is unknown; {right}", arguments=["mode"])
        sizes = {
            each: getattr(modes[name], each) for each in ("base_size", "image_size", "crop_mode")
        }
        for each in (size for size in sizes if size in self.given):
            raise WorkloadError(
                f"mode={self.mode!r} already sets {each}; give one of them, not"
                f" {each}={self.given[each]}",
                arguments=["mode", each],
            )
        return sizes
