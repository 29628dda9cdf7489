"""The entry point of `dsocr-analyze` and `python -m dsocr_analyze`.

Imports nothing else until interruptions are handled.
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
    """Runs the command line and exits with its exit code."""
    try:
        from dsocr_analyze import interruption

        interruption.listen()
        from dsocr_analyze.cli import main
        from dsocr_analyze.cli.exits import INTERRUPTED
        from dsocr_analyze.cli.streams import drop_unwritable

        # One command, then exit: garbage collection over a million imported objects, and
        # deallocating them one by one at exit, would take a third of the run time.
        gc.disable()
        code = main()
        interruption.ignore()
        drop_unwritable()
    except KeyboardInterrupt as interrupted:  # during these imports, or while an error is reported
        os._exit(143 if type(interrupted).__name__ == "Terminated" else 130)
    if code == INTERRUPTED:
        # Once Ctrl-C has passed through an `exec` (importing named tuples and data classes runs
        # one), Python kills itself with SIGINT at exit, even though it was handled.
        os._exit(code)
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    # Under -m, Python searches the current folder first for every module, and that may be a
    # model directory with a typer.py of its own.
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109  # nothing imported
        del sys.path[0]
    run()
