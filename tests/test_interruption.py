"""Interruptions at any moment: none is lost, nothing is half written, everything is put back."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
import torch
import typer
from both_engines import small_directory
from process_state import process_settings, settings
from sampling import first, sampled

from dsocr_analyze import interruption
from dsocr_analyze.cli import main
from dsocr_analyze.errors import ModelCodeError
from dsocr_analyze.interruption import (
    Terminated,
    deferred,
    held,
    interruptible,
    point_of_no_return,
    safe_point,
)
from dsocr_analyze.model.failures import blamed_on
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.process_settings import exclusive
from dsocr_analyze.output_files import replacing, write_files
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.trace.memory import LiveTensors
from dsocr_analyze.trace.module_calls import FunctionModule, trace_module

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")

META = torch.device("meta")


def terminate(*_):
    raise Terminated


@pytest.fixture(autouse=True)
def _both_signals_raise(monkeypatch):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, terminate)
    # Else pytest would make a warning of what Python drops.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def ends_with(error):
    """The body, of as many steps as it takes, ends with this."""
    with pytest.raises(error) as raised:
        yield raised


def strike(number=signal.SIGINT):
    signal.raise_signal(number)


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


class TestHeld:
    """An interruption waits for a safe point, or for the end."""

    @pytest.mark.parametrize(
        ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
    )
    def test_it_is_raised_at_the_next_safe_point(self, number, error):
        steps = []
        before = handlers()
        with ends_with(error) as raised, held():
            safe_point()
            strike(number)
            steps.append("after the signal")
            safe_point()
            steps.append("after the safe point")
        assert type(raised.value) is error
        assert steps == ["after the signal"]
        assert handlers() == before

    def test_it_is_raised_at_the_end_of_all_that_is_held(self):
        steps = []
        with ends_with(KeyboardInterrupt), held():
            with held():
                strike()
            steps.append("after the inner end")
        assert steps == ["after the inner end"]

    def test_a_swallowed_one_is_raised_at_every_safe_point_and_at_the_end(self):
        swallowed = 0
        with ends_with(KeyboardInterrupt), held():
            strike()
            for _ in range(3):
                try:
                    safe_point()
                except BaseException:  # noqa: BLE001  # as model code may have it
                    swallowed += 1
        assert swallowed == 3

    def test_it_wins_over_what_became_of_it(self):
        with ends_with(KeyboardInterrupt), held():
            strike()
            try:
                safe_point()
            except KeyboardInterrupt as error:
                raise ValueError("mine") from error

    def test_other_errors_pass(self):
        with pytest.raises(ValueError, match="mine"), held():
            raise ValueError("mine")

    def test_without_one_nothing_happens(self):
        before = handlers()
        with held():
            assert handlers() != before
            safe_point()
            point_of_no_return()
        assert handlers() == before

    def test_ctrl_c_that_arrives_twice_is_one(self):
        with ends_with(KeyboardInterrupt), held():
            strike()
            strike()
            strike(signal.SIGTERM)

    def test_past_the_point_of_no_return_it_waits_for_the_end(self):
        steps = []
        with ends_with(KeyboardInterrupt), held():
            with held():
                point_of_no_return()
                strike()
                safe_point()
                point_of_no_return()
            safe_point()
            steps.append("the end")
        assert steps == ["the end"]

    def test_a_handler_that_raises_nothing_is_called_once_and_late(self):
        calls = []
        signal.signal(signal.SIGINT, lambda *_: calls.append("handled"))
        with held():
            strike()
            calls.append("held")
            safe_point()
            safe_point()
        assert calls == ["held", "handled"]

    def test_a_handler_may_raise_what_it_likes(self):
        def leave(*_):
            raise SystemExit(7)

        signal.signal(signal.SIGTERM, leave)
        directory = small_directory()
        with ends_with(SystemExit), exclusive(), blamed_on(directory, "failed"):
            strike(signal.SIGTERM)
            safe_point()

    def test_what_is_ignored_or_kills_stays_so(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with held():
            assert handlers() == [signal.SIG_IGN, signal.SIG_DFL]
            strike()

    def test_another_thread_neither_holds_nor_is_interrupted(self):
        entered, leave, errors = threading.Event(), threading.Event(), []

        def work():
            try:
                with held(), exclusive():
                    entered.set()
                    leave.wait()
                    safe_point()
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        entered.wait()
        before = handlers()
        with ends_with(KeyboardInterrupt):
            strike()
        assert handlers() == before
        # Waiting for the other thread's model can be interrupted.
        threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        with ends_with(KeyboardInterrupt), exclusive():
            pytest.fail("it is the other thread's turn")
        leave.set()
        worker.join()
        assert errors == []
        with exclusive():
            pass


@pytest.mark.exhaustive
class TestPatience:
    """Code that never reaches a safe point is interrupted all the same."""

    @pytest.mark.parametrize("how", ["sleeps", "loops", "swallows"])
    def test_after_a_second(self, how):
        def body():
            if how == "sleeps":
                time.sleep(60)
            elif how == "swallows":
                with contextlib.suppress(KeyboardInterrupt):
                    time.sleep(60)
            else:
                while True:
                    pass

        threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        start = time.monotonic()
        with ends_with(KeyboardInterrupt), held():
            body()
        assert 0.9 < time.monotonic() - start < 30


class TestInterruptible:
    """Within what is held, a part that holds nothing."""

    def test_it_is_interrupted_at_once(self):
        steps = []
        with ends_with(KeyboardInterrupt), held(), interruptible():
            strike()
            steps.append("after the signal")
        assert steps == []

    @pytest.mark.parametrize("where", ["callback", "finalizer"])
    def test_one_that_python_drops_is_raised_again(self, where):
        class Thing:
            def __del__(self):
                if where == "finalizer":
                    strike()

        steps = []
        with ends_with(KeyboardInterrupt), held(), interruptible():
            thing = Thing()
            reference = weakref.ref(thing, lambda _: where == "callback" and strike())
            del thing
            steps.append("dropped")
            with held():
                steps.append("before the safe point")
                safe_point()
                steps.append("after it")
        assert steps == ["dropped", "before the safe point"]
        del reference

    def test_one_that_python_drops_is_raised_at_the_end(self):
        class Thing:
            def __del__(self):
                strike()

        steps = []
        with ends_with(KeyboardInterrupt), held(), interruptible():
            Thing()
            steps.append("dropped")
        assert steps == ["dropped"]


@pytest.mark.exhaustive
class TestKeptOut:
    """Nothing strikes before the end: there is no safe point, and no patience that ends."""

    @pytest.mark.parametrize("outer", [contextlib.nullcontext, held, interruptible])
    def test_it_is_raised_at_the_end(self, outer):
        steps = []
        threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        with ends_with(KeyboardInterrupt), outer():
            with deferred():
                time.sleep(interruption.PATIENCE_SECONDS + 0.3)
                safe_point()
                steps.append("in the body")
            safe_point()
            steps.append("after the body")
        assert steps == ["in the body"]

    def test_patience_ends_again_in_what_holds_it(self):
        with ends_with(KeyboardInterrupt), held():
            with deferred():
                pass
            strike()
            safe_point()
            pytest.fail("it waits no longer than before")

    def test_at_every_moment_the_body_is_whole_or_never_begins(self):
        steps = []

        def action():
            with held(), interruptible(), deferred():
                steps.append("begins")
                len(steps)
                steps.append("ends")

        for ended in at_every_moment(action):
            assert ended == "interrupted"
            assert steps in ([], ["begins", "ends"])
            steps.clear()


# --- every moment ----------------------------------------------------------------------------


class Strike:
    """Strikes at the n-th moment at which Python may run a signal's handler.

    That is where a function begins, and where one of C has returned.
    """

    def __init__(self, moment):
        self.moment = moment
        self.seen = 0

    def __call__(self, frame, event, _):
        if event in ("call", "c_return"):
            self.seen += 1
            if self.seen == self.moment:
                strike()


def at_every_moment(action, step=1):
    """Runs an action with an interruption at each of its moments; yields how each run ended.

    Args:
        action: Ends without one.
        step: Only every n-th moment, where there are many.
    """
    for moment in range(1, 100_000, step):
        struck = Strike(moment)
        sys.setprofile(struck)
        try:
            action()
        except KeyboardInterrupt:
            ended = "interrupted"
        else:
            ended = "done"
        finally:
            sys.setprofile(None)
        if struck.seen < moment:
            assert ended == "done"
            return
        yield ended
    pytest.fail("it does not end")


def test_whatever_is_held_is_put_back_at_every_moment():
    state = {"is set": 0}

    @contextlib.contextmanager
    def changed():
        state["is set"] += 1
        try:
            yield
        finally:
            state["is set"] -= 1

    def action():
        with held(), changed(), changed():
            with interruptible(), held(), changed():
                safe_point()
            safe_point()

    before = handlers()
    endings = []
    for ended in at_every_moment(action):
        assert state == {"is set": 0}
        assert handlers() == before
        endings.append(ended)
    assert len(endings) > 50
    assert set(endings) == {"interrupted"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("context", ["running", "building", "importing"])
def test_settings_are_put_back_at_every_moment(context, tmp_path):
    import vendor_like

    from dsocr_analyze.model.directory import ModelDirectory
    from dsocr_analyze.model.loading import building
    from dsocr_analyze.model.source_package import importable

    directory = ModelDirectory.read(vendor_like.write(tmp_path / "m"))

    def action():
        if context == "running":
            with running(META, lambda q, *_: q):
                torch.empty(3, device=META) + 1
        elif context == "building":
            with building(META, torch.bfloat16):
                torch.nn.Linear(2, 3)
        else:
            with importable(directory):
                pass

    action()  # imports what it needs
    before = settings()
    moments = 0
    for ended in at_every_moment(action, step=23):
        moments += 1
        assert ended == "interrupted"
        assert settings() == before
    assert moments > 20


class TestFiles:
    """Files that belong together are all old or all new, and nothing else is left."""

    @pytest.mark.exhaustive
    def test_at_every_moment(self, tmp_path):
        paths = [tmp_path / name for name in ("a.json", "b.md", "c.json")]
        new = {path: f"new {path.name}" for path in paths}
        endings = set()

        def content():
            assert sorted(tmp_path.iterdir()) == paths
            return {path: path.read_text() for path in paths}

        def restored():
            for path in paths:
                path.write_text("old")

        restored()
        for ended in at_every_moment(lambda: write_files(new)):
            found = content()
            assert found in (new, dict.fromkeys(paths, "old"))
            endings.add((ended, found == new))
            restored()
        assert endings == {("interrupted", False), ("interrupted", True)}

    @pytest.mark.exhaustive
    def test_of_a_table_and_its_picture(self, tmp_path):
        table, picture = tmp_path / "t.csv", tmp_path / "p.png"

        def action():
            with replacing(table) as temporary:
                temporary.write_text("new")
                with replacing(picture) as other:
                    other.write_text("new")

        for path in (table, picture):
            path.write_text("old")
        for _ in at_every_moment(action):
            found = {path.read_text() for path in (table, picture)}
            assert len(found) == 1
            assert sorted(tmp_path.iterdir()) == [picture, table]
            for path in (table, picture):
                path.write_text("old")

    def test_the_process_permissions_of_new_files_are_never_changed(self, tmp_path, monkeypatch):
        before = os.umask(0o027)
        try:
            monkeypatch.setattr(os, "umask", lambda _: pytest.fail("other threads make files too"))
            write_files({tmp_path / "a": "text"})
        finally:
            monkeypatch.undo()
            os.umask(before)
        assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640

    @pytest.mark.exhaustive
    def test_a_pipe_that_nobody_reads_can_be_left(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "a.json").write_text("old")
        threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        with ends_with(KeyboardInterrupt):
            write_files({tmp_path / "a.json": "new", tmp_path / "pipe": "new"})
        assert (tmp_path / "a.json").read_text() == "old"


# --- a pass ----------------------------------------------------------------------------------


class TestWhileAModelRuns:
    def test_freeing_a_tensor_runs_no_python(self):
        memory = LiveTensors(())
        tensor = torch.empty(1000, device=META)
        memory.add(tensor)
        called = []
        sys.setprofile(lambda frame, event, _: event == "call" and called.append(frame.f_code))
        try:
            del tensor
        finally:
            sys.setprofile(None)
        assert called == []
        assert memory.nbytes == 0

    @pytest.mark.parametrize("name", ["meta", "cpu"])
    def test_a_signal_while_a_tensor_is_freed_is_not_lost(self, name):
        device = torch.device(name)
        kept = []

        def forward(x):
            y = x + 1
            kept.append(weakref.ref(y.untyped_storage(), lambda _: strike()))
            del y
            return x * 2

        with ends_with(KeyboardInterrupt):
            trace_module(FunctionModule(forward), device, torch.empty(5, device=device))
        assert kept[0]() is None

    @pytest.mark.parametrize("name", ["meta", "cpu"])
    def test_code_that_swallows_everything_cannot_go_on(self, name):
        device = torch.device(name)
        swallowed = []

        def forward(x):
            strike()
            for _ in range(3):
                try:
                    x = x + 1
                except BaseException as error:  # noqa: BLE001  # as model code may have it
                    swallowed.append(type(error))
            return x

        with ends_with(KeyboardInterrupt):
            trace_module(FunctionModule(forward), device, torch.empty(5, device=device))
        assert swallowed == [KeyboardInterrupt] * 3

    def test_an_interruption_is_not_blamed_on_the_model(self):
        directory = small_directory()
        with ends_with(KeyboardInterrupt), exclusive(), blamed_on(directory, "failed"):
            strike()
            try:
                safe_point()
            except KeyboardInterrupt:
                raise RuntimeError("model code wraps what it catches") from None
        with pytest.raises(ModelCodeError), exclusive(), blamed_on(directory, "failed"):
            raise RuntimeError("the model's own")

    def test_building_ends_soon(self):
        layers = 0

        class Deep(torch.nn.Module):
            def __init__(self):
                super().__init__()
                nonlocal layers
                while True:
                    layers += 1
                    if layers == 5:
                        strike()
                    torch.nn.Linear(2, 2)

        from dsocr_analyze.model.loading import building

        with ends_with(KeyboardInterrupt), building(META, torch.float32):
            Deep()
        assert layers == 5


# --- the main job, at random moments ---------------------------------------------------------

CHUNKS, POINTS = 50 if os.environ.get("DSOCR_CAMPAIGN") == "long" else 12, 20
"""Together 1,000 moments."""

PAGE = ("--page", "600x500", "--crop-mode", "0", "--image-size", "64", "--max-new-tokens", "1")
REPORT = ("static_compute.json", "static_compute.md")


@contextlib.contextmanager
def struck_after(seconds, number):
    """The signal comes when so many seconds have passed, wherever that is."""
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        while signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


def without_time(text):
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "", text)


def everything():
    return settings() | process_settings()


class Job:
    """The main job on a small model, and what it writes."""

    def __init__(self, folder):
        self.folder = folder
        config = folder / "config.json"
        config.write_text(json.dumps(small_directory(num_hidden_layers=1).config))
        self.output = folder / "out"
        self.arguments = ["--config", str(config), *PAGE, "-q", "--output", str(self.output)]
        assert main(self.arguments) == 0  # imports what is needed
        self.seconds = math.inf
        assert self.run() == 0
        self.right = self.written()

    def run(self):
        """The exit code; the fastest run tells how long the job takes when nobody disturbs it."""
        start = time.perf_counter()
        code = main(self.arguments)
        if code == 0:
            self.seconds = min(self.seconds, time.perf_counter() - start)
        return code

    def written(self):
        assert sorted(path.name for path in self.output.iterdir()) == sorted(REPORT)
        return [without_time((self.output / name).read_text()) for name in REPORT]

    def make_old(self):
        for name in REPORT:
            (self.output / name).write_text("old")


@sampled("chunk", range(CHUNKS), first(1))
def test_the_main_job_interrupted_at_random(chunk, tmp_path):
    """240 moments (1,000 in the long campaign): reports old or right, and the process as it was."""
    draw = random.Random(chunk)
    job = Job(tmp_path)
    before = everything()
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143}
    ended = []
    for _ in range(POINTS):
        number = draw.choice(list(codes))
        job.make_old()
        code = None
        with contextlib.suppress(KeyboardInterrupt), struck_after(
            draw.uniform(0, 1.1) * job.seconds, number
        ):  # fmt: skip
            code = job.run()
        # Where nothing was under way any more, it is the caller's.
        assert code in (codes[number], 0, None)
        written = job.written()
        assert written in ([job.right] if code == 0 else [job.right, ["old", "old"]])
        assert everything() == before
        ended.append(code)
    assert sum(code in codes.values() for code in ended) > POINTS / 8


@pytest.mark.exhaustive
def test_a_library_that_changes_the_environment_while_it_parses_puts_it_back(tmp_path, monkeypatch):
    """Typer sets a variable before the `try` that takes it away again."""
    job = Job(tmp_path)
    before = dict(os.environ)
    changes = []

    class Struck(type(os.environ)):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            changes.append(key)
            strike()

    with monkeypatch.context() as patch:  # pytest changes the environment after each step
        patch.setattr(os.environ, "__class__", Struck)
        code = job.run()
    assert changes
    assert code == 130
    assert dict(os.environ) == before


@pytest.mark.exhaustive
def test_an_interruption_while_a_command_line_is_parsed_waits(tmp_path, monkeypatch):
    job = Job(tmp_path)
    steps = []
    get_command = typer.main.get_command

    def struck(app):
        strike()
        steps.append("struck")
        command = get_command(app)
        steps.append("went on")
        return command

    monkeypatch.setattr(typer.main, "get_command", struck)
    job.make_old()
    assert job.run() == 130
    assert steps == ["struck", "went on"]
    assert job.written() == ["old", "old"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("times", [15, 60])
def test_a_session_interrupted_at_random_can_be_used_again(times):
    session = DeepSeekOCRSession.from_directory(small_directory(num_hidden_layers=1))
    workload = session.plan(page=(600, 500), crop_mode=False, image_size=64, max_new_tokens=1)
    right, _ = session.figures(workload)
    seconds = math.inf
    before = settings()
    model = {path: dict(vars(module)) for path, module in session.model.named_modules()}
    draw = random.Random(0)
    interrupted = 0
    for _ in range(times):
        start = time.perf_counter()
        try:
            after = 60 if seconds == math.inf else draw.uniform(0, 1.1) * seconds
            with struck_after(after, signal.SIGINT):
                figures, _ = session.figures(workload)
        except KeyboardInterrupt:
            interrupted += 1
        else:
            seconds = min(seconds, time.perf_counter() - start)
            assert figures == right
        assert settings() == before
        for path, module in session.model.named_modules():
            assert vars(module).keys() == model[path].keys()
            assert module._forward_hooks == module._forward_pre_hooks == {}
    assert interrupted > times / 4
    assert session.figures(workload)[0] == right


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(24))
def test_processes_interrupted_at_random(seed, tmp_path):
    draw = random.Random(seed)
    (tmp_path / "config.json").write_text(json.dumps(small_directory(num_hidden_layers=1).config))
    output = tmp_path / "out"
    output.mkdir()
    for name in REPORT:
        (output / name).write_text("old")
    engine = ("trace", "analytic")[seed % 2]
    arguments = ["--config", "config.json", *PAGE, "-q", "--output", "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dsocr_analyze", *arguments, "--engine", engine],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    number = draw.choice([signal.SIGINT, signal.SIGTERM])
    time.sleep(draw.uniform(0.1, 6 if engine == "trace" else 1))
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    # The signal's own end: Python had not come to the program yet.
    assert process.returncode in (128 + number, -number, 0), err
    written = [(output / name).read_text() for name in REPORT]
    assert sorted(path.name for path in output.iterdir()) == sorted(REPORT)
    if written != ["old", "old"]:
        assert json.loads(written[0])["total"]["macs"] > 0
        assert written[1].startswith("Ran: ")
        assert "old" not in written
    else:
        assert process.returncode != 0
    if process.returncode >= 0:
        assert "Traceback" not in err


STARTS_INTERRUPTED = """
import functools, importlib.abc, os, sys, time

