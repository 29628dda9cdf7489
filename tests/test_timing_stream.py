"""One stream: when kernels end, one by one and in stretches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsocr_analyze.timing.duration import finish_times, stretch_times

seconds = st.floats(0, 10, allow_nan=False)
stretches = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=8)


def ends(issued, device):
    return finish_times(np.array(issued, dtype=float), np.array(device, dtype=float)).tolist()


def one_by_one(issued, device):
    end, found = 0.0, []
    for at, duration in zip(issued, device, strict=True):
        end = max(end, at) + duration
        found.append(end)
    return found


class TestFinishTimes:
    def test_a_kernel_starts_when_it_is_issued_and_the_one_before_has_ended(self):
        # The second waits for the first, the third for the host, the fourth for the third.
        assert ends([1, 2, 10, 11], [4, 3, 2, 5]) == [5, 8, 12, 17]

    def test_where_the_gpu_is_slower_kernels_follow_without_a_gap(self):
        assert ends([1, 2, 3], [5, 5, 5]) == [6, 11, 16]

    def test_where_the_host_is_slower_every_kernel_ends_right_after_it_is_issued(self):
        assert ends([10, 20, 30], [1, 2, 3]) == [11, 22, 33]

    @pytest.mark.exhaustive
    @given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=60))
    def test_it_is_a_loop_over_the_kernels(self, kernels):
        gaps, device = zip(*kernels, strict=True)
        issued = np.cumsum(gaps).tolist()
        assert ends(issued, device) == pytest.approx(one_by_one(issued, device), abs=1e-9)

    @pytest.mark.exhaustive
    @given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=60), seconds)
    def test_a_gpu_that_is_busy_at_first_delays_only_the_first_kernel(self, kernels, busy_until):
        """As one pass follows another: only the first kernel's time of issue is moved."""
        gaps, device = zip(*kernels, strict=True)
        issued = np.cumsum(gaps)
        moved = issued.copy()
        moved[0] = max(moved[0], busy_until)
        end, found = busy_until, []
        for at, duration in zip(issued, device, strict=True):
            end = max(end, at) + duration
            found.append(end)
        assert ends(moved, device) == pytest.approx(found, abs=1e-9)


class TestStretchTimes:
    def test_the_host_runs_ahead_while_the_gpu_computes(self):
        # Issued at 1 and 1 + 9; the first ends at 5, the second would at 5 + 3 but for the host.
        assert list(stretch_times([(5, 1), (3, 9)])) == [5, 5]
        # The other way round: the first ends when it is issued, the second computes after that.
        assert list(stretch_times([(3, 9), (5, 1)])) == [9, 5]

    @given(stretches)
    def test_all_take_no_less_than_gpu_or_host_alone(self, parts):
        every = sum(stretch_times(parts))
        assert every >= sum(part[0] for part in parts) - 1e-9
        assert every >= sum(part[1] for part in parts) - 1e-9
        assert every <= sum(part[0] + part[1] for part in parts) + 1e-9

    @given(stretches)
    def test_no_stretch_takes_less_than_its_kernels(self, parts):
        for part, taken in zip(parts, stretch_times(parts), strict=True):
            assert taken >= part[0] - 1e-9

    @given(stretches)
    def test_many_small_kernels_take_as_long(self, parts):
        """A stretch is the limit of ever more kernels that are issued evenly."""
        count = 2000
        device = np.repeat([part[0] / count for part in parts], count)
        issued = np.cumsum(np.repeat([part[1] / count for part in parts], count))
        found = finish_times(issued, device)[count - 1 :: count]
        longest = max(max(part[0], part[1]) for part in parts)
        limit = np.cumsum(list(stretch_times(parts)))
        assert found == pytest.approx(limit, abs=2 * longest / count + 1e-9)

    def test_arrays_give_what_numbers_give(self):
        device, host = np.array([5.0, 3.0, 1.0]), np.array([1.0, 9.0, 1.0])
        second = (2.0, 4.0)
        together = np.array(list(stretch_times([(device, host), second])))
        for at in range(3):
            alone = list(stretch_times([(float(device[at]), float(host[at])), second]))
            assert together[:, at].tolist() == alone
