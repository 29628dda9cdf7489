"""Imports a model directory's Python files as a package, from the bytes that were hashed.

Nothing is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dsocr_analyze.forking import undone
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.failures import blamed_on
from dsocr_analyze.model.process_settings import exclusive, quiet_transformers
from dsocr_analyze.model.unused_imports import missing_packages_stood_in

__all__ = ["REMOTE_PACKAGE", "import_file", "importable"]

REMOTE_PACKAGE: Final = "dsocr_analyze_remote"
"""The package in which the files of every model directory are imported."""


@contextlib.contextmanager
def importable(directory: ModelDirectory) -> Iterator[str]:
    """Yields the package in which a directory's files can be imported meanwhile."""
    identity = f"{directory.path.resolve()}\n{directory.code_digest()}"
    digest = hashlib.sha256(identity.encode()).hexdigest()
    package = f"{REMOTE_PACKAGE}.m_{digest[:16]}"
    finder = _SourceFinder(package, directory)

    def forget() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    with exclusive(), undone(forget), contextlib.ExitStack() as stack:
        sys.meta_path.insert(0, finder)
        if not directory.is_reference:  # which imports no package that may be missing
            stack.enter_context(missing_packages_stood_in())
        stack.enter_context(quiet_transformers())
        yield package


def import_file(directory: ModelDirectory, package: str, file: str) -> types.ModuleType:
    """Imports one of the files into the package that `importable` yielded.

    If it raises, all of the package's modules are removed, and that is a ModelCodeError.
    """
    name = f"{package}.{file.removesuffix('.py').replace('/', '.')}"
    try:
        with blamed_on(directory, "could not be imported"):
            return importlib.import_module(name)
    except BaseException:
        for loaded in [loaded for loaded in sys.modules if loaded.startswith(package)]:
            del sys.modules[loaded]
        raise


@dataclass(eq=False)
class _SourceFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports a directory's Python files as a private package."""

    package: str
    directory: ModelDirectory

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in (REMOTE_PACKAGE, self.package):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        file = self._file_of(fullname)
        if file is None:
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname,
            self,
            origin=str(self.directory.path / file),
            is_package=file.endswith("__init__.py"),
        )
        spec.has_location = True
        return spec

    def _file_of(self, fullname: str) -> str | None:
        """The file of a module; None for the packages around the files."""
        if not fullname.startswith(f"{self.package}."):
            return None
        stem = fullname.removeprefix(f"{self.package}.").replace(".", "/")
        files = (f"{stem}.py", f"{stem}/__init__.py")
        return next(filter(self.directory.sources.__contains__, files), None)

    def is_package(self, fullname: str) -> bool:
        file = self._file_of(fullname)
        return file is None or file.endswith("__init__.py")

    def get_source(self, fullname: str) -> str | None:
        file = self._file_of(fullname)
        return None if file is None else importlib.util.decode_source(self.directory.sources[file])

    def get_code(self, fullname: str) -> types.CodeType:
        file = self._file_of(fullname)
        source = b"" if file is None else self.directory.sources[file]
        return compile(source, str(self.directory.path / (file or "")), "exec", dont_inherit=True)
