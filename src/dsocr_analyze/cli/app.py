"""The `dsocr-analyze` application and its commands."""

from __future__ import annotations

import typer

from dsocr_analyze.cli import (
    advise,
    analyze,
    archive,
    calibrate,
    check,
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
from dsocr_analyze.cli.commands import Command, Commands
from dsocr_analyze.interruption import interruptible

__all__ = ["app"]

app = typer.Typer(
    name="dsocr-analyze",
    cls=Commands,
    help="What a page costs on DeepSeek-OCR: FLOPs, bytes and memory, stage by stage.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Interrupts are held back while parsing, which temporarily changes settings of the process; a
# running command may be interrupted anywhere.
app.callback(invoke_without_command=True)(interruptible()(analyze.analyze))
app.command("advise", cls=Command)(interruptible()(advise.advise))
app.command("check", cls=Command)(interruptible()(check.check))
app.command("compare", cls=Command)(interruptible()(compare.compare))
app.command("fit", cls=Command)(interruptible()(fit.fit))
app.command("time", cls=Command)(interruptible()(time.time))
app.command("calibrate", cls=Command)(interruptible()(calibrate.calibrate))
app.command("measure", cls=Command)(interruptible()(measure.measure))
app.command("infer", cls=Command)(interruptible()(infer.infer))
app.command("devices", cls=Command)(interruptible()(devices.devices))
app.command("sweep", cls=Command)(interruptible()(sweep.sweep))
app.command("archive", cls=Command)(interruptible()(archive.archive))
app.command("trust", cls=Command)(interruptible()(trust.trust))
app.command("tree", cls=Command)(interruptible()(tree.tree))
app.command("docs", cls=Command)(interruptible()(docs.docs))
