"""What holds for every test."""

import argparse
import gc
import os
import re
import zlib
from importlib import metadata

import pytest
import sampling

gc.disable()  # what is imported and collected lives to the end

# Before torch is imported: as many processes run as there are cores, so more threads only wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")  # those of others: trio has one
os.environ.pop("FORCE_COLOR", None)  # what is captured is a pipe's


@pytest.fixture(autouse=True)
def _no_line_of_progress(request, monkeypatch):
    """On a busy machine a command may take so long that it says so, where a test wants silence."""
    if request.path.name != "test_progress.py":
        monkeypatch.setattr("dsocr_analyze.cli.streams._FIRST_LINE_SECONDS", 3600.0)


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory):
    """What the first paragraph of docs/tasks.md names."""
    pytest.importorskip("pypdf")
    from task_files import write_task_files

    folder = tmp_path_factory.mktemp("tasks")
    write_task_files(folder)
    return folder


def pytest_addoption(parser):
    parser.addoption(
        "--part", metavar="K/N", type=part, help="run the K-th of N parts of the selected tests"
    )


def part(text):
    """One of several parts, which share out the tests: its number, from 1, and how many there are.

    CI runs one per commit, where all take too long.
    """
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r}: give a part as K/N, from 1/N to N/N")
    return int(found[1]), int(found[2])


def pytest_configure(config):
    sampling.leaves_out = "not exhaustive" in config.option.markexpr


def pytest_collection_modifyitems(config, items):
    if given := config.getoption("--part"):
        number, of = given
        is_kept = {each: zlib.crc32(group_of(each).encode()) % of == number - 1 for each in items}
        config.hook.pytest_deselected(items=[each for each in items if not is_kept[each]])
        items[:] = [each for each in items if is_kept[each]]
    skip_what_needs_older_transformers(items)


def group_of(item):
    """What stays together in a part: tests of one `xdist_group`, or else each alone."""
    marker = item.get_closest_marker("xdist_group")
    return item.nodeid if marker is None else marker.kwargs["name"]


def skip_what_needs_older_transformers(items):
    """Under transformers that model directories do not run on, their tests have nothing to run."""
    from dsocr_analyze.model.loading import VENDOR_TRANSFORMERS  # and torch

    installed = metadata.version("transformers")
    if VENDOR_TRANSFORMERS.contains(installed):
        return
    reason = f"model directories run on transformers{VENDOR_TRANSFORMERS}, not on {installed}"
    for item in items:
        if any(item.get_closest_marker(name) for name in ("vendor", "directory")):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish():
    """Garbage is collected from now on, but for what there is."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def pytest_sessionfinish(session):
    """`pytest -m gpu` without a GPU fails: tests that were all skipped did not pass."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    is_asked = session.config.option.markexpr == "gpu" and reporter and not session.exitstatus
    if is_asked and "skipped" in reporter.stats and "passed" not in reporter.stats:
        reporter.write_line("no test of a GPU ran", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
