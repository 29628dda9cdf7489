"""Which versions of transformers model code can run on: what `pyproject.toml` asks for, no more."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement

from dsocr_analyze.errors import ModelCodeError

__all__ = ["require_transformers", "supported_transformers"]

_PACKAGE = "transformers"


def supported_transformers() -> str:
    """The versions that work, as in the package's requirements: '<4.48,>=4.46.3'."""
    for line in metadata.requires("dsocr-analyze") or ():
        requirement = Requirement(line)
        if requirement.name == _PACKAGE:
            return str(requirement.specifier)
    raise AssertionError("dsocr-analyze requires transformers")


def require_transformers() -> None:
    """Raises ModelCodeError where the installed transformers cannot run the vendor's code."""
    installed, supported = metadata.version(_PACKAGE), supported_transformers()
    if not Requirement(f"{_PACKAGE}{supported}").specifier.contains(installed):
        raise ModelCodeError(
            f"transformers {installed} is installed; model directories need transformers"
            f"{supported}, because published model code imports what later versions dropped:"
            " pip install transformers==4.46.3, or run the built-in reference"
        )
