"""Real passes are timed stage by stage, their memory is the allocator's, kernels are fitted."""

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
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jsonschema
import pytest
import torch
from both_engines import small_directory
from command_line import run
from process_state import process_settings
from sampling import first, sampled
from write_schema import schemas

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.errors import DeviceError
from dsocr_analyze.hardware.profile import cpu_profile_text, profile_from_file
from dsocr_analyze.hardware.timed_device import (
    CpuKernels,
    contributions,
    family_of,
    measured_family,
    names_of,
)
from dsocr_analyze.kernels import Attention, Convolution, Elements, Gemm, Kernel, Work
from dsocr_analyze.measuring import cpu_calibration, machine, passes, samples
from dsocr_analyze.measuring.cpu_calibration import PageOfPass, fitted_families
from dsocr_analyze.measuring.passes import Protocol, measure_page, predicted_page
from dsocr_analyze.measuring.samples import MeasuredKernel
from dsocr_analyze.model.forward import running_unwatched
from dsocr_analyze.model.process_settings import DispatchMode
from dsocr_analyze.report.table import seconds_text
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.timing.kernel_seconds import kernel_seconds
from dsocr_analyze.timing.runtimes import EAGER
from dsocr_analyze.trace.passes import trace_passes

PAGE = {"page": (600, 500), "base_size": 128, "image_size": 64}
CPU = torch.device("cpu")
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


class Worker(torch.nn.Module):
    """Takes some seconds before its children and after them."""

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


@pytest.mark.parametrize("direct", [False, True])
def test_a_pass_is_cut_where_a_stages_own_modules_start_and_end(direct):
    timer, found = machine.Timer(), []
    timer.now, timer.mark = 0.0, lambda: timer.now
    inner = Worker(timer, 8.0)
    model = Worker(timer, 1.0, sam=Worker(timer, 2.0), clip=Worker(timer, 4.0, own=inner))
    clock = passes.StageClock(model, STAGES, timer)
    for clock.is_decoding in (False, True):
        with clock.attached():
            clock.begin()
            model(direct)
            found.append(clock.seconds(clock.finish()))
    assert found == [{"prefill": 2.0, "sam": 4.0, "clip": 24.0}, {"decode": 30.0}]


def test_a_step_is_the_mean_of_several(session, monkeypatch):
    """By a clock that ticks whenever somebody looks: once in a step."""
    ticking = machine.Timer()
    ticking.mark = itertools.count().__next__
    monkeypatch.setattr(passes, "timer_of", lambda _: ticking)
    workload = session.plan(**PAGE, max_new_tokens=9)
    page = measure_page(session.loaded, workload, DEFAULT, Protocol(2, 0, 2))
    assert page.stages["decode"] == page.reference == [1, 1]


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
    assert seen == [torch.float32] * 10
    predicted = predicted_page(model.loaded, workload, DEFAULT, protocol, None)
    assert predicted.stages == {}
    assert predicted.peak_bytes == pytest.approx(found.peak_bytes, rel=within)


def test_the_same_experts_are_chosen_as_in_a_trace():
    """Drawn weights route by chance; what is measured is what was counted."""
    scores = torch.rand(12, 8)
    with running_unwatched(CPU):
        for top_k in (torch.topk, torch.Tensor.topk):
            assert top_k(scores, 2)[1].flatten().bincount().tolist() == [3] * 8
        assert scores.cuda() is scores
    with running_unwatched(CPU, has_weights=True):
        assert torch.topk(scores, 1)[1].flatten().tolist() == scores.argmax(-1).tolist()


# Kernels within passes -----------------------------------------------------------------------


def product(m, n=1280, k=1280, dtype="float32"):
    work = Work(m * n * k, 0, m * n, 4 * (m * k + n * k), 4 * m * n)
    return Kernel("gemm", "linear", Gemm(1, m, n, k), dtype, dtype, work)


