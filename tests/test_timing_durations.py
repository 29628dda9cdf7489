"""Time on one stream, by hand and against a loop over its kernels: sums, bands, ends."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsocr_analyze.kernels import Elements, Gemm, Kernel, Work
from dsocr_analyze.timing import Interval
from dsocr_analyze.timing.eager import finish_times
from dsocr_analyze.timing.kernel_seconds import (
    HOST_ERROR,
    Duration,
    KernelSeconds,
    KindError,
    mean_step,
    total_duration,
)
from dsocr_analyze.timing.serving import stretch_times

GEMM = KindError("gemm.bfloat16", 0.1, False, False)
MOVE = KindError("movement.bfloat16", 0.4, True, False)
WHOLE = {"kinds": {GEMM: 6.0, MOVE: 2.0}, "memory": 3.0, "launches": 1.5, "host": 0.5,
         "least_compute": 4.0, "least_memory": 3.0}  # fmt: skip
TEN = Duration(**WHOLE)
SECONDS = st.floats(0, 10, allow_nan=False)
PAIRS = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("changes", "bound"),
    # The compute-bound part of kernels is 8 less 3.
    [({}, "compute"), ({"memory": 4.5}, "memory"), ({"launches": 6.0}, "launches"),
     ({"host": 5.5}, "host")],
)  # fmt: skip
def test_what_fills_most_of_it_bounds_it(changes, bound):
    assert Duration(**WHOLE | changes).bound == bound


def test_errors_of_one_kind_add_up_and_kinds_are_independent():
    """10 % of 6, 40 % of 2, and the host's 50 % of 2, of 10 s; more kernels are no better known."""
    error = math.sqrt(0.6**2 + 0.8**2 + 1.0**2) / 10
    assert [TEN.error, TEN.times(10).error] == pytest.approx([error, error])
    assert (TEN.band().low, TEN.band().high) == pytest.approx((10 / (1 + error), 10 * (1 + error)))


@pytest.mark.parametrize(
    ("band", "low", "high"),
    [
        (Duration({KindError("x", 3, False, True): 1.0}).band(), 0.25, 4),
        (Duration().band(), 0, 0),
        (Duration({GEMM: 2.0}).band(7.0), 2 / 1.1 + 5, 7.2),  # seconds known besides are exact
        (Interval.within(10.0, 0.25), 8, 12.5),
        # Measured errors: 10 % of 2 and 30 % of 6; a duration's own, whatever else is known.
        (Duration(host=1.0).corrected(2, 0.1).plus(Duration(host=3.0).corrected(2, 0.3)).band(),
         8 / 1.25, 10),
        (Duration(host=1.0).corrected(2, 0.1).times(3).band(20.0), 20 / 1.1, 22),
        (Duration().plus(Duration(host=1.0).corrected(2, 0.1)).band(), 2 / 1.1, 2.2),
    ],
)  # fmt: skip
def test_a_band_is_a_ratio_either_way(band, low, high):
    assert (band.low, band.high) == pytest.approx((low, high))


def test_every_part_is_multiplied_added_and_changed():
    other = Duration({MOVE: 1.0, HOST_ERROR: 3.0}, 1.0, 2.0, 4.0, 0.5, 0.25)
    both = Duration({GEMM: 6.0, MOVE: 3.0, HOST_ERROR: 3.0}, 4.0, 3.5, 4.5, 4.5, 3.25)
    assert TEN.times(2) == Duration({GEMM: 12.0, MOVE: 4.0}, 6.0, 3.0, 1.0, 8.0, 6.0)
    assert TEN.plus(other) == total_duration([TEN, other, Duration()]) == both
    assert (total_duration([]), Duration().seconds, TEN.seconds) == (Duration(), 0, 10)
    many = Duration({GEMM: np.array([1.0, 2.0]), MOVE: 5.0}, np.array([0.5, 1.5]), 1.0)
    assert many.mapped(np.max) == Duration({GEMM: 2.0, MOVE: 5.0}, 1.5, 1.0)


