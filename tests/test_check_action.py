"""The action and the comment of docs/check.md, and what a stranger can do there."""

from __future__ import annotations

import ast
import functools
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gated
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from dsocr_analyze.gate.budgets import budgets_in
from dsocr_analyze.gate.compared import Amounts, InputChange, Move
from dsocr_analyze.gate.judge import Baseline, Verdict, WorkloadCheck, whole_check
from dsocr_analyze.gate.renderers import ReadableCheck

ROOT = Path(__file__).resolve().parent.parent
STEPS = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
COMMENT = ROOT / ".github" / "actions" / "comment" / "comment.py"


def test_the_budgets_of_the_page_are_budgets():
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    [text] = re.findall(r"^```toml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    found = budgets_in(text, "docs/check.md", is_pyproject=False)
    assert (set(found), len(found["gundam"].budgets)) == ({"gundam", "batch"}, 3)


def program(file, script):
    """A stand-in for a program."""
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_the_action_installs_what_the_main_job_needs_by_hash(tmp_path):
    """The run script installs by hash: tests/test_repository.py."""
    program(tmp_path / "bin" / "python3", 'printf "%s\\n" "$@" > "$ASKED"')
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "ACTION_PATH": str(ROOT),
        "ASKED": str(tmp_path / "asked"),
    }  # fmt: skip
    [install, check] = [step["run"] for step in STEPS]
    subprocess.run(["bash", "-e", "-c", install], cwd=tmp_path, env=environment, check=True)
    isolated, script, task, *options = (tmp_path / "asked").read_text().splitlines()
    assert (isolated, Path(script), options) == ("-I", ROOT / "scripts" / "run.py", ["--version"])
    tree = ast.parse(Path(script).read_text(encoding="utf-8"))
    [tasks] = [each for each in tree.body
               if isinstance(each, ast.Assign) and each.targets[0].id == "TASKS"]  # fmt: skip
    named = {key.value: ast.unparse(value) for key, value in
             zip(tasks.value.keys, tasks.value.values, strict=True)}  # fmt: skip
    assert "lock='analyze.txt'" in named[task]
    assert "pip" not in install + check


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({"AGAINST": "HEAD"}, 0),
        ({"AGAINST": "HEAD", "BUDGETS": "dsocr-budgets.toml", "STRICT": "true"}, 0),
        ({"AGAINST": "$(touch mark)"}, 2),
        ({"AGAINST": "--trust-remote-code"}, 2),
        ({"BUDGETS": "x; touch mark"}, 2),
    ],
)
def test_the_actions_script_checks(tmp_path, inputs, code):
    here = tmp_path / "r"
    gated.repository(here, '[workloads.a]\nmode = "tiny"\n')
    program(tmp_path / "action" / ".venv" / "bin" / "dsocr-analyze",
            f'exec "{sys.executable}" -m dsocr_analyze "$@"')  # fmt: skip
    environment = os.environ | {
        "BUDGETS": "", "AGAINST": "", "STRICT": "false", "OUTPUT": "out put",
        "ACTION_PATH": str(tmp_path / "action"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    } | inputs  # fmt: skip
    done = subprocess.run(
        ["bash", "-e", "-c", STEPS[-1]["run"]], cwd=here, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert not (here / "mark").exists()
    if code == 0:
        assert {file.name for file in (here / "out put").iterdir()} == {
            "check.json", "check.xml", "check.md"}  # fmt: skip
        assert (tmp_path / "summary").read_text().startswith("## Cost check: passed")


# The comment --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comment():
    spec = importlib.util.spec_from_file_location("comment", COMMENT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SNIPPETS = [
    *"`|\n@#/-+*_<>[]()!:~ ", "``", "\n\n", "## ", "- ", "| a | b |\n| --- | --- |\n", "GH-1", "#1",
    "/approve", "bors r+", "@all", "a" * 40, "1234567", "http://x.y", "www.x.y", "&amp;", "passed",
    "Cost check: ", "`x`", "    ", "\u2060", "\r",
]  # fmt: skip


def every_markdown():
    """What checks write: with and without a baseline, changes, budgets, doubts and room."""
    amounts = Amounts(before=1_000_000, after=3_000_000)
    moved = [
        Move(level=level, stage="s", name="n", modules=1, flops=amounts, bytes=amounts, params=None,
             share=0.5)
        for level in ("stage", "module", "operator") for _ in range(12)
    ]  # fmt: skip
    kinds = [msgspec.structs.replace(moved[0], level="kind")]
    verdicts = [
        Verdict(key="k", rule=rule, outcome=outcome, value=1_234_567, baseline=104.1411600850,
                limit=None, message="@all GH-1")
        for rule in ("baseline", "max 1") for outcome in ("failed", "warned") for _ in range(60)
    ]  # fmt: skip
    inputs = [InputChange(kind=kind, key="@all", before=None, after="#1")
              for kind in ("config", "report", "budget") for _ in range(20)]  # fmt: skip
    baseline = Baseline(kind="revision", name="@all", commit="a" * 40)

    def check(outcome, moved=(), verdicts=(), inputs=(), warnings=()):
        workload = WorkloadCheck(
            name="GH-1", outcome=outcome, title="#1", is_compared=True, inputs=tuple(inputs),
            moved=tuple(moved), changed=(), following=0, unchanged=69_915,
            verdicts=tuple(verdicts), warnings=warnings,
        )  # fmt: skip
        return whole_check("b.toml", baseline, [workload], warnings)

    yield ReadableCheck(check("passed")).markdown()
    yield ReadableCheck(check("warned", kinds, verdicts[:1], inputs, ("/approve",))).markdown()
    yield ReadableCheck(check("failed", moved, verdicts, inputs, ("/approve",))).markdown()
    short = ReadableCheck(check("failed", warnings=("\u00e9" * 90,) * 40)).markdown(2_000)
    assert 1_700 < len(short.encode()) < 2_000
    yield short


class TestShownText:
    @pytest.mark.parametrize(
        "line",
        [
            "hello @all", "[a](b)", "![a](b)", "<b>", "<!-- x", "see http://x", "www.x.y",
            "fixes #1", "`a``b` @x", "``a` @x`", "| `a | @x` |", "`a", "a\\`b", "&commat;",
            "[a]: b", "~~~", "`a` @x `b`", "$x$", "x^2", "{{", "é@",
            "GH-12", "fixes gh-12", "us/model#12", "#12", "## #12", "- #12", "| #12 |",
            "0123abc", "deadbeef", "1234567", "in " + "0123456789" * 4, "us/model@" + "a" * 40,
            "/approve", "- /lgtm cancel", "  /retest", "bors r+", "- bors try", "!merge",
            "retest this please", "ok to test", "Closes: GH-3", "all@x.org", "CVE-2026-12345",
            "    |", "-     |",
        ],
    )  # fmt: skip
    def test_what_could_be_obeyed_is_fenced(self, comment, line):
        first, *shown, last = comment.shown(f"## fine\n{line}\n").split("\n")
        assert re.fullmatch("`+", last)
        assert (first, last in line) == (f"{last}text", False)
        assert all(each.startswith("| ") for each in shown)

    @given(st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=9)), max_size=12))
    def test_nothing_is_obeyed_and_no_line_is_a_command(self, comment, parts):
        shown = comment.shown("".join(parts))
        assert re.findall("@(?!\u2060)", shown) == []
        for line in shown.split("\n"):
            first = re.match(r"\s*([^\s.,:;()|#-]*)", line)[1]
            assert line.startswith(("`", "|", "#", "-")) or first in {"", *comment.WORDS} or (
                re.fullmatch("[0-9]{1,3}", first))  # fmt: skip
        seen = []
        for block in MarkdownIt("gfm-like", {"linkify": False}).parse(shown):
            assert block.type not in ("html_block", "code_block")
            seen += [each for each in block.children or () if each.type != "code_inline"]
        assert {each.type for each in seen} <= {"text", "softbreak", "hardbreak"}
        words = re.split(r"[\s.,:;()|#-]+", " ".join(each.content for each in seen))
        assert all(each in comment.WORDS or re.fullmatch("[0-9]{0,3}", each) for each in words)

    def test_a_check_says_nothing_but_its_words(self, comment):
        said = set()
        for text in every_markdown():
            assert comment.shown(text) == text.replace("@", "@\u2060")
            said |= set(re.findall(r"[A-Za-z']+", re.sub(r"`[^`]+`", "", text)))
        assert said == comment.WORDS

    @pytest.mark.parametrize("text", ["`" * 70_000, "@" * 70_000, "é@" * 70_000])
    def test_a_comment_is_never_too_long(self, comment, text):
        try:
            shown = comment.shown(text[: comment.LONGEST_COMMENT])
        except comment.CommentError:
            return
        assert len(shown) < 65_536 - len(comment.MARKER)


