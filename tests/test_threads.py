"""Several threads: models are built and run one at a time, and others see little of it."""

from __future__ import annotations

import contextlib
import io
import logging as python_logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import vendor_like
from both_engines import small_directory
from process_state import settings
from test_running import contexts
from transformers import PretrainedConfig, PreTrainedModel, modeling_flash_attention_utils
from transformers.utils import logging

from dsocr_analyze import analytic
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.forking import importing, undone
from dsocr_analyze.interruption import held
from dsocr_analyze.model.forward import running
from dsocr_analyze.model.loading import building
from dsocr_analyze.model.process_settings import exclusive, is_running_thread
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.trace.composites import Composites
from dsocr_analyze.trace.passes import trace_module

META = torch.device("meta")
RUNS, THREADS = 100, 12

SMALLEST = {"page": (600, 500), "crop_mode": False, "image_size": 64, "max_new_tokens": 2}
"""One view of one visual token."""


@pytest.fixture(autouse=True)
def _threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def in_parallel(function, arguments):
    """Results of the calls, in order, from a pool of threads that start together."""
    ready = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS, initializer=ready.wait) as pool:
        return list(pool.map(function, arguments))


def elsewhere(function):
    """What another thread gets from a call."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def layer_alone(number):
    """The trace of a layer on the CPU."""
    # While a model is built, its type is everybody's default: this one is named.
    kind = {"dtype": torch.float32}
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16 + number, batch_first=True, **kind)
    return trace_module(layer.eval(), torch.device("cpu"), torch.ones(1, 5, 8, **kind))[0]


@pytest.mark.exhaustive
def test_what_runs_at_once_gives_what_it_gives_alone():
    """Shared sessions, sessions of a thread's own, modules alone, the analytic engine."""
    narrow = {"hidden_size": 160, "projector_config": {"n_embed": 160}}
    directories = [
        small_directory(num_hidden_layers=1),
        small_directory(num_hidden_layers=2, **narrow),
    ] * 2
    dtypes = ("bfloat16", "float32", "float16", "float32")
    workloads = [DEFAULT.plan(**SMALLEST, text_tokens=5 + number) for number in range(4)]
    session_of = DeepSeekOCRSession.from_directory

    def run(number):
        kind, number = divmod(number % 16, 4)
        directory, dtype = directories[number], dtypes[number]
        if kind < 2:
            session = session_of(directory, dtype=dtype) if kind else shared[number]
            kinds = {str(p.dtype) for p in session.model.parameters()}
            return *session.figures(workloads[number]), kinds
        if kind == 2:
            return layer_alone(number)
        return analytic.page_figures(directory, workloads[number], dtype=dtype)

    before = settings()
    shared = [session_of(directories[number], dtype=dtypes[number]) for number in range(4)]
    alone = [run(number) for number in range(16)]
    for number, result in enumerate(in_parallel(run, range(RUNS))):
        assert result == alone[number % 16], number
    assert settings() == before


def test_a_thread_waits_for_another():
    inside, most = [], []

    def run(_):
        with exclusive(), exclusive():
            inside.append(is_running_thread())
            most.append(len(inside))
            inside.pop()
        return is_running_thread()

    assert set(in_parallel(run, range(200))) == {False}
    assert set(most) == {1}


def _entered():
    with exclusive():
        return "entered"


def test_an_error_ends_the_turn():
    with pytest.raises(ZeroDivisionError), exclusive():
        _ = 1 / 0
    assert elsewhere(_entered) == "entered"


LOOKS = {
    "turn": is_running_thread,
    "verbosity": logging.get_verbosity,
    "gradients": torch.is_grad_enabled,
    "default device": torch.get_default_device,
    "modes": torch.overrides._get_current_function_mode_stack,
    "optimized scripts": torch._C._get_graph_executor_optimize,
    "fusers": torch._C._jit_texpr_fuser_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "initialisation": lambda: torch.nn.init.ones_(torch.zeros(1, device="cpu")).tolist(),
    "prints": lambda: sys.stdout.write("") is None,
}
"""Settings, as a thread sees them."""


def looks():
    return {name: str(look()) for name, look in LOOKS.items()}


@pytest.mark.parametrize(
    ("context", "changed"),
    [
        (
            lambda: building(META, torch.bfloat16),
            {"turn", "modes", "default device", "initialisation"},
        ),
        (lambda: running(META), {"turn", "modes", "optimized scripts", "gradients"}),
    ],
)
def test_others_see_every_setting_as_it_was(context, changed):
    before = looks()
    with context():
        assert elsewhere(looks) == before
        here = looks()
    assert {name for name in LOOKS if here[name] != before[name]} == changed
    assert looks() == before


