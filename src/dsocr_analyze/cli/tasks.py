"""Common questions, and the one command that answers each; tests run them all."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["TASKS", "Task", "task_table"]


class Task(NamedTuple):
    """A question, and the command that answers it.

    Attributes:
        asked: The question in a user's words.
        command: The arguments of `dsocr-analyze`.
    """

    asked: str
    command: str


TASKS: Final = (
    Task("What does an A4 page cost?", ""),
    Task("... in Base mode, whatever case I write it in?", "--mode Base"),
    Task("... with the sizes that I run?", "--base-size 1024 --image-size 640"),
    Task("... my scan?", "--image page.png"),
    Task("... without waiting for torch?", "--engine analytic"),
    Task("Show every stage, module family and operator.", "--engine analytic --full"),
    Task("What does a batch of 16 pages cost, and one page of it?",
         "--engine analytic --batch-size 16"),
    Task("How many seconds does a page take on an A100?", "time a100-80gb-sxm"),
    Task("How many pages a second at 16 at a time, with the model's own code?",
         "time a100-80gb-sxm --runtime eager --concurrency 16"),
    Task("What does a page cost in money?", "time h100 --price 2.50"),
    Task("... with fp8 weights and an fp8 KV cache?",
         "time h100 --weights-dtype fp8 --kv-dtype fp8"),
    Task("Which GPUs are known, and how well?", "devices"),
    Task("How many pages fit into an A100 with 40 GB?", "fit a100-40gb"),
    Task("... if a tenth of it is taken?", "fit a100-40gb --reserved 0.1 --batch-size 16"),
    Task("Which mode for an A4 page scanned at 200 dpi?", "advise --page a4@200"),
    Task("... so that it is seen at 90 dpi or more?", "advise --page a4@200 --minimum-dpi 90"),
    Task("... for a newspaper page of 5,000 text tokens?",
         "advise --page a3 --kind newspaper --page-text-tokens 5000"),
    Task("Put two modes side by side.", "compare base gundam --page a4@200"),
    Task("... two configs, with the keys that differ?",
         "compare base --config config.json --config slim.json"),
    Task("... kinds of attention, and types?",
         "compare base --use-flash-attn 0,1 --dtype bfloat16,float32"),
    Task("... as a picture, stage by stage?", "compare tiny gundam --plot stages.svg"),
    Task("... DeepSeek-OCR and its relatives?",
         "compare deepseek-ocr deepseek-ocr-2 unlimited-ocr"),
    Task("What did my change of config.json do to a saved report?",
         "compare report.json gundam --config slim.json"),
    Task("Does a changed config still cost what it may cost?", "check --against report.json"),
    Task("What does a folder of scans and PDFs cost?", "archive scans"),
    Task("... by the length of its prompts, in two modes?",
         "archive scans --mode base,gundam --histogram tokens"),
    Task("How many GPU-hours are that?", "archive scans --gpu h100 --deadline 1h"),
    Task("How do cost and peak memory grow with the page?",
         "sweep --page 400:2000:400x1754 --output widths.csv"),
    Task("Which modules does the model have?", "tree --depth 3"),
    Task("What runs in each of them for my page?", "tree --mode tiny --depth 3"),
    Task("Count DeepSeek-OCR-2.", "--arch deepseek-ocr-2 --engine analytic"),
    Task("Ten pages in one prompt of Unlimited-OCR?",
         "--arch unlimited-ocr --prompt-pages 10 --mode base --engine analytic"),
    Task("Give me the numbers for a script.", "--engine analytic --json - --quiet"),
    Task("A page for a colleague, to open offline.",
         "--engine analytic --gpu h100 --html page.html"),
)  # fmt: skip
"""In the order of the documentation, whose first paragraph explains the files they name."""


def task_table() -> str:
    """The list as Markdown."""
    rows = [f"| {task.asked} | `{f'dsocr-analyze {task.command}'.strip()}` |" for task in TASKS]
    return "\n".join(["| task | command |", "| --- | --- |", *rows])