class GitHub(BaseHTTPRequestHandler):
    """As much of GitHub's interface as the comment needs."""

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        path = self.path.partition("?")[0].removeprefix("/repos/us/model")
        if path == "/actions/artifacts/3/zip":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/elsewhere")
            self.end_headers()
        else:
            self._answer(self.server.answers[path])

    def _write(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.written.append((self.command, self.path, body["body"]))
        self._answer(b"{}")

    do_POST = do_PATCH = _write  # noqa: N815  # the same

    def _answer(self, data):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def pulls(*found):
    """Open pull requests: a number, the commit and the repository that it is into."""
    return json.dumps([
        {"number": number, "head": {"sha": sha}, "base": {"repo": {"full_name": base}}}
        for number, sha, base in found
    ]).encode()  # fmt: skip


def archive(text, name="check.md"):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("pr_number", "666")
        file.writestr(name, text)
    return data.getvalue()


@pytest.fixture
def github(monkeypatch, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), GitHub)
    server.asked, server.written = [], []
    server.answers = {
        "/pulls": pulls((5, "a" * 40, "us/model"), (6, "b" * 40, "us/model"),
                        (8, "a" * 40, "them/model")),
        "/actions/runs/7/artifacts": b'{"artifacts": [{"id": 3}]}',
        "/elsewhere": archive("## Cost check: passed\n"),
        "/issues/5/comments": b"[]",
    }  # fmt: skip
    run = {"id": 7, "event": "pull_request", "head_sha": "a" * 40, "head_branch": "x&state=closed",
           "head_repository": {"owner": {"login": "them"}}}  # fmt: skip
    for name, value in {
        "GITHUB_EVENT_NAME": "workflow_run", "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}", "TOKEN": "secret",
        "GITHUB_REPOSITORY": "us/model", "ARTIFACT": "dsocr-check",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    (tmp_path / "event.json").write_text(json.dumps({"workflow_run": run}))
    thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.01))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


