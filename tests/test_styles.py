"""On a terminal, warnings, failures and verdicts stand out; files and pipes have plain text."""

import os
import re
import subprocess
import sys

import pytest
from sampling import first, sampled

from dsocr_analyze.cli import printing
from dsocr_analyze.report.table import Line

pty = pytest.importorskip("pty", reason="has no pseudo-terminals")

STYLE = re.compile(r"\x1b\[(\d+)m(.*?)\x1b\[0m", re.DOTALL)
BOLD, RED, GREEN, YELLOW = "1", "31", "32", "33"

BUDGETS = """
[workloads.kept]
mode = "tiny"

[[workloads.kept.budgets]]
key = "stages.clip.flops"
max = 1000000000000000
"""
EXCEEDED = """
[workloads.over]
mode = "tiny"

[[workloads.over.budgets]]
key = "stages.sam.flops"
max = 1

[[workloads.over.budgets]]
key = "stages.clip.flops"
max = 1
level = "warn"
"""


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "kept.toml").write_text(BUDGETS)
    (tmp_path / "both.toml").write_text(BUDGETS + EXCEEDED)


def command(line):
    return [sys.executable, "-m", "dsocr_analyze", *line.split()]


def on_terminal(line):
    """What a terminal gets from both streams, as the program wrote it."""
    screen, stream = pty.openpty()
    with subprocess.Popen(command(line), stdin=stream, stdout=stream, stderr=stream):
        os.close(stream)
        parts = []
        while part := _read(screen):
            parts.append(part)
    os.close(screen)
    return b"".join(parts).decode().replace("\r\n", "\n")


def _read(screen):
    try:
        return os.read(screen, 1 << 16)
    except OSError:  # Linux's end of a pseudo-terminal
        return b""


def in_pipe(line):
    done = subprocess.run(
        command(line), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout


STANDS_OUT = [
    # What runs, and what has which colour, in order.
    ("check --budgets both.toml",
     [(RED, "FAILED"), (YELLOW, "1 warning"), (GREEN, "passed"), (RED, "FAILED"),
      (RED, "  error: stages.sam.flops is 229,419,947,072, above 1 (max 1)"),
      (YELLOW, "  warning: stages.clip.flops is 39,759,577,344, above 1 (max 1)")]),
    ("--engine analytic --mode tiny --text-tokens 9000 --strict",
     [(YELLOW, "1 warning"), (YELLOW, "warning: the sequence of 9"),
      (RED, "--strict: the sequence of 9")]),
    ("time l4 --concurrency 900",
     [(RED, "too much")]),
    ("check --budgets kept.toml", [(GREEN, "passed"), (GREEN, "passed")]),
    ("fit --mode nonsense", [(RED, "--mode 'nonsense' is unknown; ")]),
]  # fmt: skip


@sampled(("line", "wanted"), STANDS_OUT, first(2))
def test_what_matters_stands_out_on_a_terminal_and_a_pipe_has_the_same_words(line, wanted):
    shown, plain = on_terminal(line), in_pipe(line)
    found = [each for each in STYLE.findall(shown) if each[0] != BOLD]
    assert [style for style, _ in found] == [style for style, _ in wanted]
    assert all(said.startswith(start) for (_, said), (_, start) in zip(found, wanted, strict=True))
    assert "\x1b" not in plain
    assert sorted(STYLE.sub(r"\2", shown).splitlines()) == sorted(plain.splitlines())


@sampled(
    ("line", "settings", "is_plain"),
    [
        ("check --budgets both.toml --json out.json --junit out.xml --markdown out.md",
         {"FORCE_COLOR": "1"}, False),
        ("fit l4 --batch-size 30", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True),
        ("fit l4 --batch-size 30", {"NO_COLOR": ""}, False),
        ("fit l4 --batch-size 30", {"TERM": "dumb"}, True),
        ("fit l4 --batch-size 30 --format markdown", {"FORCE_COLOR": "1"}, True),
        ("fit l4 --batch-size 30 --format json", {"FORCE_COLOR": "1"}, True),
        ("--help", {"FORCE_COLOR": "1"}, True),
    ],
    first(2),
)  # fmt: skip
def test_the_environment_decides_and_files_and_programs_get_none(
    tmp_path, monkeypatch, line, settings, is_plain
):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b" not in on_terminal(line)) == is_plain
    is_forced = not is_plain and "FORCE_COLOR" in settings
    assert ("\x1b" in in_pipe(line)) == is_forced
    for file in tmp_path.glob("out.*"):
        assert "\x1b" not in file.read_text()


PAINTED = [
    (["Warning: a", "  goes on", "is plain"], ["y:Warning: a", "  goes on/", "is plain"]),
    (["  error: a", "    goes on", "  is plain"], ["r:  error: a", "    goes on/", "  is plain"]),
    (["no: 30 pages do not fit", "yes: all fit"],
     ["r:no/: 30 pages r:do not fit/", "yes: all fit"]),
    (["L4  no  3", "H100  yes  4  no", "and no  more"],
     ["L4  r:no/  3", "H100  yes  4  r:no/", "and no  more"]),
    (["there is no GPU; nothing failed", "note: 0 warnings", "noted, passed by"],
     ["there is no GPU; nothing failed", "note: 0 warnings", "noted, passed by"]),
    (["x: passed", "x: passed with warnings (12 warnings)", "budgets exceeded: 1"],
     ["x: g:passed/", "x: y:passed with warnings/ (y:12 warnings/)", "budgets r:exceeded/: 1"]),
    (["a\x1b[31mred", "Warning: \x1b[2J"], [r"a\x1b[31mred", r"y:Warning: \x1b[2J"]),
]  # fmt: skip
"""Lines, and how they are painted: `r:` red, `y:` yellow, `g:` green, to `/` or the line's end."""


def test_lines_are_painted_by_what_they_say(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    for lines, wanted in PAINTED:
        printing.show(_Read(lines))
        said = capsys.readouterr().out.replace("\x1b[0m", "/")
        for code, letter in ((RED, "r"), (YELLOW, "y"), (GREEN, "g")):
            said = said.replace(f"\x1b[{code}m", f"{letter}:")
        assert [line.removesuffix("/") for line in said.splitlines()] == [
            line.removesuffix("/") for line in wanted
        ]


class _Read:
    """Lines that are read as they are."""

    def __init__(self, lines):
        self.texts = lines

    def lines(self, width):
        yield from map(Line, self.texts)
