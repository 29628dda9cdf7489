"""Files of another revision, read from a git repository that isn't trusted.

Only plumbing reads objects: nothing is checked out or fetched, no setting runs, and no link,
submodule or replaced object is followed.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple, Self

from dsocr_analyze.errors import BaselineError

_SAFE: Final = (
    "--no-pager", "--no-replace-objects", "--literal-pathspecs", "--no-optional-locks",
    "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never",
    "-c", "core.attributesFile=/dev/null", "-c", "safe.bareRepository=explicit",
)  # fmt: skip

_LARGEST_FILE: Final = 16 * 2**20
_MOST_FILES: Final = 5_000

_LISTED: Final = re.compile(r"(?P<mode>\d+) \w+ (?P<name>\w+) +(?P<size>\S+)\t(?P<path>[^\0]+)\0")
"""A file as `git ls-tree -l -z` lists it; it has no size if it is not in this clone."""


class Revision(NamedTuple):
    """One commit of a repository, its work tree and its given name."""

    root: Path
    name: str
    commit: str

    @classmethod
    def named(cls, name: str, folder: Path) -> Self:
        """The revision with that name of a folder's repository, or BaselineError."""
        shown = _git(folder, "rev-parse", "--show-toplevel").decode("utf-8", "surrogateescape")
        root = Path(shown.removesuffix("\n")).resolve()
        if not folder.resolve().is_relative_to(root):
            raise BaselineError(
                f"{str(folder)!r} is outside the work tree of its repository, {str(root)!r}"
            )
        if name.startswith("-") or not name or not name.isprintable():
            raise BaselineError(
                f"{name!r} is not a revision; give a commit, a branch or a tag, or the file of a"
                " saved report"
            )
        try:
            commit = _git(
                root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
            )
        except BaselineError as error:
            raise BaselineError(
                f"{name!r} is not a revision of {str(root)!r} (a shallow clone has only the"
                " last one); give a commit, a branch or a tag, or the file of a saved report"
            ) from error
        return cls(root, name, commit.decode("ascii").strip())

    def has(self, path: str) -> bool:
        """Whether there is a file or folder."""
        return bool(self._entries(path))

    def text(self, path: str) -> str | None:
        """A file's text, None if absent; BaselineError if it is not text."""
        if (entry := self._entries(path).get(path)) is None:
            return None
        try:
            return self._content(entry).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BaselineError(f"{self._called(path)} is not UTF-8 text") from error

    def copy(self, path: str, into: Path) -> None:
        """Copies a file, or a folder's config and Python files, below `into`; or BaselineError."""
        copied = {
            name: entry
            for name, entry in self._entries(path).items()
            if name == path or _is_of_model(name, path)
        }
        if len(copied) > _MOST_FILES:
            raise BaselineError(
                f"{self._called(path)} has {len(copied)} Python files; a model directory has at"
                f" most {_MOST_FILES}"
            )
        for name, entry in copied.items():
            parts = PurePosixPath(name).parts
            if ".." in parts or name.startswith("/") or "\\" in name:
                raise BaselineError(f"{self._called(name)} is not a valid file name")
            target = into.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self._content(entry))

    def _called(self, path: str) -> str:
        return f"{path!r} in {self.name}"

    def _entries(self, path: str) -> dict[str, re.Match[str]]:
        asked = ("-r", "-z", "-l", "--full-tree", "--", self.commit, *([path] * (path != ".")))
        listed = _git(self.root, "ls-tree", *asked).decode("utf-8", "surrogateescape")
        return {each["path"]: each for each in _LISTED.finditer(listed)}

    def _content(self, entry: re.Match[str]) -> bytes:
        mode, size, called = entry["mode"], entry["size"], self._called(entry["path"])
        if mode not in ("100644", "100755", "100664"):
            kinds = {"120000": "a symbolic link", "160000": "a submodule"}
            raise BaselineError(
                f"{called} is {kinds.get(mode, f'of mode {mode}')}, which is not followed;"
                " commit the file itself"
            )
        if not size.isdecimal():
            raise BaselineError(
                f"{called} is not in this clone, and nothing is fetched; fetch it first"
            )
        if int(size) > _LARGEST_FILE:
            raise BaselineError(
                f"{called} has {size} bytes; configs and code have at most {_LARGEST_FILE}"
            )
        return _git(self.root, "cat-file", "blob", entry["name"])


def _is_of_model(file: str, folder: str) -> bool:
    """Whether `ModelDirectory` would read this file."""
    path = PurePosixPath(file)
    below = path if folder == "." else path.relative_to(folder)
    is_hidden = any(part.startswith(".") for part in below.parts)
    return not is_hidden and (str(below) == "config.json" or path.suffix == ".py")


def _git(folder: Path, *arguments: str) -> bytes:
    """A git command's output; BaselineError with its message."""
    if (program := shutil.which("git")) is None:
        raise BaselineError("git is not installed; give the file of a saved report")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_")
        or name.startswith(("GIT_CONFIG", "GIT_CEILING_DIRECTORIES"))  # which name no repository
    } | {
        "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "none",
        "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C",
    }  # fmt: skip
    try:
        done = subprocess.run(
            [program, *_SAFE, *arguments], cwd=folder, env=environment, capture_output=True,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise BaselineError(f"cannot run git in {str(folder)!r}: {error}") from error
    if done.returncode:
        raise BaselineError(
            f"git {arguments[0]} failed in {str(folder)!r}:"
            f" {done.stderr.decode('utf-8', 'replace').strip() or 'no reason given'}"
        )
    return done.stdout
