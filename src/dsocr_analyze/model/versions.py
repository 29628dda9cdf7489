"""The versions of transformers that the code of model directories runs on."""

from __future__ import annotations

from importlib import metadata
from typing import Final

from packaging.specifiers import SpecifierSet

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.directory import ModelDirectory

__all__ = ["VENDOR_TRANSFORMERS", "require_transformers"]

_PACKAGE: Final = "transformers"

VENDOR_TRANSFORMERS: Final = SpecifierSet(">=4.46.3,<4.48")
"""Versions for published code: it was written for 4.46.3, and 4.48 dropped what it imports.

The package's extra `vendor` installs the one that the vendor pins.
"""


def require_transformers(directory: ModelDirectory) -> None:
    """Raise ModelCodeError if the installed transformers cannot run the directory's code.

    The built-in reference runs on any version.
    """
    installed = metadata.version(_PACKAGE)
    if directory.is_reference or VENDOR_TRANSFORMERS.contains(installed, prereleases=True):
        return
    raise ModelCodeError(
        f"transformers {installed} is installed, but the code of {str(directory.path)!r} needs"
        f" {_PACKAGE}{VENDOR_TRANSFORMERS}: other versions lack what it imports;"
        " pip install 'dsocr-analyze[vendor]', or run the built-in reference"
    )
