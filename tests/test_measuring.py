"""Real passes are timed stage by stage, their memory is the allocator's, kernels are fitted."""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import itertools
import json
import math
import random
import re
import subprocess
import sys
import time
import weakref
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
import torch
from both_engines import small_directory
from command_line import run
from process_state import process_settings
from sampling import first, sampled

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.architectures.views import pixel_work
from dsocr_analyze.cli.documents import schemas
from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware import coefficients, devices, timed_device
from dsocr_analyze.hardware.cpu_kernels import CpuKernels, contributions, family_of, names_of
from dsocr_analyze.hardware.profile import cpu_profile_text, profile_from_file
from dsocr_analyze.kernels import Attention, Convolution, Elements, Gemm, Kernel, Work
from dsocr_analyze.measuring import cpu_calibration, cpu_samples, machine, passes
from dsocr_analyze.measuring.cpu_calibration import PageOfPass, fitted, fitted_families
from dsocr_analyze.measuring.passes import Protocol, measure_page, predicted_page
from dsocr_analyze.model.forward import running_unwatched
from dsocr_analyze.model.torch_calls import DispatchMode
from dsocr_analyze.report.measured import MeasuredSeconds
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.timing.kernel_seconds import kernel_seconds
from dsocr_analyze.trace.passes import trace_passes

PAGE = {"page": (600, 500), "base_size": 128, "image_size": 64}
WIDE = PAGE | {"page": (1200, 600)}
CPU = torch.device("cpu")
TYPES = ("float32", "bfloat16")
REFERENCE_SIDE = 90


def loaded(dtype="float32"):
    return DeepSeekOCRSession.from_directory(small_directory(), device="cpu", dtype=dtype)


@pytest.fixture(scope="module")
def session():
    return loaded()


@pytest.fixture(autouse=True)
def _small_reference(monkeypatch):
    monkeypatch.setattr(passes, "_REFERENCE_SIZE", REFERENCE_SIDE)


# Seconds of stages ---------------------------------------------------------------------------


class Ticks(machine.Timer):
    """A clock that a test moves."""

    now = 0.0

    def mark(self):
        return self.now


class Worker(torch.nn.Module):
    def __init__(self, timer, seconds, **children):
        super().__init__()
        self.timer, self.work = timer, seconds
        self._modules |= children

    def forward(self, direct=False):
        self.timer.now += self.work
        for child in self.children():
            (child.forward if direct else child)()
        self.timer.now += self.work


STAGES = [
    dataclasses.replace(DEFAULT.stages[0], name=name, prefixes=prefixes, role=role)
    for name, role, *prefixes in (
        ("sam", "vision", "sam"), ("clip", "vision", "clip", "a.parameter"),
        ("prefill", "prefill", "layers"), ("decode", "decode"),
    )
]  # fmt: skip


def own_values(model):
    return {name: dict(vars(module)) for name, module in model.named_modules()}


@pytest.mark.parametrize("direct", [False, True])
def test_a_pass_is_cut_where_a_stages_own_modules_start_and_end(direct):
    timer, found = Ticks(), []
    inner = Worker(timer, 8.0)
    model = Worker(timer, 1.0, sam=Worker(timer, 2.0), clip=Worker(timer, 4.0, own=inner))
    clock, before = passes.StageClock(model, STAGES, timer), own_values(model)
    for clock.is_decoding in (False, True):
        with clock.attached():
            clock.begin()
            model(direct)
            found.append(clock.seconds(clock.finish()))
    assert found == [{"prefill": 2.0, "sam": 4.0, "clip": 24.0}, {"decode": 30.0}]
    assert own_values(model) == before
    # An error within a stage leaves the model as it was, too.
    model.sam.timer = before["sam"]["timer"] = None
    with clock.attached(), pytest.raises(AttributeError):
        model(clock.begin())
    assert own_values(model) == before


def test_every_stage_of_a_page_is_measured(session, monkeypatch):
    """By a clock that ticks whenever somebody looks: twice in a step."""
    ticking, told = machine.Timer(), []
    ticking.mark = itertools.count().__next__
    monkeypatch.setattr(passes, "timer_of", lambda _: ticking)
    monkeypatch.setattr(passes, "allocated_at_most", lambda _, run: (run() and 7, 0))
    page, alone = (
        measure_page(
            session.loaded, session.plan(**PAGE, max_new_tokens=tokens), DEFAULT, protocol,
            on_progress=told.append,
        )
        for tokens, protocol in ((9, Protocol(2, 1, 2)), (1, Protocol(1, 0, 1)))
    )  # fmt: skip
    assert list(page.stages) == list(DEFAULT.stage_names)
    assert list(alone.stages) == list(DEFAULT.stage_names)[:-1]
    *parts, steps = page.stages.values()
    assert steps == page.reference == [1, 1]
    assert page.prefill == [*map(sum, zip(*parts, strict=True))]
    assert page.prefill == alone.prefill * 2
    assert told == ["warm-up 1 of 1", "repeat 1 of 2", "repeat 2 of 2",
                    "memory of the prefill pass", "repeat 1 of 1", "memory of the prefill pass",
                    ]  # fmt: skip