@pytest.mark.exhaustive
def test_what_a_pass_runs_is_what_a_trace_of_it_has(session):
    """Every record once, however often the pass calls it, and none besides."""
    pages = [PageOfPass(128), PageOfPass(256, 128, (600, 300), True)]
    timed = cpu_calibration.TimedPasses(session.loaded)
    assert all(timed._run(page, math.inf, str) for page in pages * 2)
    kernels = timed.kernels()
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


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock of calibrations, which a test moves."""
    found = SimpleNamespace(now=0.0, monotonic=lambda: found.now, perf_counter=lambda: found.now)
    monkeypatch.setattr(samples, "time", found)
    monkeypatch.setattr(cpu_calibration, "time", found)
    return found


@pytest.mark.parametrize(
    ("seconds", "pages", "last", "fastest"),
    [
        (10.0, [448, 704, 832, 704, 576, 448, 704, 832, 704, 576], 1, [2.0, 9.0, 94.0]),
        (1.5, [448, 448], 0.5, [2.0, 9.0, 99.0]),
        (0.5, [448], 0.5, []),
    ],
)
def test_passes_use_up_the_time_and_keep_it(monkeypatch, clock, seconds, pages, last, fastest):
    """Each pass takes a second here: five pages in half of ten, and then the same ones again.

    SAM gets slower every time and a step faster, so they are taken from different runs: equal
    kernels by their mean, and none that was called together with a copy.
    """
    one, two, three = (product(m) for m in (1, 2, 3))
    ran = []

    def timed(_, page, deadline):
        took = max(0, min(1, deadline - clock.now))
        clock.now += took
        ran.append((page.base_size, took))
        sam = [((one,), clock.now), ((two,), 9.0), ((one,), 3 * clock.now), ((one, three), 0.5)]
        return {"sam": sam, "decode": [((three,), 100 - clock.now)]} if took == 1 else None

    monkeypatch.setattr(cpu_calibration, "_timed", timed)
    found = cpu_calibration.TimedPasses(None)
    found.run(seconds)
    assert clock.now == seconds
    assert [each for each in ran if each[1]] == [*((page, 1) for page in pages[:-1]),
                                                 (pages[-1], last)]  # fmt: skip
    assert [each.seconds for each in found.kernels()[:3]] == fastest
    assert all(each.calls_in_pass == 1 + (each.kernel == one) for each in found.kernels())
    # Every page is of another size than those of the modes, and some are held out.
    sides = {side for mode in DEFAULT.modes.values() for side in (mode.base_size, mode.image_size)}
    assert not sides & {page.base_size for page in cpu_calibration._PAGES}
    assert {page.is_held_out for page in cpu_calibration._PAGES[:4]} == {True, False}


def test_operators_are_timed_until_the_deadline_which_leaves_nothing_behind(session):
    before, began = process_settings(), time.perf_counter()
    run = cpu_calibration._timed(session.loaded, PageOfPass(64), math.inf)
    whole = time.perf_counter() - began
    assert 0.02 * whole < sum(seconds for _, seconds in itertools.chain(*run.values())) < whole
    assert {name for name, timed in run.items() if timed} == set(DEFAULT.stage_names)
    deadline = time.monotonic() + 0.02
    assert cpu_calibration._timed(session.loaded, PageOfPass(512), deadline) is None
    assert time.monotonic() < deadline + 1
    assert process_settings() == before
    assert "forward" not in vars(session.loaded.module)


# Memory --------------------------------------------------------------------------------------


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_the_peak_of_a_call_is_its_own(uncollected):
    """With what it gives back, without garbage of an earlier call that is freed during it."""
    tensor = functools.partial(torch.zeros, dtype=torch.uint8)

    def leave():
        cycle = [tensor(2000)]
        cycle.append(cycle)

    calls = lambda: tensor(5000)[:10].clone(), leave, lambda: gc.collect() < 0 or tensor(1000)
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
    made = [MeasuredKernel(kernel, 1e-6 * us, *others) for us, *others in measured]
    [found] = fitted_families(made).values()
    assert found.coefficients == {"call": pytest.approx(call, abs=0.02)}
    assert found.median == pytest.approx(error, abs=0.02)
    assert (found.held_out_rows, found.training_rows) == rows


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(64, {"macs@64": 104.8576, "inputs": 0.08192, "outputs": 0.08192, "weights": 1.6384}),
     # By its logarithm, half of a size between two nodes; beyond the last one, all.
     (128, {"macs@64": 104.8576, "macs@256": 104.8576, "inputs": 0.16384, "outputs": 0.16384,
            "weights": 1.6384}),
     (8192, {"macs@1024": 0, "macs@4096": 13421.7728, "inputs": 10.48576, "outputs": 10.48576,
             "weights": 1.6384}),
     (1, {"macs@1": 1.6384, "macs@2": 0, "inputs": 0.00128, "outputs": 0.00128})],
)  # fmt: skip
def test_contributions_by_hand(rows, expected):
    found = contributions(product(rows))
    assert found == pytest.approx({"call": 1} | {name: x for name, x in expected.items() if x})


def drawn_kernels(chance, count):
    """So many kernels of every family that has sizes of its own, and of one that moves bytes."""

    def drawn(low, high):
        return round(math.exp(chance.uniform(math.log(low), math.log(high))))

    for _ in range(count):
        B, T, n, k = drawn(1, 12), drawn(1, 4096), drawn(64, 4096), drawn(64, 4096)
        read, written, taps = drawn(10**4, 10**8), drawn(10**4, 10**8), chance.choice((1, 9, 256))
        attention = Attention(B, 12, 12, T, T, 64, 64)
        for operator, sizes, work in (
            ("linear", Gemm(1, T, n, k), Work(T * n * k)),
            ("bmm", Gemm(B, T, n, k), Work(B * T * n * k)),
            ("attention", attention, Work(2 * B * 12 * T * T * 64)),
            ("attention", attention._replace(masked=True), Work(2 * B * 12 * T * T * 64)),
            ("conv2d", Convolution(B, T, n, k, taps), Work(B * T * n * k * taps)),
            ("add", Elements(1), Work(0, 0, 0, read, written)),
        ):
            yield Kernel("elementwise", operator, sizes, "float32", "float32", work)


def known_seconds(kernel):
    """By coefficients of 1 to 9 us, drawn for each of its family's names."""
    family = family_of(kernel)
    known = {name: random.Random(f"{family} {name}").uniform(1, 9) for name in names_of(family)}
    return 1e-6 * sum(known[name] * size for name, size in contributions(kernel).items())


