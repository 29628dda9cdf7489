"""What a piece of code does beyond reading installed files, seen by the interpreter itself."""

import contextlib
import os
import sys
import sysconfig
import threading
from pathlib import Path

import torch
import transformers

import dsocr_analyze

_INSTALLED = tuple({
    os.path.realpath(folder)
    for folder in (
        sysconfig.get_path("stdlib"),
        Path(torch.__file__).parents[1],
        Path(transformers.__file__).parents[1],
        Path(dsocr_analyze.__file__).parent,
        Path(__file__).parent,
    )
})  # fmt: skip
_ACTS = (
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto",
    "builtins.input", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "ctypes.dlopen",
)  # fmt: skip
OUTPUT = "out"
"""Folder of reports, the only one to write into."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class _Watch:
    """What the running code does beyond reading installed files, seen by the interpreter itself."""

    def __init__(self) -> None:
        self._planted: str | None = None
        self._thread = 0
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def over(self, planted: Path):
        """Watches this thread; files in a folder must not even be read."""
        self.seen = []
        self._planted, self._thread = os.path.realpath(planted), threading.get_ident()
        try:
            yield self.seen
        finally:
            self._planted = None

    def _hook(self, event: str, args: tuple) -> None:
        if self._planted is None or threading.get_ident() != self._thread:
            return
        if event in _ACTS or self._is_foreign(event, args) or self._is_file(event, args):
            self.seen.append(f"{event} {str(args)[:300]}")

    def _is_foreign(self, event: str, args: tuple) -> bool:
        if event == "exec":
            file = getattr(args[0], "co_filename", "")
        elif event in ("compile", "import"):
            file = args[1]
        else:
            return False
        if not isinstance(file, str | bytes) or os.fsdecode(file)[:1] in ("", "<"):
            return False
        return not os.path.realpath(os.fsdecode(file)).startswith(_INSTALLED)

    def _is_file(self, event: str, args: tuple) -> bool:
        if event not in ("open", "os.mkdir", "os.rename", "shutil.copyfile", "os.symlink"):
            return False
        if not isinstance(args[0], str | bytes | os.PathLike):
            return False
        file = os.path.realpath(os.fsdecode(args[0]))
        if file.startswith(f"{self._planted}/"):
            return True
        is_written = event != "open" or bool(args[2] & _WRITES)
        is_expected = file.startswith(("/dev/", os.path.realpath(OUTPUT)))
        return is_written and "__pycache__" not in file and not is_expected


WATCH = _Watch()
