"""Plans a workload from user input: a paper, a size or an image, and the name of a mode."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Final, TypeAlias, TypedDict

from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.workload import AnyWorkload, page_of_image, parse_page

__all__ = ["DEFAULT_PAGE", "Asked", "ImagePath", "PageSize", "given_or_planned", "planned"]

PageSize: TypeAlias = str | tuple[int, int]
"""A page: a paper like `a4` or `a4@200`, `1240x1754`, or width and height in pixels."""

ImagePath: TypeAlias = str | PathLike[str]
"""Path of an image file."""

DEFAULT_PAGE: Final = "a4"
"""The default page, at 150 dpi."""


class Asked(TypedDict):
    """Arguments about a page, named as in `planned`."""

    page: PageSize | None
    image: ImagePath | None
    mode: str | None
    base_size: int | None
    image_size: int | None
    crop_mode: bool | None
    text_tokens: int | None
    seq_len: int | None
    batch_size: int | None
    max_new_tokens: int | None
    prompt_pages: int | None


def planned(
    architecture: Architecture,
    *,
    page: PageSize | None,
    image: ImagePath | None,
    mode: str | None,
    base_size: int | None,
    image_size: int | None,
    crop_mode: bool | None,
    text_tokens: int | None,
    seq_len: int | None,
    batch_size: int | None,
    max_new_tokens: int | None,
    prompt_pages: int | None,
) -> AnyWorkload:
    """Plans what a model's own `infer()` makes of a page; None uses the architecture's default.

    Args:
        architecture: The model's architecture.
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

    Raises:
        PageError: The page's size is impossible or cannot be determined.
        WorkloadError: A size, mode or count is impossible, or two arguments conflict.
    """
    sizes: dict[str, int | bool | None] = {
        "base_size": base_size, "image_size": image_size, "crop_mode": crop_mode,
    }  # fmt: skip
    if mode is not None:
        sizes = _sizes_of(architecture, mode, sizes)
    asked = {
        "page": _size(page, image) if architecture.modes else page,
        **sizes,
        "text_tokens": text_tokens,
        "seq_len": seq_len,
        "batch_size": batch_size,
        "max_new_tokens": max_new_tokens,
        "prompt_pages": prompt_pages,
    }
    if image is not None and not architecture.modes:
        asked["image"] = image
    workload: AnyWorkload = architecture.plan(
        **{name: value for name, value in asked.items() if value is not None}
    )
    return workload


def given_or_planned(
    architecture: Architecture, workload: AnyWorkload | None, asked: Asked
) -> AnyWorkload:
    """The given workload, or else one planned from the arguments.

    Raises:
        PageError: As for `planned`.
        WorkloadError: As for `planned`, or both a workload and arguments are given.
    """
    if workload is None:
        return planned(architecture, **asked)
    given = [name for name, value in asked.items() if value is not None]
    if given:
        raise WorkloadError(
            f"a workload was given as well as {', '.join(given)}; give either the workload or the"
            " arguments to plan it"
        )
    return workload


def _size(page: PageSize | None, image: ImagePath | None) -> object:
    """Width and height in pixels; other values than strings are checked later with the rest."""
    if image is not None:
        if page is not None:
            raise WorkloadError(
                f"page={page!r} and image={str(image)!r} are two pages; give one of them",
                arguments=["page", "image"],
            )
        return page_of_image(Path(image))
    page = DEFAULT_PAGE if page is None else page
    return parse_page(page) if isinstance(page, str) else page


def _sizes_of(
    architecture: Architecture, mode: str, sizes: dict[str, int | bool | None]
) -> dict[str, int | bool | None]:
    """The sizes of a mode; raises WorkloadError if it is unknown or conflicts with given sizes."""
    modes = architecture.modes
    chosen = modes.get(str(mode).lower())
    if chosen is None:
        right = f"give one of {', '.join(modes)}" if modes else "this model has no modes"
        raise WorkloadError(f"mode {mode!r} is unknown; {right}", arguments=["mode"])
    for name, value in sizes.items():
        if value is not None:
            raise WorkloadError(
                f"mode={mode!r} already sets {name}; give one of them, not {name}={value}",
                arguments=["mode", name],
            )
    return {
        "base_size": chosen.base_size,
        "image_size": chosen.image_size,
        "crop_mode": chosen.crop_mode,
    }
