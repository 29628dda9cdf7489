"""A tape's figures are the same wherever it runs; where something keeps tensors, there are none."""

from __future__ import annotations

import contextlib
import gc
import inspect
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from drawn_passes import drawn
from taped_passes import DIGESTED, digest, taped

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.ocr_family import attention
from dsocr_analyze.architectures.ocr_family.closed_forms import ClosedForms
from dsocr_analyze.cli import main
from dsocr_analyze.dtypes import BFLOAT16
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape import Tape


@pytest.fixture(scope="module")
def plain():
    return digest()


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_figures_are_the_same_under_other_interpreters(version, plain):
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", "import msgspec"]).returncode:
        pytest.skip(f"there is no python{version} with msgspec")
    here = Path(__file__).parent
    code = f"import sys; sys.path[:0] = {[str(here), str(here.parent / 'src')]}; "
    code += "import taped_passes; print(taped_passes.digest())"
    run = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == plain, run.stderr


# --- circumstances


@contextlib.contextmanager
def watched(watch, install=sys.settrace, installed=sys.gettrace):
    """Under a tracer or a profiler."""
    before = installed()
    install(watch)
    try:
        yield
    finally:
        install(before)


def keeper(frames, wanted=lambda frame: True):
    """A tracer that keeps frames."""

    def watch(frame, event, argument):
        if wanted(frame):
            frames.append(frame)
        return watch

    return watch


@contextlib.contextmanager
def measured():
    coverage = pytest.importorskip("coverage").Coverage(data_file=None)
    with coverage.collect():
        yield


@contextlib.contextmanager
def handling():
    """While an exception is handled, after forwards have failed whose frames are kept."""

    class Failing(Tape):
        def softmax(self, x, rows, width):
            raise ValueError

    kept = []
    for seed in DIGESTED:
        try:
            taped(drawn(seed), kind=Failing)
        except ValueError as error:
            kept.append(error)
    try:
        raise kept[0]
    except ValueError:
        yield


@contextlib.contextmanager
def uncollected():
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "circumstance",
    [
        lambda: watched(keeper([], lambda frame: False)),
        lambda: watched(keeper([], lambda frame: False), sys.setprofile, sys.getprofile),
        *(measured, handling, uncollected),
    ],
    ids=["traced", "profiled", "coverage", "exception", "without a garbage collector"],
)
def test_figures_are_the_same_in_any_circumstance(circumstance, plain):
    with circumstance():
        assert digest() == plain


def test_figures_are_the_same_in_threads(plain):
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: digest(), range(4))) == {plain}


# --- refused


def test_frames_that_are_kept():
    with watched(keeper([])), pytest.raises(RuntimeError, match="still alive"):
        taped(drawn(36), kind=Tape)


def test_one_frame_that_is_kept_by_a_thread():
    """As a profiler does that samples the stacks of all threads."""
    frames, wanted = [], threading.get_ident()

    class Sampled(Tape):
        def softmax(self, x, rows, width):
            if not frames:
                with ThreadPoolExecutor(1) as pool:
                    frames.append(pool.submit(sys._current_frames).result()[wanted])
            return super().softmax(x, rows, width)

    case = drawn(124)
    with pytest.raises(RuntimeError, match="still alive"):
        taped(case, kind=Sampled)
    assert frames


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="locals are no longer copied")
def test_variables_that_a_debugger_looks_at_once():
    """Before 3.13, a frame keeps what `f_locals` has shown until it is asked again."""
    lines, first = inspect.getsourcelines(attention._eager)
    place = first + next(n for n, line in enumerate(lines) if "if mask is not None" in line)

    def look(frame, event, argument):
        if frame.f_code is not attention._eager.__code__:
            return None
        if event == "line" and frame.f_lineno == place:
            assert frame.f_locals["weights"].n
        return look

    page = DEFAULT.plan(page=(1240, 1754), text_tokens=6000)  # whose peak is there
    dimensions = DEFAULT.forms.dimensions(ModelDirectory.read(DEFAULT.reference).config)
    with watched(look), pytest.raises(RuntimeError, match="is wrong"):
        ClosedForms.compose.__wrapped__(DEFAULT.forms, dimensions, page, BFLOAT16, False)


def test_a_command_ends_in_one_line(capsys):
    with watched(keeper([], lambda frame: "ocr_family" in frame.f_code.co_filename)):
        code = main(["--engine", "analytic", "--page", "1111x2222"])  # not counted before
    output = capsys.readouterr()
    assert (code, output.out, output.err.count("\n")) == (70, "", 1)
    assert "still alive" in output.err