@pytest.mark.exhaustive
def test_a_watching_thread_sees_every_setting_as_it_was():
    """All the time while sessions are made and run; the default dtype alone is everybody's."""
    before, ended = looks(), threading.Event()
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        stack.callback(ended.set)
        watches = pool.submit(lambda: [looks() for _ in iter(ended.is_set, True)])
        for dtype in ("float16", "bfloat16", "float16"):
            directory = small_directory(num_hidden_layers=1)
            session = DeepSeekOCRSession.from_directory(directory, dtype=dtype)
            session.figures(session.plan(**SMALLEST))
    seen = watches.result()
    assert len(seen) > 50
    assert seen == [before] * len(seen)


# What they notice while a model is built or run: nothing but the default dtype.


@pytest.mark.parametrize("has_stdout", [True, False])
def test_their_prints_are_heard(has_stdout, capsys, monkeypatch):
    if not has_stdout:
        monkeypatch.setattr(sys, "stdout", None)
    with running(META):
        print("the model's")  # noqa: T201
        elsewhere(lambda: print("theirs"))  # noqa: T201
    assert capsys.readouterr().out == "theirs\n" * has_stdout


def test_a_stream_that_they_put_in_place_stays(monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    theirs = io.StringIO()
    with running(META):
        elsewhere(lambda: setattr(sys, "stdout", theirs))
    assert sys.stdout is theirs


def test_their_models_of_transformers_are_initialised():
    called = []

    class Model(PreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.weight = torch.nn.Parameter(torch.ones(1))  # else there is nothing to draw

        def _init_weights(self, module):
            called.append(module)

        def tie_weights(self, *args, **kwargs):
            pass

    def model_with_flash_attention():
        return Model(PretrainedConfig(attn_implementation="flash_attention_2"))

    with building(META, torch.float32):
        model = model_with_flash_attention()
        assert model.config._attn_implementation == "flash_attention_2"
        model.init_weights()
        assert called == []
        elsewhere(lambda: model.init_weights())
        assert called == [model]
        with pytest.raises(ValueError, match="does not support Flash Attention"):
            elsewhere(model_with_flash_attention)


def test_their_autocast_is_torchs():
    def autocast():
        with pytest.raises(RuntimeError, match=r"meta|scalarType"):
            torch.autocast("meta")
        with torch.autocast("cpu", torch.bfloat16):
            return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    with running(META):
        torch.autocast("meta", torch.bfloat16)
        assert elsewhere(autocast) is torch.bfloat16


def test_their_messages_of_transformers_appear(monkeypatch):
    stream = io.StringIO()
    root, logger = logging.get_logger(), logging.get_logger("transformers.something")
    handler = python_logging.StreamHandler(stream)
    monkeypatch.setattr(root, "handlers", [*root.handlers, handler])
    with running(META):
        logger.warning("the model's")
        logger.error("an error of the model's")
        elsewhere(lambda: logger.warning("theirs"))
    assert stream.getvalue() == "an error of the model's\ntheirs\n"


def test_their_flash_attention_is_their_own_or_missing_as_before(monkeypatch):
    module = modeling_flash_attention_utils
    monkeypatch.delattr(module, "flash_attn_func", raising=False)
    with running(META, lambda q: "the model's"), pytest.raises(NameError):
        elsewhere(lambda: module.flash_attn_func(1))
    assert not hasattr(module, "flash_attn_func")
    monkeypatch.setattr(module, "flash_attn_func", lambda q: "theirs", raising=False)
    monkeypatch.setattr(module, "_flash_supports_window_size", True, raising=False)
    with running(META, lambda q: "the model's"):
        assert module.flash_attn_func(1) == "the model's"
        assert elsewhere(lambda: module.flash_attn_func(1)) == "theirs"
        assert elsewhere(lambda: module._flash_supports_window_size) is True


def test_their_modes_are_asked_while_a_function_is_opened():
    def asked(*_):
        return torch.nn.functional.has_torch_function((torch.ones(1),))

    def asked_with_a_mode():
        with torch.device("cpu"):  # a mode
            return asked()

    composites = Composites(lambda name, args, kwargs, run, is_kernel: run())
    assert composites._opened(asked, (), {}) is False
    assert composites._opened(lambda *_: elsewhere(asked_with_a_mode), (), {}) is True


@pytest.mark.exhaustive
def test_their_functions_are_guarded_by_the_real_compiler():
    code = """
import sys, threading, torch
from dsocr_analyze.model.process_settings import without_unused_imports
def function(): pass
guarded = []
with without_unused_imports():
    assert torch._dynamo.disable(function) is function
    thread = threading.Thread(target=lambda: guarded.append(torch._dynamo.disable(function)))
    thread.start()
    thread.join()
assert guarded[0] is not function
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- forks -----------------------------------------------------------------------------------


def forked(check):
    """Whether a check is true in a forked process, which must end well and within a minute."""
    child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(not check()))
    child.start()
    child.join(60)
    with contextlib.suppress(ValueError):
        child.kill()
    child.join()
    return child.exitcode == 0


def forked_elsewhere(check):
    """The same, forked by another thread, which is not of a pool: concurrent.futures fails."""
    found = []
    thread = threading.Thread(target=lambda: found.append(forked(check)))
    thread.start()
    thread.join()
    return found == [True]


@contextlib.contextmanager
def busy_in(context, seconds=None):
    """Meanwhile, another thread stays in a context, or some seconds longer."""
    entered, leave = threading.Event(), threading.Event()

    def stay():
        with context():
            entered.set()
            leave.wait(seconds)

    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        stack.callback(leave.set)
        stays = pool.submit(stay)
        assert entered.wait(60)
        yield
    stays.result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
class TestAForkedProcess:
    """A process that is forked while another thread is busy finds nothing of it."""

    @pytest.mark.parametrize("name", ["importing", "building", "running on meta"])
    def test_finds_every_setting_as_it_was(self, name, tmp_path):
        context, _ = contexts(vendor_like.write(tmp_path / "m"))[name]
        before = settings()
        with busy_in(context):
            assert forked(lambda: settings() == before and _entered() == "entered")
        assert settings() == before

    def test_undoes_a_change_once_even_if_it_is_forked_itself(self):
        times = []
        with busy_in(lambda: undone(lambda: times.append(1))):
            assert forked(lambda: times == [1] and forked(lambda: times == [1]))

    def test_begins_after_the_imports_of_other_threads(self):
        ended = []

        @contextlib.contextmanager
        def imports():
            with importing():
                yield
                ended.append(True)

        with busy_in(imports, seconds=0.1):
            assert forked(lambda: ended)

    def test_runs_a_model_in_one_thread(self):
        def threads():
            with exclusive():
                return torch.get_num_threads()

        with contextlib.ExitStack() as stack:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(2)
            assert forked(lambda: (threads(), torch.get_num_threads()) == (1, 2))

    def test_analyzes_with_the_session_of_a_busy_thread(self):
        # A view of so many pixels that torch computes with several threads whether any is not 0.
        large = SMALLEST | {"image_size": 512}
        session = partial(DeepSeekOCRSession.from_directory, small_directory(num_hidden_layers=1))
        mine, checked = session(), []

        def state():
            return settings(), [dict(vars(each)) for each in mine.model.modules()]

        def is_as_before():
            return state() == before and all(
                each.analyze(**large).total == expected for each in (mine, session())
            )

        expected = mine.analyze(**large).total
        before = state()

        def fork_during(step):
            if step.startswith("decode") and not checked:
                checked.append(forked_elsewhere(is_as_before))

        assert mine.analyze(**large, on_progress=fork_during).total == expected
        assert checked == [True]
        assert state() == before

    def test_has_the_handlers_of_signals_from_before(self):
        before = signal.getsignal(signal.SIGINT)
        with held():
            assert forked_elsewhere(lambda: signal.getsignal(signal.SIGINT) is before)
            assert signal.getsignal(signal.SIGINT) is not before

    def test_forked_by_the_busy_thread_itself_goes_on_with_its_turn(self):
        with running(META):
            during = settings()
            assert forked(lambda: is_running_thread() and settings() == during)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("seconds", [0.2, 0.7, 1.5, 3.0])
    def test_forked_while_a_first_analysis_is_importing_runs_one_of_its_own(self, seconds):
        code = f"""
import os, threading, time
import dsocr_analyze
def run():
    return dsocr_analyze.analyze(page="a4", mode="tiny").total.flops
thread = threading.Thread(target=run)
thread.start()
time.sleep({seconds})
child = os.fork()
if not child:
    os._exit(0 if run() else 1)
ended, deadline = 0, time.monotonic() + 60
while not ended and time.monotonic() < deadline:
    ended, status = os.waitpid(child, os.WNOHANG)
    time.sleep(0.05)
if not ended:
    os.kill(child, 9)
thread.join()
raise SystemExit(0 if ended and status == 0 else 1)
"""
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0
