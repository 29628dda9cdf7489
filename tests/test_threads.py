"""Several threads: models are built and run one at a time, and others see little of it."""

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
from PIL import Image
from process_state import settings
from test_running import contexts
from transformers import PretrainedConfig, PreTrainedModel, modeling_flash_attention_utils
from transformers.utils import logging

from dsocr_analyze import DeepSeekOCRSession, analysis, analytic, forking, interruption
from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.model import forward, loading, process_settings
from dsocr_analyze.trace.composites import Composites
from dsocr_analyze.trace.passes import trace_module
from dsocr_analyze.workload import image_file

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


@pytest.mark.exhaustive
def test_what_runs_at_once_gives_what_it_gives_alone():
    """Shared sessions, sessions of a thread's own, modules alone, the analytic engine."""
    narrow = {"hidden_size": 160, "projector_config": {"n_embed": 160}}
    directories = [small_directory(num_hidden_layers=1),
                   small_directory(num_hidden_layers=2, **narrow)] * 2  # fmt: skip
    cases = [*zip(directories, ("bfloat16", "float32", "float16", "float32"), strict=True)]
    workloads = [DEFAULT.plan(**SMALLEST, text_tokens=5 + number) for number in range(4)]

    def of_session(session, workload):
        kinds = {str(p.dtype) for p in session.model.parameters()}
        return *session.figures(workload), kinds

    def of_layer(number):
        # While a model is built, its type is everybody's default: this one is named.
        kind = {"dtype": torch.float32}
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16 + number, batch_first=True, **kind)
        return trace_module(layer.eval(), torch.device("cpu"), torch.ones(1, 5, 8, **kind))[0]

    def session_of(number):
        return DeepSeekOCRSession.from_directory(cases[number][0], dtype=cases[number][1])

    def run(number):
        kind, number = divmod(number % 16, 4)
        workload, (directory, dtype) = workloads[number], cases[number]
        return (
            lambda: of_session(shared[number], workload),
            lambda: of_session(session_of(number), workload),
            lambda: of_layer(number),
            lambda: analytic.page_figures(directory, workload, dtype=dtype),
        )[kind]()

    before, shared = settings(), [*map(session_of, range(4))]
    alone = [*map(run, range(16))]
    assert in_parallel(run, range(RUNS)) == [alone[number % 16] for number in range(RUNS)]
    assert settings() == before


def test_a_thread_waits_for_another():
    inside, most = [], []

    def run(_):
        with process_settings.exclusive(), process_settings.exclusive():
            inside.append(process_settings.is_running_thread())
            most.append(len(inside))
            inside.pop()
        return process_settings.is_running_thread()

    with pytest.raises(ZeroDivisionError), process_settings.exclusive():
        _ = 1 / 0  # an error ends the turn, too
    assert set(in_parallel(run, range(200))) == {False}
    assert set(most) == {1}