@sampled(("noise", "within"), [(0.03, 0.1), (0.0, 0.001)], first(1))
def test_what_takes_known_times_is_predicted_where_it_was_not_measured(noise, within):
    chance = random.Random(0)
    families = fitted_families(
        MeasuredKernel(each, known_seconds(each) * chance.gauss(1, noise), chance.random() < 0.25)
        for each in drawn_kernels(chance, 60)
    )
    for each in families.values():
        assert each.median < 1.5 * noise + 1e-3
        assert each.held_out_rows > 5
    cpu = CpuKernels(2, 1.0, families)
    for kernel in drawn_kernels(chance, 10):
        assert cpu.seconds(kernel) == pytest.approx(known_seconds(kernel), rel=within)


@pytest.mark.parametrize(
    ("kind", "operator", "dtype", "family"),
    [("movement", "roll", "int64", ("clone", "float32")),
     ("elementwise", "add", "float16", ("add", "float32")),
     ("movement", "clone", "float32", ("clone", "float32")),
     ("elementwise", "sub", "float16", ("mul", "float16")),
     ("elementwise", "mul", "float32", ("mul", "bfloat16")),
     ("gemm", "linear", "float16", None)],
)  # fmt: skip
def test_what_was_not_measured_takes_the_coefficients_of_its_kind(kind, operator, dtype, family):
    known = [("mul", "bfloat16"), ("mul", "float16"), ("add", "float32"), ("clone", "float32"),
             ("product", "float32")]  # fmt: skip
    sizes = Gemm(1, 1, 1, 1) if kind == "gemm" else Elements(5)
    assert measured_family(Kernel(kind, operator, sizes, dtype, dtype, Work()), known) == family


# Kernels alone -------------------------------------------------------------------------------


def tensors_alive():
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def test_a_call_takes_the_lower_quartile_of_several(clock):
    seconds = iter([100, 8, 1, 7, 2, 6, 3, 5, 4])  # the first one warms up

    def run():
        clock.now += next(seconds)

    assert samples.call_seconds(run, 36.0, math.inf) == 3


