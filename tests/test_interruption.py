"""Interruptions at any moment: none is lost, nothing is half written, everything is put back."""

import contextlib
import itertools
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
from functools import partial

import pytest
import torch
import vendor_like
from both_engines import small_directory
from process_state import process_settings, settings
from sampling import first, named, sampled

from dsocr_analyze import DeepSeekOCRSession, cli, errors, interruption, output_files
from dsocr_analyze.interruption import (
    Terminated,
    deferred,
    held,
    interruptible,
    point_of_no_return,
    safe_point,
)
from dsocr_analyze.model import directory, loading
from dsocr_analyze.model.forward import blamed_on, running
from dsocr_analyze.model.process_settings import exclusive
from dsocr_analyze.trace.memory import LiveTensors
from dsocr_analyze.trace.passes import FunctionModule, trace_module

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")

META = torch.device("meta")
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}

interrupt = partial(signal.raise_signal, signal.SIGINT)
terminate = partial(signal.raise_signal, signal.SIGTERM)


def raises(error, *_):
    raise error


@pytest.fixture(autouse=True)
def _both_signals_raise(monkeypatch):
    raising = signal.default_int_handler, partial(raises, Terminated)
    before = [*map(signal.signal, CODES, raising)]
    # Else pytest would make a warning of what Python drops.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    yield
    for number, handler in zip(CODES, before, strict=True):
        signal.signal(number, handler)


def handlers():
    return [*map(signal.getsignal, CODES)]


def interrupt_soon():
    """Ctrl-C comes in a moment, from another thread."""
    threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()


# --- held, interruptible, deferred -------------------------------------------------------------


def taking(steps, log, *contexts):
    """Takes steps within some contexts: words are noted, a list is of a context and its steps."""
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context())
        for step in steps:
            if isinstance(step, str):
                log.append(step)
            elif isinstance(step, list):
                taking(step[1:], log, step[0])
            else:
                step()


def swallowing(error=BaseException, step=safe_point):
    """As model code may do."""
    with contextlib.suppress(error):
        step()


def wrapping():
    try:
        safe_point()
    except KeyboardInterrupt as error:
        raise ValueError("mine") from error


class Dying:
    """Interrupts when it is freed, where Python drops what is raised."""

    def __del__(self):
        interrupt()


def dying_watched():
    thing = torch.nn.Module()
    watch = weakref.ref(thing, lambda _: interrupt())
    del thing
    assert watch() is None


def loop():
    while True:
        pass


DROPPED_AND_RAISED = ["dropped", [held, "before the safe point", safe_point, "after it"]]
STEPS = {
    "at the next safe point": (
        [safe_point, interrupt, "struck", safe_point, "never"], KeyboardInterrupt, ["struck"],
    ),
    "SIGTERM": ([safe_point, terminate, "struck", safe_point, "never"], Terminated, ["struck"]),
    "at the end of all that is held": (
        [[held, interrupt], "the inner end"], KeyboardInterrupt, ["the inner end"],
    ),
    "again at every safe point, if swallowed": (
        [interrupt, *[swallowing, "swallowed"] * 2, safe_point, "never"],
        KeyboardInterrupt, ["swallowed"] * 2,
    ),
    "at the end, if swallowed": ([interrupt, swallowing, "on"], KeyboardInterrupt, ["on"]),
    "in place of what became of it": ([interrupt, wrapping], KeyboardInterrupt, []),
    "no other error": ([partial(raises, ValueError)], ValueError, []),
    "nothing without a signal": ([safe_point, point_of_no_return, "the end"], None, ["the end"]),
    "once, if it arrives twice": (
        [interrupt, interrupt, "on", terminate, "on"], KeyboardInterrupt, ["on", "on"],
    ),
    "at the end, past the point of no return": (
        [[held, point_of_no_return, interrupt, safe_point, point_of_no_return], safe_point, "end"],
        KeyboardInterrupt, ["end"],
    ),
    "at once where it may": ([[interruptible, interrupt, "never"]], KeyboardInterrupt, []),
    "again, if a finalizer's was dropped": (
        [[interruptible, Dying, *DROPPED_AND_RAISED]],
        KeyboardInterrupt, ["dropped", "before the safe point"],
    ),
    "again, if a callback's was dropped": (
        [[interruptible, dying_watched, *DROPPED_AND_RAISED]],
        KeyboardInterrupt, ["dropped", "before the safe point"],
    ),
    "at the end, if it was dropped": (
        [[interruptible, Dying, "dropped"]], KeyboardInterrupt, ["dropped"],
    ),
    "as before, after what defers it": (
        [[deferred], interrupt, safe_point, "never"], KeyboardInterrupt, [],
    ),
}  # fmt: skip
"""By when an interruption is raised: steps that are held, the error, and what the steps note."""


