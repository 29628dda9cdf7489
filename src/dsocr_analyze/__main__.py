"""The process: `dsocr-analyze` and `python -m dsocr_analyze`.

Imports nothing before an interruption can be answered.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["run"]


def run() -> NoReturn:
    """Runs the command line of this process and exits with its code."""
    try:
        _keep_standard_descriptors()
        from dsocr_analyze import interruption

        interruption.listen()
        from dsocr_analyze.cli import main
        from dsocr_analyze.cli.exits import INTERRUPTED
        from dsocr_analyze.cli.streams import drop_unwritable

        # One command, then exit: looking for cycles among a million imported objects, and taking
        # them apart one by one at the end, would cost a third of the whole process.
        gc.disable()
        code = main()
        interruption.ignore()
        drop_unwritable()
    except KeyboardInterrupt as interrupted:  # among these imports, or while an error is described
        os._exit(143 if type(interrupted).__name__ == "Terminated" else 130)
    if code == INTERRUPTED:
        # Python would kill itself by the signal if Ctrl-C ever passed through an `exec`, as the
        # imports of named tuples and data classes have it, although it was handled.
        os._exit(code)
    gc.freeze()
    sys.exit(code)


def _keep_standard_descriptors() -> None:
    """Fills those that are closed, or a file opened later would be what libraries print into."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _look_elsewhere() -> None:
    """Leaves out the current folder, where Python looks first under -m.

    It may be a model's, with a typer.py of its own.
    """
    try:
        here = os.getcwd()  # noqa: PTH109  # nothing imported
    except OSError:  # it has been removed
        here = ""
    if not sys.flags.safe_path and sys.path[:1] == [here]:
        del sys.path[0]


if __name__ == "__main__":
    _look_elsewhere()
    run()
