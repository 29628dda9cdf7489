"""The `dsocr-analyze` application and its commands."""

from __future__ import annotations

import typer

from dsocr_analyze.cli import (
    analyze,
    archive,
    compare,
    devices,
    docs,
    fit,
    sweep,
    time,
    tree,
    trust,
)

__all__ = ["app"]

app = typer.Typer(
    name="dsocr-analyze",
    help="What a page costs on DeepSeek-OCR: FLOPs, bytes and memory, stage by stage.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(invoke_without_command=True)(analyze.analyze)
app.command("compare")(compare.compare)
app.command("fit")(fit.fit)
app.command("time")(time.time)
app.command("devices")(devices.devices)
app.command("sweep")(sweep.sweep)
app.command("archive")(archive.archive)
app.command("trust")(trust.trust)
app.command("tree")(tree.tree)
app.command("docs")(docs.docs)