class Interrupter(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "torch._C":
            os.kill(os.getpid(), {number})
            time.sleep(1.3)  # longer than the patience of what is held

sys.meta_path.insert(0, Interrupter())
from dsocr_analyze import interruption
interruption.listen()
from dsocr_analyze import analysis
from dsocr_analyze.cli import main

@functools.wraps(start_torch := analysis.start_torch)
def started():  # in whichever process
    try:
        start_torch()
    finally:
        whole = hasattr(sys.modules.get("torch"), "compile")
        print("whole" if whole else "cut", flush=True)

analysis.start_torch = started
os._exit(main())
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("command", "number"),
    [
        ((), signal.SIGINT),
        ((), signal.SIGTERM),
        (("tree",), signal.SIGTERM),
        (("docs",), signal.SIGINT),
        (("compare", "tiny", "small", "--engine", "trace"), signal.SIGINT),
    ],
)
def test_while_torch_starts_it_waits_until_torch_is_there(command, number, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STARTS_INTERRUPTED.format(number=int(number)), *command],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 128 + number, done.stderr
    assert done.stdout == "whole\n"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_lost_while_importing_still_ends_the_program(number, tmp_path):
    code = (
        "import importlib.abc, os, signal, sys\n"
        "class Interrupter(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer':\n"
        f"            try: os.kill(os.getpid(), {int(number)})\n"
        "            except BaseException: pass\n"
        "sys.meta_path.insert(0, Interrupter())\n"
        "from dsocr_analyze.__main__ import run\n"
        "sys.argv[1:] = ['--engine', 'analytic']; run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 128 + number
    assert done.stdout == ""
    assert not list(tmp_path.glob("tmp/dsocr-static-ops/*"))


def test_reports_are_old_or_right_when_stdout_fails_besides(tmp_path, capsys, monkeypatch):
    """What an interruption breaks on its way must not hide it."""

    def broken(*_, **__):
        try:
            strike(signal.SIGTERM)
        except KeyboardInterrupt:
            raise OSError(5, "cut short") from None

    monkeypatch.setattr("dsocr_analyze.cli.printing.show", broken)
    monkeypatch.chdir(tmp_path)
    assert main(["--engine", "analytic"]) == 143
    assert capsys.readouterr().err == "dsocr-analyze: terminated; its results may be incomplete\n"
