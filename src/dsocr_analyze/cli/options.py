"""Options that several commands share, and what their values mean."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsocr_analyze.errors import ModelDirectoryError, WorkloadError
from dsocr_analyze.workload import (
    Workload,
    mode_named,
    page_of_image,
    parse_page,
    plan_workload,
)

if TYPE_CHECKING:
    from dsocr_analyze.model.directory import ModelDirectory

DEFAULT_MODEL = Path("models/deepseek-ocr")

_MODEL = "Model"
_WORKLOAD = "Workload"

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="DIR",
        help="Model directory (config.json and Python files); 'reference' is the built-in model."
        f" Default: {DEFAULT_MODEL} where it exists and is trusted, else the reference.",
        rich_help_panel=_MODEL,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A config.json to run in place of the model directory's own.",
        rich_help_panel=_MODEL,
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Execute the model directory's Python files without a trust record.",
        rich_help_panel=_MODEL,
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="meta|cpu|cuda:N",
        help="Where the forward pass runs; meta computes nothing and needs no weights.",
        rich_help_panel=_MODEL,
    ),
]
DtypeOption = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="bfloat16|float16|float32",
        help="Type of weights and activations.",
        rich_help_panel=_MODEL,
    ),
]
FlashOption = Annotated[
    int,
    typer.Option(
        "--use-flash-attn",
        metavar="0|1",
        help="Decoder attention: 0 eager, 1 FlashAttention-2.",
        rich_help_panel=_MODEL,
    ),
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="tiny|small|base|large|gundam|gundam-m",
        help="One of the paper's modes, in place of --base-size, --image-size and --crop-mode.",
        rich_help_panel=_WORKLOAD,
    ),
]
BaseSizeOption = Annotated[
    int | None,
    typer.Option(
        "--base-size",
        metavar="PIXELS",
        help="Side of the global view in crop mode. Default: 1024.",
        rich_help_panel=_WORKLOAD,
    ),
]
ImageSizeOption = Annotated[
    int | None,
    typer.Option(
        "--image-size",
        metavar="PIXELS",
        help="Side of a local view in crop mode, of the only view otherwise. Default: 640.",
        rich_help_panel=_WORKLOAD,
    ),
]
CropModeOption = Annotated[
    int | None,
    typer.Option(
        "--crop-mode",
        metavar="0|1",
        help="Whether a page larger than 640 x 640 is cut into local views. Default: 1.",
        rich_help_panel=_WORKLOAD,
    ),
]
PageOption = Annotated[
    str | None,
    typer.Option(
        "--page",
        metavar="a4|letter|WxH",
        help="Page size in pixels, or paper at 150 dpi (a4@300 for another). Default: a4.",
        rich_help_panel=_WORKLOAD,
    ),
]
ImageOption = Annotated[
    Path | None,
    typer.Option(
        "--image",
        metavar="FILE",
        help="Take the page size from this image's header, orientation respected.",
        rich_help_panel=_WORKLOAD,
    ),
]
SeqLenOption = Annotated[
    int | None,
    typer.Option(
        "--seq-len",
        metavar="TOKENS",
        help="Length of the whole prompt; the text fills what the visual tokens leave.",
        rich_help_panel=_WORKLOAD,
    ),
]
TextTokensOption = Annotated[
    int | None,
    typer.Option(
        "--text-tokens",
        metavar="TOKENS",
        help="Text tokens, BOS included. Default: 10.",
        rich_help_panel=_WORKLOAD,
    ),
]
PromptOption = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        metavar="TEXT",
        help="Count this prompt's text tokens with the model directory's tokenizer.json.",
        rich_help_panel=_WORKLOAD,
    ),
]
NewTokensOption = Annotated[
    int,
    typer.Option(
        "--max-new-tokens",
        metavar="TOKENS",
        help="Tokens that the page yields; the prefill pass yields the first.",
        rich_help_panel=_WORKLOAD,
    ),
]
BatchOption = Annotated[
    int,
    typer.Option(
        "--batch-size", metavar="PAGES", help="Equal pages at a time.", rich_help_panel=_WORKLOAD
    ),
]


def switch(option: str, value: int) -> bool:
    """The meaning of a 0|1 option."""
    if value not in (0, 1):
        raise WorkloadError(f"{option} {value} is not possible; give 0 or 1")
    return value == 1


def workload_from(
    *,
    mode: str | None,
    base_size: int | None,
    image_size: int | None,
    crop_mode: int | None,
    page: str | None,
    image: Path | None,
    seq_len: int | None,
    text_tokens: int | None,
    batch_size: int,
    max_new_tokens: int,
) -> Workload:
    """The workload that the options describe; raises WorkloadError where they contradict."""
    sizes: dict[str, Any] = {}
    if mode is not None:
        for option, value in (
            ("--base-size", base_size),
            ("--image-size", image_size),
            ("--crop-mode", crop_mode),
        ):
            if value is not None:
                raise WorkloadError(
                    f"--mode {mode} already sets {option}; give one of them, not {option} {value}"
                )
        chosen = mode_named(mode)
        sizes = {
            "base_size": chosen.base_size,
            "image_size": chosen.image_size,
            "crop_mode": chosen.crop_mode,
        }
    else:
        if base_size is not None:
            sizes["base_size"] = base_size
        if image_size is not None:
            sizes["image_size"] = image_size
        if crop_mode is not None:
            sizes["crop_mode"] = switch("--crop-mode", crop_mode)
    if page is not None and image is not None:
        raise WorkloadError(f"give --page {page} or --image {image}, not both")
    return plan_workload(
        page=page_of_image(image) if image is not None else parse_page(page or "a4"),
        seq_len=seq_len,
        text_tokens=text_tokens,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        **sizes,
    )


def model_directory_from(
    model: str | None, config: Path | None, *, trust_remote_code: bool
) -> ModelDirectory:
    """The model directory that the options name, its config replaced where another is given."""
    from dataclasses import replace

    from dsocr_analyze.model.directory import REFERENCE_DIRECTORY, ModelDirectory, read_config
    from dsocr_analyze.model.trust import is_trusted

    if model is None and DEFAULT_MODEL.is_dir() and (DEFAULT_MODEL / "config.json").is_file():
        directory = ModelDirectory.read(DEFAULT_MODEL)
        if not (trust_remote_code or is_trusted(directory)):
            print(
                f"dsocr-analyze: {DEFAULT_MODEL} is not trusted, so the built-in reference runs;"
                f" `dsocr-analyze trust {DEFAULT_MODEL}` after reading its code",
                file=sys.stderr,
            )
            directory = ModelDirectory.read(REFERENCE_DIRECTORY)
    else:
        named = model not in (None, "reference")
        directory = ModelDirectory.read(Path(str(model)) if named else REFERENCE_DIRECTORY)
    if config is not None:
        replaced = {**read_config(config), "auto_map": directory.config.get("auto_map")}
        directory = replace(directory, config=replaced)
    return directory


def prompt_tokens(prompt: str, directory: ModelDirectory) -> int:
    """Text tokens of `prompt`, BOS included and `<image>` left out, by the model's tokenizer.

    The vendor's `infer()` splits the prompt at `<image>`, encodes each part without special tokens
    and puts BOS first.
    """
    if directory.is_reference:
        raise ModelDirectoryError(
            "--prompt needs a model directory with tokenizer.json; the built-in reference has none,"
            " give --text-tokens instead"
        )
    file = directory.path / "tokenizer.json"
    if not file.is_file():
        raise ModelDirectoryError(
            f"--prompt needs {str(file)!r}, which does not exist; give --text-tokens instead"
        )
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        # tokenizers raises a bare Exception for a file it cannot read.
        raise ModelDirectoryError(f"cannot read {str(file)!r}: {error}") from error
    return 1 + sum(
        len(tokenizer.encode(part, add_special_tokens=False).ids)
        for part in prompt.split("<image>")
    )