@sampled("step", [12, 1], first(1))
def test_no_tensor_outlives_its_sample(monkeypatch, uncollected, step):
    operators, alive = samples._operators(torch.float32), []
    made = [
        functools.partial(samples._products_of, [1, 2], 256, 512, torch.float32),
        samples._attended(1, 2, 9, torch.float32, is_masked=True),
        samples._convolved(1, 3, 32, 8, 16, 16, torch.float32),
        *(samples._operated(name, *each, 4) for name, each in operators.items()),
    ]
    monkeypatch.setattr(samples, "_macs_per_second", lambda _: math.inf)
    monkeypatch.setattr(samples, "call_seconds", lambda *_: alive.append(tensors_alive()) or 1.0)
    alone, before = samples.KernelsAlone(torch.float32, made[::step]), tensors_alive()
    for _ in range(2):
        alone.run(math.inf, str)
    assert tensors_alive() == before < min(alive)
    half = len(alive) // 2
    assert alive[:half] == alive[half:]


@pytest.mark.exhaustive
def test_no_tensor_outlives_its_pass(session, uncollected):
    workload, alive = session.plan(**PAGE, max_new_tokens=3), []
    for _ in range(2):  # the first makes what is kept, such as rotary angles
        cpu_calibration._timed(session.loaded, PageOfPass(64), math.inf)
        measure_page(session.loaded, workload, DEFAULT, Protocol(1, 0, 2))
        alive.append(tensors_alive())
    assert alive[0] == alive[1]


def test_weights_are_other_ones_in_every_call(monkeypatch):
    """A megabyte of copies: a matrix of 256 KiB has 4 of them."""
    monkeypatch.setattr(samples, "_COLD_BYTES", 1e6)
    for columns, copies in ((256, 4), (32, 31)):
        [sample] = samples._products_of([1], columns, 256, torch.float32)
        call = sample.call()
        assert len({tuple(call().flatten().tolist()) for _ in range(64)}) == copies


def test_samples_end_with_their_time_and_large_ones_are_left_out(monkeypatch, clock):
    """A billion per second, and 100 s: calls of five seconds and less. Each takes ten here."""

    def call_seconds(*_):
        clock.now += 10
        return clock.now

    def sample(rows, macs=0):
        return samples.Sample("", lambda: functools.partial(torch.neg, torch.ones(rows)), macs)

    def slowly_made():
        clock.now += 6
        return [sample(2), sample(3)]

    made = [slowly_made, sample(1, 6 * 10**9), *(sample(rows, 4 * 10**9) for rows in range(4, 50))]
    monkeypatch.setattr(samples, "_macs_per_second", lambda _: 1e9)
    monkeypatch.setattr(samples, "call_seconds", call_seconds)
    found = samples.KernelsAlone(torch.float32, made)
    for _ in range(2):  # the second time, all are slower
        found.run(clock.now + 100.0, str)
        _, *kernels = [(each.kernel.dimensions.elements, each.seconds) for each in found.kernels()]
        assert kernels == [(rows, 10.0 * rows - 14) for rows in range(4, 13)]
    assert clock.now == 212


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_first_part_of_the_samples_has_every_kind(dtype):
    made = samples.all_samples(dtype)
    kinds = [re.match("[a-z_]+", getattr(each, "group", "product"))[0] for each in made]
    assert len(kinds) > 400
    assert set(kinds[:40]) == set(kinds)


