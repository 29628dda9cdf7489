"""Posts the Markdown of a check to the pull request that it is of; the standard library only.

Everything in the artifact was written by the pull request's own workflow, and may be anything: it
is read in memory, bounded, and never executed. Which pull request it is of is taken from the event
and asked of GitHub. `dsocr-analyze check --markdown` writes fixed words, small numbers and code
spans. Text with anything else is shown in a fence, where GitHub makes nothing of it, and no line
of it opens a line of the comment, where bots look for commands.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import urllib.parse
import urllib.request
import zipfile
import zlib
from pathlib import Path
from typing import Any

FILE = "check.md"
MARKER = "<!-- dsocr-analyze check -->"
AUTHOR = "github-actions[bot]"
LONGEST_COMMENT = 65_000  # bytes; GitHub takes 65,536 characters
LARGEST_ARTIFACT = 2**24
MOST_PAGES = 10

_SPAN = re.compile(r"`[^`|\n]+`")
_OPENING = re.compile(r"^#{2,3} ")
_BETWEEN = re.compile(r"[ .,:;()|-]+")
_NUMBER = re.compile(r"[0-9]{1,3}")  # of more digits, it could be the name of a commit
WORDS = frozenset(
    """
    Cost check passed with warnings FAILED error errors warning Against All figures equal the
    baseline's changed moved most stage module operator kind budget And more Stages Modules their
    own work Operators Kinds of operators that largest first what FLOPs bytes batch Figures without
    a figure before after change Counted by dsocr analyze The rest is left out here check's JSON has
    all it
    """.split()
)
_BREAK = "\u2060"  # joins words and is not seen


class CommentError(Exception):
    """Why nothing is posted."""


def main() -> int:
    """Posts the comment; returns the exit code."""
    try:
        posted = comment(Api.of_environment(), event_of_environment(), os.environ["ARTIFACT"])
    except (CommentError, OSError) as error:
        print(f"no comment: {error}", file=sys.stderr)
        return 1
    print(f"commented on {', '.join(f'#{number}' for number in posted) or 'no pull request'}")
    return 0


def event_of_environment() -> dict[str, Any]:
    """The run that was completed, as GitHub describes it."""
    if os.environ.get("GITHUB_EVENT_NAME") != "workflow_run":
        raise CommentError("this is for the event workflow_run, whose code is the default branch's")
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    run: dict[str, Any] = event["workflow_run"]
    if run["event"] != "pull_request":
        raise CommentError(f"the run was started by {run['event']}, not by a pull request")
    return run


class Api:
    """GitHub's interface for one repository."""

    def __init__(self, url: str, repository: str, token: str) -> None:
        self._base = f"{url}/repos/{repository}"
        self._token = token
        self.repository = repository

    @classmethod
    def of_environment(cls) -> Api:
        """The interface that the runner names."""
        names = ("GITHUB_API_URL", "GITHUB_REPOSITORY", "TOKEN")
        return cls(*(os.environ[name] for name in names))

    def data(self, path: str, *, limit: int = 2**24) -> bytes:
        """What a path answers, if it is not longer than `limit`."""
        return self._answer(self._request(path), limit)

    def get(self, path: str) -> Any:
        """The JSON that a path answers."""
        return json.loads(self.data(path))

    def send(self, method: str, path: str, body: dict[str, str]) -> None:
        """Sends JSON to a path."""
        request = self._request(path)
        request.method = method
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
        self._answer(request, 2**24)

    def _request(self, path: str) -> urllib.request.Request:
        request = urllib.request.Request(f"{self._base}{path}")
        request.add_header("Accept", "application/vnd.github+json")
        # Artifacts are elsewhere: the token does not follow a redirection there.
        request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return request

    def _answer(self, request: urllib.request.Request, limit: int) -> bytes:
        with urllib.request.urlopen(request, timeout=60) as answer:
            data: bytes = answer.read(limit + 1)
        if len(data) > limit:
            raise CommentError(f"{request.full_url} has more than {limit} bytes")
        return data


