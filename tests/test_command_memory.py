"""Calibration takes what it states, and a longer loop takes no more memory than a short one."""

import gc
import json
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest import mock

import pytest
from both_engines import small_directory
from sampling import first, sampled

from dsocr_analyze.cli import main
from dsocr_analyze.cli.commands import COMMANDS, application
from dsocr_analyze.measuring import calibration_needs, cpu_calibration
from dsocr_analyze.measuring.calibration_needs import free_memory_bytes

MB = 10**6
PROGRAM = (sys.executable, "-m", "dsocr_analyze")


def ran(arguments, folder):
    """Exit code, stderr, seconds and peak of a command."""
    began = time.monotonic()
    with (folder / "stderr").open("w+") as errors:
        process = subprocess.Popen(
            [*PROGRAM, *arguments], stdout=subprocess.DEVNULL, stderr=errors, cwd=folder,
            env=os.environ | {"XDG_CONFIG_HOME": str(folder)},
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        return SimpleNamespace(
            code=process.returncode, stderr=errors.read(), seconds=time.monotonic() - began,
            peak_bytes=usage.ru_maxrss * 1024,
        )  # fmt: skip


# Calibration ---------------------------------------------------------------------------------


@pytest.mark.benchmark
@pytest.mark.parametrize("seconds", [30, 100])
def test_calibration_takes_the_seconds_and_the_memory_that_it_states(tmp_path, seconds):
    done = ran(["calibrate", "--seconds", str(seconds)], tmp_path)
    assert done.code == 0, done.stderr
    stated = re.search(r"takes about (\S+) s, up to (\S+) GB of memory", done.stderr)
    assert done.seconds == pytest.approx(float(stated[1]), rel=0.2)
    assert done.peak_bytes < min(1.2 * 1e9 * float(stated[2]), 4e9)


@sampled("kind", ["RLIMIT_AS", "RLIMIT_DATA"], first(1))
def test_without_memory_it_says_so_in_a_line_and_takes_none(kind):
    program = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.{kind}, (10**9, 10**9))\n"
        "from dsocr_analyze.cli import main\n"
        "code = main(['calibrate'])\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(
        r"dsocr-analyze: calibration takes up to 3\.2 GB of memory, and (0\.9|1\.0) GB are free;"
        r" free some, or raise the limit of this process\n",
        done.stderr,
    )


@pytest.mark.parametrize(
    ("seconds", "free", "stated", "has_passes"),
    [(89, 4, "takes about 89 s, up to 1.1 GB", False),
     (90, 4, "takes about 90 s, up to 3.2 GB", True),
     (300, 2.5, "; less than 90 s need 1.1 GB only\n", None)],
)  # fmt: skip
def test_what_is_measured_is_what_the_stated_memory_is_for(
    monkeypatch, capsys, seconds, free, stated, has_passes
):
    """A shorter one is offered where it fits."""
    calibrated = mock.Mock(side_effect=MemoryError)
    monkeypatch.setattr(cpu_calibration, "calibrated_cpu", calibrated)
    monkeypatch.setattr(calibration_needs, "free_memory_bytes", lambda: free * 1e9)
    assert main(["calibrate", "--seconds", str(seconds)]) == 2
    assert stated in capsys.readouterr().err
    assert [call.kwargs["has_passes"] for call in calibrated.call_args_list] == [
        each for each in (has_passes,) if each is not None
    ]


OF_MEMORY = (
    "dsocr-analyze: calibration of cpu takes about 300 s, up to 3.2 GB of memory\n"
    "dsocr-analyze: cpu ran out of memory during calibration"
)
ENFORCED = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: 9"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MemoryError(), 2, OF_MEMORY),
        (RuntimeError(ENFORCED), 2, OF_MEMORY),
        (RuntimeError("std::bad_alloc"), 2, OF_MEMORY),
        (RuntimeError("shapes differ"), 70, ""),
    ],
    ids=repr,
)
def test_memory_that_runs_out_later_is_said_in_a_line(monkeypatch, capsys, error, code, said):
    monkeypatch.setattr(cpu_calibration, "calibrated_cpu", mock.Mock(side_effect=error))
    assert main(["calibrate"]) == code
    found = capsys.readouterr().err
    assert found.startswith(said)
    assert found.count("\n") == 2 or code != 2


# Free memory ---------------------------------------------------------------------------------