@pytest.mark.parametrize(("steps", "error", "noted"), STEPS.values(), ids=STEPS)
def test_an_interruption_is_raised(steps, error, noted):
    before, log = handlers(), []
    with contextlib.nullcontext() if error is None else pytest.raises(error) as raised:
        taking(steps, log, held)
    assert log == noted
    assert raised is None or raised.type is error
    assert handlers() == before


@pytest.mark.parametrize(
    ("handler", "error", "noted"),
    [
        (lambda log, *_: log.append("handled"), None, ["held", "handled"]),
        (lambda log, *_: sys.exit(7), SystemExit, ["held"]),
    ],
    ids=["and raises nothing", "and raises what it likes"],
)
def test_a_handler_is_called_once_and_late(handler, error, noted):
    log = []
    signal.signal(signal.SIGINT, partial(handler, log))
    with pytest.raises(error) if error else contextlib.nullcontext():
        taking([interrupt, "held", safe_point, safe_point], log, held)
    assert log == noted


def test_what_is_ignored_or_kills_stays_so():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with held():
        assert handlers() == [signal.SIG_IGN, signal.SIG_DFL]
        interrupt()


def test_another_thread_neither_holds_nor_is_interrupted():
    entered, leave, log = threading.Event(), threading.Event(), []
    steps = [entered.set, leave.wait, safe_point, "ends well"]
    worker = threading.Thread(target=taking, args=(steps, log, held, exclusive))
    worker.start()
    entered.wait()
    before = handlers()
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    interrupt_soon()  # waiting for the other thread's model can be interrupted
    with pytest.raises(KeyboardInterrupt):
        taking(["its turn"], log, exclusive)
    assert handlers() == before
    leave.set()
    worker.join()
    taking(["my turn"], log, exclusive)
    assert log == ["ends well", "my turn"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "body", [lambda: time.sleep(60), loop, partial(swallowing, step=lambda: time.sleep(60))]
)
def test_what_never_reaches_a_safe_point_is_interrupted_after_a_second(body):
    interrupt_soon()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        taking([body], [], held)
    assert 0.9 < time.monotonic() - start < 30


@pytest.mark.exhaustive
@pytest.mark.parametrize("outer", [contextlib.nullcontext, held, interruptible])
def test_what_is_deferred_waits_for_the_end_however_long_that_takes(outer):
    log, sleep = [], partial(time.sleep, interruption.PATIENCE_SECONDS + 0.3)
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        taking([[deferred, sleep, safe_point, "in the body"], safe_point, "never"], log, outer)
    assert log == ["in the body"]


# --- every moment ----------------------------------------------------------------------------


def strike(moment, seen, frame, event, _):
    """Strikes at the n-th moment at which Python may run a signal's handler.

    That is where a function begins, and where one of C has returned.
    """
    if event in ("call", "c_return") and next(seen) == moment:
        interrupt()