def outcome(function, *arguments):
    """What a call returns, or the type of what it raises."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001
        return type(error)


initialised = []


class Model(PreTrainedModel):
    def __init__(self, **settings):
        super().__init__(PretrainedConfig(**settings))
        self.weight = torch.nn.Parameter(torch.ones(1))  # else there is nothing to draw
        self.post_init()

    _init_weights = initialised.append


def passes_on(level):
    """Whether a message of transformers appears."""
    record = python_logging.LogRecord("transformers.some", level, "", 0, "said", (), None)
    return all(bool(each.filter(record)) for each in logging.get_logger().handlers)


FLASH = vars(modeling_flash_attention_utils)
LOOKS = {
    "turn": process_settings.is_running_thread,
    "verbosity": logging.get_verbosity,
    "warnings": partial(passes_on, python_logging.WARNING),
    "errors": partial(passes_on, python_logging.ERROR),
    "gradients": torch.is_grad_enabled,
    "default device": torch.get_default_device,
    "modes": torch.overrides._get_current_function_mode_stack,
    "optimized scripts": torch._C._get_graph_executor_optimize,
    "fusers": torch._C._jit_texpr_fuser_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "autocast of meta": lambda: outcome(
        lambda: isinstance(torch.autocast("meta", torch.bfloat16), torch.autocast)
    ),
    "autocast products": torch.autocast("cpu", torch.bfloat16)(
        lambda: (torch.ones(2, 2, device="cpu") @ torch.ones(2, 2, device="cpu")).dtype
    ),
    "initialisation": lambda: torch.nn.init.ones_(torch.zeros(1, device="cpu")).tolist(),
    "models": lambda: (initialised.clear(), Model(), len(initialised))[2],
    "flash models": lambda: outcome(
        lambda: Model(attn_implementation="flash_attention_2").config._attn_implementation
    ),
    "flash attention": lambda: outcome(eval, "flash_attn_func('q')", FLASH),
    "stdout": lambda: getattr(sys.stdout, "name", os.devnull),
}
"""Settings, as a thread sees them."""


def looks():
    return {name: str(look()) for name, look in LOOKS.items()}


@pytest.mark.parametrize("has_stdout", [True, False])
@pytest.mark.parametrize(
    ("context", "changed"),
    [
        (
            lambda: loading.building(META, torch.bfloat16),
            {"turn", "modes", "default device", "initialisation", "models", "flash models",
             "warnings"},
        ),
        (lambda: forward.running(META, lambda q: f"the model's {q}"), {
            "turn", "modes", "optimized scripts", "gradients", "warnings", "autocast of meta",
            "flash attention", "stdout",
        }),
    ],
)  # fmt: skip
def test_others_see_every_setting_as_it_was(monkeypatch, context, changed, has_stdout):
    """And use it as before, whether they have a stdout and a FlashAttention, or not."""
    monkeypatch.setattr(sys, "stdout", sys.stdout if has_stdout else None)
    monkeypatch.delitem(FLASH, "flash_attn_func", raising=False)
    if has_stdout:
        monkeypatch.setitem(FLASH, "flash_attn_func", "their {}".format)
    before = looks()
    with context():
        assert elsewhere(looks) == before
        here = looks()
    noticed = changed if has_stdout else changed - {"stdout"}
    assert {name for name in LOOKS if here[name] != before[name]} == noticed
    assert looks() == before


# What they notice while a model is built or run: nothing but the default dtype.


def test_a_stream_that_they_put_in_place_stays(monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    theirs = io.StringIO()
    with forward.running(META):
        elsewhere(lambda: setattr(sys, "stdout", theirs))
    assert sys.stdout is theirs


def test_their_modes_are_asked_while_a_function_is_opened():
    def asked(mode=contextlib.nullcontext):
        with mode():
            return torch.nn.functional.has_torch_function((torch.ones(1),))

    composites = Composites(lambda name, args, kwargs, run, is_kernel: run())
    assert composites._opened(asked, (), {}) is False
    theirs = partial(elsewhere, partial(asked, partial(torch.device, "cpu")))  # a mode
    assert composites._opened(theirs, (), {}) is True


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
    if child.exitcode is None:
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


def has_entered():
    with process_settings.exclusive():
        return True


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
            assert forked(lambda: settings() == before and has_entered())
        assert settings() == before

    def test_reads_images_though_another_thread_was_reading_one(self, tmp_path):
        Image.new("1", (30, 20)).save(tmp_path / "page.png")
        with busy_in(lambda: image_file._pillow_settings):
            pages = image_file.ImagePages(tmp_path / "page.png")
            assert forked(lambda: next(pages.sizes()) == (30, 20))

    def test_undoes_a_change_once_even_if_it_is_forked_itself(self):
        times = []
        with busy_in(lambda: forking.undone(lambda: times.append(1))):
            assert forked(lambda: times == [1] and forked(lambda: times == [1]))

    def test_begins_after_the_imports_of_other_threads(self):
        ended = threading.Event()

        @contextlib.contextmanager
        def imports():
            with forking.importing():
                yield
                ended.set()

        with busy_in(imports, seconds=0.1):
            assert forked(ended.is_set)

    def test_runs_a_model_in_one_thread(self):
        def threads():
            with process_settings.exclusive():
                return torch.get_num_threads()

        before = torch.get_num_threads()
        torch.set_num_threads(2)
        found = forked(lambda: (threads(), torch.get_num_threads()) == (1, 2))
        torch.set_num_threads(before)
        assert found

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
        with interruption.held():
            assert forked_elsewhere(lambda: signal.getsignal(signal.SIGINT) is before)
            assert signal.getsignal(signal.SIGINT) is not before

    def test_forked_by_the_busy_thread_itself_goes_on_with_its_turn(self):
        with forward.running(META):
            during = settings()
            assert forked(lambda: process_settings.is_running_thread() and settings() == during)

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


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.cpu_count() == 1, reason="numpy starts no threads"
)
@pytest.mark.parametrize(("wanted", "expected"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")])
def test_numpy_starts_no_threads_for_a_command_unless_the_user_wants_them(wanted, expected):
    code = (
        "import atexit, os, sys; sys.argv[1:] = ['time', 'h100', '--format', 'json'];"
        " tell = lambda: print(len(os.listdir('/proc/self/task')), file=sys.stderr);"
        " atexit.register(tell); from dsocr_analyze.__main__ import run; run()"
    )
    unset = {name: each for name, each in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=unset | wanted, capture_output=True, text=True, check=True
    )
    assert done.stderr.split() == [expected]


@pytest.mark.parametrize(
    ("threads", "left"), [(forking.ONE_THREAD, None), ("1", "1"), ("8", "8"), ("", "")]
)
def test_torch_multiplies_with_as_many_threads_as_the_user_wants(monkeypatch, threads, left):
    """All of them where it is the command that numpy has one for."""
    monkeypatch.setenv(forking.NUMPY_THREADS, threads)
    analysis.start_torch()
    assert os.environ.get(forking.NUMPY_THREADS) == left
