"""Several threads: models are built and run one at a time, and others see little of it."""

from __future__ import annotations

import contextlib
import logging as python_logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import vendor_like
from both_engines import small_directory
from process_state import settings
from test_running import contexts
from transformers import PreTrainedModel, modeling_flash_attention_utils
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
from dsocr_analyze.trace.module_calls import trace_module

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


class TestEqualResults:
    @pytest.mark.exhaustive
    def test_of_concurrent_analytic_runs(self):
        jobs = [
            (small_directory(num_hidden_layers=1 + number % 3),
             DEFAULT.plan(**SMALLEST | {"text_tokens": 5 + number % 4}),
             ("bfloat16", "float32")[number % 2])
            for number in range(RUNS)
        ]  # fmt: skip

        def run(job):
            directory, workload, dtype = job
            return analytic.page_figures(directory, workload, dtype=dtype)

        alone = [run(job) for job in jobs[:12]]
        for number, figures in enumerate(in_parallel(run, jobs)):
            assert figures == alone[number % 12]

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("runs", [15, RUNS])
    def test_of_concurrent_builds_and_traces(self, runs):
        """Shared sessions, sessions of a thread's own, modules alone; several types and devices."""
        dtypes = ("bfloat16", "float32", "float16", "float32")
        narrow = {"hidden_size": 160, "projector_config": {"n_embed": 160}}
        directories = [
            small_directory(num_hidden_layers=1),
            small_directory(num_hidden_layers=2, **narrow),
        ]

        def session_of(number):
            return DeepSeekOCRSession.from_directory(
                directories[number % 2], dtype=dtypes[number % 4]
            )

        def figures_of(session, number):
            figures, agreement = session.figures(
                session.plan(**SMALLEST, text_tokens=5 + number % 4)
            )
            return figures, agreement, {str(p.dtype) for p in session.model.parameters()}

        def alone_on_the_cpu(number):
            # While a model is built, its type is everybody's default: this one is named.
            kind = {"dtype": torch.float32}
            layer = torch.nn.TransformerEncoderLayer(
                8, 2, 16 + number % 4, batch_first=True, **kind
            )
            return trace_module(layer.eval(), torch.device("cpu"), torch.ones(1, 5, 8, **kind))[0]

        before = settings()
        shared = [session_of(number) for number in range(4)]
        alone = [figures_of(shared[number], number) for number in range(4)]
        on_the_cpu = [alone_on_the_cpu(number) for number in range(4)]

        def run(number):
            if number % 5 == 4:
                return alone_on_the_cpu(number)
            session = session_of(number) if number % 5 == 3 else shared[number % 4]
            return figures_of(session, number)

        for number, result in enumerate(in_parallel(run, range(runs))):
            assert result == (on_the_cpu if number % 5 == 4 else alone)[number % 4]
        assert settings() == before


class TestOneAtATime:
    def test_a_thread_waits_for_another(self):
        inside, most = [], []

        def run(_):
            assert not is_running_thread()
            with exclusive(), exclusive():
                assert is_running_thread()
                inside.append(1)
                most.append(len(inside))
                inside.pop()
            assert not is_running_thread()

        in_parallel(run, range(200))
        assert set(most) == {1}

    def test_an_error_ends_the_turn(self):
        with pytest.raises(ZeroDivisionError), exclusive():
            raise ZeroDivisionError
        assert elsewhere(lambda: _entered()) == "entered"

    @pytest.mark.parametrize("context", [lambda: building(META, torch.bfloat16),
                                         lambda: running(META)])  # fmt: skip
    def test_building_and_running_is_a_turn(self, context):
        with context():
            assert is_running_thread()
            assert elsewhere(is_running_thread) is False


def _entered():
    with exclusive():
        return "entered"