REFUSED = (1, [])
NEW, OLD = "/repos/us/model/issues/5/comments", "/repos/us/model/issues/comments/3"


class TestComment:
    def test_it_goes_to_the_pull_request_of_the_event(self, github, comment):
        assert comment.main() == 0
        body = f"{comment.MARKER}\n## Cost check: passed\n"
        assert github.written == [("POST", NEW, body)]
        tokens = dict(github.asked)
        [asked] = [path for path in tokens if "/pulls?" in path]
        assert asked.endswith("/pulls?state=open&head=them%3Ax%26state%3Dclosed&per_page=100")
        # The token does not follow the artifact.
        assert tokens["/repos/us/model/actions/artifacts/3/zip"] == "Bearer secret"
        assert tokens["/elsewhere"] is None

    @pytest.mark.parametrize(
        ("served", "event", "answer"),
        [
            ({"/pulls": b"[]"}, "workflow_run", (0, [])),
            ({"/elsewhere": b""}, "workflow_run", REFUSED),
            ({"/elsewhere": b"PK"}, "workflow_run", REFUSED),
            ({"/elsewhere": archive("x", name="../check.md")}, "workflow_run", REFUSED),
            ({"/elsewhere": archive("x")[:-30]}, "workflow_run", REFUSED),
            ({"/elsewhere": b"\0" * 500}, "workflow_run", REFUSED),
            ({}, "push", REFUSED),
            ({}, "pull_request_target", REFUSED),
        ],
    )  # fmt: skip
    def test_without_a_pull_request_an_artifact_or_the_event_nothing_is_written(
        self, github, comment, monkeypatch, capsys, served, event, answer
    ):
        github.answers |= served
        monkeypatch.setenv("GITHUB_EVENT_NAME", event)
        assert (comment.main(), github.written) == answer
        assert ("no comment" in capsys.readouterr().err) == (answer is REFUSED)

    def test_an_earlier_comment_of_ours_is_replaced_and_nobody_elses(self, github, comment):
        comments = [
            {"id": 1, "user": {"login": "them"}, "body": comment.MARKER},
            {"id": 2, "user": {"login": comment.AUTHOR}, "body": f"see {comment.MARKER}"},
            {"id": 3, "user": {"login": comment.AUTHOR}, "body": f"{comment.MARKER}\nold"},
        ]
        github.answers["/issues/5/comments"] = json.dumps(comments).encode()
        assert comment.main() == 0
        assert [each[:2] for each in github.written] == [("PATCH", OLD)]

    @pytest.mark.parametrize(
        "text", ["@all <img src=x> [x](http://x)\n````\n", "@all" + "a" * 50_000_000]
    )
    def test_hostile_text_is_fenced_and_a_bomb_is_not_unpacked(self, github, comment, text):
        github.answers["/elsewhere"] = archive(text)
        assert comment.main() == 0
        [(_, _, body)] = github.written
        fence = "`" * (5 if "`" in text else 3)
        assert body.startswith(f"{comment.MARKER}\n{fence}text\n| @\u2060all")
        assert body.endswith(f"\n{fence}") or "b" not in text
        assert len(body) < 65_536
