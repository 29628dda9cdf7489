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
from dsocr_analyze.dtypes import BFLOAT16, FLOAT32
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.tape import Tape


@pytest.fixture(scope="module")
def plain():
    return digest()


class TestTheSame:
    @pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
    def test_under_other_interpreters(self, version, plain):
        python = shutil.which(f"python{version}")
        if python is None or subprocess.run([python, "-V"], capture_output=True).returncode:
            pytest.skip(f"there is no python{version}")
        here = Path(__file__).parent
        code = f"import sys; sys.path[:0] = {[str(here), str(here.parent / 'src')]}; "
        code += "import taped_passes; print(taped_passes.digest())"
        run = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True)
        assert run.stdout.strip() == plain, run.stderr

    @pytest.mark.parametrize("install", [sys.settrace, sys.setprofile])
    def test_under_a_tracer_that_keeps_nothing(self, install, plain):
        def watch(frame, event, argument):
            return watch

        before = {sys.settrace: sys.gettrace, sys.setprofile: sys.getprofile}[install]()
        install(watch)
        try:
            found = digest()
        finally:
            install(before)
        assert found == plain

    def test_with_coverage(self, plain):
        coverage = pytest.importorskip("coverage")
        measured = coverage.Coverage(data_file=None)
        with measured.collect():
            assert digest() == plain

    def test_in_threads(self, plain):
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda _: digest(), range(8))) == {plain}

    def test_while_an_exception_is_handled(self, plain):
        try:
            raise ValueError
        except ValueError:
            assert digest() == plain

    def test_after_a_forward_has_failed(self, plain):
        class Failing(Tape):
            def softmax(self, x, rows, width):
                raise ValueError

        kept = []
        for seed in DIGESTED:
            with contextlib.suppress(ValueError):
                taped(drawn(seed), kind=Failing)
            try:
                taped(drawn(seed), kind=Failing)
            except ValueError as error:
                kept.append(error)  # with all frames
        assert kept
        assert digest() == plain

    def test_without_a_garbage_collector(self, plain):
        gc.disable()
        try:
            assert digest() == plain
        finally:
            gc.enable()


@contextlib.contextmanager
def tracing(watch):
    before = sys.gettrace()
    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(before)


def keeper(frames, wanted=lambda frame: True):
    """A tracer that keeps frames."""

    def watch(frame, event, argument):
        if wanted(frame):
            frames.append(frame)
        return watch

    return watch


class TestRefused:
    def test_frames_that_are_kept(self):
        with tracing(keeper([])), pytest.raises(RuntimeError, match="still alive"):
            taped(drawn(36), kind=Tape)

    def test_one_frame_that_is_kept_by_a_thread(self):
        """As a profiler does that samples the stacks of all threads."""
        frames = []
        wanted = threading.get_ident()

        def sample():
            frames.append(sys._current_frames()[wanted])

        class Sampled(Tape):
            def softmax(self, x, rows, width):
                if not frames:
                    thread = threading.Thread(target=sample)
                    thread.start()
                    thread.join()
                return super().softmax(x, rows, width)

        case = drawn(124)
        with pytest.raises(RuntimeError, match="still alive"):
            taped(case, kind=Sampled)
        assert frames

    @pytest.mark.skipif(sys.version_info >= (3, 13), reason="locals are no longer copied")
    def test_variables_that_a_debugger_looks_at_once(self):
        """Before 3.13, a frame keeps what `f_locals` has shown until it is asked again."""
        lines, first = inspect.getsourcelines(attention._eager)
        place = first + next(n for n, line in enumerate(lines) if "if mask is not None" in line)

        def look(frame, event, argument):
            if frame.f_code is attention._eager.__code__:
                if event == "line" and frame.f_lineno == place:
                    assert frame.f_locals["weights"].n
                return look
            return None

        page = DEFAULT.plan(page=(1240, 1754), text_tokens=6000)  # whose peak is there
        dimensions = DEFAULT.forms.dimensions(ModelDirectory.read(DEFAULT.reference).config)
        with tracing(look), pytest.raises(RuntimeError, match="is wrong"):
            ClosedForms.compose.__wrapped__(DEFAULT.forms, dimensions, page, BFLOAT16, False)

    def test_a_tensor_that_is_left(self):
        tape = Tape(FLOAT32)
        tensor = tape.empty(3, FLOAT32)
        with pytest.raises(RuntimeError, match="12 bytes"):
            tape.check_nothing_is_left()
        del tensor
        tape.check_nothing_is_left()

    def test_a_command_ends_in_one_line(self, capsys):
        with tracing(keeper([], lambda frame: "ocr_family" in frame.f_code.co_filename)):
            code = main(["--engine", "analytic", "--page", "1111x2222"])  # not counted before
        output = capsys.readouterr()
        assert (code, output.out) == (70, "")
        assert output.err.count("\n") == 1
        assert "still alive" in output.err