@pytest.mark.parametrize(
    ("seconds", "networks", "said"),
    [(300.0, 2, ""), (54.0, 2, ""), (50.0, 0, ", too little time for passes")],
)
def test_a_cpu_is_calibrated_in_the_time_that_it_has(
    monkeypatch, clock, profile, seconds, networks, said
):
    """With too little of it, only kernels alone; each turn of them takes 3 s here.

    Otherwise, each type takes half of what fits leave, in two rounds.
    """
    network, turns = mock.Mock(), []

    def alone(deadline, _):
        turns.append(clock.now)
        clock.now = min(deadline, clock.now + 3)

    def in_passes(deadline, _):
        clock.now = deadline

    for name, value in {
        "KernelsAlone": lambda *_: SimpleNamespace(run=alone, kernels=list),
        "TimedPasses": lambda _: SimpleNamespace(run=in_passes, kernels=list),
        "reduced_network": network,
        "_tiny_step": lambda _: ([product(9)._replace(calls=4)], 1.0),
        "fitted_families": lambda _: profile.cpu.families,
    }.items():
        monkeypatch.setattr(cpu_calibration, name, value)
    calibrated = functools.partial(
        cpu_calibration.calibrated_cpu, budget_seconds=seconds, has_passes=networks > 0
    )
    found = calibrated()
    assert 0.9 * seconds < clock.now < seconds
    assert network.call_count == networks
    rounds = [0.24 * seconds * number for number in range(4)]
    assert turns == pytest.approx(rounds if networks else range(0, 48, 3))
    assert found.source.endswith(f" threads{said}")
    # What a step takes besides its kernels, of which there are four.
    own = 1 / 4 - profile.cpu.seconds(product(9))
    assert found.cpu.operator_us == pytest.approx(1e6 * own, rel=1e-3)
    monkeypatch.setattr(cpu_calibration, "fitted_families", lambda _: {})
    with pytest.raises(DeviceError, match=f"too few kernels could be measured in {seconds:.0f} s"):
        calibrated()


def test_peaks_are_the_highest_rates_of_products_and_of_what_no_cache_serves():
    """16-bit products lack, so those of float32 stand in; one row is read from memory."""
    stream = Kernel("movement", "clone", Elements(1), "float32", "float32", Work(0, 0, 0, 10**9))
    small = stream._replace(work=Work(0, 0, 0, 10**8))
    rates = [(product(9), 1e-3), (product(9), 2e-3), (product(1), 5e-3), (small, 1e-6)]
    for more, bandwidth in ([], 4 * (1280 + 1280**2 + 1280) / 5e-3), ([(stream, 0.1)], 1e10):
        found = cpu_calibration._peaks(
            [MeasuredKernel(*each, False) for each in rates + more], 3, "a source"
        )
        flops = 2 * 9 * 1280**2 / 1e-3
        assert found.float32_tflops == found.tensor_tflops == pytest.approx(flops / 1e12, rel=1e-3)
        assert found.bandwidth_gb_s == pytest.approx(bandwidth / 1e9, rel=1e-3)
        assert (found.sms, found.source) == (3, "a source")


# The profile ---------------------------------------------------------------------------------


MEASURED = Path(__file__).parent.parent / "benchmarks/measured/cpu-amd-epyc-2-threads.toml"


@pytest.fixture
def profile_file(tmp_path):
    """A profile that was measured elsewhere, as if it had been here."""
    file, text = tmp_path / "cpu.toml", MEASURED.read_text()
    file.write_text(text.replace("AMD EPYC, 2 threads", machine.device_title(CPU)))
    return file


@pytest.fixture
def profile(profile_file):
    return profile_from_file(profile_file)


def test_a_kernel_is_at_most_at_the_highest_rates_measured(profile):
    """0.1958 TFLOP/s in float32, and 150.3 GB/s of streams too long for caches."""
    long, short = (Kernel("softmax", "softmax", Elements(5), "float32", "float32",
                          Work(bytes_read=size, bytes_written=size))
                   for size in (10**8, 10**4))  # fmt: skip
    some = product(2500, 2048, 1024)
    priced = kernel_seconds([some, long, short], profile)
    seconds = [profile.cpu.seconds(each) for each in (some, long, short)]
    assert priced.seconds.tolist() == seconds
    least = [min(2 * some.work.macs / 0.1958e12, seconds[0]), 0, 0]
    assert priced.least_compute.tolist() == pytest.approx(least)
    least = [0, min(2e8 / 150.3e9, seconds[1]), 0]
    assert priced.least_memory.tolist() == pytest.approx(least)