class TestOtherThreads:
    """What they notice while a model is built or run: nothing but the default dtype."""

    def test_their_prints_are_heard(self, capsys):
        with running(META):
            print("the model's")  # noqa: T201
            elsewhere(lambda: print("theirs"))  # noqa: T201
            elsewhere(lambda: sys.stdout.write("and theirs\n"))
        assert capsys.readouterr().out == "theirs\nand theirs\n"

    def test_a_stream_that_they_put_in_place_stays(self, capsys):
        import io

        theirs, before = io.StringIO(), sys.stdout
        try:
            with running(META):
                elsewhere(lambda: setattr(sys, "stdout", theirs))
            assert sys.stdout is theirs
        finally:
            sys.stdout = before

    def test_without_a_stdout_nothing_breaks(self, monkeypatch):
        monkeypatch.setattr(sys, "stdout", None)
        with running(META):
            print("the model's")  # noqa: T201
            elsewhere(lambda: print("theirs"))  # noqa: T201
        assert sys.stdout is None

    def test_their_tensors_are_initialised(self):
        def initialise():
            linear = torch.nn.Linear(3, 2, device="cpu")
            torch.nn.init.constant_(linear.weight, 7.0)
            return linear.weight.tolist()

        with building(META, torch.float32):
            assert elsewhere(initialise) == [[7.0] * 3] * 2
            mine = torch.zeros(3, device="cpu")
            assert torch.nn.init.ones_(mine) is mine
            assert mine.tolist() == [0.0] * 3

    def test_their_models_of_transformers_are_initialised(self):
        called = []

        class Model(PreTrainedModel):
            def __init__(self, config):
                super().__init__(config)
                self.weight = torch.nn.Parameter(torch.ones(1))  # else there is nothing to draw

            def _init_weights(self, module):
                called.append(module)

            def tie_weights(self, *args, **kwargs):
                pass

        from transformers import PretrainedConfig

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

    def test_their_autocast_is_torchs(self):
        def autocast():
            with pytest.raises(RuntimeError, match=r"meta|scalarType"):
                torch.autocast("meta")
            with torch.autocast("cpu", torch.bfloat16):
                return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

        with running(META):
            torch.autocast("meta", torch.bfloat16)
            assert elsewhere(autocast) is torch.bfloat16

    def test_their_messages_of_transformers_appear(self):
        heard = []
        handler = python_logging.Handler()
        handler.emit = lambda record: heard.append(record.getMessage())
        logger = logging.get_logger("transformers.something")
        verbosity = logging.get_verbosity()
        logging.set_verbosity_info()
        logging.get_logger().addHandler(handler)
        try:
            with running(META):
                logger.warning("the model's")
                logger.error("an error of the model's")
                assert elsewhere(logging.get_verbosity) == logging.INFO
                elsewhere(lambda: logger.warning("theirs"))
        finally:
            logging.get_logger().removeHandler(handler)
            logging.set_verbosity(verbosity)
        assert heard == ["an error of the model's", "theirs"]

    def test_their_flash_attention_is_their_own(self, monkeypatch):
        module = modeling_flash_attention_utils
        monkeypatch.setattr(module, "flash_attn_func", lambda q: "theirs", raising=False)
        monkeypatch.setattr(module, "_flash_supports_window_size", True, raising=False)
        with running(META, lambda q: "the model's"):
            assert module.flash_attn_func(1) == "the model's"
            assert elsewhere(lambda: module.flash_attn_func(1)) == "theirs"
            assert elsewhere(lambda: module._flash_supports_window_size) is True

    def test_flash_attention_that_is_not_installed_stays_so(self, monkeypatch):
        module = modeling_flash_attention_utils
        monkeypatch.delattr(module, "flash_attn_func", raising=False)
        with running(META, lambda q: "the model's"), pytest.raises(NameError):
            elsewhere(lambda: module.flash_attn_func(1))
        assert not hasattr(module, "flash_attn_func")

    def test_their_scripts_are_optimized_and_fused(self):
        def switches():
            return torch._C._get_graph_executor_optimize(), torch._C._jit_texpr_fuser_enabled()

        before = switches()
        with running(META):
            assert elsewhere(switches) == before
            assert torch._C._get_graph_executor_optimize() is False

    def test_their_modes_and_gradients(self):
        def switches():
            return (
                torch.is_grad_enabled(),
                torch.get_default_device(),
                torch.overrides._get_current_function_mode_stack(),
            )

        with running(META):
            assert elsewhere(switches) == (True, torch.device("cpu"), [])
        with building(META, torch.float32):
            assert elsewhere(switches) == (True, torch.device("cpu"), [])

    def test_their_modes_are_asked_while_a_function_is_opened(self):
        def asked(*_):
            return torch.nn.functional.has_torch_function((torch.ones(1),))

        def asked_elsewhere(*_):
            def asked_with_a_mode():
                with torch.device("cpu"):  # a mode
                    return asked()

            return elsewhere(asked_with_a_mode)

        composites = Composites(lambda name, args, kwargs, run, is_kernel: run())
        assert composites._opened(asked, (), {}) is False
        assert composites._opened(asked_elsewhere, (), {}) is True

    @pytest.mark.exhaustive
    def test_their_functions_are_guarded_by_the_real_compiler(self):
        code = """
import sys, threading, torch
from dsocr_analyze.model.unused_imports import without_unused_imports
def function(): pass
guarded = []
with without_unused_imports():
    assert torch._dynamo.disable(function) is function
    thread = threading.Thread(target=lambda: guarded.append(torch._dynamo.disable(function)))
    thread.start()
    thread.join()
assert guarded[0] is not function
"""
        import subprocess

        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.exhaustive
