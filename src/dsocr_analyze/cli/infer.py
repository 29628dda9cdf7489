"""`dsocr-analyze infer`: the vendor's `infer()` on one image, and the cost of its passes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from dsocr_analyze import analysis
from dsocr_analyze.cli import (
    completion,
    kept_files,
    options,
    page_options,
    printing,
    streams,
)
from dsocr_analyze.cli.words import warn, warn_of_sizes
from dsocr_analyze.errors import ModelDirectoryError
from dsocr_analyze.input_files import is_regular
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.output_files import write_files

__all__ = ["infer"]

DEFAULT_OUTPUT = Path("tmp/dsocr-infer-one")
DEFAULT_PROMPT = "<image>\n<|grounding|>Convert the document to markdown."
TRIAL_TOKENS = 16
_FILES: Final = {"infer_one.json": "json", "infer_one.md": "markdown", "result.txt": "text"}
"""The format of every file."""

ImageOption = Annotated[
    Path,
    typer.Option("--image", "--input", "-i", metavar="FILE", help="The image of the page."),
]
OutputOption = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for infer_one.json, infer_one.md, the text (result.txt) and the folders that"
        " infer() creates.",
    ),
]
PromptOption = Annotated[
    str,
    typer.Option(
        "--prompt", metavar="TEXT", help="The prompt, with <image> where the page belongs."
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="cpu|cuda:N",
        help="Device to run on. Default: the first CUDA GPU, else the CPU.",
    ),
]
RandomWeightsOption = Annotated[
    bool,
    typer.Option(
        "--random-weights",
        help="A trial without a checkpoint: weights are random, and if the directory has no"
        " tokenizer.json, a stand-in is used. The text means nothing.",
    ),
]
TokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens",
        metavar="TOKENS",
        help="Most tokens to generate. Default: infer()'s own limit, or"
        f" {TRIAL_TOKENS} with --random-weights.",
    ),
]
SaveOption = Annotated[
    int,
    typer.Option(
        "--save-results",
        metavar="0|1",
        autocompletion=completion.one_of("0", "1"),
        help="1: infer() also writes its own results (result.mmd, pictures with boxes); for a"
        " chart, it evaluates the text as Python.",
    ),
]
FormatOption = Annotated[
    str,
    options.format_option(
        "table",
        "markdown",
        "json",
        "text",
        says="What is printed; text: only the text that was read.",
    ),
]


def infer(
    context: typer.Context,
    image: ImageOption,
    output: OutputOption = DEFAULT_OUTPUT,
    model: str | None = None,
    arch: str | None = None,
    trust_remote_code: bool = False,
    random_weights: RandomWeightsOption = False,
    device: DeviceOption = None,
    use_flash_attn: int = 0,
    mode: str | None = None,
    base_size: int | None = None,
    image_size: int | None = None,
    crop_mode: int | None = None,
    prompt: PromptOption = DEFAULT_PROMPT,
    max_new_tokens: TokensOption = None,
    profile: kept_files.ProfileOption = None,
    save_results: SaveOption = 0,
    output_format: FormatOption = "table",
    strict: bool = False,
    debug: bool = False,
) -> None:
    """Read one image with the vendor's own code: its cost, counted, predicted and measured.

    Its infer() is called twice: briefly, for the memory of its prefill pass, and then timed.
    """
    if max_new_tokens is None and random_weights:
        max_new_tokens = TRIAL_TOKENS
    directory = page_options.model_directory_from(
        model, arch, None, trust_remote_code=trust_remote_code
    )
    # Fail on impossible requests before anything is loaded.
    planned = page_options.workload_of(
        context, directory, max_new_tokens=1 if max_new_tokens is None else max_new_tokens,
        prompt=None,
    )  # fmt: skip
    warn_of_sizes(context, directory, planned)
    flash_attention = options.switch("--use-flash-attn", use_flash_attn)
    saves = options.switch("--save-results", save_results)
    _check_files(directory, random_weights=random_weights)
    options.prepare_output(output, DEFAULT_OUTPUT)
    with streams.announced_steps(in_lines=True) as announce:
        announce("importing torch, building the model")
        analysis.start_torch()
        from dsocr_analyze.cli import device_runs
        from dsocr_analyze.measuring.inference import Question, check_image

        check_image(image)
        question = Question(
            image, prompt, planned.base_size, planned.image_size, planned.crop_mode, output, saves,
            max_new_tokens,
        )  # fmt: skip
        report = device_runs.inferred(
            directory, question, planned, device=device, flash_attention=flash_attention,
            random_weights=random_weights, trust_remote_code=trust_remote_code, profiles=profile,
            announce=announce, options=options.options_used(context),
        )  # fmt: skip
    from dsocr_analyze.report import measured, opening

    context.obj.begin_writing()
    markdown = measured.inference_markdown(report)
    texts = {"json": opening.dump_json(report), "markdown": markdown, "text": report.text + "\n"}
    written = write_files({output / name: texts[each] for name, each in _FILES.items()})
    warn(context, report.differences)
    if output_format in texts:
        sys.stdout.write(texts[output_format])
    else:
        printing.show("table", report, lambda: device_runs.inference_said(report, written))


def _check_files(directory: ModelDirectory, *, random_weights: bool) -> None:
    """Raise for a directory that cannot run `infer()`, before its code is imported.

    Raises:
        ModelDirectoryError: It is the reference, or weights or the tokenizer are missing.
    """
    if directory.is_reference:
        raise ModelDirectoryError(
            "the built-in reference has no infer(); give the vendor's own directory, such"
            " as --model models/deepseek-ocr (models/README.md says where it comes from)"
        )
    if random_weights:
        return
    if not directory.weight_files():
        raise ModelDirectoryError(
            f"{str(directory.path)!r} has no weights (*.safetensors); models/README.md says where"
            " they come from, and --random-weights runs a trial without any"
        )
    if not is_regular(directory.tokenizer_file):
        raise ModelDirectoryError(
            f"infer() needs {str(directory.tokenizer_file)!r}, which does not exist;"
            " models/README.md says where it comes from, and --random-weights runs a trial with a"
            " stand-in"
        )
