"""Arithmetic of time on a stream, by hand."""

import math

import numpy as np
import pytest

from dsocr_analyze.kernels import Elements, Gemm, Kernel, Work
from dsocr_analyze.timing import Interval
from dsocr_analyze.timing.duration import (
    HOST_ERROR,
    Duration,
    duration_of_kernels,
    mean_step,
    total_duration,
)
from dsocr_analyze.timing.kernel_seconds import KernelSeconds, KindError

GEMM = KindError("gemm.bfloat16", 0.05, 0.1, False, False)
MOVE = KindError("movement.bfloat16", 0.1, 0.4, True, False)


def duration(**changes):
    parts = {"kinds": {GEMM: 6.0, MOVE: 2.0}, "memory": 3.0, "launches": 1.5, "host": 0.5,
             "nbytes": 40.0, "least_compute": 4.0, "least_memory": 3.0}  # fmt: skip
    return Duration(**{**parts, **changes})


class TestSeconds:
    def test_kernels_launches_and_host_add_up(self):
        assert duration().seconds == 10
        assert Duration().seconds == 0

    @pytest.mark.parametrize(
        ("changes", "bound"),
        [
            ({}, "compute"),  # 8 of kernels less 3
            ({"memory": 4.5}, "memory"),
            ({"launches": 6.0}, "launches"),
            ({"host": 5.5}, "host"),
        ],
    )
    def test_what_fills_most_of_it_bounds_it(self, changes, bound):
        assert duration(**changes).bound == bound


class TestError:
    def test_errors_of_one_kind_add_up_and_kinds_are_independent(self):
        """10 % of 6, 40 % of 2, and the host's 50 % of 2, of 10 s."""
        assert HOST_ERROR.p90 == 0.5
        expected = math.sqrt(0.6**2 + 0.8**2 + 1.0**2) / 10
        assert duration().error == pytest.approx(expected)
        # Ten times as many kernels of the kinds are no better known.
        assert duration().times(10).error == pytest.approx(expected)

    def test_the_band_is_a_ratio_either_way(self):
        error = duration().error
        band = duration().band()
        assert (band.low, band.high) == pytest.approx((10 / (1 + error), 10 * (1 + error)))
        unknown = Duration({KindError("x", 1, 3, False, True): 1.0})
        assert unknown.band() == Interval(low=0.25, high=4)

    def test_no_time_has_no_error(self):
        assert (Duration().error, Duration().band()) == (0, Interval(low=0, high=0))

    def test_seconds_known_besides_are_exact(self):
        band = Duration({GEMM: 2.0}).band(7.0)
        assert (band.low, band.high) == pytest.approx((2 / 1.1 + 5, 7.2))

    def test_a_band_of_a_rate_is_a_ratio_either_way(self):
        assert Interval.within(10.0, 0.25) == Interval(low=8.0, high=12.5)


class TestArithmetic:
    def test_times_multiplies_every_part(self):
        assert duration().times(2) == Duration(
            {GEMM: 12.0, MOVE: 4.0}, 6.0, 3.0, 1.0, 80.0, 8.0, 6.0
        )

    def test_plus_adds_every_part_and_every_kind(self):
        other = Duration({MOVE: 1.0, HOST_ERROR: 3.0}, 1.0, 2.0, 4.0, 16.0, 0.5, 0.25)
        assert duration().plus(other) == Duration(
            {GEMM: 6.0, MOVE: 3.0, HOST_ERROR: 3.0}, 4.0, 3.5, 4.5, 56.0, 4.5, 3.25
        )
        assert total_duration([duration(), other, Duration()]) == duration().plus(other)
        assert total_duration([]) == Duration()

    def test_every_figure_can_be_changed(self):
        many = Duration({GEMM: np.array([1.0, 2.0]), MOVE: 5.0}, np.array([0.5, 1.5]), 1.0)
        assert many.mapped(np.max) == Duration({GEMM: 2.0, MOVE: 5.0}, 1.5, 1.0)
        assert many.mapped(np.min).seconds == 7


class TestKernels:
    def test_a_duration_of_kernels_counts_their_calls(self):
        kernels = [
            Kernel("gemm", "linear", Gemm(1, 1, 8, 8), "bfloat16", "bfloat16",
                   Work(macs=64, bytes_read=144, bytes_written=16), calls=3),
            Kernel("elementwise", "add", Elements(8), "bfloat16", "bfloat16",
                   Work(vector_flops=8, bytes_read=32, bytes_written=16)),
        ]  # fmt: skip
        priced = KernelSeconds(
            kernels, np.array([2.0, 1.0]), np.array([True, False]), [GEMM, MOVE],
            np.array([160.0, 48.0]), np.array([0.75, 0.0]), np.array([1.5, 0.5]),
        )  # fmt: skip
        found = duration_of_kernels(priced, launches=0.5, host=0.25)
        assert found == Duration({GEMM: 6.0, MOVE: 1.0}, 6.0, 0.5, 0.25, 160 * 3 + 48, 2.25, 5.0)


class TestMeanStep:
    def test_steps_that_grow_with_the_cache_are_averaged_exactly(self):
        def step(cached):
            return Duration({GEMM: 2.0 + 0.25 * cached}, launches=1.0)

        every = [step(cached) for cached in range(100, 901)]
        mean = mean_step(step, 100, 900)
        assert mean.seconds == pytest.approx(total_duration(every).seconds / 801)
        assert mean.launches == pytest.approx(1.0)

    def test_the_middle_counts_four_times(self):
        seconds = {10: 1.0, 15: 2.0, 20: 9.0}
        mean = mean_step(lambda cached: Duration(host=seconds[cached]), 10, 20)
        assert mean.host == pytest.approx((1 + 4 * 2 + 9) / 6)

    def test_a_single_step_is_itself(self):
        assert mean_step(lambda cached: Duration(host=cached), 7, 7).host == pytest.approx(7)
