"""The options about a page, and what they ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import typer

from dsocr_analyze.architectures.planning import PageRequest
from dsocr_analyze.cli import options
from dsocr_analyze.cli.command_options import Added, adding
from dsocr_analyze.cli.page_contents import PromptOption, page_of_file, text_tokens_from
from dsocr_analyze.workload import Workload

if TYPE_CHECKING:
    from dsocr_analyze.model.directory import ModelDirectory

__all__ = ["OF_A_PAGE", "of_a_page", "page_request", "workload_of"]

OF_A_PAGE: Final[Added] = {
    "mode": (options.ModeOption, None),
    "base_size": (options.BaseSizeOption, None),
    "image_size": (options.ImageSizeOption, None),
    "crop_mode": (options.CropModeOption, None),
    "page": (options.PageOption, None),
    "image": (options.ImageOption, None),
    "seq_len": (options.SeqLenOption, None),
    "text_tokens": (options.TextTokensOption, None),
    "prompt": (PromptOption, None),
    "max_new_tokens": (options.NewTokensOption, 1024),
    "batch_size": (options.BatchOption, 1),
    "prompt_pages": (options.PromptPagesOption, 1),
}
"""The options about a page, by parameter."""


def of_a_page(
    *left_out: str, after: str = "use_flash_attn"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options about a page, which `page_request` reads, to a command.

    Args:
        *left_out: Names of those that it has not, or has as others.
        after: The parameter that they follow.
    """
    asked = {name: each for name, each in OF_A_PAGE.items() if name not in left_out}
    return adding(asked, after=after)


def page_request(context: typer.Context, directory: ModelDirectory, **instead: Any) -> PageRequest:
    """What a command's options ask about a page.

    Args:
        context: The command's context.
        directory: The model's directory, whose tokenizer counts a prompt.
        **instead: Values in place of the options', by the parameters' names.

    Raises:
        WorkloadError: Options contradict each other.
        PageError: The image's size cannot be determined.
    """
    values = {**context.params, **instead}
    given = {each.name: values.get(each.name) for each in fields(PageRequest)}
    given["text_tokens"] = text_tokens_from(
        values.get("prompt"), given["text_tokens"], given["seq_len"], directory
    )
    if given["crop_mode"] is not None:
        given["crop_mode"] = options.switch("--crop-mode", given["crop_mode"])
    if given["image"] is not None and given["page"] is None and directory.architecture.modes:
        given |= {"page": page_of_file(given["image"]), "image": None}
    return PageRequest(**given)


def workload_of(context: typer.Context, directory: ModelDirectory, **instead: Any) -> Workload:
    """The workload of `page_request` on a model that reads pages; raises its errors."""
    workload = page_request(context, directory, **instead).workload(directory.architecture)
    assert isinstance(workload, Workload), "every architecture with a name reads pages"
    return workload
