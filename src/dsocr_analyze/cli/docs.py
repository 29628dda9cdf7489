"""`dsocr-analyze docs`: the computed parts of the documentation, and two of them."""

from pathlib import Path
from typing import Annotated, Final

import typer

from dsocr_analyze import analysis, architectures, forking, output_files
from dsocr_analyze.architectures.architecture import Architecture
from dsocr_analyze.cli import (
    commands,
    exits,
    help_text,
    options,
    page_options,
    printing,
    streams,
    words,
)
from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.extras import require_trace
from dsocr_analyze.model.directory import ModelDirectory


def docs(
    context: typer.Context,
    output: Annotated[
        Path | None,
        options.option(
            "DIR", "Folder to write all pages into. Default: the checkout's own, in place.",
            group=help_text.OUTPUT,
        ),
    ] = None,
    check: Annotated[
        bool,
        options.option(
            None, "Write nothing; name every computed part that is stale, and exit with 1.",
            "--check",
        ),
    ] = False,
    arch: str | None = None,
    config: Path | None = None,
    debug: bool = False,
) -> None:  # fmt: skip
    """Compute the figures, formulas and tables of the documentation.

    The pages are Markdown that people edit; computed parts, between invisible markers, are filled
    in place. With --output, all pages go into a folder, with --arch or --config for one model.
    """
    if output is None and (arch is not None or config is not None):
        raise WorkloadError("pages for another model need a folder: give --output DIR")
    if output is not None and check:
        raise WorkloadError(f"--check is of the pages in place; leave out --output {output}")
    require_trace()
    architecture = values = None  # all of them, and the published config
    if arch is not None or config is not None:
        directory = page_options.model_directory_from(
            "reference", arch, config, trust_remote_code=False
        )
        if config is not None:
            words.print_config_findings(context, directory, by_closed_forms=True)
            values = directory.config
        architecture = _documented(directory)
    for folder in () if output is None else (output, output / "modules"):
        output_files.prepare_directory(folder)
    with (
        forking.other_process(analysis.start_torch) as process,
        streams.announced_steps(is_quiet=context.params["quiet"]) as announce,
    ):
        announce("computing the figures of all pages")
        # While the other process imports torch.
        from dsocr_analyze.documents import library, markdown

        sources = markdown.Sources()
        if output is None and sources.folder == markdown.DATA:
            raise WorkloadError(
                "this is no checkout, whose pages could be filled in place; give a folder"
            )
        names = {"commands": command_reference, "tasks": task_table}
        pages = library.filled_documents(
            library.Library(sources, architecture, values, names), process, analysis.start_torch
        )
    stale = {path: page for path, page in pages.items() if page.changed}
    if check:
        for path, page in stale.items():
            printing.say(context, *(f"{path}: {marker} is stale" for marker in page.changed))
        printing.say(context, f"{len(stale)} of {len(pages)} pages are stale")
        raise typer.Exit(exits.NO if stale else 0)
    written = stale if output is None else pages
    context.obj.begin_writing()
    output_files.write_files(
        {(output or sources.folder) / path: page.text for path, page in written.items()}
    )
    printing.say(context, f"wrote {len(written)} of {len(pages)} pages")


def _documented(directory: ModelDirectory) -> Architecture:
    """The directory's architecture; WorkloadError for one whose modules have no pages."""
    known = directory.architecture
    if known.is_of_transformers:
        raise WorkloadError(
            f"--arch {known.name} has no pages: its modules are transformers' own; give"
            f" {', '.join(architectures.RELATIVES)}"
        )
    return known


# --- the command reference -----------------------------------------------------------------------

_WIDTH = 100


def command_reference() -> str:
    """Markdown with the exit codes and the help of every command."""
    application = commands.application
    codes = (f"| {code} | {meaning} |" for code, meaning in sorted(exits.MEANINGS.items()))
    parts = ["\n".join(["| exit code | meaning |", "| --- | --- |", *codes])]
    root = None
    for name, command in [("dsocr-analyze", application), *application.commands.items()]:
        context = command.make_context(
            name, [], root, resilient_parsing=True, terminal_width=_WIDTH, max_content_width=_WIDTH
        )
        root = root or context  # the names of a command's options depend on it
        text = "\n".join(line.rstrip() for line in help_text.all_help(context).splitlines())
        parts += [f"## {context.command_path}", f"```text\n{text.strip()}\n```"]
    return "\n\n".join(parts)


# --- tasks ----------------------------------------------------------------------------------------


