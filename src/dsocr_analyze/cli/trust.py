"""Records that the user agreed to execute a model directory's Python files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsocr_analyze.escaping import visible

__all__ = ["trust"]


def trust(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The model directory.")],
    debug: bool = False,
) -> None:
    """Record a model directory's Python files as trusted, by their SHA-256.

    Read them first: analysing the directory executes them. Changing a file revokes the trust.
    """
    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.model.trust import record_trust, trust_store

    model = ModelDirectory.read(directory)
    context.obj.begin_writing()
    digests = record_trust(model)
    for name, digest in digests.items():
        print(f"{digest}  {visible(name)}")
    where = visible(f"{directory}, recorded in {trust_store()}")
    print(f"trusted: {len(digests)} Python files of {where}")