MEMINFO = {"proc/meminfo": "MemTotal:  9000 kB\nMemFree:  100 kB\nMemAvailable:  8000 kB\n"}
VERSION_2 = {
    **MEMINFO,
    "proc/self/cgroup": "0::/user/job\n",
    "sys/fs/cgroup/user/job/memory.max": "max\n",
    "sys/fs/cgroup/user/job/memory.current": "1000000\n",
    "sys/fs/cgroup/user/memory.max": "5000000\n",
    "sys/fs/cgroup/user/memory.current": "3000000\n",
    "sys/fs/cgroup/user/memory.stat": "anon 7\ninactive_file 400000\nactive_file 9\n",
}
VERSION_1 = {
    **MEMINFO,
    "proc/self/cgroup": "3:cpu,cpuacct:/job\n4:memory:/job\n0::/\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "3000000\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000000\n",
    "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 50\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (MEMINFO, 8000 * 1024),
        (VERSION_2, 2_400_000),
        (VERSION_2 | {"sys/fs/cgroup/user/memory.current": "5900000"}, 0),
        (VERSION_1, 2_000_050),
        # In a container, its own group is the root of what it sees.
        ({**MEMINFO, "proc/self/cgroup": "0::/elsewhere\n", "sys/fs/cgroup/memory.max": "70",
          "sys/fs/cgroup/memory.current": "30"}, 40),
    ],
    ids=["none", "version 2", "full", "version 1", "container"],
)  # fmt: skip
def test_free_memory_is_the_least_of_what_limits_it(tmp_path, files, expected):
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert free_memory_bytes(tmp_path) == expected


# Garbage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_garbage_is_collected_in_every_command_that_loops(name, monkeypatch):
    seen = []
    function = f"dsocr_analyze.cli.{COMMANDS[name]}.{name}"
    monkeypatch.setattr(function, lambda: seen.append(gc.isenabled()))
    monkeypatch.setitem(application.commands.data, name, None)  # as before its first use
    gc.disable()
    code, is_enabled = main([name]), gc.isenabled()
    gc.enable()
    assert (code, is_enabled) == (0, False)
    assert seen == [name not in ("docs", "fit", "devices", "trust", "tree")]


SMALL = ("--page", "600x500", "--base-size", "128", "--image-size", "64")
MEASURE = ("measure", "--config", "config.json", *SMALL, "--dtype", "float32", "--warmups", "0",
           "--steps", "1", "--repeats")  # fmt: skip
SWEEP = ("sweep", "--max-new-tokens", "1:3000", "--output", "rows.csv")
LOOPS = {
    "sweep": ((*SWEEP, "--batch-size", "1:100"), (*SWEEP, "--batch-size", "1:300"), 40),
    "archive": (("archive", "short.csv"), ("archive", "long.csv"), 20),
    "time": (("time", "l4"), ("time", "l4", "h100", "a100-80gb-sxm", "b200"), 20),
    "compare": (("compare", "tiny", "small"),
                ("compare", "tiny", "small", "base", "large", "gundam"), 60),
    "advise": (("advise", "--page-text-tokens", "10"),
               ("advise", "--page-text-tokens", ",".join(map(str, range(1, 13)))), 20),
    "check": (("check", "--budgets", "few.toml"), ("check", "--budgets", "many.toml"), 60),
    "measure": ((*MEASURE, "1"), (*MEASURE, "40"), 40),
    "calibrate": (("calibrate", "--seconds", "30"), ("calibrate", "--seconds", "60"), 300),
}  # fmt: skip
"""A short and a long run of commands, and how many MB the long one may take beyond the short."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.benchmark if name == "calibrate" else ())
     for name in LOOPS],
)  # fmt: skip
def test_a_longer_loop_takes_no_more_memory(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(small_directory().config))
    pages = [f"{1000 + number % 700},{1400 + number % 90}\n" for number in range(30_000)]
    workloads = [f'[workloads.w{number}]\nmode = "base"\n' for number in range(25)]
    for file, lines in (
        ("short.csv", ["width,height\n", *pages[:100]]), ("long.csv", ["width,height\n", *pages]),
        ("few.toml", workloads[:1]), ("many.toml", workloads),
    ):  # fmt: skip
        (tmp_path / file).write_text("".join(lines))
    short, long, most = LOOPS[name]
    first, second = ran(short, tmp_path), ran(long, tmp_path)
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert second.peak_bytes - first.peak_bytes < most * MB


@pytest.mark.parametrize(
    "line",
    ["sweep --output rows.csv", "archive pages.csv --gpu h100", "plan pages.csv --gpu h100",
     "time h100 --new-tokens-from lengths.csv"],
)  # fmt: skip
def test_commands_leave_pandas_alone_and_arrow_still_finds_it(tmp_path, line):
    pytest.importorskip("pandas")
    (tmp_path / "pages.csv").write_text("width,height\n1240,1754\n")
    (tmp_path / "lengths.csv").write_text("new_tokens\n100\n")
    code = (
        "import sys, pyarrow; from dsocr_analyze.cli import main;"
        f" code = main({line.split()!r}); print(code, 'pandas' in sys.modules);"
        " print(len(pyarrow.table({'a': [1]}).to_pandas()))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-3:] == ["0", "False", "1"]
