"""Which versions of transformers the code of model directories runs on."""

from __future__ import annotations

from importlib import metadata
from typing import Final

from packaging.specifiers import SpecifierSet

from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.model.directory import ModelDirectory

__all__ = ["VENDOR_TRANSFORMERS", "require_transformers"]

_PACKAGE: Final = "transformers"

VENDOR_TRANSFORMERS: Final = SpecifierSet(">=4.46.3,<4.48")
"""What published code runs on: 4.46.3 is what it was written for, 4.48 dropped what it imports.

Of these, the extra `vendor` of the package installs the one that the vendor pins.
"""


def require_transformers(directory: ModelDirectory) -> None:
    """Raises ModelCodeError where the installed transformers cannot run the directory's code.

    The built-in reference runs on any.
    """
    installed = metadata.version(_PACKAGE)
    if directory.is_reference or VENDOR_TRANSFORMERS.contains(installed, prereleases=True):
        return
    raise ModelCodeError(
        f"transformers {installed} is installed, and the code of {str(directory.path)!r} needs"
        f" {_PACKAGE}{VENDOR_TRANSFORMERS}: it imports what other versions do not have;"
        " pip install 'dsocr-analyze[vendor]', or run the built-in reference"
    )
