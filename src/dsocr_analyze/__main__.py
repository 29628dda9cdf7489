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


def run() -> NoReturn:
    """Runs the command line and exits with its exit code."""
    if sys.flags.optimize > 1:
        _start_with_docstrings()
    try:
        _keep_standard_descriptors()
        _let_libraries_warn()
        from dsocr_analyze import interruption

        interruption.listen()
        from dsocr_analyze import forking

        # numpy's OpenBLAS would start a thread per core, each waiting busily for products.
        os.environ.setdefault(forking.NUMPY_THREADS, forking.ONE_THREAD)
        from dsocr_analyze.cli import main
        from dsocr_analyze.cli.exits import INTERRUPTED
        from dsocr_analyze.cli.streams import drop_unwritable

        # One command, then exit: garbage collection over a million imported objects, and
        # deallocating them one by one at exit, would take a third of the run time. Commands that
        # loop enable it again (`_SHORT` in cli/commands.py), for much garbage.
        gc.disable()
        gc.set_threshold(100_000)
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


def _start_with_docstrings() -> NoReturn:
    """Without -OO: help texts and transformers need docstrings."""
    from pathlib import Path
    from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]  # private

    os.environ.pop("PYTHONOPTIMIZE", None)
    flags = [flag for flag in _args_from_interpreter_flags() if not flag.startswith("-O")]
    here = str(Path(__file__).absolute().parent.parent)
    run = f"import sys; sys.path.append({here!r}); from dsocr_analyze.__main__ import run; run()"
    os.execv(sys.executable, [sys.executable, *flags, "-P", "-c", run, *sys.argv[1:]])


def _let_libraries_warn() -> None:
    """-W error is for one's own code: no library's warning ends a command."""
    if sys.warnoptions:
        import warnings

        warnings.filters = [each for each in warnings.filters if each[0] != "error"]


def _keep_standard_descriptors() -> None:
    """Opens /dev/null for closed streams, whose numbers a file could get."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _look_elsewhere() -> None:
    """Keeps `-m` from searching the current folder, which may have a typer.py."""
    try:
        here = os.getcwd()  # noqa: PTH109  # nothing imported
    except OSError:  # it has been removed
        here = ""
    if not sys.flags.safe_path and sys.path[:1] == [here]:
        del sys.path[0]


if __name__ == "__main__":
    _look_elsewhere()
    run()
