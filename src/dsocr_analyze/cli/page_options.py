"""The options about a page, and what they ask: sizes, lengths, an image, a prompt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsocr_analyze.architectures.planning import PageRequest
from dsocr_analyze.cli import options
from dsocr_analyze.cli.command_options import Added, adding
from dsocr_analyze.cli.streams import complain
from dsocr_analyze.errors import ModelDirectoryError, WorkloadError
from dsocr_analyze.input_files import is_regular
from dsocr_analyze.model.tokenizer_file import named_tokenizer_failures, read_tokenizer_file
from dsocr_analyze.workload import ImagePages, Workload
from dsocr_analyze.workload.workload import text_parts

if TYPE_CHECKING:
    from dsocr_analyze.model.directory import ModelDirectory

__all__ = ["OF_A_PAGE", "of_a_page", "page_of_file", "page_request", "workload_of"]

PromptOption = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        metavar="TEXT",
        help="Count this prompt's text tokens with the model directory's tokenizer.json.",
        rich_help_panel="Workload",
    ),
]
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


def text_tokens_from(
    prompt: str | None,
    text_tokens: int | None,
    seq_len: int | None,
    directory: ModelDirectory,
) -> int | None:
    """Text tokens from `--prompt` or `--text-tokens`; None if neither is given.

    Those of a prompt are counted with the model's tokenizer, BOS included and `<image>` left out,
    in the layout of the vendor's `infer()`: see `text_parts`.

    Raises:
        WorkloadError: Another option sets the text tokens in addition to the prompt.
        ModelDirectoryError: There is no tokenizer for the prompt.
    """
    if prompt is None:
        return text_tokens
    if text_tokens is not None or seq_len is not None:
        raise WorkloadError("--prompt sets the text tokens; leave out --text-tokens and --seq-len")
    if directory.described is not None:
        raise WorkloadError(
            f"--prompt counts the text of a page; that of {directory.described.name} is in its"
            " stages file: give --seq-len for another length"
        )
    if directory.is_reference:
        raise ModelDirectoryError(
            "--prompt needs a model directory with tokenizer.json; the built-in reference has none,"
            " give --text-tokens instead"
        )
    file = directory.tokenizer_file
    if not is_regular(file):
        raise ModelDirectoryError(
            f"--prompt needs {str(file)!r}, which does not exist; give --text-tokens instead"
        )
    content = read_tokenizer_file(file)
    import tokenizers

    with named_tokenizer_failures(file):
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
        parts = [
            tokenizer.encode(part, add_special_tokens=False).ids for part in text_parts(prompt)
        ]
    return 1 + sum(map(len, parts))


def page_of_file(image: Path) -> tuple[int, int]:
    """The page in an image file; if there are several, the first, with a note."""
    found = ImagePages(image)
    sizes = found.sizes()
    size, pages = next(sizes), 1
    with contextlib.suppress(WorkloadError):  # damage after the first frame does not matter
        for _ in sizes:
            pages += 1
    if pages > 1:
        complain(
            f"note: {image} has {pages} pages and only the first is used; `dsocr-analyze archive"
            f" {image}` counts all of them"
        )
    elif found.has_more_frames:
        complain(f"note: {image} has several frames and only the first is used")
    return size
