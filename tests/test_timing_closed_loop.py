"""The closed loop against its limits, and against a simulator of clients, CPU and GPU."""

import heapq
import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsocr_analyze.timing.closed_loop import LoopPoint, LoopTimes, closed_loop


class Simulation:
    """Clients, CPU workers and a GPU, event by event.

    The GPU takes prefill passes first, one page at a time; a pass carries every running sequence
    `chunks` tokens further. Otherwise it takes a decode step of all running sequences.
    """

    def __init__(self, clients, times, seed, spread):
        self.times, self.spread = times, spread
        self.random = random.Random(seed)
        self.now = 0.0
        self.unprepared, self.on_cpu = deque(), []
        self.ready, self.running = deque(), []
        self.ended = []
        for _ in range(clients):
            self.send(0.0)

    def send(self, now):
        self.unprepared.append(now)
        self.fill_workers(now)

    def fill_workers(self, now):
        while self.unprepared and len(self.on_cpu) < self.times.workers:
            self.unprepared.popleft()
            heapq.heappush(self.on_cpu, now + self.times.prepare)

    def prepare_until(self, now):
        while self.on_cpu and self.on_cpu[0] <= now:
            done = heapq.heappop(self.on_cpu)
            self.ready.append(done)
            self.fill_workers(done)

    def pass_by(self, seconds, tokens):
        """The GPU works for some seconds, in which running sequences get some tokens."""
        self.now += seconds
        self.prepare_until(self.now)
        left = [sequence - tokens for sequence in self.running]
        self.running = [sequence for sequence in left if sequence > 0]
        for _ in range(len(left) - len(self.running)):
            self.end()

    def end(self):
        self.ended.append(self.now)
        self.send(self.now)
        self.prepare_until(self.now)

    def advance(self):
        times, running = self.times, len(self.running)
        if self.ready:
            self.ready.popleft()
            carried = times.chunks * float(times.carried[running - 1]) if running else 0.0
            self.pass_by(times.prefill + carried, times.chunks)
            drawn = 1 + self.spread * self.random.uniform(-1, 1)
            steps = round(times.steps * drawn)
            if steps:
                self.running.append(steps)
            else:
                self.end()
        elif running:
            self.pass_by(float(times.step[running - 1]), 1)
        else:
            self.now = self.on_cpu[0]
            self.prepare_until(self.now)

    def pages_per_second(self, pages):
        """Of the last three quarters of so many pages."""
        while len(self.ended) < pages:
            self.advance()
        first = len(self.ended) // 4
        return (len(self.ended) - 1 - first) / (self.ended[-1] - self.ended[first])


def simulated(clients, times, *, seed=0, spread=0.5):
    return Simulation(clients, times, seed, spread).pages_per_second(50 * clients)


def drawn_times(random, clients):
    """Times of a page, over orders of magnitude: which part decides differs from draw to draw."""

    def between(low, high):
        return 10 ** random.uniform(low, high)

    sequences = np.arange(1, clients + 1)
    one, growth = between(-3, -1.7), between(-3, -0.7)
    step = one * (1 + growth * (sequences - 1))
    carried = np.minimum(one * between(-2.5, -0.7) * sequences * min(1, 3 * growth), step)
    steps, chunks = round(between(1, 3.2)), random.choice([0, 1, 1, 2, 3])
    prefill = max(chunks * one, steps * one * between(-2.5, 0))
    prepare = random.choice([0, between(-2.5, 0.3) * (prefill + steps * one / 4)])
    workers = random.choice([1, 2, 4, 8])
    return LoopTimes(prepare, workers, prefill, chunks, float(steps), step, carried)


@st.composite
def any_times(draw, clients):
    return drawn_times(random.Random(draw(st.integers(0, 2**32))), clients)


