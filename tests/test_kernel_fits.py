"""The fits of shipped profiles: known times are predicted, and groups are held out whole."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from kernel_fits import MeasuredRows, first_guess, fit_errors, fitted, held_out_groups, predicted
from kernel_tables import in_bfloat16, touched

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


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "in_float32", "in_16_bits"),
    # A token's choices are ceil(512 / 10) = 52 apart: 52 tokens touch all experts.
    [(1, 512, 10, 10, 10), (48, 512, 10, 473, 364), (52, 512, 10, 512, 512), (8, 128, 8, 64, 64)],
)
def test_tokens_of_the_collectors_step_through_the_experts(
    tokens, experts, top_k, in_float32, in_16_bits
):
    torch = pytest.importorskip("torch")
    names = {"tokens": tokens, "experts": experts, "top_k": top_k}
    sizes = {name: np.array([float(size)]) for name, size in names.items()}
    for dtype, as_type, expected in (
        (torch.float32, np.copy, in_float32), (torch.bfloat16, in_bfloat16, in_16_bits)
    ):  # fmt: skip
        assert touched(sizes, as_type) == expected
        stride = -(-experts // top_k)
        # As torch rounds; whole strides of tokens have whole numbers.
        steps = (torch.arange(tokens) * stride).to(dtype) / tokens
        chosen = (steps.unsqueeze(1) + (torch.arange(top_k) * stride).to(dtype)) % experts
        assert tokens >= stride or len(chosen.long().unique()) == expected
