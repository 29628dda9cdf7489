"""The folder of a user's own things: what they trust, profiles, benchmarks."""

from __future__ import annotations

import os
from pathlib import Path

from dsocr_analyze.errors import OwnFolderError

__all__ = ["own_folder", "own_folder_to_write"]


def own_folder() -> Path | None:
    """`$XDG_CONFIG_HOME/dsocr-analyze` or `~/.config/dsocr-analyze`; None where there is no home.

    Raises:
        OwnFolderError: The variable, or the one of the home, holds no absolute path.
    """
    variable, named = "XDG_CONFIG_HOME", os.environ.get("XDG_CONFIG_HOME")
    folder = Path(named or "")
    if not named:
        if os.environ.get("HOME") == "":  # Python would take the root folder for a home
            return None
        try:
            variable, folder = "HOME", Path.home()
        except RuntimeError:  # neither $HOME nor an entry for the user, as in many containers
            return None
    if not folder.is_absolute():
        raise OwnFolderError(
            f"{variable} is {str(folder)!r}, which depends on where a command runs; give an"
            " absolute path, or unset it"
        )
    return folder / ("dsocr-analyze" if named else ".config/dsocr-analyze")


def own_folder_to_write() -> Path:
    """The same to keep things in; raises OwnFolderError if there is no place."""
    folder = own_folder()
    if folder is None:
        raise OwnFolderError(
            "there is no home directory to keep anything in; set HOME, or XDG_CONFIG_HOME to an"
            " absolute path"
        )
    return folder