def at_every_moment(action, step=1):
    """Interrupts an action at each of its moments, or every n-th; yields after each interruption.

    Another end than by KeyboardInterrupt fails, but for the last.
    """
    for moment in range(1, 100_000, step):
        seen, is_interrupted = itertools.count(1), False
        sys.setprofile(partial(strike, moment, seen))
        try:
            action()
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            sys.setprofile(None)
        assert is_interrupted == (next(seen) > moment)
        if not is_interrupted:
            return
        yield


def holding(_):
    """Contexts within each other are left, and handlers are as before."""
    entered, before = [], handlers()

    @contextlib.contextmanager
    def changed():
        entered.append(1)
        try:
            yield
        finally:
            entered.pop()

    def action():
        with held(), changed(), changed():
            with interruptible(), held(), changed():
                safe_point()
            safe_point()

    return action, lambda: (len(entered), handlers()), [(0, before)]


def deferring(_):
    """What is deferred is whole or never begins."""
    log = []

    def action():
        with held(), interruptible(), deferred():
            log.append("begins")
            log.append("ends")

    return action, lambda: [log.pop() for _ in log[:]], [[], ["ends", "begins"]]


def using(context, step):
    """The settings are put back."""

    def action():
        with context():
            step()

    return action, settings, [settings()]


def writing(write, *paths):
    """Files that belong together are all old or all new."""

    def look():
        found = [path.exists() and path.read_text() for path in sorted(paths[0].parent.iterdir())]
        for path in paths:
            path.write_text("old")
        return found

    look()
    return partial(write, *paths), look, [[text] * len(paths) for text in ("old", "new")]


def write_table_and_picture(table, picture):
    with output_files.replacing(table) as temporary, output_files.replacing(picture) as other:
        temporary.write(b"new")
        other.write(b"new")


SWEEPS = {
    "held": (holding, 1, 50), "deferred": (deferring, 1, 20),
    "running": (
        lambda _: using(
            lambda: running(META, lambda q, *_: q), lambda: torch.empty(3, device=META) + 1
        ), 23, 20,
    ),
    "building": (
        lambda _: using(
            lambda: loading.building(META, torch.bfloat16), lambda: torch.nn.Linear(2, 3)
        ), 23, 20,
    ),
    "importing": (
        lambda folder: using(
            lambda: loading.importable(
                directory.ModelDirectory.read(vendor_like.write(folder / "m"))
            ),
            safe_point,
        ), 23, 20,
    ),
    "files": (
        lambda folder: writing(
            lambda *paths: output_files.write_files(dict.fromkeys(paths, "new")),
            *(folder / name for name in ("a.json", "b.md", "c.json")),
        ), 1, 50,
    ),
    "a table and its picture": (
        lambda folder: writing(write_table_and_picture, folder / "a.csv", folder / "b.png"), 1, 50,
    ),
}  # fmt: skip
"""What makes an action in a folder, how to look at what is left of it, and what may be left; every
how many moments it is interrupted, and the fewest of these."""


@sampled("name", SWEEPS, named("held", "deferred"))
def test_at_every_moment_all_is_as_before_or_done(name, tmp_path):
    make, step, least = SWEEPS[name]
    action, look, may_be_left = make(tmp_path)
    action()  # imports what it needs
    look()
    left = [look() for _ in at_every_moment(action, step)]
    assert len(left) > least
    assert all(each in may_be_left for each in left)
    assert all(each in left for each in may_be_left)