def test_a_duration_of_kernels_counts_their_calls():
    kernels = [
        Kernel("gemm", "linear", Gemm(1, 1, 8, 8), "bfloat16", "bfloat16",
               Work(macs=64, bytes_read=144, bytes_written=16), calls=3),
        Kernel("elementwise", "add", Elements(8), "bfloat16", "bfloat16",
               Work(vector_flops=8, bytes_read=32, bytes_written=16)),
    ]  # fmt: skip
    priced = KernelSeconds(
        kernels, np.array([2.0, 1.0]), np.array([True, False]), [GEMM, MOVE],
        np.array([0.75, 0.0]), np.array([1.5, 0.5]),
    )  # fmt: skip
    found = priced.duration(launches=0.5, host=0.25)
    assert found == Duration({GEMM: 6.0, MOVE: 1.0}, 6.0, 0.5, 0.25, 2.25, 5.0)


@pytest.mark.parametrize(
    ("first", "last", "seconds", "mean"),
    [
        (100, 900, lambda cached: 2.0 + 0.25 * cached, 2 + 0.25 * 500),
        (10, 20, {10: 1.0, 15: 2.0, 20: 9.0}.get, (1 + 4 * 2 + 9) / 6),
        (7, 7, float, 7),
    ],
    ids=["steps that grow with the cache", "the middle counts four times", "a single step"],
)
def test_the_mean_of_steps(first, last, seconds, mean):
    found = mean_step(lambda cached: Duration(host=seconds(cached), launches=1.0), first, last)
    assert (found.host, found.launches) == pytest.approx((mean, 1.0))


# --- kernels that are issued one by one, or in stretches ----------------------------------------


@pytest.mark.parametrize(
    ("issued", "device", "ends"),
    [
        # The second waits for the first, the third for the host, the fourth for the third.
        ([1, 2, 10, 11], [4, 3, 2, 5], [5, 8, 12, 17]),
        ([1, 2, 3], [5, 5, 5], [6, 11, 16]),
        ([10, 20, 30], [1, 2, 3], [11, 22, 33]),
    ],
)
def test_a_kernel_starts_when_it_is_issued_and_the_one_before_has_ended(issued, device, ends):
    assert finish_times(np.array(issued, float), np.array(device, float)).tolist() == ends


@pytest.mark.exhaustive
@given(PAIRS, SECONDS)
def test_ends_are_those_of_a_loop_over_the_kernels(kernels, busy_until):
    """A GPU that is busy at first delays only the first kernel."""
    gaps, device = map(np.array, zip(*kernels, strict=True))
    issued = np.cumsum(gaps)
    issued[0] = max(issued[0], busy_until)
    end, expected = 0.0, []
    for at, seconds in zip(issued, device, strict=True):
        end = max(end, at) + seconds
        expected.append(end)
    assert finish_times(issued, device) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("stretches", "seconds"),
    [
        # Issued at 1 and 1 + 9; the first ends at 5, the second would at 5 + 3 but for the host.
        ([(5, 1), (3, 9)], [5, 5]),
        # The other way round: the first ends when it is issued, the second computes after that.
        ([(3, 9), (5, 1)], [9, 5]),
    ],
)
def test_the_host_runs_ahead_while_the_gpu_computes(stretches, seconds):
    assert list(stretch_times(stretches)) == seconds
    (first, host), second = stretches
    both = stretch_times([(np.array([first, first + 1]), np.array([host, host])), second])
    assert [float(each[0]) for each in both] == seconds


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8))
def test_a_stretch_is_the_limit_of_ever_more_kernels_that_are_issued_evenly(parts):
    count, longest = 2000, max(map(max, parts))
    device, host = (np.repeat(np.array(each) / count, count) for each in zip(*parts, strict=True))
    found = finish_times(np.cumsum(host), device)[count - 1 :: count]
    taken = list(stretch_times(parts))
    assert found == pytest.approx(np.cumsum(taken), abs=2 * longest / count + 1e-9)
    assert all(each >= part[0] - 1e-9 for part, each in zip(parts, taken, strict=True))