@sampled(
    ("dtype", "autocast", "within"),
    # Weights that autocast has converted for an earlier pass are no part of the measured peak.
    [("bfloat16", False, 0.05), ("float32", False, 0.05), ("float32", True, 0.25)],
    first(1),
)
def test_what_watches_the_machine_is_in_float32_and_peaks_are_as_predicted(dtype, autocast, within):
    model, seen = loaded(dtype), []

    def watched(func, args, kwargs):
        if func is torch.ops.aten.mm.default and args[0].shape == (REFERENCE_SIDE, REFERENCE_SIDE):
            seen.extend(each.dtype for each in args)
        return func(*args, **kwargs)

    workload = model.plan(page=(600, 500), base_size=256, text_tokens=500, max_new_tokens=2)
    protocol = Protocol(1, 0, 1, autocast=autocast)
    with DispatchMode(watched):
        found = measure_page(model.loaded, workload, DEFAULT, protocol)
    assert len(seen) >= 2
    assert set(seen) == {torch.float32}
    predicted = predicted_page(model.loaded, workload, DEFAULT, protocol, None)
    assert predicted.stages == {}
    assert predicted.peak_bytes == pytest.approx(found.peak_bytes, rel=within)


def test_the_same_experts_are_chosen_as_in_a_trace():
    """Drawn weights route by chance; what is measured is what was counted."""
    before, scores = (torch.topk, torch.Tensor.topk, torch.Tensor.cuda), torch.rand(12, 8)
    with running_unwatched(CPU):
        chosen = torch.topk(scores, 2, dim=-1)[1], scores.topk(2)[1]
        assert [each.flatten().bincount().tolist() for each in chosen] == [[3] * 8] * 2
        assert scores.cuda() is scores
    with running_unwatched(CPU, has_weights=True):
        assert torch.topk(scores, 1)[1].flatten().tolist() == scores.argmax(-1).tolist()
    assert (torch.topk, torch.Tensor.topk, torch.Tensor.cuda) == before


# Kernels within passes -----------------------------------------------------------------------


def product(m, n=1280, k=1280, dtype="float32"):
    work = Work(m * n * k, 0, m * n, 4 * (m * k + n * k), 4 * m * n)
    return Kernel("gemm", "linear", Gemm(1, m, n, k), dtype, dtype, work)


def timed_passes(model, *pages):
    found = cpu_calibration.TimedPasses(model)
    for page in pages:
        assert found._run(page, math.inf, lambda _: None)
    return found


@pytest.mark.exhaustive
def test_what_a_pass_runs_is_what_a_trace_of_it_has(session):
    """Every record once, however often the pass calls it, and none besides."""
    pages = [PageOfPass(128), PageOfPass(256, 128, (600, 300), True)]
    kernels = timed_passes(session.loaded, *pages, *pages).kernels()
    assert any(each.is_held_out for each in kernels)
    workload = session.plan(
        page=(1000, 1400), base_size=128, image_size=128, crop_mode=False, max_new_tokens=4
    )
    traced = trace_passes(session.loaded, workload, DEFAULT, step_numbers=(0, 1, 2))
    expected = collections.Counter(
        kernel._replace(path="", stage="")
        for trace in (traced.prefill, *traced.decode_steps)
        for kernel in trace.kernels
    )
    found = collections.Counter()
    for kernel, _, is_held_out, calls in kernels:
        found[kernel] += 0 if is_held_out else calls
    assert found <= expected
    # What is left out was called in one piece with another kernel, a hidden copy, say.
    missing = {kernel.operator for kernel in expected if not found[kernel]}
    assert missing <= {"clone", "native_layer_norm", "_to_copy", "transfer", "linear"}
    assert found.total() > 0.9 * expected.total()


def test_operators_of_a_pass_take_no_longer_than_the_pass(session):
    began = time.perf_counter()
    run = cpu_calibration._timed(session.loaded, PageOfPass(64), math.inf)
    whole = time.perf_counter() - began
    assert 0.02 * whole < sum(seconds for _, seconds in itertools.chain(*run.values())) < whole
    assert {name for name, timed in run.items() if timed} == set(DEFAULT.stage_names)