@pytest.mark.exhaustive
def test_a_pipe_that_nobody_reads_can_be_left(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.json").write_text("old")
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        output_files.write_files({tmp_path / "a.json": "new", tmp_path / "pipe": "new"})
    assert (tmp_path / "a.json").read_text() == "old"


# --- a pass ----------------------------------------------------------------------------------


def test_freeing_a_tensor_runs_no_python():
    memory, tensor, called = LiveTensors(()), torch.empty(1000, device=META), []
    memory.add(tensor)
    sys.setprofile(lambda frame, event, _: event == "call" and called.append(frame.f_code))
    try:
        del tensor
    finally:
        sys.setprofile(None)
    assert called == []
    assert memory.nbytes == 0


def freed(x, log):
    y = x + 1
    log.append(weakref.ref(y.untyped_storage(), lambda _: interrupt()))
    del y
    return x * 2


def swallowed(x, log):
    interrupt()
    for _ in range(3):
        swallowing(step=lambda: log.append(x + 1))
    return x


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(("forward", "left"), [(freed, 1), (swallowed, 0)])
def test_a_pass_that_drops_or_swallows_an_interruption_cannot_go_on(forward, left, device):
    given, log = torch.empty(5, device=device), []
    with pytest.raises(KeyboardInterrupt):
        trace_module(FunctionModule(partial(forward, log=log)), given.device, given)
    assert len(log) == left


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([interrupt, wrapping], KeyboardInterrupt),
        ([partial(raises, RuntimeError("the model's own"))], errors.ModelCodeError),
    ],
)
def test_an_interruption_is_not_blamed_on_the_model(steps, error):
    with pytest.raises(error):
        taking(steps, [], exclusive, partial(blamed_on, small_directory(), "failed"))


def test_building_ends_soon():
    made = []
    with contextlib.suppress(KeyboardInterrupt), loading.building(META, torch.float32):
        for number in range(100):
            made.append(number)
            if number == 4:
                interrupt()
            torch.nn.Linear(2, 2)
    assert len(made) == 5


# --- the main job, at random moments ---------------------------------------------------------

CHUNKS, POINTS = 334 if os.environ.get("DSOCR_CAMPAIGN") == "long" else 80, 3
"""Together 1,000 moments."""

PAGE = ("--page", "600x500", "--crop-mode", "0", "--image-size", "64", "--max-new-tokens", "1")
REPORT = ("static_compute.json", "static_compute.md")
OLD = ["old", "old"]


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


class Job:
    """The main job on a small model, and what it writes."""

    def __init__(self, folder, *options):
        config, self.output = folder / "config.json", folder / "out"
        config.write_text(json.dumps(small_directory(num_hidden_layers=1).config))
        named = ["--config", str(config), "--output", str(self.output)]
        self.arguments, self.seconds = [*named, *PAGE, *options, "-q"], math.inf
        assert [cli.main(self.arguments), self.run()] == [0, 0]  # the first imports what is needed
        self.right = self.written()

    def run(self):
        """The exit code; the fastest run tells how long the job takes when nobody disturbs it."""
        start = time.perf_counter()
        code = cli.main(self.arguments)
        self.seconds = min(self.seconds, math.inf if code else time.perf_counter() - start)
        return code

    def written(self):
        """What is in the files, beside which lies nothing."""
        assert sorted(path.name for path in self.output.iterdir()) == sorted(REPORT)
        return self.texts()

    def texts(self):
        """What is in the files, but for the time."""
        texts = [(self.output / name).read_text() for name in REPORT]
        return [re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "", text) for text in texts]


@sampled("chunk", range(CHUNKS), first(1))
def test_the_main_job_interrupted_at_random(chunk, tmp_path):
    """240 moments (1,000 in the long campaign): reports old or right, and the process as it was."""
    draw, job, codes = random.Random(chunk), Job(tmp_path), []
    before = settings() | process_settings()
    for _ in range(POINTS):
        number, code = draw.choice(list(CODES)), None
        output_files.write_files({job.output / name: "old" for name in REPORT})
        after = draw.uniform(0, 1.1) * job.seconds
        with contextlib.suppress(KeyboardInterrupt), struck_after(after, number):
            code = job.run()
        # Where nothing was under way any more, it is the caller's.
        assert code in (CODES[number], 0, None)
        assert job.written() in ([job.right] if code == 0 else [job.right, OLD])
        assert settings() | process_settings() == before
        codes.append(code)
    assert sum(code in CODES.values() for code in codes) > POINTS / 8


