"""The `dsocr-analyze` application and its commands."""

from __future__ import annotations

import typer

from dsocr_analyze.cli.analyze import analyze
from dsocr_analyze.cli.commands import Commands
from dsocr_analyze.cli.options import declared
from dsocr_analyze.interruption import interruptible

__all__ = ["app"]

app = typer.Typer(
    name="dsocr-analyze",
    cls=Commands,
    help="What a page costs on DeepSeek-OCR: FLOPs, bytes and memory, stage by stage.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(invoke_without_command=True)(interruptible()(declared(analyze)))
