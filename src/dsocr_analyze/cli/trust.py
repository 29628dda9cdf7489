"""Recording that somebody agreed to execute a model directory's Python files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["trust"]


def trust(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The model directory.")],
) -> None:
    """Record a model directory's Python files as trusted, by their SHA-256.

    Read them first: analysing the directory executes them. A changed file ends the trust.
    """
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.model.trust import record_trust, trust_store

    digests = record_trust(ModelDirectory.read(directory))
    for name, digest in digests.items():
        print(f"{digest}  {name}")
    print(f"trusted: {len(digests)} Python files of {directory}, recorded in {trust_store()}")