def constant_times(clients, *, prepare=0.0, workers=1, prefill=0.1, chunks=1, steps=100.0,
                   step=0.01, carried=0.001):  # fmt: skip
    """Times that do not depend on how many sequences run."""
    every = np.ones(clients)
    return LoopTimes(prepare, workers, prefill, chunks, steps, step * every, carried * every)


def steady(clients, times):
    """One loop: an array of one."""
    found = closed_loop(np.array([clients]), times)
    return LoopPoint(*(float(part[0]) for part in found))


class TestSimulator:
    @pytest.mark.exhaustive
    def test_throughput_is_that_of_a_simulation(self):
        """Errors on these draws: median 1.3 %, 90th percentile 4.8 %, the worst 8.4 %."""
        draws = random.Random(2)
        errors = []
        for number in range(120):
            clients = draws.choice([2, 3, 4, 8, 16])
            times = drawn_times(draws, clients)
            found = steady(clients, times).pages_per_second
            errors.append(abs(found / simulated(clients, times, seed=number) - 1))
        assert np.median(errors) < 0.02
        assert np.percentile(errors, 90) < 0.06
        assert max(errors) < 0.12

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("spread", [0.0, 0.25, 1.0])
    def test_how_far_lengths_spread_matters_little(self, spread):
        """Worst: 16 % where all pages are alike, which keeps some draws in lockstep."""
        draws = random.Random(3)
        errors = []
        for number in range(40):
            clients = draws.choice([2, 4, 8])
            times = drawn_times(draws, clients)
            found = steady(clients, times).pages_per_second
            errors.append(abs(found / simulated(clients, times, seed=number, spread=spread) - 1))
        assert np.median(errors) < 0.03
        assert max(errors) < 0.2

    def test_the_simulator_alone_is_right_by_hand(self):
        """Two clients in step: passes 3 and 3 + 1, then 4 steps of 2, one sequence a token ahead.

        The first sequence has 5 tokens to go, of which the second page's pass gives one.
        """
        two = LoopTimes(0.0, 1, 3.0, 1, 5.0, np.array([1.0, 2.0]), np.array([1.0, 1.0]))
        simulation = Simulation(2, two, 0, 0.0)
        while not simulation.ended:
            simulation.advance()
        assert simulation.ended == [3 + (3 + 1) + 4 * 2]


class TestLimits:
    @pytest.mark.exhaustive
    @given(any_times(1))
    def test_one_client_takes_every_part_alone(self, times):
        point = steady(1, times)
        alone = times.prepare + times.prefill + times.steps * times.step[0]
        assert point.page == pytest.approx(alone, rel=1e-12)
        assert point.pages_per_second == pytest.approx(1 / alone, rel=1e-12)
        assert point.wait == pytest.approx(0, abs=1e-12 * alone)
        assert (point.prepare, point.running) == (pytest.approx(times.prepare), 1)

    @pytest.mark.parametrize("workers", [1, 2, 4])
    def test_a_slow_cpu_gives_a_page_per_worker_and_preparation(self, workers):
        times = constant_times(64, prepare=50.0, workers=workers)
        point = steady(64, times)
        assert point.pages_per_second == pytest.approx(workers / 50, rel=1e-3)
        assert point.prepare > 10 * times.prepare / workers

    @pytest.mark.parametrize("clients", [1, 2, 3, 4])
    def test_with_a_worker_for_every_client_no_page_waits_for_one(self, clients):
        times = constant_times(clients, prepare=50.0, workers=4, prefill=1e-6, steps=0.0)
        point = steady(clients, times)
        assert point.prepare == pytest.approx(50)
        assert point.pages_per_second == pytest.approx(clients / 50, rel=1e-6)

    @pytest.mark.parametrize("clients", [1, 2, 3, 4, 16])
    def test_pages_of_one_token_come_at_the_rate_of_prefill_passes(self, clients):
        times = constant_times(clients, prefill=0.5, steps=0.0)
        point = steady(clients, times)
        assert point.pages_per_second == pytest.approx(2.0)
        assert point.decode == 0

    def test_many_clients_fill_the_gpu(self):
        """A page: 0.1 s, 0.001 s to carry 15 others, 85 tokens that no pass gives, in steps of 16.

        (100 - 15) / 16 x 0.01 s = 0.053125 s.
        """
        point = steady(16, constant_times(16))
        assert point.pages_per_second == pytest.approx(1 / 0.154125, rel=0.02)

    @pytest.mark.exhaustive
    @given(any_times(16), st.integers(1, 16))
    def test_throughput_is_never_above_what_cpu_or_gpu_can_do(self, times, clients):
        found = steady(clients, times).pages_per_second
        assert found * times.prepare <= times.workers * (1 + 1e-9)
        # A pass carries at most the other clients' sequences, a step runs at most all of them.
        best_step = min(times.step[n] / (n + 1) for n in range(clients))
        least = min(
            (times.chunks * times.carried[n - 1] if n else 0.0)
            + max(0.0, times.steps - n * times.chunks) * best_step
            for n in range(clients)
        )
        assert found * (times.prefill + least) <= 1 + 1e-9


