"""The `dsocr-analyze` application and its commands."""

from __future__ import annotations

import typer

from dsocr_analyze.cli import (
    advise,
    analyze,
    archive,
    calibrate,
    compare,
    devices,
    docs,
    fit,
    infer,
    measure,
    sweep,
    time,
    tree,
    trust,
)
from dsocr_analyze.interruption import interruptible

__all__ = ["app"]

app = typer.Typer(
    name="dsocr-analyze",
    help="What a page costs on DeepSeek-OCR: FLOPs, bytes and memory, stage by stage.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# What parses is held, since it changes settings of the process on its way; what a command does then
# may be interrupted anywhere.
app.callback(invoke_without_command=True)(interruptible()(analyze.analyze))
app.command("advise")(interruptible()(advise.advise))
app.command("compare")(interruptible()(compare.compare))
app.command("fit")(interruptible()(fit.fit))
app.command("time")(interruptible()(time.time))
app.command("calibrate")(interruptible()(calibrate.calibrate))
app.command("measure")(interruptible()(measure.measure))
app.command("infer")(interruptible()(infer.infer))
app.command("devices")(interruptible()(devices.devices))
app.command("sweep")(interruptible()(sweep.sweep))
app.command("archive")(interruptible()(archive.archive))
app.command("trust")(interruptible()(trust.trust))
app.command("tree")(interruptible()(tree.tree))
app.command("docs")(interruptible()(docs.docs))