def test_kernels_are_those_of_the_fastest_run_of_their_stage(monkeypatch):
    """Of sam the second run, of decode steps the first; a copy beside a kernel is left out."""
    one, two, three = (product(m) for m in (1, 2, 3))
    runs = [
        {"sam": [((one,), 5.0), ((two,), 1.0), ((one,), 3.0)], "decode": [((three,), 1.0)]},
        {"sam": [((one,), 2.0), ((two,), 4.0), ((one,), 1.0)], "decode": [((three,), 2.0)]},
        {"sam": [((one,), 9.0)], "decode": [((three, one), 0.5)]},
    ]
    monkeypatch.setattr(cpu_calibration, "_timed", lambda *_: runs.pop(0))
    found = timed_passes(None, *[PageOfPass(128)] * 2)
    of_sam = [(one, 1.5, False, 2), (two, 4.0, False, 1)]
    assert found.kernels() == [*of_sam, (three, 1.0, False, 1)]
    found._run(PageOfPass(128), math.inf, lambda _: None)
    assert found.kernels() == of_sam


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock of calibrations, which a test moves."""
    found = SimpleNamespace(now=0.0, monotonic=lambda: found.now)
    monkeypatch.setattr(cpu_samples, "time", found)
    monkeypatch.setattr(cpu_calibration, "time", found)
    return found


@pytest.mark.parametrize(
    ("seconds", "pages", "last"),
    [
        (10.0, [448, 704, 832, 704, 576, 448, 704, 832, 704, 576], 1),
        (1.5, [448, 448], 0.5),
        (0.5, [448], 0.5),
    ],
)
def test_passes_use_up_the_time_and_keep_it(monkeypatch, clock, seconds, pages, last):
    """Each pass takes a second here: five pages in half of ten, and then the same ones again."""
    ran = []

    def timed(_, page, deadline):
        took = max(0, min(1, deadline - clock.now))
        clock.now += took
        ran.append((page.base_size, took))
        return {"sam": [((product(1),), 1.0)]} if took == 1 else None

    monkeypatch.setattr(cpu_calibration, "_timed", timed)
    cpu_calibration.TimedPasses(None).run(seconds)
    assert clock.now == seconds
    assert [each for each in ran if each[1]] == [*((page, 1) for page in pages[:-1]),
                                                 (pages[-1], last)]  # fmt: skip


def test_a_pass_is_given_up_at_its_deadline_and_leaves_nothing_behind(session):
    before = process_settings()
    deadline = time.monotonic() + 0.05
    assert cpu_calibration._timed(session.loaded, PageOfPass(512), deadline) is None
    assert time.monotonic() < deadline + 1
    assert process_settings() == before
    assert "forward" not in vars(session.loaded.module)


def test_every_page_of_a_pass_is_another_than_the_modes():
    sides = {side for mode in DEFAULT.modes.values() for side in (mode.base_size, mode.image_size)}
    pages = cpu_calibration._PAGES
    assert not sides & {page.base_size for page in pages}
    assert {page.is_held_out for page in pages[:4]} == {True, False}


# Memory --------------------------------------------------------------------------------------


def garbage_left():
    cycle = [torch.zeros(2000, dtype=torch.uint8)]
    cycle.append(cycle)


def garbage_collected():
    gc.collect()
    return torch.zeros(1000, dtype=torch.uint8)


def test_the_peak_of_a_call_is_its_own(uncollected):
    """With what it gives back, without garbage of an earlier call that is freed during it."""
    gives_back = functools.partial(lambda: torch.zeros(5000, dtype=torch.uint8)[:10].clone())
    calls = gives_back, garbage_left, garbage_collected
    peak, *others = (machine.allocated_at_most(CPU, each)[0] for each in calls)
    assert 5000 <= peak < 5100
    assert others == [2000, 1000]


FAULTS = """
import resource, torch
from dsocr_analyze.measuring.machine import kept_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(20_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with kept_memory(torch.device("cpu")):
    faults()  # until what is kept suffices
    kept = faults()
print(kept, faults(), 20_000_000 * 4 // resource.getpagesize())
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(not machine.can_keep_memory(CPU), reason="only glibc can keep memory")
def test_memory_is_kept_while_it_is_measured_and_given_back_after_it():
    """In a process of its own: what others have allocated decides where memory is found."""
    ran = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    kept, given_back, pages = map(int, ran.stdout.split())
    assert kept < pages / 10
    assert given_back >= pages


# Fits ----------------------------------------------------------------------------------------


def test_coefficients_come_back_from_what_they_make():
    sizes = np.random.default_rng(0).uniform(0.1, 1, (200, 4)) * [1, 10, 100, 1]
    right = np.array([5.0, 0.3, 0.01, 0.0])
    for disturbed, off in ((1, 1e-3), (4, 0.2)):  # disturbed rows change little
        seconds = sizes @ right
        seconds[::10] *= disturbed
        assert fitted(sizes, seconds, np.ones(200)) == pytest.approx(right, rel=off, abs=off)


def test_a_row_counts_for_as_many_as_it_is_said_to():
    """One that counts for three is as good as three of them."""
    sizes, seconds = np.ones((4, 1)), np.array([1.1, 1.0, 1.0, 1.0])
    once, thrice = (fitted(sizes[:2], seconds[:2], np.array([1.0, count])) for count in (1, 3))
    assert thrice == pytest.approx(fitted(sizes, seconds, np.ones(4)))
    assert thrice[0] < once[0]


@pytest.mark.parametrize(
    ("measured", "call", "error", "rows"),
    [
        # Of fewer than four that are not held out, all are fitted.
        ([(1.0, False)] * 3 + [(1.0, True)], 1.0, 0.0, (0, 4)),
        # The fit sees none that are held out, and its error is theirs.
        ([(1.0, False)] * 4 + [(2.0, True)] * 2, 1.0, 0.5, (2, 4)),
        # One in a pass counts for five: (4 + 20 / 1.1) / (4 + 20 / 1.1^2), a little nearer to it.
        ([(1.0, False)] * 4 + [(1.1, False, 1)] * 4, 1.085, 0.05, (0, 8)),
        # A disturbed one counts little: weighed alike, 15 / 35.
        ([(1.0, False)] * 10 + [(0.2, False)], 0.91, 0.09, (0, 11)),
    ],
)
def test_a_fit_by_hand(measured, call, error, rows):
    kernel = Kernel("elementwise", "add", Elements(1), "float32", "float32", Work())
    made = [cpu_samples.MeasuredKernel(kernel, 1e-6 * us, *others) for us, *others in measured]
    [found] = fitted_families(made).values()
    assert found.coefficients == {"call": pytest.approx(call, abs=0.02)}
    assert found.median == pytest.approx(error, abs=0.02)
    assert (found.held_out_rows, found.training_rows) == rows


def test_a_size_between_two_nodes_is_shared_by_its_logarithm():
    assert contributions(product(64)) == pytest.approx(
        {"call": 1, "macs@64": 104.8576, "inputs": 0.08192, "outputs": 0.08192, "weights": 1.6384}
    )
    between = contributions(product(128))
    assert between["macs@64"] == pytest.approx(between["macs@256"]) == pytest.approx(104.8576)
    assert "weights" not in contributions(product(1))
    beyond = contributions(product(100_000))
    assert [name for name in beyond if name.startswith("macs")] == ["macs@4096"]


def others():
    """A kernel of each family that a made-up CPU lacks."""
    attention = Attention(1, 2, 2, 9, 9, 8, 8)
    sizes = [("bmm", Gemm(2, 3, 4, 5)), ("scaled_dot_product_attention", attention),
             ("scaled_dot_product_attention", attention._replace(masked=True)),
             ("conv2d", Convolution(1, 4, 3, 5, 9))]  # fmt: skip
    for dtype, (name, each) in itertools.product(TYPES, sizes):
        yield product(1, dtype=dtype)._replace(operator=name, dimensions=each)


def test_every_contribution_has_a_coefficient():
    moving = Kernel("elementwise", "add", Elements(9), "float32", "float32", Work(0, 9, 0, 72, 36))
    for kernel in (product(3), moving, *others()):
        assert contributions(kernel).keys() <= set(names_of(family_of(kernel)))


def measured_by(rule, noise=0.0):
    """Kernels of a made-up CPU."""
    chance = random.Random(0)
    made = [product(*sizes) for sizes in itertools.product(
        (1, 2, 8, 30, 70, 250, 900, 4000), (64, 300, 4096), (64, 768, 3072), TYPES
    )]  # fmt: skip
    for number in range(1, 60):
        work = Work(0, 0, 0, 9000 * number**2, 4500 * number**2)
        made += [Kernel(kind, operator, Elements(number), "float32", "float32", work)
                 for operator, kind in (("add", "elementwise"), ("clone", "movement"))]  # fmt: skip
    return [
        cpu_samples.MeasuredKernel(each, rule(each) * chance.uniform(1 - noise, 1 + noise),
                       chance.random() < 0.25)
        for each in made
    ]  # fmt: skip


def roofline(kernel):
    rate = 1e11 if kernel.dtype == "float32" else 5e11
    return 3e-6 + 2 * kernel.work.macs / rate + kernel.work.bytes_moved / 2e10


@pytest.fixture(scope="module")
def families():
    return fitted_families(measured_by(roofline, noise=0.03))


def test_kernels_of_a_made_up_cpu_are_predicted_where_none_was_measured(families):
    for (name, _), family in families.items():
        assert family.median < 0.05, name
        assert family.held_out_rows > 5
    cpu = CpuKernels(2, 1.0, families)
    for kernel in (product(3, 700, 900), product(170, 2000, 1000), product(2500, 512, 2048)):
        assert cpu.seconds(kernel) == pytest.approx(roofline(kernel), rel=0.15)
    with pytest.raises(DeviceError, match="no linear in float16; use dtype bfloat16 or float32"):
        cpu.seconds(product(5, dtype="float16"))


@pytest.mark.parametrize(
    ("kind", "operator", "dtype", "family"),
    [("movement", "roll", "int64", ("clone", "float32")),
     ("elementwise", "add", "float16", ("add", "float32")),
     ("movement", "clone", "float32", ("clone", "float32")),
     ("elementwise", "sub", "float16", ("mul", "float16")),
     ("elementwise", "mul", "float32", ("mul", "bfloat16"))],
)  # fmt: skip
def test_what_was_not_measured_takes_the_coefficients_of_its_kind(
    families, kind, operator, dtype, family
):
    known = {("mul", "float16"): None, ("mul", "bfloat16"): None, **families}
    if dtype == "float32":
        del known["mul", "float16"]
    kernel = Kernel(kind, operator, Elements(5), dtype, dtype, Work(0, 0, 0, 10**6, 10**6))
    assert CpuKernels(2, 1.0, known).family(kernel) == family


# Kernels alone -------------------------------------------------------------------------------


def a_sample(shape, macs=0, refs=()):
    """One that adds a tensor to itself, which is made when those before are gone."""

    def call():
        assert not any(ref() is not None for ref in refs)
        tensor = torch.ones(shape)
        refs.append(weakref.ref(tensor))
        return lambda: torch.add(tensor, tensor)

    return cpu_samples.Sample(f"add {shape}", call, macs)


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def alone(monkeypatch):
    """Makes what measures some samples, on a CPU of a billion MACs per second."""
    monkeypatch.setattr(cpu_samples, "_macs_per_second", lambda _: 1e9)

    def make(samples, seconds_of):
        monkeypatch.setattr(cpu_samples, "samples_to_measure", lambda _: samples)
        monkeypatch.setattr(cpu_samples, "_seconds_of", seconds_of)
        return cpu_samples.KernelsAlone(torch.float32)

    return make


def test_no_tensor_outlives_its_sample(alone, uncollected):
    refs, alive = [], []

    def seconds_of(call, *_):
        call()
        alive.append(sum(ref() is not None for ref in refs))
        return 1.0

    found = alone([lambda: [a_sample((rows, 5), refs=refs) for rows in (3, 4)]] * 2, seconds_of)
    found.run(time.monotonic() + 60, lambda _: None)
    assert alive == [1, 1, 1, 1]
    assert [ref() for ref in refs] == [None] * 4
    assert len(found.kernels()) == 4


def tensors_alive():
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


@sampled("step", [6, 1], first(1))
def test_no_tensor_of_a_real_sample_outlives_it(uncollected, step):
    made = cpu_samples._products_of([1, 2], 256, 512, torch.float32)
    made += [cpu_samples._attended(1, 2, 9, torch.float32, masked=True),
             cpu_samples._convolved(1, 3, 32, 8, 16, 16, torch.float32),
             *(each for each, *_ in cpu_samples._elements(torch.float32, random.Random(0))),
             ]  # fmt: skip
    tensors = tensors_alive()
    for sample in made[::step]:
        call = sample.call()
        cpu_samples._record_of(call)
        cpu_samples._seconds_of(call, 0.0, 0.0)
        del call
    assert tensors_alive() == tensors


@pytest.mark.exhaustive
def test_no_tensor_outlives_its_pass(session, uncollected):
    workload = session.plan(**PAGE, max_new_tokens=3)

    def run():
        cpu_calibration._timed(session.loaded, PageOfPass(64), math.inf)
        measure_page(session.loaded, workload, DEFAULT, Protocol(1, 0, 2))

    run()  # makes what is kept, such as rotary angles
    tensors = tensors_alive()
    run()
    assert tensors_alive() == tensors


def test_samples_end_with_their_time_and_large_ones_are_left_out(alone, clock):
    """A billion per second, and 100 s: calls of five seconds and less. Each takes ten here."""

    def seconds_of(*_):
        clock.now += 10
        return clock.now

    def slowly_made():
        clock.now += 6
        return [a_sample((rows, 5), 1, []) for rows in (2, 3)]

    sizes = [(1, 6 * 10**9), *((rows, 4 * 10**9) for rows in range(4, 50))]
    made = [slowly_made, *(a_sample((rows, 5), macs, []) for rows, macs in sizes)]
    found = alone(made, seconds_of)
    for _ in range(2):  # the second time, all are slower
        found.run(clock.now + 100.0, lambda _: None)
        _, *others = [(each.kernel.dimensions.elements, each.seconds) for each in found.kernels()]
        assert others == [(5 * rows, 10.0 * rows - 14) for rows in range(4, 13)]
    assert clock.now == 212


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_first_part_of_the_samples_has_every_kind(dtype):
    kinds = [
        made.group.rstrip("0123456789() ,") if isinstance(made, cpu_samples.Sample) else made.func
        for made in cpu_samples.samples_to_measure(dtype)
    ]
    assert len(kinds) > 400
    assert len(set(kinds)) > 30
    assert set(kinds[:40]) == set(kinds)


@pytest.mark.parametrize(
    ("seconds", "networks", "said"),
    [(300.0, 2, ""), (54.0, 2, ""), (50.0, 0, ", too little time for passes")],
)
def test_a_cpu_is_calibrated_in_the_time_that_it_has(
    monkeypatch, clock, families, seconds, networks, said
):
    """With too little of it, only kernels alone; each turn of them takes 3 s here."""
    rows, made = (
        [cpu_samples.MeasuredKernel(each, 1e-3, False) for each in (product(9), *others())],
        [],
    )

    def advance(deadline, seconds=math.inf):
        clock.now = min(deadline, clock.now + seconds)

    def alone(dtype):
        mine = [each for each in rows if f"torch.{each.kernel.dtype}" == str(dtype)]
        return SimpleNamespace(run=lambda deadline, _: advance(deadline, 3), kernels=lambda: mine)

    for name, value in (
        ("KernelsAlone", alone),
        ("TimedPasses",
         lambda _: SimpleNamespace(run=lambda deadline, _: advance(deadline), kernels=list)),
        ("reduced_network", lambda *_, **__: made.append(None)),
        ("_tiny_step", lambda _: ([product(1)], 1.0)),
        ("fitted_families", lambda found: families | fitted_families(found)),
    ):  # fmt: skip
        monkeypatch.setattr(cpu_calibration, name, value)
    calibrated = functools.partial(
        cpu_calibration.calibrated_cpu, budget_seconds=seconds, has_passes=networks > 0
    )
    found = calibrated()
    assert 0.9 * seconds < clock.now < seconds
    assert len(made) == networks
    assert found.source.endswith(f" threads{said}")
    monkeypatch.setattr(cpu_calibration, "fitted_families", lambda _: {})
    with pytest.raises(DeviceError, match=f"too few kernels could be measured in {seconds:.0f} s"):
        calibrated()


# The profile ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profile(families):
    # Whatever else a page runs.
    names = ("batched_product", "attention", "masked_attention", "convolution", "mul", "sum",
             "gelu", "native_layer_norm", "softmax", "topk")  # fmt: skip
    more = dict.fromkeys(
        itertools.product(names, TYPES), coefficients.Fitted({"call": 7.0}, 0.1, 0.2, 3, 9)
    )
    gpu = dataclasses.replace(
        devices.gpu_named("a10"),
        name="cpu",
        title=machine.device_title(CPU),
        like="",
        float32_tflops=0.2,
    )
    cpu = CpuKernels(torch.get_num_threads(), 2.5, families | more)
    return timed_device.Device(gpu, "a test", "", {}, cpu=cpu)


@pytest.fixture
def profile_file(profile, tmp_path):
    file = tmp_path / "cpu.toml"
    file.write_text(cpu_profile_text(profile))
    return file


def test_a_kernel_is_at_most_at_the_highest_rates_measured(profile):
    """The peaks are 0.2 TFLOP/s in float32 and the bandwidth of streams too long for caches."""
    long, short = (Kernel("elementwise", "softmax", Elements(5), "float32", "float32",
                          Work(bytes_read=size, bytes_written=size))
                   for size in (10**8, 10**4))  # fmt: skip
    some = product(2500, 2048, 1024)
    priced = kernel_seconds([some, long, short], profile)
    seconds = [profile.cpu.seconds(each) for each in (some, long, short)]
    assert priced.seconds.tolist() == seconds
    least = [min(2 * some.work.macs / 0.2e12, seconds[0]), 0, 0]
    assert priced.least_compute.tolist() == pytest.approx(least)
    # 7 us are less than 2e8 bytes take, and 2e4 bytes may come from a cache.
    assert priced.least_memory.tolist() == [0, seconds[1], 0]


def test_a_profile_is_read_as_it_was_written_and_serves_the_very_device_only(profile, profile_file):
    read = profile_from_file(profile_file)
    assert (read.gpu, read.cpu, read.extrapolated) == (profile.gpu, profile.cpu, False)
    another = dataclasses.replace(profile.gpu, title="Another CPU, 2 threads")
    known = {"cpu": dataclasses.replace(profile, gpu=another)}
    assert machine.matching_device(CPU, {"cpu": profile}) is profile
    assert machine.matching_device(CPU, known) is machine.matching_device(CPU, {}) is None
    assert machine.matching_device(torch.device("meta"), {"cpu": profile}) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\nthreads = ", "\nthreads = -", "cpu.threads must be a number above 0"),
        ("\nthreads = ", "\nthreads = 0.", "cpu.threads must be a number above 0"),
        ("operator_us = 2.5", 'operator_us = "fast"', "cpu.operator_us must be a number"),
        ("[kernels.product.", "[kernels.products.", "unknown macs@1"),
        ('"call" = 7', '"call" = -7', "call must be 0 or above"),
        ('"call" = 7', '"colour" = 7', "unknown colour"),
        ("held_out_p90 = 0.2", "", "held_out_p90 must be a number"),
        ("held_out_p90 = 0.2", "held_out_p90 = 0.2\nheld_out_p99 = 0.3", "unknown held_out_p99"),
        ("[cpu]", "cpu = 3\n[other]", "unknown other|cpu must be a table"),
    ],
)
def test_a_damaged_profile_is_refused_by_name(profile_file, old, new, message):
    text = profile_file.read_text()
    assert old in text
    profile_file.write_text(text.replace(old, new))
    with pytest.raises(DeviceError, match=message):
        profile_from_file(profile_file)


