"""What `--prompt` and `--image` say of a page: its text tokens and its size."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsocr_analyze.cli.streams import complain
from dsocr_analyze.errors import ModelDirectoryError, WorkloadError
from dsocr_analyze.input_files import is_regular
from dsocr_analyze.model.tokenizer_file import named_tokenizer_failures, read_tokenizer_file
from dsocr_analyze.workload import ImagePages
from dsocr_analyze.workload.prompt import text_parts

if TYPE_CHECKING:
    from dsocr_analyze.model.directory import ModelDirectory

__all__ = ["PromptOption", "page_of_file", "text_tokens_from"]

PromptOption = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        metavar="TEXT",
        help="Count this prompt's text tokens with the model directory's tokenizer.json.",
        rich_help_panel="Workload",
    ),
]


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