def test_a_profile_is_written_as_it_was_read_and_serves_the_very_device_only(profile, profile_file):
    assert cpu_profile_text(profile) == profile_file.read_text()
    another = dataclasses.replace(profile.gpu, title="Another CPU, 2 threads")
    other = dataclasses.replace(profile, gpu=another)
    found = [machine.matching_device(device, known) for device, known in (
        (CPU, {"cpu": profile}), (CPU, {"cpu": other}), (CPU, {}),
    )]  # fmt: skip
    assert found == [profile, None, None]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\nthreads = ", "\nthreads = -", "cpu.threads must be a whole number from 1"),
        ("\nthreads = ", "\nthreads = 0.", "cpu.threads must be a whole number from 1"),
        ("operator_us = 0.01", 'operator_us = "fast"', "cpu.operator_us must be a number"),
        ("[kernels.product.", "[kernels.products.", "unknown macs@1"),
        ('"call" = 8', '"call" = -8', "call must be 0 or above"),
        ('"call" = 8', '"colour" = 8', "unknown colour"),
        ("held_out_p90 = 0.806", "", "held_out_p90 must be a number"),
        ("held_out_p90 = 0.806", "held_out_p90 = 0.2\nheld_out_p99 = 0.3", "unknown held_out_p99"),
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
    given = dataclasses.replace(EAGER, launch_us=4.0)  # somebody's own figure stays
    assert (given.on(profile), EAGER.on(profile).launch_us) == (given, 0.01)
    seconds = {name: float(span.seconds) for name, span in predicted.stages.items()}
    assert list(seconds) == list(composed.stages)
    assert seconds == pytest.approx({
        name: sum(each.calls * (profile.cpu.seconds(each) + 1e-8) for each in stage.kernels)
        for name, stage in composed.stages.items()
    })  # fmt: skip


# Commands ------------------------------------------------------------------------------------


RUN = {"--page": "600x500", "--base-size": "128", "--image-size": "64", "--dtype": "float32",
       "--repeats": "2", "--warmups": "1", "--steps": "2"}  # fmt: skip


ALONE = {"max-new-tokens": "1"}


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
    parts = "weights: drawn at random", "autocast: none", "taken by the process"
    assert (code, [each for each in parts if each not in text]) == (0, [])
    document = json.loads(out.read_text())
    assert list(document["stages"]) == ["sam", "clip", "projector", "prefill", "decode"]
    assert (document["weights"], document["profile"]) == ("random", None)
    assert document["unpredicted"] == (
        "there is no profile of this device; measure one with dsocr-analyze calibrate --device cpu"
    )
    found = [*document["stages"].values(), document["prefill"], document["reference"]]
    for each in found:
        one, two = each["samples"]  # without the warm-up's
        assert each["fastest"] == min(one, two) > 0
        assert each["median"] == (one + two) / 2
        assert each["spread"] == pytest.approx(abs(one - two) / each["median"])
    *parts, step, whole, _ = (each["samples"] for each in found)
    assert whole == pytest.approx([*map(sum, zip(*parts, strict=True))])
    # The page is the prefill pass and a step for each further token; nothing predicts it here.
    page, steps = document["page"], document["workload"]["max_new_tokens"] - 1
    assert page["samples"] == pytest.approx(
        [w + steps * s for w, s in zip(whole, step, strict=True)]
    )
    assert (page["predicted"], page["error"], steps > 0) == (None, None, True)
    assert " ".join(text.split()).startswith(
        f"A page: {seconds_text(page['fastest'])} measured: its prefill pass and {steps:,} decode"
        " steps, without preprocessing Ran: built-in"
    )
    peak = document["peak"]
    assert peak["besides"] == peak["measured"] - peak["predicted"]
    assert peak["measured"] == pytest.approx(peak["predicted"], rel=0.05)


@pytest.mark.exhaustive
def test_measure_takes_a_profile_of_this_device(measure, profile, profile_file):
    arguments = ("--profile", profile_file, "--format", "json")
    document, other = (
        json.loads(measure(*arguments, **options)[1])
        for options in ({"dtype": "float32", "autocast": 1}, {"dtype": "float16", **ALONE})
    )
    jsonschema.validate(document, schemas()["schema-measure.json"])
    assert (document["profile"], document["autocast"]) == (profile.source, True)
    for each in (*document["stages"].values(), document["page"]):
        assert each["error"] == pytest.approx(each["predicted"] / each["fastest"] - 1)
    steps = document["workload"]["max_new_tokens"] - 1
    *parts, step = (each["predicted"] for each in document["stages"].values())
    assert document["page"]["predicted"] == pytest.approx(sum(parts) + steps * step)
    # Without the type it predicts nothing, and measures; one token has no decode stage.
    assert other["page"]["samples"] == other["prefill"]["samples"]
    assert list(other["stages"]) == ["sam", "clip", "projector", "prefill"]
    assert "in float16; use --dtype bfloat16 or float32" in other["unpredicted"]
    predicted = {each["predicted"] for each in other["stages"].values()}
    assert (other["profile"], predicted) == (None, {None})


