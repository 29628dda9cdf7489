"""The fits of shipped profiles: known times are predicted, and groups are held out whole."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from kernel_fits import MeasuredRows, first_guess, fit_errors, fitted, held_out_groups, predicted

from dsocr_analyze.hardware import device

L40S = device("l40s").gpu


@pytest.mark.exhaustive
def test_a_kernel_of_known_coefficients_is_predicted_in_groups_that_were_held_out():
    pytest.importorskip("scipy")
    known = replace(first_guess("movement", "bfloat16"), memory_share=0.6, launch_us=3.5)
    moved = np.geomspace(1e4, 1e9, 200)
    groups = [(int(each),) for each in moved]
    rows = MeasuredRows(
        {"moved": moved}, np.ones(200), held_out_groups(groups), np.ones(200, bool),
        np.array(groups), "",
    )  # fmt: skip
    noise = np.random.default_rng(0).normal(1, 0.03, 200)
    rows = replace(rows, seconds=predicted("movement", rows, L40S, "bfloat16", known) * noise)
    start = first_guess("movement", "bfloat16")
    found, _ = fitted(
        "movement", rows.taken(~rows.held_out), L40S, "bfloat16", start, starts=1, evaluations=50
    )
    assert found.memory_share == pytest.approx(0.6, rel=0.03)
    assert found.launch_us == pytest.approx(3.5, rel=0.15)
    errors = fit_errors("movement", rows, L40S, "bfloat16", found)
    assert 0.01 < errors.held_out_median < 0.03
    assert errors.held_out_groups == errors.held_out_rows == rows.held_out.sum()


def test_three_groups_of_ten_are_held_out_whole():
    groups = [*itertools.product(range(100), range(30))]
    held = held_out_groups([*groups, *groups])
    assert (held[: len(groups)] == held[len(groups) :]).all()
    assert 0.27 < held.mean() < 0.33