def test_seconds_of_a_cpu_are_the_sum_of_its_kernels(profile, session):
    workload = session.plan(**PAGE, max_new_tokens=9)
    predicted = predicted_page(session.loaded, workload, DEFAULT, Protocol(), profile)
    composed = DEFAULT.forms.compose(
        session.loaded.directory.dimensions(), workload, session.dtype, False
    )
    assert list(predicted.stages) == list(composed.stages)
    for name, span in predicted.stages.items():
        kernels = composed.stages[name].kernels
        expected = sum(each.calls * (profile.cpu.seconds(each) + 2.5e-6) for each in kernels)
        assert float(span.seconds) == pytest.approx(expected)


# Commands ------------------------------------------------------------------------------------


RUN = {"--page": "600x500", "--base-size": "128", "--image-size": "64", "--dtype": "float32",
       "--repeats": "2", "--warmups": "0", "--steps": "1"}  # fmt: skip


@pytest.fixture
def measure(tmp_path, monkeypatch, capsys):
    """Runs `measure` on a small model; returns the exit code, stdout and stderr."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    config = tmp_path / "config.json"
    config.write_text(json.dumps(small_directory().config))

    def ran(*arguments, **options):
        given = RUN | {f"--{name}": value for name, value in options.items()}
        return run(
            capsys, "measure", "--config", config, *itertools.chain(*given.items()), *arguments
        )

    return ran


def test_measure_says_what_it_measured(measure, tmp_path):
    """The witness of the command."""
    out = tmp_path / "measured.json"
    code, text, _ = measure("--json", out)
    parts = ("weights: drawn at random", "autocast: none", "taken by the process",
             "there is no profile of this device")  # fmt: skip
    assert (code, [each for each in parts if each not in text]) == (0, [])
    document = json.loads(out.read_text())
    assert list(document["stages"]) == ["sam", "clip", "projector", "prefill", "decode"]
    assert (document["weights"], document["profile"]) == ("random", None)
    found = [*document["stages"].values(), document["reference"]]
    assert [len(each["samples"]) for each in found] == [2] * 6
    peak = document["peak"]
    assert peak["besides"] == peak["measured"] - peak["predicted"]
    assert peak["measured"] == pytest.approx(peak["predicted"], rel=0.05)


@pytest.mark.exhaustive
def test_measure_takes_a_profile_of_this_device(measure, profile_file):
    arguments = ("--profile", profile_file, "--autocast", 1, "--format")
    code, text, _ = measure(*arguments, "json")
    document = json.loads(text)
    jsonschema.validate(document, schemas()["schema-measure.json"])
    assert (code, document["command"], document["autocast"]) == (0, "measure", True)
    assert document["options"]["profile"] == [str(profile_file)]
    assert document["profile"] == "a test"
    for each in document["stages"].values():
        assert each["error"] == pytest.approx(each["predicted"] / each["fastest"] - 1)
    assert "predicted from: a test" in measure(*arguments, "markdown")[1]
    # Without the type it predicts nothing, and measures.
    document = json.loads(measure(*arguments[:2], "--format", "json", dtype="float16")[1])
    assert "in float16; use --dtype bfloat16 or float32" in document["unpredicted"]
    predicted = {each["predicted"] for each in document["stages"].values()}
    assert (document["profile"], predicted) == (None, {None})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("measure --device meta", "--device 'meta' computes nothing; use cpu or cuda:N"),
        ("measure --device tpu", "'tpu' is unknown"),
        ("measure --repeats 0", "--repeats 0 is too small; give 1 or"),
        ("measure --warmups -1", "--warmups -1 is too small; give 0 or"),
        ("measure --steps 0", "--steps 0 is too small; give 1 or"),
        ("measure --autocast 2", "--autocast"),
        ("measure --device cpu --use-flash-attn 1", "flash"),
        ("calibrate --seconds 5", "--seconds 5 is out of range; give 20 to 3600"),
        ("calibrate --seconds 3601", "--seconds 3601 is out of range; give 20 to 3600"),
        ("calibrate --device meta", "computes nothing"),
        ("calibrate --device cuda:99", "cuda:99"),
    ],
)
def test_what_cannot_be_measured_is_refused(capsys, arguments, message):
    code, _, error = run(capsys, *arguments.split())
    assert code == 2
    assert message in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [("3 --dtype float32", "has 12.00 GB free, .*--dtype bfloat16 would fit"),
     ("100000", r"; --batch-size ([2-9]|\d\d) would fit")],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_it_is_built(capsys, monkeypatch, arguments, said):
    monkeypatch.setattr(machine, "free_bytes", lambda _: 12 * 10**9)
    asked = f"measure --page 1191x1684 --batch-size {arguments}"
    code, _, error = run(capsys, *asked.split())
    assert code == 2
    assert re.search(said, error)


@pytest.mark.exhaustive
def test_predicted_seconds_of_a_cpu(capsys, profile, profile_file):
    def ran(command, *arguments):
        given = ("--profile", profile_file, *arguments, "--format", "json")
        code, out, error = run(capsys, command, "cpu", *given)
        return error if code else json.loads(out)[command]

    eager = ("--runtime", "eager", "--dtype", "float32")
    [entry] = ran("time", *eager)
    [short] = ran("time", *eager, "--max-new-tokens", "2")
    assert entry["gpu"] == "cpu"
    # The step after a prompt is the stage's, by whichever records it is timed.
    assert short["tpot_seconds"] == pytest.approx(short["stages"]["decode"]["seconds"])
    sentences = " ".join(entry["assumptions"]["sentences"])
    parts = ("on the CPU that runs the model; each operator adds 2.5 us",
             "at a time, before each batch runs",
             "of the machine's memory is kept free")  # fmt: skip
    assert [each for each in parts if each not in sentences] == []
    assert "GPU" not in sentences
    # The list of all GPUs has it, with the error of its kernels.
    [listed] = ran("devices")
    found = {(each["family"], each["dtype"]) for each in listed["families"]}
    assert found == set(profile.cpu.families)
    assert "serving engines are not predicted on a CPU" in ran("time")
    assert "FlashAttention-2" in ran("time", *eager[:2], "--use-flash-attn", "1")


# Preprocessing -------------------------------------------------------------------------------


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("page", "content", "sides"),
    [(WIDE, (128, 64), (128, 64, 64)),
     ({"page": (90, 120), "crop_mode": False, "image_size": 64}, (64, 64), (64,))],
)  # fmt: skip
def test_preprocessing_is_measured_per_prompt_on_one_thread(
    monkeypatch, two_threads, page, content, sides
):
    prepare, seen = passes._prepare, []

    def noted(*page):
        shapes = [tuple(each.shape) for each in prepare(*page)]
        seen.append((torch.get_num_threads(), shapes))

    monkeypatch.setattr(passes, "_prepare", noted)
    found = passes.measured_preprocessing(DEFAULT.plan(**page), content, 2)
    assert torch.get_num_threads() == len(found) == two_threads
    assert min(found) > 0
    assert seen == [(1, [(3, side, side) for side in sides])] * 3


@pytest.mark.parametrize(
    ("name", "side", "resized"),
    [
        # Pillow resizes one direction after the other, over at least as much as either has.
        ("deepseek-ocr", 640, 2000 * 1000 + 640 * 2000),
        ("deepseek-ocr", 768, 2000 * 1000 + 384 * 2000),  # padded to 384 x 768
        ("deepseek-ocr-2", 768, 2000 * 1000 + 768 * 2000),  # squeezed: its tiles have 768
    ],
)
def test_a_page_is_squeezed_into_a_view_no_larger_than_a_tile(name, side, resized):
    architecture = ARCHITECTURES[name]
    workload = architecture.plan(
        page=(1000, 2000), base_size=1024, image_size=side, crop_mode=False, max_new_tokens=1
    )
    work = pixel_work(architecture.closed_forms.crop_grids, workload)
    assert (work.resized, work.viewed) == (resized, side**2)


def test_samples():
    found = MeasuredSeconds.of([3.0, 1.0, 2.0], predicted=1.5)
    assert (found.fastest, found.median, found.spread, found.error) == (1.0, 2.0, 1.0, 0.5)
