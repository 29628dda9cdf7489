"""The user's own device profiles: of their config folder, and of `--profile`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from dsocr_analyze.own_folder import own_folder

__all__ = ["PROFILES", "ProfileOption", "user_profiles"]

PROFILES: Final = "devices"
"""The folder of profiles in the user's config folder, read by every command."""

ProfileOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="A device profile of your own (TOML), added to the shipped ones and to those in"
        " $XDG_CONFIG_HOME/dsocr-analyze/devices. May be given several times.",
    ),
]


def user_profiles(given: Sequence[Path] | None) -> list[Path]:
    """Profiles in the user's config folder in order of name, then those given."""
    folder = own_folder()
    kept = [] if folder is None else sorted((folder / PROFILES).glob("*.toml"))
    return [*kept, *(given or ())]