def comment(api: Api, run: dict[str, Any], artifact: str) -> list[int]:
    """Posts what the run's artifact says; returns the numbers of the pull requests."""
    numbers = pull_requests(api, run)
    if not numbers:
        return []
    body = f"{MARKER}\n{shown(artifact_text(api, int(run['id']), artifact))}"
    for number in numbers:
        post(api, number, body)
    return numbers


def pull_requests(api: Api, run: dict[str, Any]) -> list[int]:
    """Open pull requests into this repository whose head is the commit that was checked."""
    if run["head_repository"] is None:
        raise CommentError("the repository that the pull request came from is gone")
    head = f"{run['head_repository']['owner']['login']}:{run['head_branch']}"
    query = urllib.parse.urlencode({"state": "open", "head": head, "per_page": "100"})
    return [
        int(each["number"])
        for each in api.get(f"/pulls?{query}")
        if each["head"]["sha"] == run["head_sha"]
        and each["base"]["repo"]["full_name"] == api.repository
    ]


def artifact_text(api: Api, run: int, name: str) -> str:
    """The Markdown in an artifact of a run."""
    query = urllib.parse.urlencode({"name": name, "per_page": "1"})
    found = api.get(f"/actions/runs/{run}/artifacts?{query}")["artifacts"]
    if not found:
        raise CommentError(f"run {run} has no artifact {name!r}")
    data = api.data(f"/actions/artifacts/{int(found[0]['id'])}/zip", limit=LARGEST_ARTIFACT)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open(FILE) as file:
            # A few bytes may claim to be many: what is over the limit is not unpacked.
            return file.read(LONGEST_COMMENT).decode("utf-8", "replace")
    except (
        EOFError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error
    ) as error:  # fmt: skip
        raise CommentError(f"artifact {name!r} has no readable {FILE}: {error}") from error


def shown(text: str) -> str:
    """The text as it is where it is plain, and else in a fence, where nothing in it is obeyed.

    Bots look for their names anywhere, code included, so each `@` is parted from what follows it.
    """
    clean = "".join(each for each in text if each == "\n" or each.isprintable())
    clean = clean.replace("@", f"@{_BREAK}")
    if len(clean) <= LONGEST_COMMENT and all(map(is_plain, clean.split("\n"))):
        return clean
    runs = (len(found) for found in re.findall("`+", clean))
    fence = "`" * max(3, *(run + 1 for run in runs), 3)
    room = LONGEST_COMMENT - 2 * len(fence) - len(MARKER) - 10
    if room < 0:
        raise CommentError("the text is nothing but backticks")
    inside = "\n".join(f"| {line}" for line in clean.split("\n")).encode()[:room]
    return f"{fence}text\n{inside.decode('utf-8', 'ignore')}\n{fence}"


def is_plain(line: str) -> bool:
    """Whether a line has only words and numbers of a check outside single code spans."""
    outside = _SPAN.sub(" ", _OPENING.sub("", line))
    is_single = "``" not in line  # two spans that touch are one span of another kind
    is_indented = " " * 4 in line  # may make a block of code
    parts = filter(None, _BETWEEN.split(outside))
    is_known = all(part in WORDS or _NUMBER.fullmatch(part) for part in parts)
    return is_single and not is_indented and is_known


def post(api: Api, number: int, body: str) -> None:
    """Writes the comment, in place of the one that an earlier check wrote."""
    for page in range(1, MOST_PAGES + 1):
        found = api.get(f"/issues/{number}/comments?per_page=100&page={page}")
        for each in found:
            if each["user"]["login"] == AUTHOR and each["body"].startswith(MARKER):
                api.send("PATCH", f"/issues/comments/{int(each['id'])}", {"body": body})
                return
        if len(found) < 100:
            break
    api.send("POST", f"/issues/{number}/comments", {"body": body})


if __name__ == "__main__":
    sys.exit(main())