TOO_LARGE = "measure --page 1191x1684 --batch-size"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("measure --device meta", "--device 'meta' computes nothing; use cpu or cuda:N"),
        ("measure --device tpu", "'tpu' is unknown"),
        ("measure --repeats 0", "--repeats 0 is too small; give 1 to 100000"),
        ("measure --repeats 1000000000", "--repeats 1000000000 is too large; give 1 to 100000"),
        ("measure --warmups -1", "--warmups -1 is too small; give 0 to"),
        ("measure --steps 0", "--steps 0 is too small; give 1 to"),
        ("measure --autocast 2", "--autocast"),
        ("measure --device cpu --use-flash-attn 1", "flash"),
        ("calibrate --seconds 5", "--seconds 5 is out of range; give 20 to 3600"),
        ("calibrate --seconds 3601", "--seconds 3601 is out of range; give 20 to 3600"),
        ("calibrate --device meta", "--device 'meta' cannot be calibrated; use cpu"),
        ("calibrate --device cuda:0", "'cuda:0' .* GPUs are predicted .* devices .*--profile FILE"),
        # What does not fit into memory, before it is built.
        (f"{TOO_LARGE} 3 --dtype float32", "has 12.00 GB free, .*; --dtype bfloat16 would fit"),
        (f"{TOO_LARGE} 100000", r"; --batch-size ([2-9]|\d\d) would fit"),
    ],
)
def test_what_cannot_be_measured_is_refused(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(machine, "free_bytes", lambda _: 12 * 10**9)
    code, _, error = run(capsys, *arguments.split())
    assert code == 2
    assert re.search(message, error)


@pytest.mark.exhaustive
def test_predicted_seconds_of_a_cpu(capsys, profile, profile_file):
    def ran(command, *arguments):
        given = ("--profile", profile_file, *arguments, "--format", "json")
        code, out, error = run(capsys, command, "cpu", *given)
        return error if code else json.loads(out)[command]

    eager = ("--runtime", "eager", "--dtype", "float32")
    [entry], [short] = ran("time", *eager), ran("time", *eager, "--max-new-tokens", "2")
    # The step after a prompt is the stage's, by whichever records it is timed.
    assert short["tpot_seconds"] == pytest.approx(short["stages"]["decode"]["seconds"])
    sentences = " ".join(entry["assumptions"]["sentences"])
    parts = ("on the CPU that runs the model; each operator adds 0.01 us",
             "at a time, before each batch runs",
             "of the machine's memory is kept free", "GPU")  # fmt: skip
    assert [each for each in parts if each not in sentences] == ["GPU"]
    # The list of all GPUs has it, with the error of its kernels.
    [listed] = ran("devices")
    found = {(each["family"], each["dtype"]) for each in listed["families"]}
    assert found == set(profile.cpu.families)
    assert "serving engines are not predicted on a CPU" in ran("time")
    assert "FlashAttention-2" in ran("time", *eager[:2], "--use-flash-attn", "1")


# Preprocessing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "content", "sides"),
    [(PAGE | {"page": (1200, 600)}, (128, 64), (128, 64, 64)),
     ({"page": (90, 120), "crop_mode": False, "image_size": 64}, (64, 64), (64,))],
)  # fmt: skip
def test_preprocessing_is_measured_per_prompt_on_one_thread(monkeypatch, page, content, sides):
    prepare, seen, threads = passes._prepare, [], mock.Mock()

    def noted(*page):
        shapes = [tuple(each.shape) for each in prepare(*page)]
        seen.append((*threads.call_args.args, shapes))

    monkeypatch.setattr(passes, "_prepare", noted)
    monkeypatch.setattr(torch, "set_num_threads", threads)
    found = passes.measured_preprocessing(DEFAULT.plan(**page), content, 2)
    assert threads.call_args.args == (torch.get_num_threads(),)
    assert len(found) == 2
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
    work = architecture.page_rule.pixel_work(workload, *workload.page, *workload.grid)
    assert (work.resized, work.viewed) == (resized, side**2)
