"""Long work says how far it is: live on a terminal, now and then in a file, and leaves no trace."""

import contextlib
import fcntl
import gzip
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import infer_like
import pyarrow as pa
import pytest
from both_engines import small_directory
from command_line import run
from PIL import Image
from pyarrow import parquet

from dsocr_analyze.archive.pages import open_pages
from dsocr_analyze.cli import device_runs, main, streams


@pytest.fixture
def clock():
    return SimpleNamespace(now=1000.0)


def begun(clock, ends=None, *, is_watched=False):
    return streams.Progress(ends, is_watched=is_watched, clock=lambda: clock.now)


# What is said, and when -------------------------------------------------------------------------


def test_lines_come_ever_more_seldom_even_within_a_step(clock, capsys):
    progress, told = begun(clock), []
    progress("a pass")
    for clock.now in range(1000, 3001):
        progress.tick()
        if capsys.readouterr().err:
            told.append(clock.now - 1000)
    # Each after twice the time, but after 5 minutes at the latest.
    assert told == [10, 20, 40, 80, 160, 320, 620, 920, 1220, 1520, 1820]


def test_a_line_names_the_step_the_time_and_what_is_left(clock, capsys):
    progress = begun(clock)
    progress("building")
    clock.now += 6  # of which no share is known
    progress("repeat 1 of 4", 0.0)
    clock.now += 3
    progress("repeat 2 of 4", 0.25)
    clock.now += 3
    progress.tick()
    # A quarter took 3 s: 9 s were left 3 s ago.
    assert capsys.readouterr().err == (
        "dsocr-analyze: repeat 2 of 4; 12 s so far, about 6 s left\n"
    )
    clock.now += 100
    progress.tick()
    assert "1 min 52 s so far, about 0 s left" in capsys.readouterr().err


def test_what_has_an_end_says_how_far_it_is(clock, capsys):
    progress = begun(clock, clock.now + 3 * 3600 + 59)
    progress("kernels")
    clock.now += 75
    progress.tick()
    assert capsys.readouterr().err == (
        "dsocr-analyze: kernels; 1 min 15 s so far, about 2 h 59 min left\n"
    )


def test_a_share_that_takes_time_is_asked_for_once_somebody_waits(clock, capsys):
    progress, asked = begun(clock), []

    def share():
        asked.append(clock.now)
        return 0.1 * len(asked)

    for clock.now in (1000.0, 1000.9, 1002.0, 1012.0):
        progress("pages", share)
    assert asked == [1002, 1012]
    # A tenth took 10 s, and eight are left.
    assert capsys.readouterr().err.endswith("12 s so far, about 1 min 20 s left\n")


@pytest.mark.parametrize("share", [None, 0.0, lambda: None])
def test_nothing_is_made_up_where_no_share_is_known(clock, capsys, share):
    progress = begun(clock)
    progress("pages", share)
    clock.now += 60
    progress("pages", share)
    assert capsys.readouterr().err == "dsocr-analyze: pages; 1 min 0 s so far\n"


def test_nothing_is_said_without_a_step_or_with_quiet_or_without_stderr(clock, capsys, monkeypatch):
    begun(clock).tick()
    clock.now += 60
    before = threading.active_count()
    for is_quiet, stderr in ((True, sys.stderr), (False, None)):
        monkeypatch.setattr(sys, "stderr", stderr)
        with streams.announced_steps(is_quiet=is_quiet) as announce:
            announce("a step", 0.5)
            assert threading.active_count() == before
    monkeypatch.undo()
    assert capsys.readouterr().err == ""


# Terminals ---------------------------------------------------------------------------------------