class TestLaws:
    @pytest.mark.exhaustive
    @given(any_times(16), st.integers(1, 16))
    def test_littles_law_holds_exactly(self, times, clients):
        point = steady(clients, times)
        assert point.pages_per_second * point.page == pytest.approx(clients, rel=1e-9)

    @pytest.mark.exhaustive
    @given(any_times(16), st.integers(1, 16))
    def test_a_page_is_its_first_token_and_its_decode(self, times, clients):
        point = steady(clients, times)
        assert point.first_token == pytest.approx(point.prepare + point.wait + point.prefill)
        assert point.page == pytest.approx(point.first_token + point.decode)
        assert point.prepare >= times.prepare * (1 - 1e-12)
        assert point.prefill >= times.prefill
        assert point.wait >= 0
        assert point.decode >= 0
        assert 1 <= point.running <= clients

    @pytest.mark.exhaustive
    @settings(deadline=None, max_examples=40)
    @given(any_times(17), st.integers(1, 16))
    def test_more_clients_never_get_fewer_pages(self, times, clients):
        fewer, more = (steady(n, times).pages_per_second for n in (clients, clients + 1))
        assert more >= fewer * (1 - 1e-3)

    @pytest.mark.exhaustive
    @settings(deadline=None, max_examples=40)
    @given(any_times(8), st.integers(1, 8), st.sampled_from(["prepare", "prefill", "step"]))
    def test_a_slower_part_never_gives_more_pages(self, times, clients, part):
        slower = LoopTimes(**{**times._asdict(), part: 1.5 * getattr(times, part)})
        found = steady(clients, slower).pages_per_second
        assert found <= steady(clients, times).pages_per_second * (1 + 1e-3)


class TestManyAtOnce:
    @pytest.mark.exhaustive
    @settings(deadline=None, max_examples=25)
    @given(st.lists(st.integers(1, 8), min_size=1, max_size=5), st.integers(0, 2**32))
    def test_many_loops_are_each_as_they_are_alone(self, clients, seed):
        draws = random.Random(seed)
        loops = [drawn_times(draws, 8) for _ in clients]
        workers = loops[0].workers
        columns = {
            name: np.array([getattr(loop, name) for loop in loops])
            for name in ("prepare", "prefill", "chunks", "steps", "step", "carried")
        }
        together = LoopTimes(**columns, workers=workers, table=np.arange(len(loops)))
        found = closed_loop(np.array(clients), together)
        for number, (count, loop) in enumerate(zip(clients, loops, strict=True)):
            alone = steady(count, LoopTimes(**{**loop._asdict(), "workers": workers}))
            one = [float(part[number]) for part in found]
            assert one == pytest.approx(list(alone), rel=1e-9, abs=1e-12)
