"""What holds for every test."""

import gc
import os
from importlib import metadata

import pytest
import sampling
from parts import Part

gc.disable()  # what is imported and collected lives to the end
# Before torch is imported: as many processes run as there are cores, so more threads only wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")  # those of others: trio has one


def pytest_addoption(parser):
    parser.addoption("--part", metavar="K/N", help="run the K-th of N parts of the selected tests")


def pytest_configure(config):
    if given := config.getoption("--part"):
        Part.parse(given)  # refused here, in one line, and not by every process
    sampling.leaves_out = "not exhaustive" in config.option.markexpr


def pytest_collection_modifyitems(config, items):
    if given := config.getoption("--part"):
        part = Part.parse(given)
        is_kept = {item: part.holds(group_of(item)) for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not is_kept[item]])
        items[:] = [item for item in items if is_kept[item]]
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