def test_a_watching_thread_sees_every_setting_as_it_was():
    """All the time while sessions are made and run; the default dtype alone is everybody's."""
    shown = {
        "verbosity": logging.get_verbosity,
        "gradients": torch.is_grad_enabled,
        "default device": torch.get_default_device,
        "modes": torch.overrides._get_current_function_mode_stack,
        "optimized scripts": torch._C._get_graph_executor_optimize,
        "fusers": torch._C._jit_texpr_fuser_enabled,
        "autocast": lambda: torch.is_autocast_enabled("cpu"),
        "initialisation": lambda: torch.nn.init.constant_(torch.zeros(1), 3.0).item(),
        "prints": lambda: sys.stdout.write(""),
    }
    started, ended = threading.Event(), threading.Event()
    seen, looks = {name: set() for name in shown}, []

    def watch():
        while not ended.is_set():
            for name, look in shown.items():
                seen[name].add(str(look()))
            looks.append(1)
            started.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    started.wait()
    try:
        for number in range(3):
            session = DeepSeekOCRSession.from_directory(
                small_directory(num_hidden_layers=1), dtype=("float16", "bfloat16")[number % 2]
            )
            session.figures(session.plan(**SMALLEST))
    finally:
        ended.set()
        watcher.join()
    assert len(looks) > 50
    assert {name: len(values) for name, values in seen.items()} == dict.fromkeys(shown, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
class TestAForkedProcess:
    """A process that is forked while another thread is busy finds nothing of it."""

    @staticmethod
    def assert_forked(check):
        """Runs a check in a forked process, which must end well and within a minute."""
        child = multiprocessing.get_context("fork").Process(target=check)
        child.start()
        child.join(60)
        with contextlib.suppress(ValueError):
            child.kill()
        child.join()
        assert child.exitcode == 0

    def assert_forked_elsewhere(self, check):
        """The same, forked by another thread, which is not of a pool: concurrent.futures fails."""
        failures = []

        def fork():
            try:
                self.assert_forked(check)
            except AssertionError as error:
                failures.append(error)

        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        assert not failures

    @staticmethod
    @contextlib.contextmanager
    def busy_in(context):
        """Meanwhile, another thread stays in a context."""
        entered, leave = threading.Event(), threading.Event()

        def stay():
            with context():
                entered.set()
                leave.wait()

        with ThreadPoolExecutor(1) as pool:
            stays = pool.submit(stay)
            try:
                assert entered.wait(60)
                yield
            finally:
                leave.set()
            stays.result()

    @pytest.mark.parametrize("name", ["importing", "building", "running on meta"])
    def test_finds_every_setting_as_it_was(self, name, tmp_path):
        context, _ = contexts(vendor_like.write(tmp_path / "m"))[name]
        before = settings()

        def check():
            assert settings() == before
            assert _entered() == "entered"

        with self.busy_in(context):
            self.assert_forked(check)
        assert settings() == before

    def test_undoes_a_change_once_even_if_it_is_forked_itself(self):
        times = []

        def check():
            assert times == [1]

        def check_and_fork():
            check()
            self.assert_forked(check)

        with self.busy_in(lambda: undone(lambda: times.append(1))):
            self.assert_forked(check_and_fork)

    def test_begins_after_the_imports_of_other_threads(self):
        entered, ended = threading.Event(), []

        def imports():
            with importing():
                entered.set()
                time.sleep(0.1)
                ended.append(True)

        def check():
            assert ended

        with ThreadPoolExecutor(1) as pool:
            pool.submit(imports)
            assert entered.wait(60)
            self.assert_forked(check)

    def test_runs_a_model_in_one_thread(self):
        threads = torch.get_num_threads()

        def check():
            with exclusive():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 2

        torch.set_num_threads(2)
        try:
            self.assert_forked(check)
        finally:
            torch.set_num_threads(threads)

    def test_analyzes_with_the_session_of_a_busy_thread(self):
        # A view of so many pixels that torch computes with several threads whether any is not 0.
        large = SMALLEST | {"image_size": 512}
        session = DeepSeekOCRSession.from_directory(small_directory(num_hidden_layers=1))
        expected = session.analyze(**large).total
        before, forward = settings(), [dict(vars(each)) for each in session.model.modules()]

        def check():
            assert settings() == before
            assert [dict(vars(each)) for each in session.model.modules()] == forward
            assert session.analyze(**large).total == expected
            other = DeepSeekOCRSession.from_directory(small_directory(num_hidden_layers=1))
            assert other.analyze(**large).total == expected

        def fork_during(step):
            if step.startswith("decode"):
                self.assert_forked_elsewhere(check)

        assert session.analyze(**large, on_progress=fork_during).total == expected
        assert settings() == before

    def test_has_the_handlers_of_signals_from_before(self):
        before = signal.getsignal(signal.SIGINT)

        def check():
            assert signal.getsignal(signal.SIGINT) is before

        with held():
            assert signal.getsignal(signal.SIGINT) is not before
            self.assert_forked_elsewhere(check)
            assert signal.getsignal(signal.SIGINT) is not before

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

    def test_forked_by_the_busy_thread_itself_goes_on_with_its_turn(self):
        before = settings()
        with running(META):
            during = settings()

            def check():
                assert is_running_thread()
                assert settings() == during

            self.assert_forked(check)
        assert settings() == before