class Screen:
    """A terminal of some columns, and what is on it."""

    def __init__(self, columns):
        self.reader, self.writer = pty.openpty()
        fcntl.ioctl(self.writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stderr, self.raw = os.fdopen(self.writer, "w"), b""

    def begin(self, monkeypatch):
        """Be stderr: pytest puts its own in place when a test begins."""
        monkeypatch.setattr(sys, "stderr", self.stderr)

    def close(self):
        """Takes it away."""
        self.stderr.close()
        os.close(self.reader)

    def read(self, seconds=0.2):
        """All that was written so far, as text."""
        os.set_blocking(self.reader, False)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            with contextlib.suppress(OSError):
                self.raw += os.read(self.reader, 1 << 16)
            time.sleep(0.01)
        return self.raw.decode()

    def lines(self):
        """What is seen in the end."""
        seen = [re.split(r"\r|\x1b\[2K", line)[-1] for line in self.read().split("\r\n")]
        return [line for line in seen if line]


@pytest.fixture
def terminal():
    screen = Screen(80)
    yield screen
    screen.close()


@pytest.fixture
def screen(monkeypatch):
    """A terminal of 60 columns as stderr, which shows at once and often."""
    screen = Screen(60)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(streams, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(streams, "_TICK_SECONDS", 0.02)
    yield screen
    monkeypatch.undo()
    screen.close()


def test_a_terminal_shows_one_line_that_is_gone_in_the_end(screen, monkeypatch):
    screen.begin(monkeypatch)
    with streams.announced_steps(is_quiet=False) as announce:
        announce("step \x1b[31m " + 100 * "x")
        assert screen.lines() == [("step \\x1b[31m " + 100 * "x")[:59]]  # one less than the columns
        streams.complain("warning: of a library")
        time.sleep(0.1)
        announce("the next step", 0.0)
        told = screen.lines()
        assert told[0] == "dsocr-analyze: warning: of a library"
        assert re.fullmatch(r"the next step; \d s so far", told[1])
    assert screen.lines() == ["dsocr-analyze: warning: of a library"]
    assert "\x1b[?25l" not in screen.raw.decode()  # the cursor was never hidden


def test_an_error_or_an_interruption_leaves_the_terminal_clean(screen, monkeypatch):
    screen.begin(monkeypatch)
    for error in (KeyboardInterrupt, ValueError):
        with contextlib.suppress(error), streams.announced_steps(is_quiet=False) as announce:
            announce("a step")
            assert screen.lines()
            raise error
        assert screen.lines() == []


def test_a_dumb_terminal_is_a_file(screen, monkeypatch):
    screen.begin(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(streams, "_FIRST_LINE_SECONDS", 0.0)
    with streams.announced_steps(is_quiet=False) as announce:
        announce("a step")
        time.sleep(0.1)
    assert "\x1b" not in screen.read()
    assert screen.lines()[0] == "dsocr-analyze: a step; 0 s so far"


# Commands ----------------------------------------------------------------------------------------


SLOWLY = """
import sys, time
from dsocr_analyze.cli import streams, main
from dsocr_analyze import analysis, interruption
interruption.listen()
streams._PATIENCE_SECONDS, streams._FIRST_LINE_SECONDS, streams._TICK_SECONDS = 0.0, 0.05, 0.05
analysis.start_torch = lambda: time.sleep(60)
sys.exit(main())
"""


@pytest.mark.parametrize(("number", "said"), [(signal.SIGINT, "interrupted"),
                                              (signal.SIGTERM, "terminated")])  # fmt: skip
def test_an_interrupted_calibration_leaves_one_line(tmp_path, terminal, number, said):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY, "calibrate", "--seconds", "60"], stderr=terminal.writer,
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=tmp_path,
        env=os.environ | {"TERM": "xterm", "NO_COLOR": "1", "XDG_CONFIG_HOME": str(tmp_path)},
    )  # fmt: skip
    ends = time.monotonic() + 60
    while b"importing torch" not in terminal.raw and time.monotonic() < ends:
        terminal.read()
    assert re.search(r"importing torch; \d+ s so far, about ", terminal.raw.decode())
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    told = terminal.lines()
    assert (process.returncode, out) == (128 + number, b"")
    assert told == ["dsocr-analyze: calibration of cpu takes about 60 s, up to 1.1 GB of memory",
                    f"dsocr-analyze: {said}; nothing was written"]  # fmt: skip


def test_what_a_sweep_says_of_its_progress_is_in_no_output(screen, tmp_path, capsys, monkeypatch):
    screen.begin(monkeypatch)
    written = []
    for number, quiet in enumerate(([], ["-q"])):
        file = tmp_path / f"{number}.csv"
        assert main(["sweep", "--text-tokens", "1:99", "--output", str(file), *quiet]) == 0
        metadata = json.loads((tmp_path / f"{number}.csv.json").read_text())
        written.append((file.read_bytes(), metadata["metadata"]["notes"]))
        told = screen.read()
        assert ("99 of 99 workloads; 0 s so far" in told) == (not quiet)
        assert screen.lines() == []
        screen.raw = b""
    assert written[0] == written[1]
    assert "workloads;" not in capsys.readouterr().out


@pytest.fixture
def at_once(monkeypatch):
    """Where there is no terminal, every step has its line, as nobody can wait so little."""
    monkeypatch.setattr(streams, "_FIRST_LINE_SECONDS", 0.0)
    monkeypatch.setattr(streams, "_LONGEST_SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(streams, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(streams, "_TICK_SECONDS", 60.0)


SMALL = (
    "--mode tiny --dtype float32 --repeats 2 --warmups 1 --steps 1 --max-new-tokens 3"
    " --page 500x600"
).split()
STEPS = [
    "importing torch", "building the model", "prediction", "warm-up 1 of 1", "repeat 1 of 2",
    "repeat 2 of 2", "memory of the prefill pass", "preprocessing",
]  # fmt: skip


@pytest.mark.usefixtures("at_once")
def test_measure_names_its_steps_and_what_is_left(capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(small_directory().config))
    code, _, err = run(capsys, "measure", "--config", config, *SMALL)
    told = re.findall(r"dsocr-analyze: (.*?); \d+ s so far(, about \d+ s left)?\n", err)
    assert (code, [step for step, _ in told]) == (0, STEPS)
    # From the second pass on it is known.
    assert [bool(left) for _, left in told] == [each not in STEPS[:4] for each, _ in told]
    code, _, err = run(capsys, "measure", "--config", config, *SMALL, "-q", "--json", "-")
    assert (code, err) == (0, "")


def test_measure_says_nothing_of_torchs_profiler(tmp_path):
    """Nor anything else: stderr is the process's own, as torch writes past Python's."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(small_directory().config))
    arguments = [sys.executable, "-m", "dsocr_analyze", "measure", "--config", config, *SMALL]
    done = subprocess.run(
        [*arguments, "-q", "--json", "m.json"], cwd=tmp_path, capture_output=True, text=True,
        env={name: each for name, each in os.environ.items() if name != "TORCH_CPP_LOG_LEVEL"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "m.json").read_text())["peak"]["measured"] > 0


@pytest.mark.directory
@pytest.mark.usefixtures("at_once")
def test_infer_counts_its_tokens(capsys, tmp_path):
    infer_like.write(tmp_path / "m")
    image = infer_like.picture(tmp_path / "page.png")
    code, _, err = run(
        capsys, "infer", "--model", tmp_path / "m", "--image", image, "--output", tmp_path / "o",
        "--random-weights", "--trust-remote-code", "--device", "cpu", "--base-size", 256,
        "--image-size", 256, "--crop-mode", 0, "--max-new-tokens", 3,
    )  # fmt: skip
    told = re.findall(r"(infer\(\), token .*?); \d+ s so far(, about)?", err)
    assert code == 0, err
    assert told == [("infer(), token 1 of at most 3", ""), ("infer(), token 2 of at most 3", ""),
                    ("infer(), token 3 of at most 3", ", about")]  # fmt: skip


def test_a_check_names_its_workloads(capsys, tmp_path, at_once, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("dsocr-budgets.toml").write_text('[workloads.a]\nmode = "tiny"\n[workloads.b]\n')
    code, _, err = run(capsys, "check")
    assert code == 0
    assert re.findall(r"dsocr-analyze: (workload .); \d+ s so far(, about)?", err) == [
        ("workload a", ""), ("workload b", ", about"),
    ]  # fmt: skip


# Lists of pages ----------------------------------------------------------------------------------


def shares(path):
    source = open_pages(path)
    return [source.share() for _ in source.batches]


def test_the_share_of_a_list_is_of_its_bytes_rows_or_files(tmp_path, monkeypatch):
    monkeypatch.setattr("dsocr_analyze.row_files._BATCH_ROWS", 100)
    monkeypatch.setattr("dsocr_analyze.row_files._BLOCK_BYTES", 400)
    monkeypatch.setattr("dsocr_analyze.archive.pages._PAGES_A_BATCH", 2)
    table = pa.table({"width": [1000] * 400, "height": [2000] * 400})
    parquet.write_table(table, tmp_path / "p.parquet")
    assert shares(tmp_path / "p.parquet") == [0.25, 0.5, 0.75, 1.0]
    text = "width,height\n" + "1000,2000\n" * 400
    (tmp_path / "p.csv").write_text(text)
    of_csv = shares(tmp_path / "p.csv")
    assert of_csv[0] == pytest.approx(403 / len(text))
    assert sorted(of_csv) == of_csv
    assert of_csv[-1] == 1.0
    (tmp_path / "p.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert shares(tmp_path / "p.csv.gz")[-1] == 1.0
    folder = tmp_path / "folder" / "inner"
    folder.mkdir(parents=True)
    for number in range(4):
        Image.new("1", (8, 8)).save(folder / f"{number}.png")
    (folder / "a.txt").touch()
    assert shares(tmp_path / "folder") == [1 / 4, 3 / 4]  # the last file may have further pages


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("line", [["archive"], ["plan", "--gpu", "h100-sxm"]])
def test_a_list_says_how_many_pages_are_counted(capsys, tmp_path, monkeypatch, line):
    monkeypatch.setattr("dsocr_analyze.row_files._BATCH_ROWS", 200)
    parquet.write_table(
        pa.table({"width": [1000] * 400, "height": [2000] * 400}), tmp_path / "p.parquet"
    )
    code, _, err = run(capsys, *line, tmp_path / "p.parquet")
    assert code == 0, err
    assert re.findall(r"dsocr-analyze: (\d+ pages); \d+ s so far(, about \d+ s left)?\n", err) == [
        ("200 pages", ""), ("400 pages", ", about 0 s left"),
    ]  # fmt: skip


def test_calibration_is_told_to_end_when_it_says(monkeypatch):
    asked = []
    monkeypatch.setattr(
        device_runs.cpu_calibration, "calibrated_cpu", lambda **given: asked.append(given)
    )
    announce = object()
    device_runs.calibrated(announce, ends=time.monotonic() + 50, has_passes=True)
    assert asked[0]["on_progress"] is announce
    assert asked[0]["budget_seconds"] == pytest.approx(50, abs=1)
