"""The action, the hook and the workflows of docs/check.md, and what a stranger can do there."""

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

from dsocr_analyze.gate.compared import Amounts, InputChange, Move
from dsocr_analyze.gate.judge import Baseline, Verdict, WorkloadCheck, whole_check
from dsocr_analyze.gate.renderers import ReadableCheck

ROOT = Path(__file__).resolve().parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
COMMENT = ROOT / ".github" / "actions" / "comment"
COMMENT_ACTION = yaml.safe_load((COMMENT / "action.yml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL))
SCRIPTS = [step["run"] for action in (ACTION, COMMENT_ACTION) for step in action["runs"]["steps"]]


def example(name):
    return yaml.load(EXAMPLES[name], Loader=yaml.BaseLoader)


CHECKING = ".github/workflows/cost.yml"
COMMENTING = ".github/workflows/cost-comment.yml"


class TestExamples:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("name", [CHECKING, COMMENTING])
    def test_a_workflow_is_valid_by_githubs_schema(self, tmp_path, name):
        file = tmp_path / "workflow.yml"
        file.write_text(EXAMPLES[name])
        check = [sys.executable, "-m", "check_jsonschema"]
        done = subprocess.run(
            [*check, "--builtin-schema", "vendor.github-workflows", str(file)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("action", [ROOT / "action.yml", COMMENT / "action.yml"])
    def test_an_action_is_valid_by_githubs_schema(self, action):
        check = [sys.executable, "-m", "check_jsonschema"]
        done = subprocess.run(
            [*check, "--builtin-schema", "vendor.github-actions", str(action)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def test_what_runs_a_pull_requests_files_can_only_read(self):
        workflow = example(CHECKING)
        assert workflow["on"] == "pull_request"
        assert workflow["permissions"] == {"contents": "read"}
        [job] = workflow["jobs"].values()
        assert "permissions" not in job
        assert "secrets" not in EXAMPLES[CHECKING]
        [checkout] = [each for each in job["steps"] if "checkout" in each["uses"]]
        assert checkout["with"]["persist-credentials"] == "false"

    def test_what_may_write_runs_nothing_of_a_pull_request(self):
        workflow = example(COMMENTING)
        assert set(workflow["on"]) == {"workflow_run"}
        assert workflow["on"]["workflow_run"]["workflows"] == [example(CHECKING)["name"]]
        assert workflow["permissions"] == {}
        [job] = workflow["jobs"].values()
        assert job["permissions"] == {"actions": "read", "pull-requests": "write"}
        assert "'pull_request'" in job["if"]
        [step] = job["steps"]
        assert "checkout" not in step["uses"]

    def test_actions_of_others_are_pinned_by_commit(self):
        used = re.findall(r"uses: (\S+)", PAGE)
        assert len(used) == 4
        for each in used:
            assert re.fullmatch(r"\S+@[0-9a-f]{40}", each), each

    def test_what_the_action_uploads_is_what_it_writes_and_the_comment_reads(self):
        [_, check, upload] = example(CHECKING)["jobs"]["check"]["steps"]
        assert upload["with"]["path"].rstrip("/") == ACTION["inputs"]["output"]["default"]
        assert upload["with"]["name"] == COMMENT_ACTION["inputs"]["artifact"]["default"]
        assert upload["if"] == "always()"
        assert set(check["with"]) <= set(ACTION["inputs"])

    @pytest.mark.parametrize("script", SCRIPTS)
    def test_inputs_reach_scripts_through_the_environment_only(self, script):
        assert "${{" not in script
        assert not re.search(r"python3? (?!-I)", script)

    def test_the_budgets_of_the_page_are_budgets(self):
        from dsocr_analyze.gate.budgets import budgets_in

        [text] = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
        found = budgets_in(text, "docs/check.md", is_pyproject=False)
        assert set(found) == {"gundam", "batch"}
        assert len(found["gundam"].budgets) == 3

    def test_the_hook_is_the_command(self):
        [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
        assert (hook["entry"], hook["pass_filenames"]) == ("dsocr-analyze check", False)
        for file in ("dsocr-budgets.toml", "a/config.json", "pyproject.toml", "net/modeling.py"):
            assert re.search(hook["files"], file)
        [repo] = yaml.safe_load(EXAMPLES[".pre-commit-config.yaml"])["repos"]
        assert repo["hooks"][0]["id"] == hook["id"]


def test_the_action_installs_what_the_main_job_needs_by_hash(tmp_path):
    """The run script installs by hash: tests/test_repository.py."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$ASKED"\n')
    python.chmod(0o755)
    environment = {
        "PATH": f"{python.parent}:{os.environ['PATH']}", "ACTION_PATH": str(ROOT),
        "ASKED": str(tmp_path / "asked"),
    }  # fmt: skip
    [install, check] = [step["run"] for step in ACTION["runs"]["steps"]]
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
    program = tmp_path / "action" / ".venv" / "bin" / "dsocr-analyze"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dsocr_analyze "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "BUDGETS": "", "AGAINST": "", "STRICT": "false", "OUTPUT": "out put",
        "ACTION_PATH": str(tmp_path / "action"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    } | inputs  # fmt: skip
    script = ACTION["runs"]["steps"][-1]["run"]
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=here, env=environment, capture_output=True, text=True,
        check=False,
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
    spec = importlib.util.spec_from_file_location("comment", COMMENT / "comment.py")
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
    yield ReadableCheck(check("failed", moved, verdicts, inputs)).markdown(2_000)


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
        shown = comment.shown(f"## fine\n{line}\n")
        first, *_, last = shown.split("\n")
        assert first.endswith("text")
        assert set(last) == {"`"}
        assert first.startswith(last)
        assert last not in line
        assert all(each.startswith("| ") for each in shown.split("\n")[1:-1])

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

    @pytest.mark.exhaustive
    def test_what_a_check_writes_is_shown_as_it_is(self, comment, tmp_path, monkeypatch, capsys):
        from command_line import run

        gated.repository(
            tmp_path / "r", '[workloads.a]\nconfig = "c.json"\n',
            **{"c.json": json.dumps(gated.published())},
        )  # fmt: skip
        monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
        monkeypatch.chdir(tmp_path / "r")
        changed = gated.with_values(gated.published(), num_experts_per_tok=64)
        (tmp_path / "r" / "c.json").write_text(json.dumps(changed))
        assert run(capsys, "check", "--against", "HEAD", "-q", "--markdown", "c.md")[0] == 1
        text = (tmp_path / "r" / "c.md").read_text()
        assert "num_experts_per_tok: 6 -> 64" in text
        assert comment.shown(text) == text

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
        server = self.server
        path = self.path.partition("?")[0].removeprefix("/repos/us/model")
        server.asked.append((self.path, self.headers.get("Authorization")))
        if path == "/pulls":
            self._answer(json.dumps(server.pulls).encode())
        elif path == "/actions/runs/7/artifacts":
            self._answer(json.dumps({"artifacts": [{"id": 3}]}).encode())
        elif path == "/actions/artifacts/3/zip":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{server.server_port}/elsewhere")
            self.end_headers()
        elif path == "/elsewhere":
            self._answer(server.archive)
        elif path.endswith("/comments"):
            self._answer(json.dumps(server.comments).encode())
        else:
            self.send_error(404)

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


def pull(number, sha="a" * 40, base="us/model"):
    return {"number": number, "head": {"sha": sha}, "base": {"repo": {"full_name": base}}}


def archive(text, name="check.md"):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("pr_number", "666")
        file.writestr(name, text)
    return data.getvalue()


@pytest.fixture
def github(monkeypatch, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), GitHub)
    server.pulls = [pull(5), pull(6, sha="b" * 40), pull(8, base="them/model")]
    server.comments, server.asked, server.written = [], [], []
    server.archive = archive("## Cost check: passed\n")
    run = {"id": 7, "event": "pull_request", "head_sha": "a" * 40, "head_branch": "x&state=closed",
           "head_repository": {"owner": {"login": "them"}}}  # fmt: skip
    server.run = run
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


class TestComment:
    def test_it_goes_to_the_pull_request_of_the_event(self, github, comment):
        assert comment.main() == 0
        [(method, path, body)] = github.written
        assert (method, path) == ("POST", "/repos/us/model/issues/5/comments")
        assert body == f"{comment.MARKER}\n## Cost check: passed\n"
        asked = [path for path, _ in github.asked if "/pulls?" in path]
        assert asked == [
            "/repos/us/model/pulls?state=open&head=them%3Ax%26state%3Dclosed&per_page=100"
        ]

    def test_the_token_does_not_follow_the_artifact(self, github, comment):
        comment.main()
        tokens = dict(github.asked)
        assert tokens["/repos/us/model/actions/artifacts/3/zip"] == "Bearer secret"
        assert tokens["/elsewhere"] is None

    def test_an_earlier_comment_of_ours_is_replaced_and_nobody_elses(self, github, comment):
        github.comments = [
            {"id": 1, "user": {"login": "them"}, "body": comment.MARKER},
            {"id": 2, "user": {"login": comment.AUTHOR}, "body": f"see {comment.MARKER}"},
            {"id": 3, "user": {"login": comment.AUTHOR}, "body": f"{comment.MARKER}\nold"},
        ]
        assert comment.main() == 0
        [(method, path, _)] = github.written
        assert (method, path) == ("PATCH", "/repos/us/model/issues/comments/3")

    def test_hostile_text_is_fenced(self, github, comment):
        github.archive = archive("@all <img src=x> [x](http://x)\n````\n")
        assert comment.main() == 0
        [(_, _, body)] = github.written
        assert body.startswith(f"{comment.MARKER}\n`````text\n| @\u2060all")
        assert body.endswith("\n`````")

    @pytest.mark.parametrize(
        "data",
        [b"", b"PK", archive("x", name="../check.md"), archive("x")[:-30], b"\0" * 500],
    )
    def test_an_artifact_that_is_none_is_refused(self, github, comment, data, capsys):
        github.archive = data
        assert comment.main() == 1
        assert github.written == []
        assert "no comment" in capsys.readouterr().err

    @pytest.mark.exhaustive
    def test_a_bomb_is_not_unpacked(self, github, comment):
        github.archive = archive("a" * 50_000_000)
        assert comment.main() == 0
        [(_, _, body)] = github.written
        assert len(body) < 65_536

    def test_without_a_pull_request_nothing_is_written(self, github, comment):
        github.pulls = []
        assert comment.main() == 0
        assert github.written == []

    @pytest.mark.parametrize("event", ["push", "pull_request_target"])
    def test_another_event_is_refused(self, github, comment, monkeypatch, event):
        monkeypatch.setenv("GITHUB_EVENT_NAME", event)
        assert comment.main() == 1
        assert github.written == []