@pytest.mark.exhaustive
@pytest.mark.parametrize("times", [15, 60])
def test_a_session_interrupted_at_random_can_be_used_again(times):
    session = DeepSeekOCRSession.from_directory(small_directory(num_hidden_layers=1))
    workload = session.plan(page=(600, 500), crop_mode=False, image_size=64, max_new_tokens=1)
    seconds, draw, undisturbed = 1.0, random.Random(0), 0
    right, _ = session.figures(workload)

    def state():
        modules = [*session.model.modules()]
        hooks = [m._forward_hooks or m._forward_pre_hooks for m in modules]
        return settings(), [vars(module).keys() for module in modules], any(hooks)

    before = state()
    for _ in range(times):
        start = time.perf_counter()
        with (
            contextlib.suppress(KeyboardInterrupt),
            struck_after(draw.uniform(0, 1.1) * seconds, signal.SIGINT),
        ):
            assert session.figures(workload)[0] == right
            seconds, undisturbed = min(seconds, time.perf_counter() - start), undisturbed + 1
        assert state() == before
    assert undisturbed < times * 3 / 4
    assert session.figures(workload)[0] == right


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("engine", "seconds"), [("trace", 6), ("analytic", 0.5)])
def test_processes_interrupted_at_random(engine, seconds, seed, tmp_path):
    draw, job = random.Random(seed), Job(tmp_path, "--engine", engine)
    output_files.write_files({job.output / name: "old" for name in REPORT})
    command = [sys.executable, "-m", "dsocr_analyze", *job.arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    number = draw.choice([*CODES, signal.SIGKILL])
    time.sleep(draw.uniform(0.02, seconds))
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    # The signal's own end: Python had not come to the program yet.
    assert process.returncode in (CODES.get(number), -number, 0), error
    assert process.returncode < 0 or "Traceback" not in error
    if number == signal.SIGKILL:  # each file is old or whole, and the next run tidies up
        assert all(
            text in ("old", right) for text, right in zip(job.texts(), job.right, strict=True)
        )
        job.run()
    assert job.written() in ([job.right] if process.returncode == 0 else [job.right, OLD])


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

LOSES_ONE = """
import importlib.abc, os, signal, sys

class Interrupter(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "dsocr_analyze.cli":
            try: os.kill(os.getpid(), {number})
            except BaseException: pass

sys.meta_path.insert(0, Interrupter())
from dsocr_analyze.__main__ import run
run()
"""


@sampled(
    ("code", "number", "command", "said"),
    [
        (LOSES_ONE, signal.SIGTERM, ["--engine", "analytic"], ""),
        (LOSES_ONE, signal.SIGINT, ["--engine", "analytic"], ""),
        (STARTS_INTERRUPTED, signal.SIGINT, [], "whole\n"),
        (STARTS_INTERRUPTED, signal.SIGTERM, [], "whole\n"),
        (STARTS_INTERRUPTED, signal.SIGTERM, ["tree"], "whole\n"),
        (STARTS_INTERRUPTED, signal.SIGINT, ["docs"], "whole\n"),
        (STARTS_INTERRUPTED, signal.SIGINT, ["compare", "tiny", "small", "--engine", "trace"],
         "whole\n"),
    ],
    first(1),
)  # fmt: skip
def test_one_that_comes_while_modules_are_imported_ends_the_program(
    code, number, command, said, tmp_path
):
    """Torch is there as a whole first; and one that an import swallows is not lost."""
    done = subprocess.run(
        [sys.executable, "-c", code.format(number=int(number)), *command],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (128 + number, said), done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("tmp/dsocr-static-ops/*"))


def test_reports_are_old_or_right_when_stdout_fails_besides(tmp_path, capsys, monkeypatch):
    """What an interruption breaks on its way must not hide it."""

    def broken(*_, **__):
        swallowing(KeyboardInterrupt, terminate)
        raise OSError(5, "cut short")

    monkeypatch.setattr("dsocr_analyze.cli.printing.show", broken)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--engine", "analytic"]) == 143
    assert capsys.readouterr().err == "dsocr-analyze: terminated; its results may be incomplete\n"