TASKS: Final = {
    "What does an A4 page cost?": "",
    "... in Base mode, whatever case I write it in?": "--mode Base",
    "... with the sizes that I run?": "--base-size 1024 --image-size 640",
    "... my scan?": "--image page.png",
    "... without waiting for torch?": "--engine analytic",
    "Show every stage, module family and operator.": "--engine analytic --full",
    "What does a batch of 16 pages cost, and one page of it?": "--engine analytic --batch-size 16",
    "Does it fit my card?": "fit rtx-4090",
    "... a T4, which has no bfloat16?": "fit t4 --dtype float16",
    "... an AMD card?": "fit mi300x",
    "... any card of 12 GB?": "fit --memory-gb 12",
    "How many pages does vLLM run on an RTX 3060, with how many KV tokens?":
        "fit rtx-3060 --server vllm",
    "How many pages fit into an A100 with 40 GB?": "fit a100-40gb",
    "... if a tenth of it is taken?": "fit a100-40gb --reserved 0.1 --batch-size 16",
    "How many of the known GPUs hold a page?": "fit",
    "How many seconds does a page take on an A100?": "time a100-80gb-sxm",
    "Why is it so slow while the GPU is mostly idle?": "time h100 --runtime eager",
    "How many pages a second at 16 at a time, with the model's own code?":
        "time a100-80gb-sxm --runtime eager --concurrency 16",
    "How many pages at once are worth it?": "time h100 --concurrency knee",
    "... and how many fit, at what rate?": "time h100 --concurrency max",
    "Does the CPU that prepares the pages slow it down?":
        "time h100 --concurrency 64 --workers 1",
    "How much money does a page cost?": "time h100 --price 2.50",
    "... with fp8 weights and an fp8 KV cache?": "time h100 --weights-dtype fp8 --kv-dtype fp8",
    "... with weights of 4 bits?": "time l40s --weights-dtype int4",
    "How many seconds under SGLang, in mode base?": "time h100 --server sglang --mode base",
    "What if 9 % of the pages repeat themselves up to the limit?":
        "time h100 --max-new-tokens 8192 --mean-new-tokens 800 --share-at-limit 0.09",
    "How many seconds with the lengths of my own outputs?":
        "time h100 --new-tokens-from lengths.csv",
    "How many GPUs for 2 million pages in 24 hours, and how much money?":
        "plan --pages 2M --deadline 24h --price 2.5 --gpu h100",
    "... on the GPU that takes the fewest hours?": "plan --pages 2M --deadline 24h --price 2.5",
    "... or the cheapest per page, if each GPU has its own price?":
        "plan --pages 2M --deadline 24h --price h100:2.5,l40s:0.8",
    "... if the first token must come within 2 seconds?":
        "plan --pages 2M --deadline 24h --first-token 2s --gpu h100,l40s",
    "... for a mix of pages?":
        "plan --pages 500k --deadline 3d --mix a4@200:0.8,a3@300:0.2 --gpu l40s",
    "... for pages like those in my folder?": "plan scans --pages 500k --deadline 3d --gpu l40s",
    "Which GPUs are known, and how well?": "devices",
    "Which mode for an A4 page scanned at 200 dpi?": "advise --page a4@200",
    "... so that it is seen at 90 dpi or more?": "advise --page a4@200 --minimum-dpi 90",
    "... for a newspaper page of 5,000 text tokens?":
        "advise --page a3 --kind newspaper --page-text-tokens 5000",
    "... for financial reports, on my GPU?":
        "advise --page a4@200 --kind financial-report --gpu h100 --price 2.5",
    "Which model?": "compare --all --gpu h100 --price 2.5",
    "Put two modes side by side.": "compare base gundam --page a4@200",
    "... two configs, with the keys that differ?":
        "compare base --config config.json --config slim.json",
    "... kinds of attention, and types?":
        "compare base --use-flash-attn 0,1 --dtype bfloat16,float32",
    "... as a picture, stage by stage?": "compare tiny gundam --plot stages.svg",
    "... DeepSeek-OCR and its relatives?": "compare deepseek-ocr deepseek-ocr-2 unlimited-ocr",
    "What did my change of config.json do to a saved report?":
        "compare report.json gundam --config slim.json",
    "Does a changed config still cost what it may cost?": "check --against report.json",
    "What does a folder of scans and PDFs cost?": "archive scans",
    "... by the length of its prompts, in two modes?":
        "archive scans --mode base,gundam --histogram tokens",
    "How many GPU-hours are that?": "archive scans --gpu h100 --deadline 1h",
    "How do cost and peak memory grow with the page?":
        "sweep --page 400:2000:400x1754 --output widths.csv",
    "Which modules does the model have?": "tree --depth 3",
    "What runs in each of them for my page?": "tree --mode tiny --depth 3",
    "Count DeepSeek-OCR-2.": "--arch deepseek-ocr-2 --engine analytic",
    "Count Qwen3-VL.": "--arch qwen3-vl --engine analytic",
    "Ten pages of a long document in one prompt of Unlimited-OCR?":
        "--arch unlimited-ocr --prompt-pages 10 --mode base --engine analytic",
    "... in how many seconds?": "time h100 --arch unlimited-ocr --prompt-pages 10 --mode base",
    "Draw pages per second over pages at once.": "time h100 --plot load.svg",
    "Draw what bounds each stage.": "time h100 --plot roofline.svg --quantity roofline",
    "Give me the numbers for a script.": "--engine analytic --json - --quiet",
    "... the seconds?": "time h100 --format json",
    "A page for a colleague, to open offline.": "--engine analytic --gpu h100 --html page.html",
}  # fmt: skip
"""Questions in a user's words, and the arguments that answer them, in the documents' order."""


def task_table() -> str:
    """The list as Markdown."""
    rows = [f"| {asked} | `{f'dsocr-analyze {line}'.strip()}` |" for asked, line in TASKS.items()]
    return "\n".join(["| task | command |", "| --- | --- |", *rows])
